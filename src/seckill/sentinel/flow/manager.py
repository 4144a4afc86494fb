"""The flow rules in force, each with its controller."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from seckill.sentinel.flow.pacing import Pacing
from seckill.sentinel.flow.reject import RejectConcurrency, RejectQPS
from seckill.sentinel.flow.rule import FlowRule
from seckill.sentinel.flow.warm_up import WarmUp
from seckill.sentinel.flow.warm_up_pacing import WarmUpPacing
from seckill.sentinel.rule_set import RuleManager
from seckill.sentinel.settings import Difference
from seckill.sentinel.words import LIMIT_APP_DEFAULT, ControlBehavior, FlowGrade

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from seckill.sentinel.flow.shaper import TrafficShaper
    from seckill.sentinel.node import ClusterNode
    from seckill.sentinel.settings import Settings
    from seckill.sentinel.token_source import TokenSource


class FlowRuleManager(RuleManager[FlowRule]):
    """The flow rules in force.

    A controller has a past (when the last call had its turn, how warm the resource is). It outlives
    an update for as long as its rule says the same.

    Args:
        settings: the engine's.
        lock: the engine's.
        changed: told which resources are concerned by an update.
        find_node: gives a resource's node, for rules that look at another resource.
        token_source: for rules in cluster mode.
    """

    kind: ClassVar[str] = "flow"

    def __init__(
        self,
        *,
        settings: Settings,
        lock: AbstractContextManager[object],
        changed: Callable[[frozenset[str] | None], None],
        find_node: Callable[[str], ClusterNode | None],
        token_source: TokenSource | None,
    ) -> None:
        super().__init__(settings=settings, lock=lock, changed=changed)
        self.settings = settings
        self.find_node = find_node
        self.token_source = token_source
        self._shapers: dict[tuple[FlowRule, str], TrafficShaper] = {}
        self._shares: dict[tuple[FlowRule, str], tuple[float, TrafficShaper]] = {}

    def rules_for(self, resource: str) -> tuple[FlowRule, ...]:
        """The rules of one resource in order: local before cluster, named before default."""
        return tuple(
            sorted(
                super().rules_for(resource),
                key=lambda rule: (rule.cluster_mode, rule.limit_app == LIMIT_APP_DEFAULT),
            )
        )

    def shaper_for(self, rule: FlowRule, resource: str) -> TrafficShaper:
        """The controller of a rule at one resource, made if need be."""
        key = (rule, resource)
        shaper = self._shapers.get(key)
        if shaper is None:
            shaper = self._shapers[key] = make_shaper(rule, self.settings)
        return shaper

    def share_shaper_for(self, rule: FlowRule, resource: str, count: float) -> TrafficShaper:
        """The controller of this process's share of a rule, made anew when the share changes."""
        key = (rule, resource)
        known = self._shares.get(key)
        if known is None or known[0] != count:
            known = self._shares[key] = (
                count,
                make_shaper(replace(rule, count=count), self.settings),
            )
        return known[1]

    def pre_warm(self, resource: str, now_ns: int) -> int:
        """Make a resource warm from this moment, so that its sale does not begin at a third.

        Args:
            resource: name of the resource.
            now_ns: the clock's time.

        Returns:
            How many of its rules are warming ones.
        """
        warmed = 0
        with self._lock:
            for rule in self.rules_for(resource):
                shapers = [self.shaper_for(rule, resource)]
                if share := self._shares.get((rule, resource)):
                    shapers.append(share[1])
                warming = [one for one in shapers if isinstance(one, WarmUp | WarmUpPacing)]
                for shaper in warming:
                    shaper.tokens.warm(now_ns)
                warmed += bool(warming)
        return warmed

    def _replaced(self) -> None:
        if self.settings.differs(Difference.UNCHANGED_RULES_KEEP_STATE):
            staying = frozenset(self._rules)
            self._shapers = {key: one for key, one in self._shapers.items() if key[0] in staying}
            self._shares = {key: one for key, one in self._shares.items() if key[0] in staying}
        else:
            self._shapers = {}
            self._shares = {}


def make_shaper(rule: FlowRule, settings: Settings) -> TrafficShaper:
    """The controller that a rule asks for. Behaviours are looked at for grade QPS only."""
    if rule.grade == FlowGrade.THREAD:
        return RejectConcurrency(rule.count)
    match rule.control_behavior:
        case ControlBehavior.WARM_UP:
            return WarmUp(rule.count, rule.warm_up_period_sec, settings)
        case ControlBehavior.RATE_LIMITER:
            return Pacing(rule.count, rule.max_queueing_time_ms, settings)
        case ControlBehavior.WARM_UP_RATE_LIMITER:
            return WarmUpPacing(
                rule.count, rule.warm_up_period_sec, rule.max_queueing_time_ms, settings
            )
        case _:
            return RejectQPS(rule.count, settings)
