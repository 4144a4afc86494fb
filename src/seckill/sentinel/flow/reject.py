"""Behaviour 0: what is over the threshold is refused at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.flow.shaper import BLOCKED, PASS
from seckill.sentinel.settings import Difference

if TYPE_CHECKING:
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.node import StatisticNode
    from seckill.sentinel.settings import Settings


class RejectQPS:
    """Lets in what fits into the window: units that passed, plus those wanted, up to the threshold.

    A prioritised call that does not fit may borrow from the future instead: it waits until old
    passes have left the window, if that is soon enough.

    Args:
        count: units per second.
        settings: the engine's; decides on the kind of window.

    Source: DefaultController of sentinel-core 1.8. The window: ``sliding-window`` in the list of
    differences.
    """

    __slots__ = ("_count", "_sliding", "_timeout_ns")

    def __init__(self, count: float, settings: Settings) -> None:
        self._count = count
        self._sliding = settings.differs(Difference.SLIDING_WINDOW)
        self._timeout_ns = settings.occupy_timeout_ms * NANOSECONDS_PER_MS

    def decide(self, entry: Entry, node: StatisticNode, now_ns: int) -> int:
        """Pass, refuse, or (prioritised calls) wait for room.

        Complexity: amortised O(1).
        """
        if self._sliding and node.places is None:
            node.start_log(now_ns)
        used = node.used(now_ns)
        if used + entry.count <= self._count:
            return PASS
        if entry.occupied:
            # An earlier rule let it borrow, so it is among the used already.
            return PASS if used <= self._count else BLOCKED
        if entry.prioritized:
            return self._occupy(entry, node, now_ns)
        return BLOCKED

    def measured(self, node: StatisticNode, now_ns: int) -> tuple[float, float]:
        """Units that passed in the window, and the threshold."""
        return node.used(now_ns), self._count

    def _occupy(self, entry: Entry, node: StatisticNode, now_ns: int) -> int:
        if not node.logs:
            wait_ns = node.occupy_wait_ns(now_ns, entry.count, self._count, self._timeout_ns)
            if wait_ns is None:
                return BLOCKED
            node.occupy(now_ns, wait_ns, entry.count)
        else:
            at_ns = node.earliest_ns(now_ns, entry.count, self._count)
            if at_ns is None or at_ns - now_ns >= self._timeout_ns:
                return BLOCKED
            wait_ns = at_ns - now_ns
            node.reserve(at_ns, entry.count)
            node.occupy(now_ns, wait_ns, entry.count)
        entry.occupy()
        return wait_ns


class RejectConcurrency:
    """Lets in as many calls at once as the threshold says.

    Args:
        count: calls in flight.
    """

    __slots__ = ("_count",)

    def __init__(self, count: float) -> None:
        self._count = count

    def decide(self, entry: Entry, node: StatisticNode, _now_ns: int) -> int:
        """Pass or refuse. A call is in flight once, however many units it acquires."""
        return PASS if node.concurrency + entry.count <= self._count else BLOCKED

    def measured(self, node: StatisticNode, _now_ns: int) -> tuple[float, float]:
        """Calls in flight, and the threshold."""
        return node.concurrency, self._count
