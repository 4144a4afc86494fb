"""Grades 1 and 2: opens when too many calls of an interval fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seckill.sentinel.circuitbreaking.breaker import CircuitBreaker

if TYPE_CHECKING:
    from seckill.sentinel.entry import Entry


class ErrorCountBreaker(CircuitBreaker):
    """Opens at one failure more than ``count``."""

    __slots__ = ()

    @property
    def threshold(self) -> float:
        """The number, or the ratio, of failures above which it opens."""
        return self.rule.count

    def is_bad(self, entry: Entry, _rt_ms: int) -> bool:
        """Whether the call failed."""
        return entry.error is not None

    def value(self, bad: int, _total: int) -> float:
        """The number of failures."""
        return float(bad)

    def exceeded(self, value: float) -> bool:
        """Above the threshold; at it is not enough."""
        return value > self.threshold


class ErrorRatioBreaker(ErrorCountBreaker):
    """Opens when the ratio of failures is above ``count``."""

    __slots__ = ()

    def value(self, bad: int, total: int) -> float:
        """The ratio of failures."""
        return bad / total
