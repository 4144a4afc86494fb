"""Behaviour 3: calls evenly spaced, the further apart the colder the resource is.

Source: WarmUpRateLimiterController of sentinel-core 1.8.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.flow.pacing import Turns, interval_ns
from seckill.sentinel.flow.shaper import BLOCKED, PASS
from seckill.sentinel.flow.warm_up import WarmingTokens
from seckill.sentinel.settings import Difference

if TYPE_CHECKING:
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.node import StatisticNode
    from seckill.sentinel.settings import Settings


class WarmUpPacing:
    """Spaces calls evenly at the rate that is allowed at the moment.

    Args:
        count: units per second when warm. 0 refuses all.
        period_s: the warm-up period, seconds.
        max_queueing_time_ms: the longest wait for a turn.
        settings: the engine's.
    """

    __slots__ = ("_count", "_turns", "_unit_ns", "_zero", "tokens")

    def __init__(
        self, count: float, period_s: int, max_queueing_time_ms: int, settings: Settings
    ) -> None:
        self._count = count
        self.tokens = WarmingTokens(count, period_s, settings)
        self._turns = Turns(max_queueing_time_ms)
        in_ns = settings.differs(Difference.PACING_IN_NANOSECONDS)
        self._unit_ns = 1 if in_ns else NANOSECONDS_PER_MS
        # The original divides by a count of 0, gets no number, and takes it for no wait at all.
        self._zero = BLOCKED if settings.differs(Difference.WARM_UP_ZERO_BLOCKS) else PASS

    def decide(self, entry: Entry, node: StatisticNode, now_ns: int) -> int:
        """Pass, refuse, or wait for a turn.

        Complexity: O(1).
        """
        if self._count <= 0:
            return self._zero
        allowed = self.tokens.allowed(node, now_ns)
        unit_ns = self._unit_ns
        # No number comes from the original's division by zero only, and it takes it for no wait.
        cost_ns = 0 if math.isnan(allowed) else interval_ns(entry.count, allowed, unit_ns=unit_ns)
        return self._turns.take(now_ns - now_ns % unit_ns, cost_ns)

    def measured(self, node: StatisticNode, now_ns: int) -> tuple[float, float]:
        """Units that passed in the last second, and what is allowed now."""
        return node.used(now_ns), self.tokens.allowed(node, now_ns)
