"""Grade 0: opens when too many calls of an interval are slow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from seckill.sentinel.circuitbreaking.breaker import CircuitBreaker

if TYPE_CHECKING:
    from collections.abc import Callable

    from seckill.sentinel.circuitbreaking.breaker import StateChange
    from seckill.sentinel.circuitbreaking.rule import DegradeRule
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.settings import Settings


class SlowRatioBreaker(CircuitBreaker):
    """A call is slow if it takes longer than ``count`` ms, rounded."""

    __slots__ = ("_rt_ms_max",)

    def __init__(
        self,
        rule: DegradeRule,
        resource: str,
        settings: Settings,
        notify: Callable[[StateChange], None],
    ) -> None:
        super().__init__(rule, resource, settings, notify)
        self._rt_ms_max = math.floor(rule.count + 0.5)

    @property
    def threshold(self) -> float:
        """The ratio of slow calls above which it opens."""
        return self.rule.slow_ratio_threshold

    def is_bad(self, _entry: Entry, rt_ms: int) -> bool:
        """Whether the call was slow."""
        return rt_ms > self._rt_ms_max

    def value(self, bad: int, total: int) -> float:
        """The ratio of slow calls."""
        return bad / total

    def exceeded(self, value: float) -> bool:
        """Above the ratio; or at it, if it is 1: else that threshold could never open."""
        return value > self.threshold or value == self.threshold == 1
