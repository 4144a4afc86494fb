"""The data of a circuit-breaking rule, and when it is valid."""

from __future__ import annotations

from dataclasses import dataclass, field

from seckill.sentinel.reports import Problem
from seckill.sentinel.rule_set import (
    INTEGER_MAX,
    NUMBER_MAX,
    choice_problems,
    number_problems,
    resource_problems,
)
from seckill.sentinel.words import DEGRADE_DEFAULT_RESOURCE, LIMIT_APP_DEFAULT, DegradeGrade


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradeRule:
    """When a resource is to be left alone for a while. Names and defaults are Sentinel's.

    Attributes:
        resource: name of the resource, or a pattern of names if ``regex``. ``*`` is every resource
            that has no rule of its own.
        grade: what is looked at.
        count: for ``SLOW_REQUEST_RATIO`` the longest response time that is not slow, ms; for
            ``ERROR_RATIO`` the ratio above which it opens, 0 to 1; for ``ERROR_COUNT`` the number.
        time_window: how long it stays open before it tries again, seconds; above 0.
        min_request_amount: with fewer finished calls in the interval it never opens; above 0.
        slow_ratio_threshold: the ratio of slow calls above which it opens, 0 to 1.
        stat_interval_ms: the interval, ms; above 0. It tumbles: it is aligned to the epoch.
        limit_app: kept, not looked at.
        regex: ``resource`` is a pattern that must match the whole name; each resource it matches
            has a breaker of its own.
        id: a number by which people know the rule.
    """

    resource: str
    grade: int = DegradeGrade.SLOW_REQUEST_RATIO
    count: float = 0
    time_window: int = 0
    min_request_amount: int = 5
    slow_ratio_threshold: float = 1.0
    stat_interval_ms: int = 1000
    limit_app: str = LIMIT_APP_DEFAULT
    regex: bool = False
    id: int | None = field(default=None, compare=False)

    @property
    def is_default(self) -> bool:
        """Whether it is for every resource without a rule of its own."""
        return self.resource == DEGRADE_DEFAULT_RESOURCE and not self.regex

    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with it; empty when it can be put in force."""
        found = resource_problems(self.resource, regex=self.regex)
        found += choice_problems("grade", self.grade, DegradeGrade)
        most = 1 if self.grade == DegradeGrade.ERROR_RATIO else NUMBER_MAX
        found += number_problems("count", self.count, low=0, high=most)
        found += number_problems("timeWindow", self.time_window, low=1, high=INTEGER_MAX)
        found += number_problems(
            "minRequestAmount", self.min_request_amount, low=1, high=INTEGER_MAX
        )
        found += number_problems("statIntervalMs", self.stat_interval_ms, low=1, high=INTEGER_MAX)
        if self.grade == DegradeGrade.SLOW_REQUEST_RATIO:
            found += number_problems("slowRatioThreshold", self.slow_ratio_threshold, low=0, high=1)
        return tuple(found)

    def warnings(self) -> tuple[Problem, ...]:
        """What will not be as it was meant, though the rule can be put in force."""
        if self.grade == DegradeGrade.ERROR_RATIO and self.count == 1:
            return (Problem("count", "a ratio of errors can never be above 1: never opens"),)
        return ()
