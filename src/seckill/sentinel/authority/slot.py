"""The authority rules' place in the chain: before anything that counts.

Source: AuthorityRuleChecker of sentinel-core 1.8. A caller that gives no name always passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seckill.sentinel.errors import AuthorityException
from seckill.sentinel.slot import NO_LINKS, Links, SlotOrder
from seckill.sentinel.words import AuthorityStrategy

if TYPE_CHECKING:
    from seckill.sentinel.authority.manager import AuthorityRuleManager
    from seckill.sentinel.authority.rule import AuthorityRule
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.node import ClusterNode


class AuthoritySlot:
    """Asks whether the caller is on the resource's list."""

    order = SlotOrder.AUTHORITY

    def __init__(self, manager: AuthorityRuleManager) -> None:
        self._manager = manager

    def links(self, resource: ClusterNode) -> Links:
        """One check per rule; more than one only if patterns overlap."""
        rules = self._manager.rules_for(resource.name)
        if not rules:
            return NO_LINKS
        return Links(
            tuple(AuthorityCheck(rule, self._manager.callers(rule)).check for rule in rules)
        )


class AuthorityCheck:
    """One authority rule.

    Args:
        rule: the rule.
        callers: the names on it.
    """

    __slots__ = ("_callers", "_listed_pass", "_rule")

    def __init__(self, rule: AuthorityRule, callers: frozenset[str]) -> None:
        self._rule = rule
        self._callers = callers
        self._listed_pass = rule.strategy == AuthorityStrategy.WHITE

    def check(self, entry: Entry, _now_ns: int) -> AuthorityException | None:
        """Refuse a caller on a black list, or one that is not on a white list."""
        origin = entry.context.origin
        if not origin or (origin in self._callers) is self._listed_pass:
            return None
        return AuthorityException(entry.cluster.name, self._rule, self._rule.limit_app, origin)
