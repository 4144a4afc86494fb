"""The flow rules' place in the chain: which node each rule looks at, and what it says.

Source: FlowRuleChecker of sentinel-core 1.8.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from seckill.sentinel.errors import FlowException
from seckill.sentinel.flow.reject import RejectQPS
from seckill.sentinel.flow.shaper import PASS
from seckill.sentinel.pass_log import CEILING_MAX
from seckill.sentinel.slot import NO_LINKS, Links, SlotOrder
from seckill.sentinel.token_source import ClusterConfig, TokenStatus
from seckill.sentinel.words import (
    LIMIT_APP_DEFAULT,
    LIMIT_APP_OTHER,
    ControlBehavior,
    FlowGrade,
    FlowStrategy,
    ThresholdType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from seckill.sentinel.entry import Entry
    from seckill.sentinel.flow.manager import FlowRuleManager
    from seckill.sentinel.flow.rule import FlowRule
    from seckill.sentinel.flow.shaper import TrafficShaper
    from seckill.sentinel.node import ClusterNode, StatisticNode

SERVICE_FLOW_ID_MIN: Final = 2**52
"""Numbers of rules from here on are made by ``for_service``; people and dashboards count from 1."""

_NEVER_ORIGINS: Final = frozenset({LIMIT_APP_DEFAULT, LIMIT_APP_OTHER})


class FlowSlot:
    """Asks each flow rule of the resource, in order; the first refusal decides."""

    order = SlotOrder.FLOW

    def __init__(self, manager: FlowRuleManager) -> None:
        self._manager = manager

    def links(self, resource: ClusterNode) -> Links:
        """One check per rule of the resource."""
        rules = self._manager.rules_for(resource.name)
        if not rules:
            return NO_LINKS
        named = frozenset(rule.limit_app for rule in rules)
        checks = tuple(self._check(rule, resource, named) for rule in rules)
        ceiling = None
        if all(isinstance(shaper, RejectQPS) for shaper in self._plain_shapers(rules, resource)):
            ceiling = min(CEILING_MAX, *(math.floor(rule.count) for rule in rules))
        return Links(checks, ceiling=ceiling)

    def _plain_shapers(
        self, rules: Sequence[FlowRule], resource: ClusterNode
    ) -> Iterator[TrafficShaper | None]:
        """The controller of each rule that looks at all calls of the resource; None for others."""
        for rule in rules:
            plain = (
                rule.limit_app == LIMIT_APP_DEFAULT
                and rule.strategy == FlowStrategy.DIRECT
                and not rule.cluster_mode
                and not self._is_for_service(rule)
            )
            yield self._manager.shaper_for(rule, resource.name) if plain else None

    def _check(
        self, rule: FlowRule, resource: ClusterNode, named: frozenset[str]
    ) -> Callable[[Entry, int], FlowException | int | None]:
        shaper = self._manager.shaper_for(rule, resource.name)
        by_node = _node_chooser(rule, named, self._manager.find_node)
        if self._is_for_service(rule):
            check = ClusterCheck if has_one_count(rule) else ShareCheck
            return check(rule, resource, shaper, by_node, self._manager, for_service(rule)).check
        if rule.cluster_mode and rule.grade == FlowGrade.QPS:
            return ClusterCheck(rule, resource, shaper, by_node, self._manager, rule).check
        if rule.limit_app == LIMIT_APP_DEFAULT and rule.strategy == FlowStrategy.DIRECT:
            return ResourceCheck(rule, resource, shaper).check
        return ChosenNodeCheck(rule, resource, shaper, by_node).check

    def _is_for_service(self, rule: FlowRule) -> bool:
        """Whether a rule that does not say so is meant for all processes together."""
        return (
            rule.resource in self._manager.settings.service_resources
            and rule.grade == FlowGrade.QPS
            and not rule.cluster_mode
            and not rule.regex
        )


class _FlowCheck:
    """One flow rule at one resource."""

    __slots__ = ("_resource", "_rule", "_shaper")

    def __init__(self, rule: FlowRule, resource: ClusterNode, shaper: TrafficShaper) -> None:
        self._rule = rule
        self._resource = resource
        self._shaper = shaper

    def _ask(
        self, shaper: TrafficShaper, entry: Entry, node: StatisticNode, now_ns: int
    ) -> FlowException | int | None:
        outcome = shaper.decide(entry, node, now_ns)
        if outcome == PASS:
            return None
        if outcome > 0:
            return outcome
        measured, limit = shaper.measured(node, now_ns)
        return FlowException(self._resource.name, self._rule, self._rule.limit_app, measured, limit)


class ResourceCheck(_FlowCheck):
    """The usual rule: all callers together, by the resource's own traffic."""

    __slots__ = ()

    def check(self, entry: Entry, now_ns: int) -> FlowException | int | None:
        """Ask the rule's controller."""
        return self._ask(self._shaper, entry, self._resource, now_ns)


class ChosenNodeCheck(_FlowCheck):
    """A rule for certain callers, or one that looks at another resource or at one context."""

    __slots__ = ("_choose",)

    def __init__(
        self,
        rule: FlowRule,
        resource: ClusterNode,
        shaper: TrafficShaper,
        choose: Callable[[Entry], StatisticNode | None],
    ) -> None:
        super().__init__(rule, resource, shaper)
        self._choose = choose

    def check(self, entry: Entry, now_ns: int) -> FlowException | int | None:
        """Ask the rule's controller about the node it is for; without one it does not apply."""
        node = self._choose(entry)
        return None if node is None else self._ask(self._shaper, entry, node, now_ns)


class ClusterCheck(ChosenNodeCheck):
    """A rule whose tokens come from outside, with this process's share to fall back on.

    ``asked`` is the rule as the token source sees it: in cluster mode, also if it was made so.
    """

    __slots__ = ("_asked", "_manager")

    def __init__(
        self,
        rule: FlowRule,
        resource: ClusterNode,
        shaper: TrafficShaper,
        choose: Callable[[Entry], StatisticNode | None],
        manager: FlowRuleManager,
        asked: FlowRule,
    ) -> None:
        super().__init__(rule, resource, shaper, choose)
        self._manager = manager
        self._asked = asked

    def check(self, entry: Entry, now_ns: int) -> FlowException | int | None:
        """Ask for tokens; without an answer fall back as the rule and the settings say."""
        source = self._manager.token_source
        status = TokenStatus.UNAVAILABLE
        if source is not None:
            status = source.acquire(self._asked, entry.count)
            if status is TokenStatus.OK:
                entry.took(partial(source.give_back, self._asked, entry.count))
                return None
        if status is TokenStatus.BLOCKED:
            return self._refuse(entry, now_ns)
        config = self._asked.cluster_config
        way = self._manager.settings.cluster_fallback
        if way == "closed":
            return self._refuse(entry, now_ns)
        if way == "rule" and config is not None and config.fallback_to_local_when_fail is False:
            return None
        node = self._choose(entry)
        return None if node is None else self._ask(self._local(), entry, node, now_ns)

    def _local(self) -> TrafficShaper:
        """The controller for this process's share of the threshold.

        A threshold per machine is this process's already; a global one is shared out, else every
        process would let the whole of it in.
        """
        config = self._asked.cluster_config
        source = self._manager.token_source
        if source is None or config is None or config.threshold_type != ThresholdType.GLOBAL:
            return self._shaper
        count = self._rule.count * min(max(source.share(self._asked), 0.0), 1.0)
        if count == self._rule.count:
            return self._shaper
        return self._manager.share_shaper_for(self._rule, self._resource.name, count)

    def _refuse(self, entry: Entry, now_ns: int) -> FlowException:
        node = self._choose(entry) or self._resource
        return FlowException(
            self._resource.name,
            self._rule,
            self._rule.limit_app,
            node.used(now_ns),
            self._rule.count,
        )


class ShareCheck(ClusterCheck):
    """A rule for all processes that no count of tokens can stand for: each keeps its share.

    A pace and a warm-up are more than a number of calls, and a rule for callers has a count for
    each of them.
    """

    __slots__ = ()

    def check(self, entry: Entry, now_ns: int) -> FlowException | int | None:
        """Ask the controller of this process's share."""
        node = self._choose(entry)
        return None if node is None else self._ask(self._local(), entry, node, now_ns)


def has_one_count(rule: FlowRule) -> bool:
    """Whether all that a rule says is how many calls of a resource may pass in a second."""
    return (
        rule.strategy == FlowStrategy.DIRECT
        and rule.limit_app == LIMIT_APP_DEFAULT
        and rule.control_behavior == ControlBehavior.REJECT
    )


def for_service(rule: FlowRule) -> FlowRule:
    """A local rule as one in cluster mode with a global threshold.

    Its number is made of what the rule says, so every process makes the same.
    """
    told = repr(replace(rule, id=None)).encode()
    digest = int.from_bytes(hashlib.sha256(told).digest()[:6], "big")
    config = ClusterConfig(
        flow_id=SERVICE_FLOW_ID_MIN + digest,
        threshold_type=ThresholdType.GLOBAL,
        fallback_to_local_when_fail=True,
    )
    return replace(rule, cluster_mode=True, cluster_config=config)


def _node_chooser(
    rule: FlowRule, named: frozenset[str], find_node: Callable[[str], ClusterNode | None]
) -> Callable[[Entry], StatisticNode | None]:
    """How to find the node that a rule looks at; None where the rule does not apply."""
    limit_app = rule.limit_app

    def applies(entry: Entry) -> bool:
        origin = entry.context.origin
        if limit_app == LIMIT_APP_DEFAULT:
            return True
        if limit_app == LIMIT_APP_OTHER:
            return bool(origin) and origin not in named
        return origin == limit_app and origin not in _NEVER_ORIGINS

    def direct(entry: Entry) -> StatisticNode | None:
        return entry.cluster if limit_app == LIMIT_APP_DEFAULT else entry.origin_node

    def related(_entry: Entry) -> StatisticNode | None:
        return find_node(rule.ref_resource)

    def chained(entry: Entry) -> StatisticNode | None:
        return entry.place.statistic if entry.context.name == rule.ref_resource else None

    choose: Callable[[Entry], StatisticNode | None]
    match rule.strategy:
        case FlowStrategy.RELATE:
            choose = related
        case FlowStrategy.CHAIN:
            choose = chained
        case _:
            choose = direct
    if limit_app == LIMIT_APP_DEFAULT:
        return choose
    return lambda entry: choose(entry) if applies(entry) else None
