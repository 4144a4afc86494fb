"""Grade QPS, behaviour 2: the calls of each value pass one by one, evenly spaced.

Source: ParamFlowChecker of sentinel-parameter-flow-control 1.8. In nanoseconds:
``hot-parameter-nanoseconds`` in the list of differences.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from seckill.sentinel.clock import NANOSECONDS_PER_MS, NANOSECONDS_PER_S
from seckill.sentinel.hotparam.limiter import BLOCKED, PASS, RecentValues

if TYPE_CHECKING:
    from collections.abc import Hashable

    from seckill.sentinel.entry import Entry
    from seckill.sentinel.hotparam.rule import ParamFlowRule


class ValuePacing:
    """One line of calls per value.

    Args:
        rule: the rule.
        most: values to remember.
        unit_ns: what intervals are rounded to: 1, or a millisecond as the original does.
    """

    __slots__ = ("_duration_ns", "_max_queueing_ns", "_unit_ns", "_values")

    def __init__(self, rule: ParamFlowRule, most: int, unit_ns: int) -> None:
        self._duration_ns = rule.duration_in_sec * NANOSECONDS_PER_S
        self._max_queueing_ns = rule.max_queueing_time_ms * NANOSECONDS_PER_MS
        self._unit_ns = unit_ns
        # Of each value: when the last call has its turn.
        self._values: RecentValues[int] = RecentValues(most)

    def decide(self, entry: Entry, key: Hashable, threshold: int, now_ns: int) -> int:
        """Pass, refuse, or wait for a turn. A wait as long as the limit is refused already."""
        if self.refuses(threshold, entry.count):
            return BLOCKED
        now_ns -= now_ns % self._unit_ns
        last_ns = self._values.get(key)
        if last_ns is None:
            self._values.put(key, now_ns)
            return PASS
        exact_ns = self._duration_ns * entry.count / threshold
        cost_ns = math.floor(exact_ns / self._unit_ns + 0.5) * self._unit_ns
        wait_ns = last_ns + cost_ns - now_ns
        if wait_ns <= 0:
            self._values.put(key, now_ns)
            return PASS
        if wait_ns >= self._max_queueing_ns:
            return BLOCKED
        self._values.put(key, now_ns + wait_ns)
        return wait_ns

    def refuses(self, threshold: int, _count: int) -> bool:
        """There are no turns at all."""
        return threshold == 0

    def measured(self, _key: Hashable) -> float:
        """Not kept: the line knows its last turn only."""
        return 0.0
