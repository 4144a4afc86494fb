"""The hot-parameter rules in force, each with its controller."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.hotparam.limiter import VALUE_COUNT_BASE
from seckill.sentinel.hotparam.place import ArgumentPlace
from seckill.sentinel.hotparam.rule import ParamFlowRule
from seckill.sentinel.hotparam.token_bucket import TokenBuckets
from seckill.sentinel.hotparam.value_concurrency import ValuesInFlight
from seckill.sentinel.hotparam.value_pacing import ValuePacing
from seckill.sentinel.rule_set import RuleManager
from seckill.sentinel.settings import Difference
from seckill.sentinel.words import ControlBehavior, FlowGrade

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractContextManager

    from seckill.sentinel.hotparam.limiter import ValueLimiter
    from seckill.sentinel.settings import Settings
    from seckill.sentinel.token_source import TokenSource

IN_FLIGHT_VALUE_COUNT_MAX: Final = 4_000
"""Values with calls in flight that one argument of one resource may have, as in the original."""


class ParamFlowRuleManager(RuleManager[ParamFlowRule]):
    """The hot-parameter rules in force. Counters outlive an update while their rule says the same.

    Args:
        settings: the engine's.
        lock: the engine's.
        changed: told which resources are concerned by an update.
        token_source: for rules in cluster mode.
    """

    kind: ClassVar[str] = "param-flow"

    def __init__(
        self,
        *,
        settings: Settings,
        lock: AbstractContextManager[object],
        changed: Callable[[frozenset[str] | None], None],
        token_source: TokenSource | None,
    ) -> None:
        super().__init__(settings=settings, lock=lock, changed=changed)
        self.settings = settings
        self.token_source = token_source
        self._limiters: dict[tuple[ParamFlowRule, str, bool], ValueLimiter] = {}
        self._in_flight: dict[tuple[str, int], ValuesInFlight] = {}
        self._places: dict[tuple[str, int], ArgumentPlace] = {}

    def limiter_for(
        self, rule: ParamFlowRule, resource: str, *, shared: bool = False
    ) -> ValueLimiter:
        """The controller of a rule at one resource, made if need be.

        Args:
            rule: the rule.
            resource: the resource.
            shared: for this process's share of the thresholds. A burst is not shared out: it would
                be let in by each process.
        """
        if rule.grade == FlowGrade.THREAD:
            return self.in_flight_for(resource, rule.param_idx)
        key = (rule, resource, shared)
        limiter = self._limiters.get(key)
        if limiter is None:
            most = min(VALUE_COUNT_BASE * rule.duration_in_sec, self.settings.hot_value_count_max)
            if rule.control_behavior == ControlBehavior.RATE_LIMITER:
                in_ns = self.settings.differs(Difference.HOT_PARAMETER_NANOSECONDS)
                limiter = ValuePacing(rule, most, 1 if in_ns else NANOSECONDS_PER_MS)
            else:
                limiter = TokenBuckets(replace(rule, burst_count=0) if shared else rule, most)
            self._limiters[key] = limiter
        return limiter

    def in_flight_for(self, resource: str, param_idx: int) -> ValuesInFlight:
        """The calls in flight per value of one argument of one resource."""
        key = (resource, param_idx)
        found = self._in_flight.get(key)
        if found is None:
            found = self._in_flight[key] = ValuesInFlight(IN_FLIGHT_VALUE_COUNT_MAX)
        return found

    def place_for(self, resource: str, param_idx: int) -> ArgumentPlace:
        """The argument that rules of a resource with this index look at."""
        key = (resource, param_idx)
        found = self._places.get(key)
        if found is None:
            fixed = not self.settings.differs(Difference.NEGATIVE_INDEX_PER_CALL)
            found = self._places[key] = ArgumentPlace(param_idx, fixed=fixed)
        return found

    def thresholds(self, rule: ParamFlowRule) -> dict[Hashable, int]:
        """The values of a rule that have thresholds of their own, by key."""
        found: dict[Hashable, int] = {}
        # The original knows an item by its own class alone.
        spellings = None if self.settings.differs(Difference.HOT_PARAMETER_TYPES) else 1
        for item in rule.param_flow_item_list:
            if item.problem() is None:
                found.update(dict.fromkeys(item.keys()[:spellings], item.count))
        return found

    def _replaced(self) -> None:
        staying = frozenset(self._rules)
        if not self.settings.differs(Difference.NEGATIVE_INDEX_PER_CALL):
            # The original writes the fixed index into its rule, and then does not know it again.
            staying = frozenset(rule for rule in self._rules if rule.param_idx >= 0)
        self._places = {}
        self._limiters = {key: one for key, one in self._limiters.items() if key[0] in staying}
        watched = {
            (rule.resource, rule.param_idx)
            for rule in staying
            if rule.grade == FlowGrade.THREAD and not rule.regex
        }
        patterns = {
            rule.param_idx for rule in staying if rule.grade == FlowGrade.THREAD and rule.regex
        }
        self._in_flight = {
            key: one for key, one in self._in_flight.items() if key in watched or key[1] in patterns
        }
