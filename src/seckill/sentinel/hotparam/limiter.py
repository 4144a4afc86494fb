"""What the controllers of hot-parameter rules have in common."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

    from seckill.sentinel.entry import Entry

PASS: Final = 0
BLOCKED: Final = -1

VALUE_COUNT_BASE: Final = 4_000
"""Values remembered per second of the rule's duration, as in the original."""

S = TypeVar("S")


class ValueLimiter(Protocol):
    """A controller: decides on one value of one call."""

    def decide(self, entry: Entry, key: Hashable, threshold: int, now_ns: int) -> int:
        """Decide, and note what the next decision has to know.

        Args:
            entry: the call.
            key: the value's key.
            threshold: the value's own threshold, or the rule's.
            now_ns: the present.

        Returns:
            ``PASS``, ``BLOCKED``, or the nanoseconds to wait before passing.
        """
        ...

    def refuses(self, threshold: int, count: int) -> bool:
        """Whether so many units can never pass, whatever came before."""
        ...

    def measured(self, key: Hashable) -> float:
        """What is in use of the value's threshold now, as far as the controller keeps it."""
        ...


class RecentValues(Generic[S]):
    """A table of values that forgets the one not seen for longest when it is full.

    Args:
        most: values it holds.
    """

    __slots__ = ("_most", "_states")

    def __init__(self, most: int) -> None:
        self._most = most
        self._states: OrderedDict[Hashable, S] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def get(self, key: Hashable) -> S | None:
        """What is known of a value, which counts as seen now."""
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
        return state

    def put(self, key: Hashable, state: S) -> None:
        """Remember something of a value."""
        self._states[key] = state
        if len(self._states) > self._most:
            self._states.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        """Forget a value."""
        self._states.pop(key, None)
