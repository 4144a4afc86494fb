"""The data of a hot-parameter rule, and when it is valid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from seckill.sentinel.reports import Problem
from seckill.sentinel.rule_set import (
    INTEGER_MAX,
    NUMBER_MAX,
    choice_problems,
    number_problems,
    resource_problems,
)
from seckill.sentinel.token_source import cluster_problems
from seckill.sentinel.words import LIMIT_APP_DEFAULT, ControlBehavior, FlowGrade

if TYPE_CHECKING:
    from seckill.sentinel.hotparam.items import ParamFlowItem
    from seckill.sentinel.token_source import ClusterConfig

ITEM_COUNT_MAX: Final = 10_000
INDEX_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamFlowRule:
    """A limit for each value of one argument of a resource. Names and defaults are Sentinel's.

    Attributes:
        resource: name of the resource, or a pattern of names if ``regex``.
        param_idx: place of the argument among the entry's args, from 0; below 0 counts from the
            end. A call without such an argument passes.
        count: the threshold per value; its whole part counts. 0 refuses all.
        grade: what is counted: units per ``duration_in_sec``, or calls in flight.
        duration_in_sec: seconds that ``count`` is for, with grade ``QPS``; above 0.
        burst_count: how much more than ``count`` may pass at once after a rest.
        control_behavior: ``REJECT`` or ``RATE_LIMITER``.
        max_queueing_time_ms: with ``RATE_LIMITER`` a wait has to be shorter than this.
        param_flow_item_list: values with thresholds of their own.
        cluster_mode, cluster_config: ask the token source, see there.
        limit_app: kept, not looked at.
        regex: ``resource`` is a pattern that must match the whole name.
        id: a number by which people know the rule.
    """

    resource: str
    param_idx: int
    count: float = 0
    grade: int = FlowGrade.QPS
    duration_in_sec: int = 1
    burst_count: int = 0
    control_behavior: int = ControlBehavior.REJECT
    max_queueing_time_ms: int = 0
    param_flow_item_list: tuple[ParamFlowItem, ...] = ()
    cluster_mode: bool = False
    cluster_config: ClusterConfig | None = None
    limit_app: str = LIMIT_APP_DEFAULT
    regex: bool = False
    id: int | None = field(default=None, compare=False)

    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with it; empty when it can be put in force."""
        found = resource_problems(self.resource, regex=self.regex)
        found += number_problems("paramIdx", self.param_idx, low=-INDEX_MAX, high=INDEX_MAX)
        found += number_problems("count", self.count, low=0, high=NUMBER_MAX)
        found += choice_problems("grade", self.grade, FlowGrade)
        behaviors = (ControlBehavior.REJECT, ControlBehavior.RATE_LIMITER)
        found += choice_problems("controlBehavior", self.control_behavior, behaviors)
        found += number_problems("durationInSec", self.duration_in_sec, low=1, high=INTEGER_MAX)
        found += number_problems("burstCount", self.burst_count, low=0, high=INTEGER_MAX)
        found += number_problems(
            "maxQueueingTimeMs", self.max_queueing_time_ms, low=0, high=INTEGER_MAX
        )
        if len(self.param_flow_item_list) > ITEM_COUNT_MAX:
            found.append(Problem("paramFlowItemList", f"more than {ITEM_COUNT_MAX} items"))
        if self.regex and self.control_behavior != ControlBehavior.REJECT:
            found.append(Problem("controlBehavior", "must be 0 (reject) if resource is a pattern"))
        found += cluster_problems(on=self.cluster_mode, config=self.cluster_config, rule=self)
        return tuple(found)

    def warnings(self) -> tuple[Problem, ...]:
        """What will not be as it was meant: items that can mean no value are left out."""
        found = []
        for index, item in enumerate(self.param_flow_item_list):
            problem = item.problem()
            if problem is not None:
                name, reason = problem
                found.append(
                    Problem(f"paramFlowItemList[{index}].{name}", f"{reason}; item left out")
                )
        return tuple(found)
