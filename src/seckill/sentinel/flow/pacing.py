"""Behaviour 2: calls pass one by one, evenly spaced, and wait for their turn if it is near enough.

Source: ThrottlingController of sentinel-core 1.8. Always in nanoseconds: ``pacing-in-nanoseconds``
in the list of differences.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from seckill.sentinel.clock import NANOSECONDS_PER_MS, NANOSECONDS_PER_S
from seckill.sentinel.flow.shaper import BLOCKED, PASS
from seckill.sentinel.settings import MS_PER_S, Difference

if TYPE_CHECKING:
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.node import StatisticNode
    from seckill.sentinel.settings import Settings

_NEVER_NS = -NANOSECONDS_PER_MS


class Turns:
    """The line of calls: when the last one has its turn.

    Args:
        max_queueing_time_ms: a call that would wait longer is refused, and leaves no trace.
    """

    __slots__ = ("_max_queueing_ns", "last_ns")

    def __init__(self, max_queueing_time_ms: int) -> None:
        self._max_queueing_ns = max_queueing_time_ms * NANOSECONDS_PER_MS
        self.last_ns = _NEVER_NS

    def take(self, now_ns: int, cost_ns: int) -> int:
        """Take the next turn if it is near enough.

        Args:
            now_ns: the present.
            cost_ns: how long after the turn before this one may be.

        Returns:
            ``PASS``, ``BLOCKED``, or the nanoseconds to wait.
        """
        expected_ns = self.last_ns + cost_ns
        if expected_ns <= now_ns:
            self.last_ns = now_ns
            return PASS
        wait_ns = expected_ns - now_ns
        if wait_ns > self._max_queueing_ns:
            return BLOCKED
        self.last_ns = expected_ns
        return wait_ns


def interval_ns(count: int, per_second: float, *, unit_ns: int = 1) -> int:
    """How much later than the one before a call of so many units may pass, rounded to the unit.

    Args:
        count: units the call acquires.
        per_second: units per second, above 0.
        unit_ns: what to round to: 1, or a millisecond as the original does.
    """
    exact_ns = NANOSECONDS_PER_S * count / per_second
    return math.floor(exact_ns / unit_ns + 0.5) * unit_ns


class Pacing:
    """Spaces calls evenly.

    Args:
        count: units per second. 0 refuses all.
        max_queueing_time_ms: the longest wait for a turn.
        settings: the engine's.
    """

    __slots__ = ("_count", "_turns", "_unit_ns")

    def __init__(self, count: float, max_queueing_time_ms: int, settings: Settings) -> None:
        self._count = count
        self._turns = Turns(max_queueing_time_ms)
        self._unit_ns = 1
        whole = math.floor(count + 0.5)
        if (
            not settings.differs(Difference.PACING_IN_NANOSECONDS)
            and whole
            and MS_PER_S % whole == 0
            and count <= MS_PER_S
        ):
            self._unit_ns = NANOSECONDS_PER_MS

    def decide(self, entry: Entry, _node: StatisticNode, now_ns: int) -> int:
        """Pass, refuse, or wait for a turn. Does not look at the counters.

        Complexity: O(1).
        """
        if entry.count <= 0:
            return PASS
        if self._count <= 0:
            return BLOCKED
        unit_ns = self._unit_ns
        return self._turns.take(
            now_ns - now_ns % unit_ns, interval_ns(entry.count, self._count, unit_ns=unit_ns)
        )

    def measured(self, node: StatisticNode, now_ns: int) -> tuple[float, float]:
        """Units that passed in the last second, and the threshold."""
        return node.used(now_ns), self._count
