"""When two values of a hot parameter are the same.

Counters are kept per value, and values come from outside. So each is turned into a key that is
small, can be hashed, and is the same for what a person would call the same value.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

KEY_LENGTH_MAX: Final = 128
"""Texts longer than this are counted by their digest, so that a long one costs no more memory."""

_COLLECTIONS: Final = (list, tuple, set, frozenset)


@runtime_checkable
class ParamFlowArgument(Protocol):
    """An argument that says itself what it is to be counted by."""

    def param_flow_key(self) -> object:
        """The value to count by."""
        ...


def values_of(argument: object) -> Iterable[object]:
    """The values to be checked for one argument: itself, or the elements of a collection."""
    return argument if isinstance(argument, _COLLECTIONS) else (argument,)


def key_of(value: object) -> Hashable:
    """The key under which a value is counted.

    Python takes ``True`` for 1, so truth values are counted under their own words; what cannot be
    hashed, what is very long and what is not even equal to itself (every NaN would be a new value
    to Python, with a threshold of its own) is counted by a digest of its text.
    """
    kind = type(value)
    if kind is int:
        return value
    if kind is str:
        text: str = value  # type: ignore[assignment]  # its type was just asked
        return text if len(text) <= KEY_LENGTH_MAX else _digest(text)
    if kind is bool:
        return ("bool", value)
    try:
        hash(value)
    except TypeError:
        return _digest(repr(value))
    if isinstance(value, bytes | str) and len(value) > KEY_LENGTH_MAX:
        return _digest(repr(value))
    return value if value == value else _digest(repr(value))  # noqa: PLR0124  see above


def _digest(text: str) -> Hashable:
    return ("digest", hashlib.blake2b(text.encode(errors="replace"), digest_size=16).digest())
