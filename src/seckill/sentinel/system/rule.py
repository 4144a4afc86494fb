"""The data of a system rule, and when it is valid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from seckill.sentinel.reports import Problem
from seckill.sentinel.rule_set import NUMBER_MAX, number_problems

NOT_SET: Final = -1
"""A limit that a rule does not set; any number below 0 says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRule:
    """Limits for all inbound traffic of the process. Names and defaults are Sentinel's.

    Each limit is off while below 0. Of several rules the smallest value per limit is in force.

    Attributes:
        highest_system_load: load average of one minute, above which calls are refused once more are
            in flight than the best second of late could carry.
        highest_cpu_usage: CPU in use, 0 to 1; above 1 it is left out.
        qps: units per second.
        avg_rt: average response time, ms.
        max_thread: calls in flight; one more than this may run, as in the original.
        resource: always empty: the rule is for the process.
        regex: always False, as above.
        id: a number by which people know the rule.
    """

    highest_system_load: float = NOT_SET
    highest_cpu_usage: float = NOT_SET
    qps: float = NOT_SET
    avg_rt: int = NOT_SET
    max_thread: int = NOT_SET
    resource: str = field(default="", init=False)
    regex: bool = field(default=False, init=False)
    id: int | None = field(default=None, compare=False)

    @property
    def sets_nothing(self) -> bool:
        """Whether all limits are off."""
        limits = (self.highest_system_load, self.qps, self.avg_rt, self.max_thread)
        return all(limit < 0 for limit in limits) and not 0 <= self.highest_cpu_usage <= 1

    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with it; empty when it can be put in force."""
        found: list[Problem] = []
        limits = {
            "highestSystemLoad": self.highest_system_load,
            "highestCpuUsage": self.highest_cpu_usage,
            "qps": self.qps,
            "avgRt": self.avg_rt,
            "maxThread": self.max_thread,
        }
        for name, value in limits.items():
            found += number_problems(name, value, low=-math.inf, high=NUMBER_MAX)
        return tuple(found)

    def warnings(self) -> tuple[Problem, ...]:
        """What will not be as it was meant, though the rule can be put in force."""
        found = []
        if self.highest_cpu_usage > 1:
            found.append(Problem("highestCpuUsage", "a share of CPU is 0 to 1; left out"))
        if self.sets_nothing:
            found.append(Problem("$", "sets no limit at all"))
        return tuple(found)
