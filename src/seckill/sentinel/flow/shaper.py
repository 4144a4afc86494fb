"""What all flow controllers have in common: one question, three kinds of answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.node import StatisticNode

PASS: Final = 0
BLOCKED: Final = -1


class TrafficShaper(Protocol):
    """A flow controller: decides by the counters of one node and the past of its rule."""

    def decide(self, entry: Entry, node: StatisticNode, now_ns: int) -> int:
        """Decide and, if the answer is to pass, note what the next decision has to know.

        Returns:
            ``PASS``, ``BLOCKED``, or the nanoseconds to wait before passing.
        """
        ...

    def measured(self, node: StatisticNode, now_ns: int) -> tuple[float, float]:
        """What is in use now and what is allowed now, to go with a refusal."""
        ...
