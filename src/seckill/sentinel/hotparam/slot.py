"""The hot-parameter rules' place in the chain: which argument each looks at, and what it says."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from seckill.sentinel.errors import ParamFlowException
from seckill.sentinel.hotparam.keys import key_of, values_of
from seckill.sentinel.hotparam.limiter import BLOCKED
from seckill.sentinel.settings import Difference
from seckill.sentinel.slot import NO_LINKS, Links, SlotOrder
from seckill.sentinel.token_source import TokenStatus
from seckill.sentinel.words import FlowGrade, ThresholdType

if TYPE_CHECKING:
    from collections.abc import Hashable

    from seckill.sentinel.entry import Entry
    from seckill.sentinel.hotparam.manager import ParamFlowRuleManager
    from seckill.sentinel.hotparam.rule import ParamFlowRule
    from seckill.sentinel.node import ClusterNode

PARAMETER_TEXT_LENGTH_MAX = 128
"""How much of a value goes with a refusal."""


class ParamFlowSlot:
    """Asks each hot-parameter rule of the resource, in order; the first refusal decides."""

    order = SlotOrder.PARAM_FLOW

    def __init__(self, manager: ParamFlowRuleManager) -> None:
        self._manager = manager

    def links(self, resource: ClusterNode) -> Links:
        """One check per rule, and one count per argument whose calls in flight are limited."""
        rules = self._manager.rules_for(resource.name)
        if not rules:
            return NO_LINKS
        checks = tuple(ParamFlowCheck(rule, resource, self._manager).check for rule in rules)
        indices = {rule.param_idx for rule in rules if rule.grade == FlowGrade.THREAD}
        counts = tuple(
            InFlightCount(index, resource, self._manager).begin for index in sorted(indices)
        )
        return Links(checks=checks, on_pass=counts)


class InFlightCount:
    """Counts the calls in flight per value of one argument.

    Args:
        index: the argument's index.
        resource: the resource.
        manager: of the rules.
    """

    __slots__ = ("_place", "_skips_null", "_values")

    def __init__(self, index: int, resource: ClusterNode, manager: ParamFlowRuleManager) -> None:
        self._place = manager.place_for(resource.name, index)
        self._values = manager.in_flight_for(resource.name, index)
        self._skips_null = manager.settings.differs(Difference.NULL_ELEMENT_IS_SKIPPED)

    def begin(self, entry: Entry) -> None:
        """Count the values of a call that was let in, and have them given back when it ends."""
        argument = self._place.value_of(entry.args)
        if argument is None:
            return
        for value in values_of(argument):
            if value is not None:
                key = key_of(value)
                self._values.begin(key)
                entry.hold(partial(self._values.end, key))
            elif not self._skips_null:
                return


class ParamFlowCheck:
    """One hot-parameter rule at one resource."""

    __slots__ = (
        "_count",
        "_is_shared",
        "_limiter",
        "_manager",
        "_place",
        "_resource",
        "_rule",
        "_skips_null",
        "_special",
    )

    def __init__(
        self, rule: ParamFlowRule, resource: ClusterNode, manager: ParamFlowRuleManager
    ) -> None:
        self._rule = rule
        self._resource = resource
        self._manager = manager
        config = rule.cluster_config if rule.cluster_mode else None
        self._is_shared = config is not None and config.threshold_type == ThresholdType.GLOBAL
        self._limiter = manager.limiter_for(rule, resource.name, shared=self._is_shared)
        self._special = manager.thresholds(rule)
        self._count = int(rule.count)
        self._place = manager.place_for(resource.name, rule.param_idx)
        self._skips_null = manager.settings.differs(Difference.NULL_ELEMENT_IS_SKIPPED)

    def check(self, entry: Entry, now_ns: int) -> ParamFlowException | int | None:
        """Ask about each value of the argument: first refusal decides, longest wait counts."""
        argument = self._place.value_of(entry.args)
        if argument is None:
            return None
        values = values_of(argument)
        share = 1.0
        if self._rule.cluster_mode and self._rule.grade == FlowGrade.QPS:
            status = self._ask_token_source(entry, tuple(values))
            if status is TokenStatus.OK:
                return None
            if status is TokenStatus.BLOCKED:
                return self._refuse(argument, self._rule.count, self._rule.count)
            share = self._share()
        longest_ns = 0
        for value in values:
            if value is None:
                if self._skips_null:
                    continue
                # The original stumbles over it, unless the threshold alone decides, and lets the
                # rest pass unchecked.
                if self._limiter.refuses(self._count, entry.count):
                    return self._refuse(value, 0, self._count)
                break
            key = key_of(value)
            threshold = int(self._threshold(key) * share)
            outcome = self._limiter.decide(entry, key, threshold, now_ns)
            if outcome == BLOCKED:
                return self._refuse(value, self._limiter.measured(key), threshold)
            longest_ns = max(longest_ns, outcome)
        return longest_ns or None

    def _share(self) -> float:
        """This process's part of a threshold that is meant for all of them together."""
        source = self._manager.token_source
        if source is None or not self._is_shared:
            return 1.0
        return min(max(source.share(self._rule), 0.0), 1.0)

    def _threshold(self, key: Hashable) -> int:
        return self._special.get(key, self._count) if self._special else self._count

    def _ask_token_source(self, entry: Entry, values: tuple[object, ...]) -> TokenStatus:
        """OK, BLOCKED, or UNAVAILABLE, which means: check locally."""
        source = self._manager.token_source
        status = TokenStatus.UNAVAILABLE
        if source is not None:
            status = source.acquire(self._rule, entry.count, values)
            if status is TokenStatus.OK:
                entry.took(partial(source.give_back, self._rule, entry.count, values))
        if status is not TokenStatus.UNAVAILABLE:
            return status
        config = self._rule.cluster_config
        match self._manager.settings.cluster_fallback:
            case "closed":
                return TokenStatus.BLOCKED
            case "share":
                return TokenStatus.UNAVAILABLE
            case _:
                # Unlike flow rules these let pass unless told otherwise.
                local = config is not None and config.fallback_to_local_when_fail is True
                return TokenStatus.UNAVAILABLE if local else TokenStatus.OK

    def _refuse(self, value: object, measured: float, limit: float) -> ParamFlowException:
        text = str(value)[:PARAMETER_TEXT_LENGTH_MAX]
        return ParamFlowException(
            self._resource.name, self._rule, self._rule.limit_app, measured, limit, text
        )
