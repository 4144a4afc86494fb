"""The breakers' places in the chain: last, so that a probe is sent only if nothing else refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seckill.sentinel.errors import DegradeException
from seckill.sentinel.settings import Difference
from seckill.sentinel.slot import NO_LINKS, Links, SlotOrder

if TYPE_CHECKING:
    from seckill.sentinel.circuitbreaking.breaker import CircuitBreaker
    from seckill.sentinel.circuitbreaking.manager import DegradeRuleManager
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.node import ClusterNode


class DegradeSlot:
    """Asks the breakers of the resource's own rules."""

    order = SlotOrder.DEGRADE

    def __init__(self, manager: DegradeRuleManager) -> None:
        self._manager = manager

    def links(self, resource: ClusterNode) -> Links:
        """One check for all breakers of the resource together."""
        return _links(self._manager, self._manager.breakers_for(resource.name))


class DefaultCircuitBreakerSlot:
    """Asks the breakers of the default rules, for resources without rules of their own."""

    order = SlotOrder.DEFAULT_CIRCUIT_BREAKER

    def __init__(self, manager: DegradeRuleManager) -> None:
        self._manager = manager

    def links(self, resource: ClusterNode) -> Links:
        """One check for all default breakers of the resource together."""
        return _links(self._manager, self._manager.default_breakers_for(resource.name))


def _links(manager: DegradeRuleManager, breakers: tuple[CircuitBreaker, ...]) -> Links:
    if not breakers:
        return NO_LINKS
    group = BreakerGroup(
        breakers, together=manager.settings.differs(Difference.BREAKERS_PROBE_TOGETHER)
    )
    return Links(checks=(group.check,), on_exit=(group.complete,))


class BreakerGroup:
    """All breakers of one resource.

    A call goes through only if every breaker lets it. So they are all asked first, and only then is
    the
    call made the probe of those that are open: the original asks one after the other, and spends
    the probe of the first in vain while the second is still shut.

    Args:
        breakers: at least one.
        together: ask all before sending the probe.
    """

    __slots__ = ("_breakers", "_together")

    def __init__(self, breakers: tuple[CircuitBreaker, ...], *, together: bool) -> None:
        self._breakers = breakers
        self._together = together

    def check(self, entry: Entry, now_ns: int) -> DegradeException | None:
        """Refuse the call if one of the breakers is open."""
        for breaker in self._breakers:
            if not breaker.admits(now_ns):
                return DegradeException(
                    entry.cluster.name,
                    breaker.rule,
                    breaker.rule.limit_app,
                    breaker.opened_by,
                    breaker.threshold,
                )
            if not self._together:
                breaker.send_probe(entry, now_ns)
        if self._together:
            for breaker in self._breakers:
                breaker.send_probe(entry, now_ns)
        return None

    def complete(self, entry: Entry, now_ns: int) -> None:
        """Tell every breaker of a call that ended."""
        for breaker in self._breakers:
            breaker.complete(entry, now_ns)
