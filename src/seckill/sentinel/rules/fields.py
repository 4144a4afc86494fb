"""From one JSON value to one value of a rule.

Rule files are written by hand, by property files and by several programs: numbers come as text,
words for numbers, whole numbers with a point. Each reader takes what can mean one thing only and
says of the rest what is wrong.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from seckill.sentinel.rule_set import LIMIT_APP_LENGTH_MAX, NUMBER_MAX
from seckill.sentinel.words import (
    AuthorityStrategy,
    ControlBehavior,
    DegradeGrade,
    FlowGrade,
    FlowStrategy,
    ThresholdType,
)

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable

    Reader = Callable[[object], object]

TEXT_LENGTH_MAX: Final = LIMIT_APP_LENGTH_MAX
SHOWN_LENGTH_MAX: Final = 60

_TRUTH: Final = {"true": True, "false": False}

_OTHER_WORDS: Final[dict[type[enum.IntEnum], dict[str, int]]] = {
    FlowGrade: {"concurrency": 0},
    ControlBehavior: {
        "default": 0,
        "throttling": 2,
        "uniformratelimiter": 2,
        "warmuppacing": 3,
    },
    DegradeGrade: {
        "rt": 0,
        "slowratio": 0,
        "exceptionratio": 1,
        "errorratio": 1,
        "exceptioncount": 2,
        "errorcount": 2,
    },
    ThresholdType: {"local": 0, "avglocal": 0},
}

_PREFIXES: Final[dict[type[enum.IntEnum], str]] = {
    FlowGrade: "flowgrade",
    FlowStrategy: "strategy",
    ControlBehavior: "controlbehavior",
    DegradeGrade: "degradegrade",
    AuthorityStrategy: "authority",
    ThresholdType: "flowthreshold",
}


class FieldError(ValueError):
    """A value cannot mean what its field needs; the text says what would."""


def shown(value: object) -> str:
    """A value as it is shown in a reason: short, whatever came."""
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH_MAX else text[:SHOWN_LENGTH_MAX] + "…"


def number(value: object) -> float:
    """A finite number, or its text."""
    if isinstance(value, str):
        value = _number_in(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(f"must be a number, is {shown(value)}")
    # Compared as it is: a whole number may be too large to become a float at all.
    if not -NUMBER_MAX <= value <= NUMBER_MAX:
        raise FieldError(f"must be from -2^53 to 2^53, is {shown(value)}")
    return value


def integer(value: object) -> int:
    """A whole number, with or without a point, or its text."""
    found = number(value)
    if isinstance(found, float) and not found.is_integer():
        raise FieldError(f"must be a whole number, is {shown(value)}")
    return int(found)


def boolean(value: object) -> bool:
    """A truth value, or its word."""
    if isinstance(value, str):
        value = _TRUTH.get(value.strip().lower(), value)
    if not isinstance(value, bool):
        raise FieldError(f"must be true or false, is {shown(value)}")
    return value


def text(value: object) -> str:
    """A text that can be kept and shown anywhere: bounded, no control characters."""
    if not isinstance(value, str):
        raise FieldError(f"must be a text, is {shown(value)}")
    if len(value) > TEXT_LENGTH_MAX:
        raise FieldError(f"longer than {TEXT_LENGTH_MAX} characters")
    if any(character < " " or "\ud800" <= character <= "\udfff" for character in value):
        raise FieldError("has control characters or halves of characters in it")
    return value


def choice(words: type[enum.IntEnum]) -> Reader:
    """A reader for a number that stands for a word, or the word in any of its spellings.

    ``White``, ``white`` and ``AUTHORITY_WHITE`` are all the number 0. A number without a meaning is
    left to the rule itself to refuse.
    """
    meanings = {_plain(word.name): int(word) for word in words} | _OTHER_WORDS.get(words, {})
    prefix = _PREFIXES.get(words, "")

    def read(value: object) -> object:
        if isinstance(value, str) and not value.strip().lstrip("-").isdecimal():
            word = _plain(value)
            found = meanings.get(word, meanings.get(word.removeprefix(prefix)))
            if found is None:
                raise FieldError(f"must be one of {sorted(meanings)}, is {shown(value)}")
            return found
        return integer(value)

    return read


def _plain(word: str) -> str:
    return "".join(character for character in word.lower() if character.isalpha())


def _number_in(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            found = kind(word)
        except ValueError:
            continue
        if math.isfinite(found) and word.isascii() and "_" not in word:
            return found
    return word
