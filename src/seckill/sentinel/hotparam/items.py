"""Values with a threshold of their own, and the trap of their types.

In rule JSON such a value is a text with the name of a Java class beside it. In the original an item
of class ``int`` matches an ``Integer`` argument and nothing else: not a ``long`` of the same
number, not the text that came out of a URL. Nothing says so; the item just never applies. Here an
item applies to every value that can be written the same way, and an item that can mean no value at
all is named in the report.

Source: ParamFlowRuleUtil of sentinel-parameter-flow-control 1.8; ``hot-parameter-types`` in the
list of differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from seckill.sentinel.hotparam.keys import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

N = TypeVar("N", int, float)

COUNT_MAX: Final = 2**31 - 1

_INTEGER_BITS: Final = {"byte": 8, "short": 16, "int": 32, "long": 64}
_REALS: Final = frozenset({"float", "double"})
_FLOAT_MAX: Final = 3.4028235e38
_LONGER_NAMES: Final = {
    "integer": "int",
    "character": "char",
    "str": "string",
    "bool": "boolean",
    "": "string",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamFlowItem:
    """One value with a threshold of its own. Names are Sentinel's.

    Attributes:
        object: the value as text.
        count: its threshold, a whole number, at least 0.
        class_type: name of the value's type: ``int``, ``long``, ``double``, ``float``, ``byte``,
            ``short``, ``boolean``, ``char``, ``String``, each also with ``java.lang.`` before it;
            empty is text.
    """

    object: str
    count: int
    class_type: str = ""

    def keys(self) -> tuple[Hashable, ...]:
        """The keys of all values that it means.

        Raises:
            ValueError: it can mean no value; the text says why.
        """
        kind = self.class_type.removeprefix("java.lang.").strip().lower()
        kind = _LONGER_NAMES.get(kind, kind)
        if kind in _INTEGER_BITS:
            return _integer_keys(self.object, _INTEGER_BITS[kind], self.class_type)
        if kind in _REALS:
            return _real_keys(self.object, self.class_type, single=kind == "float")
        if kind == "boolean":
            return _boolean_keys(self.object)
        if kind == "char" and len(self.object) != 1:
            raise ValueError(f"{self.object!r} is not one character")
        if kind not in ("char", "string"):
            raise ValueError(f"classType {self.class_type!r} is not known")
        return _text_keys(self.object)

    def problem(self) -> tuple[str, str] | None:
        """The field that makes it meaningless, and why; None when it means something."""
        if not 0 <= self.count <= COUNT_MAX:
            return "count", f"must be from 0 to {COUNT_MAX}, is {self.count}"
        try:
            self.keys()
        except ValueError as error:
            return "object", str(error)
        return None


def _integer_keys(text: str, bits: int, class_type: str) -> tuple[Hashable, ...]:
    number = _parse(int, text)
    if number is None or not text.isascii() or "_" in text:
        raise ValueError(f"{text!r} is not a number of class {class_type}")
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(f"{text!r} does not fit into class {class_type}")
    return (key_of(number), key_of(text), key_of(str(number)))


def _real_keys(text: str, class_type: str, *, single: bool) -> tuple[Hashable, ...]:
    number = _parse(float, text)
    if number is None or not text.isascii() or "_" in text or not math.isfinite(number):
        raise ValueError(f"{text!r} is not a number of class {class_type}")
    if single and abs(number) > _FLOAT_MAX:
        raise ValueError(f"{text!r} does not fit into class {class_type}")
    return (key_of(number), key_of(text), key_of(str(number)))


def _boolean_keys(text: str) -> tuple[Hashable, ...]:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return (key_of(word == "true"), key_of(text), key_of(word))


def _text_keys(text: str) -> tuple[Hashable, ...]:
    """The text itself, and the number or the truth value that is written exactly like it."""
    found = [key_of(text)]
    number = _parse(int, text)
    if number is not None and str(number) == text:
        found.append(key_of(number))
    real = _parse(float, text)
    if real is not None and repr(real) == text:
        found.append(key_of(real))
    if text in ("true", "false"):
        found.append(key_of(text == "true"))
    return tuple(found)


def _parse(kind: Callable[[str], N], text: str) -> N | None:
    try:
        return kind(text)
    except ValueError:
        return None
