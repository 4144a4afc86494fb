"""The circuit-breaking rules in force, each with a breaker per resource."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from seckill.sentinel.circuitbreaking.failures import ErrorCountBreaker, ErrorRatioBreaker
from seckill.sentinel.circuitbreaking.rule import DegradeRule
from seckill.sentinel.circuitbreaking.slow_ratio import SlowRatioBreaker
from seckill.sentinel.rule_set import RuleManager
from seckill.sentinel.settings import Difference
from seckill.sentinel.words import DEGRADE_DEFAULT_RESOURCE, DegradeGrade

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from seckill.sentinel.circuitbreaking.breaker import CircuitBreaker, StateChange
    from seckill.sentinel.settings import Settings


class DegradeRuleManager(RuleManager[DegradeRule]):
    """The circuit-breaking rules in force. A breaker keeps its state while its rule says the same.

    Args:
        settings: the engine's.
        lock: the engine's.
        changed: told which resources are concerned by an update.
        notices: where to leave what is to be told once the lock is free.

    Attributes:
        observers: told of each change of a breaker's state, outside the lock.
        undefended: resources that the default rule (``*``) leaves alone.
    """

    kind: ClassVar[str] = "degrade"

    def __init__(
        self,
        *,
        settings: Settings,
        lock: AbstractContextManager[object],
        changed: Callable[[frozenset[str] | None], None],
        notices: list[Callable[[], None]],
    ) -> None:
        super().__init__(settings=settings, lock=lock, changed=changed)
        self.settings = settings
        self.observers: list[Callable[[StateChange], None]] = []
        self.undefended: frozenset[str] = frozenset()
        self._notices = notices
        self._breakers: dict[tuple[DegradeRule, str], CircuitBreaker] = {}
        self._has_default = settings.differs(Difference.DEFAULT_BREAKER_IN_LIST)

    def breakers_for(self, resource: str) -> tuple[CircuitBreaker, ...]:
        """The breakers of a resource's own rules, made if need be, in rule order."""
        return tuple(self._breaker(rule, resource) for rule in self.rules_for(resource))

    def default_breakers_for(self, resource: str) -> tuple[CircuitBreaker, ...]:
        """The breakers of the default rules, for a resource that has no rule of its own."""
        if not self._has_default or resource in self.undefended or self.rules_for(resource):
            return ()
        defaults = self._by_resource.get(DEGRADE_DEFAULT_RESOURCE, ())
        return tuple(self._breaker(rule, resource) for rule in defaults)

    def _breaker(self, rule: DegradeRule, resource: str) -> CircuitBreaker:
        key = (rule, resource)
        breaker = self._breakers.get(key)
        if breaker is None:
            make: type[CircuitBreaker]
            match rule.grade:
                case DegradeGrade.SLOW_REQUEST_RATIO:
                    make = SlowRatioBreaker
                case DegradeGrade.ERROR_RATIO:
                    make = ErrorRatioBreaker
                case _:
                    make = ErrorCountBreaker
            breaker = self._breakers[key] = make(rule, resource, self.settings, self._note)
        return breaker

    def _note(self, change: StateChange) -> None:
        self._notices.extend(partial(observer, change) for observer in self.observers)

    def _concerned(
        self, by_resource: dict[str, list[DegradeRule]], *, patterns: bool
    ) -> frozenset[str] | None:
        names = super()._concerned(by_resource, patterns=patterns)
        return None if names is not None and DEGRADE_DEFAULT_RESOURCE in names else names

    def _replaced(self) -> None:
        staying = frozenset(self._rules)
        self._breakers = {key: one for key, one in self._breakers.items() if key[0] in staying}
