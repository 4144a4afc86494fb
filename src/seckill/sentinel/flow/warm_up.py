"""Behaviour 1: a threshold that grows from a fraction to the whole while there is traffic.

A resource that was idle (empty caches, closed connections) is let run at ``count / cold factor``
and reaches ``count`` after the warm-up period. The state is a store of tokens: full means cold.
Traffic spends them; a lack of it fills them up again.

Source: WarmUpController of sentinel-core 1.8, itself after Guava's SmoothWarmingUp.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from seckill.sentinel.clock import NANOSECONDS_PER_S
from seckill.sentinel.flow.shaper import BLOCKED, PASS
from seckill.sentinel.settings import MS_PER_S, Difference

if TYPE_CHECKING:
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.node import StatisticNode
    from seckill.sentinel.settings import Settings


class WarmingTokens:
    """The store of tokens: how many units per second are allowed now.

    Attributes:
        warning: tokens at which the resource is warm.
        most: tokens at which it is cold.
        slope: by how much the interval between two calls grows per token above ``warning``,
            seconds.
        stored: tokens now.

    Args:
        count: units per second when warm.
        period_s: the warm-up period, seconds.
        settings: the engine's; holds the cold factor.
    """

    __slots__ = (
        "_cold_factor",
        "_count",
        "_filled_ms",
        "_floor",
        "most",
        "slope",
        "stored",
        "warning",
    )

    def __init__(self, count: float, period_s: int, settings: Settings) -> None:
        self._count = count
        self._cold_factor = cold_factor = settings.cold_factor
        self.warning = int(period_s * count) // (cold_factor - 1)
        self.most = self.warning + int(2 * period_s * count / (1.0 + cold_factor))
        # So small a count has no room between warm and cold. The original divides by zero here and
        # never lets anything through.
        never = 0.0 if settings.differs(Difference.WARM_UP_ADMITS_ONE) else math.nan
        span = self.most - self.warning
        self.slope = (cold_factor - 1.0) / count / span if span else never
        # Below one unit per second no call fits, so no token is ever spent and it stays cold for
        # ever. The floor breaks that ring.
        self._floor = (
            min(1.0, count) if settings.differs(Difference.WARM_UP_ADMITS_ONE) else -math.inf
        )
        self.stored = 0
        self._filled_ms = 0

    def allowed(self, node: StatisticNode, now_ns: int) -> float:
        """Units per second allowed now; refills and spends first, once per whole second."""
        self._synchronise(node, now_ns)
        if self.stored < self.warning:
            return self._count
        return self.allowed_at(self.stored)

    def allowed_at(self, tokens: int) -> float:
        """Units per second allowed with so many tokens, at least ``warning``."""
        if not self._count:
            return 0.0
        above = tokens - self.warning
        allowed = math.nextafter(1.0 / (above * self.slope + 1.0 / self._count), math.inf)
        return max(allowed, self._floor)

    def warm(self, now_ns: int) -> None:
        """Make the resource warm from this moment, as if there had been traffic all along."""
        self.stored = self.warning
        self._filled_ms = now_ns // NANOSECONDS_PER_S * MS_PER_S

    def _synchronise(self, node: StatisticNode, now_ns: int) -> None:
        second_ms = now_ns // NANOSECONDS_PER_S * MS_PER_S
        if second_ms <= self._filled_ms:
            return
        passed = node.previous_passed(now_ns)
        stored = self.stored
        fills = stored < self.warning or (
            stored > self.warning and passed < int(self._count) // self._cold_factor
        )
        if fills:
            stored = int(stored + (second_ms - self._filled_ms) * self._count / MS_PER_S)
        self.stored = max(min(stored, self.most) - passed, 0)
        self._filled_ms = second_ms


class WarmUp:
    """Refuses what is over the threshold that is allowed at the moment.

    Args:
        count: units per second when warm.
        period_s: the warm-up period, seconds.
        settings: the engine's.
    """

    __slots__ = ("_sliding", "tokens")

    def __init__(self, count: float, period_s: int, settings: Settings) -> None:
        self.tokens = WarmingTokens(count, period_s, settings)
        self._sliding = settings.differs(Difference.SLIDING_WINDOW)

    def decide(self, entry: Entry, node: StatisticNode, now_ns: int) -> int:
        """Pass or refuse.

        Complexity: amortised O(1).
        """
        if self._sliding and node.places is None:
            node.start_log(now_ns)
        allowed = self.tokens.allowed(node, now_ns)
        return PASS if node.used(now_ns) + entry.count <= allowed else BLOCKED

    def measured(self, node: StatisticNode, now_ns: int) -> tuple[float, float]:
        """Units that passed in the window, and what is allowed now."""
        return node.used(now_ns), self.tokens.allowed(node, now_ns)
