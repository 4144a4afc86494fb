"""The data of an authority rule, and when it is valid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from seckill.sentinel.rule_set import choice_problems, limit_app_problems, resource_problems
from seckill.sentinel.words import AuthorityStrategy

if TYPE_CHECKING:
    from seckill.sentinel.reports import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityRule:
    """A list of callers for a resource. Names and defaults are Sentinel's.

    Attributes:
        resource: name of the resource, or a pattern of names if ``regex``.
        limit_app: the callers, separated by commas.
        strategy: whether they are the only ones let in (``WHITE``) or the only ones not
            (``BLACK``).
        regex: ``resource`` is a pattern that must match the whole name.
        id: a number by which people know the rule.
    """

    resource: str
    limit_app: str = ""
    strategy: int = AuthorityStrategy.WHITE
    regex: bool = False
    id: int | None = field(default=None, compare=False)

    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with it; empty when it can be put in force."""
        found = resource_problems(self.resource, regex=self.regex)
        found += limit_app_problems(self.limit_app)
        found += choice_problems("strategy", self.strategy, AuthorityStrategy)
        return tuple(found)

    def warnings(self) -> tuple[Problem, ...]:
        """What will not be as it was meant: nothing."""
        return ()
