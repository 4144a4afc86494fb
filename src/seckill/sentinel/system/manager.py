"""The system limits in force: the smallest of each over all rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from seckill.sentinel.rule_set import RuleManager
from seckill.sentinel.settings import Difference
from seckill.sentinel.system.rule import SystemRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from seckill.sentinel.node import StatisticNode
    from seckill.sentinel.settings import Settings
    from seckill.sentinel.system.status import SystemStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is in force, each as a rule that sets this limit alone; None where no rule sets it."""

    load: SystemRule | None
    cpu: SystemRule | None
    rt: SystemRule | None
    thread: SystemRule | None
    qps: SystemRule | None

    def rules(self) -> tuple[SystemRule, ...]:
        """The limits that are set, in the order in which the original reports them."""
        found = (self.load, self.cpu, self.rt, self.thread, self.qps)
        return tuple(rule for rule in found if rule is not None)


class SystemRuleManager(RuleManager[SystemRule]):
    """The system limits in force.

    Args:
        settings: the engine's.
        lock: the engine's.
        changed: told when protection begins or ends.
        inbound: counters of all inbound traffic.
        status: load and CPU.
    """

    kind: ClassVar[str] = "system"

    def __init__(
        self,
        *,
        settings: Settings,
        lock: AbstractContextManager[object],
        changed: Callable[[frozenset[str] | None], None],
        inbound: StatisticNode,
        status: SystemStatus,
    ) -> None:
        super().__init__(settings=settings, lock=lock, changed=changed)
        self.settings = settings
        self.inbound = inbound
        self.status = status
        self.limits = effective_limits(())

    def _concerned(
        self, by_resource: dict[str, list[SystemRule]], *, patterns: bool
    ) -> frozenset[str] | None:
        """Every resource when protection begins or ends; none when only the numbers change."""
        assert not patterns, "a system rule has no resource"
        begins = bool(self._limits_of(by_resource.get("", ())).rules())
        return frozenset() if begins == bool(self.limits.rules()) else None

    def _replaced(self) -> None:
        self.limits = self._limits_of(self._rules)

    def _limits_of(self, rules: Sequence[SystemRule]) -> Limits:
        # The original forgets all limits if the last rule of the list sets none.
        forgets = not self.settings.differs(Difference.SYSTEM_RULES_ADD_UP)
        if forgets and rules and rules[-1].sets_nothing:
            rules = ()
        return effective_limits(rules)


def effective_limits(rules: Iterable[SystemRule]) -> Limits:
    """The smallest of each limit over all rules that set it."""
    load = cpu = qps = rt = thread = math.inf
    for rule in rules:
        load = min(load, _or_infinite(rule.highest_system_load))
        if rule.highest_cpu_usage <= 1:
            cpu = min(cpu, _or_infinite(rule.highest_cpu_usage))
        qps = min(qps, _or_infinite(rule.qps))
        rt = min(rt, _or_infinite(rule.avg_rt))
        thread = min(thread, _or_infinite(rule.max_thread))
    return Limits(
        load=SystemRule(highest_system_load=load) if math.isfinite(load) else None,
        cpu=SystemRule(highest_cpu_usage=cpu) if math.isfinite(cpu) else None,
        rt=SystemRule(avg_rt=int(rt)) if math.isfinite(rt) else None,
        thread=SystemRule(max_thread=int(thread)) if math.isfinite(thread) else None,
        qps=SystemRule(qps=qps) if math.isfinite(qps) else None,
    )


def _or_infinite(limit: float) -> float:
    return limit if limit >= 0 else math.inf
