"""The authority rules in force: at most one per resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from seckill.sentinel.authority.rule import AuthorityRule
from seckill.sentinel.reports import Problem
from seckill.sentinel.rule_set import RuleManager
from seckill.sentinel.settings import Difference

if TYPE_CHECKING:
    from collections.abc import Iterable


class AuthorityRuleManager(RuleManager[AuthorityRule]):
    """The authority rules in force. A second rule of the same resource is refused, and said so."""

    kind: ClassVar[str] = "authority"

    def callers(self, rule: AuthorityRule) -> frozenset[str]:
        """The callers a rule names. Spaces around a name are not part of it."""
        names = rule.limit_app.split(",")
        if self._settings.differs(Difference.AUTHORITY_NAMES_TRIMMED):
            return frozenset(name.strip() for name in names)
        return frozenset(names)

    def _conflicts(self, rule: AuthorityRule, good: Iterable[AuthorityRule]) -> tuple[Problem, ...]:
        for earlier in good:
            if earlier.resource == rule.resource and earlier != rule:
                return (
                    Problem("resource", "has an authority rule already; only the first counts"),
                )
        return ()
