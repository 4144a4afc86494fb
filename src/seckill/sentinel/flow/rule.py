"""The data of a flow rule, and when it is valid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from seckill.sentinel.reports import Problem
from seckill.sentinel.rule_set import (
    INTEGER_MAX,
    NUMBER_MAX,
    choice_problems,
    limit_app_problems,
    number_problems,
    resource_problems,
)
from seckill.sentinel.token_source import cluster_problems
from seckill.sentinel.words import (
    LIMIT_APP_DEFAULT,
    ControlBehavior,
    FlowGrade,
    FlowStrategy,
)

if TYPE_CHECKING:
    from seckill.sentinel.token_source import ClusterConfig

WARMING = frozenset({ControlBehavior.WARM_UP, ControlBehavior.WARM_UP_RATE_LIMITER})
PACING = frozenset({ControlBehavior.RATE_LIMITER, ControlBehavior.WARM_UP_RATE_LIMITER})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRule:
    """A limit for a resource. Names and defaults are Sentinel's.

    Attributes:
        resource: name of the resource, or a pattern of names if ``regex``.
        count: the threshold: units per second (``QPS``) or calls in flight (``THREAD``). 0 refuses
            all.
        grade: what is counted.
        limit_app: whom it is for: ``default`` all callers together, ``other`` each caller that no
            other rule of the resource names, or one caller by name.
        strategy: whose traffic is looked at: the resource's own, that of ``ref_resource``
            (``RELATE``), or the resource's own if it was entered from context ``ref_resource``
            (``CHAIN``).
        ref_resource: required for ``RELATE`` and ``CHAIN``.
        control_behavior: what is done with a call over the threshold; for grade ``QPS``.
        warm_up_period_sec: seconds from cold to warm, for the warming behaviours; above 0.
        max_queueing_time_ms: the longest wait for a turn, for the pacing behaviours; above 0.
        cluster_mode: ask the token source instead of this process's counters.
        cluster_config: required in cluster mode.
        regex: ``resource`` is a pattern that must match the whole name; each resource it matches
            has counters of its own. For behaviour ``REJECT``, not in cluster mode.
        id: a number by which people know the rule.
    """

    resource: str
    count: float = 0
    grade: int = FlowGrade.QPS
    limit_app: str = LIMIT_APP_DEFAULT
    strategy: int = FlowStrategy.DIRECT
    ref_resource: str = ""
    control_behavior: int = ControlBehavior.REJECT
    warm_up_period_sec: int = 10
    max_queueing_time_ms: int = 500
    cluster_mode: bool = False
    cluster_config: ClusterConfig | None = None
    regex: bool = False
    id: int | None = field(default=None, compare=False)

    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with it; empty when it can be put in force."""
        found = resource_problems(self.resource, regex=self.regex)
        found += limit_app_problems(self.limit_app)
        found += number_problems("count", self.count, low=0, high=NUMBER_MAX)
        found += choice_problems("grade", self.grade, FlowGrade)
        found += choice_problems("strategy", self.strategy, FlowStrategy)
        found += choice_problems("controlBehavior", self.control_behavior, ControlBehavior)
        if self.strategy != FlowStrategy.DIRECT and not self.ref_resource.strip():
            found.append(Problem("refResource", "required for strategy 1 (relate) and 2 (chain)"))
        if self.grade == FlowGrade.QPS:
            found += self._behavior_problems()
        found += cluster_problems(on=self.cluster_mode, config=self.cluster_config, rule=self)
        return tuple(found)

    def warnings(self) -> tuple[Problem, ...]:
        """What will not be as it was meant, though the rule can be put in force."""
        if self.grade == FlowGrade.THREAD and self.control_behavior != ControlBehavior.REJECT:
            return (
                Problem("controlBehavior", "has no effect on a concurrency threshold (grade 0)"),
            )
        if self.grade == FlowGrade.THREAD and self.cluster_mode:
            return (Problem("clusterMode", "concurrency is counted per process"),)
        if self.control_behavior in PACING or self.count == 0 or self.count >= 1:
            return ()
        return (Problem("count", "below 1 without pacing: nothing will ever pass"),)

    def _behavior_problems(self) -> list[Problem]:
        found: list[Problem] = []
        if self.control_behavior in WARMING:
            found += number_problems(
                "warmUpPeriodSec", self.warm_up_period_sec, low=1, high=INTEGER_MAX
            )
        if self.control_behavior in PACING:
            found += number_problems(
                "maxQueueingTimeMs", self.max_queueing_time_ms, low=1, high=INTEGER_MAX
            )
        if self.regex and self.control_behavior != ControlBehavior.REJECT:
            found.append(Problem("controlBehavior", "must be 0 (reject) if resource is a pattern"))
        return found
