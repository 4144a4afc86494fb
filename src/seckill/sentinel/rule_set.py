"""What all kinds of rules have in common: being checked, replaced as one, and found by resource.

Each kind's ``manager.py`` is a ``RuleManager``. Rules are looked up once per resource, when the
resource is first seen or the rules change; a pattern is never matched on the way of a call.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Protocol, TypeVar

from seckill.sentinel.reports import LoadReport, Problem, RuleProblem
from seckill.sentinel.settings import Difference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from seckill.sentinel.settings import Settings

RULE_COUNT_MAX: Final = 10_000
"""Rules of one kind that may be in force."""

RESOURCE_LENGTH_MAX: Final = 1_024
RESOURCE_SHOWN_MAX: Final = 100
PATTERN_LENGTH_MAX: Final = 256
PATTERN_REPEATS_MAX: Final = 3
LIMIT_APP_LENGTH_MAX: Final = 4_096
NUMBER_MAX: Final = 2**53
"""Beyond it a double no longer knows whole numbers, so no threshold may be larger."""

INTEGER_MAX: Final = 2**31 - 1
"""The original's int: spans and counts beyond it cannot be shown on its dashboard."""

_REPEATS: Final = frozenset("*+{")


class Rule(Protocol):
    """What every kind of rule has. Rules are immutable, and equal when they say the same."""

    @property
    def resource(self) -> str:
        """Name of the resource it is for, or the pattern of names."""
        ...

    @property
    def regex(self) -> bool:
        """Whether ``resource`` is a pattern that must match the whole name."""
        ...

    @property
    def id(self) -> int | None:
        """A number by which people know the rule; not part of what it says."""
        ...

    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with it; empty when it can be put in force."""
        ...

    def warnings(self) -> tuple[Problem, ...]:
        """What will not be as it was meant, though the rule can be put in force."""
        ...


R = TypeVar("R", bound=Rule)


def resource_problems(resource: str, *, regex: bool) -> list[Problem]:
    """What is wrong with a rule's resource: blank, too long, or not a pattern we dare to run.

    Source: our decision. A pattern is run against names that may come from outside, and Python's
        patterns go back and try again, so one that could take very long is refused (``_danger``).
    """
    if not resource.strip():
        return [Problem("resource", "must not be blank")]
    if len(resource) > RESOURCE_LENGTH_MAX:
        return [Problem("resource", f"longer than {RESOURCE_LENGTH_MAX} characters")]
    fault = _pattern_fault(resource) if regex else ""
    return [Problem("resource", fault)] if fault else []


def _pattern_fault(pattern: str) -> str:
    """Why a pattern cannot be used; empty if it can."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        return f"a pattern longer than {PATTERN_LENGTH_MAX} characters"
    if danger := _danger(pattern):
        return danger
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"not a pattern: {error}"
    return ""


def limit_app_problems(limit_app: str) -> list[Problem]:
    """What is wrong with a rule's limitApp."""
    if not limit_app.strip():
        return [Problem("limitApp", "must not be blank; 'default' means every caller")]
    if len(limit_app) > LIMIT_APP_LENGTH_MAX:
        return [Problem("limitApp", f"longer than {LIMIT_APP_LENGTH_MAX} characters")]
    return []


def number_problems(field: str, value: float, *, low: float, high: float) -> list[Problem]:
    """Whether a number is one, and within its bounds, both inclusive."""
    # Not a number compares false with everything, so it falls through the first test.
    if low <= value <= high:
        return []
    return [Problem(field, f"must be from {low:,} to {high:,}, is {value!r}")]


def choice_problems(field: str, value: int, choices: Iterable[int]) -> list[Problem]:
    """Whether a number is one of those that have a meaning."""
    allowed = [int(choice) for choice in choices]
    if value in allowed:
        return []
    return [Problem(field, f"must be one of {allowed}, is {value!r}")]


def _danger(pattern: str) -> str:  # noqa: C901  one step per kind of character
    """Why a pattern may take too long on some name, read without running it; empty when it may not.

    Refused are a repeated group that can match one text in several ways (it repeats or chooses
    inside), and more than ``PATTERN_REPEATS_MAX`` repeats: each one more is a factor of the length.
    """
    ambiguous_inside: list[bool] = [False]
    repeats = 0
    closed_group_is_ambiguous = False
    in_class = False
    position = 0
    while position < len(pattern):
        character = pattern[position]
        step = 1
        after_group = closed_group_is_ambiguous
        closed_group_is_ambiguous = False
        if character == "\\":
            step = 2
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
            # A bracket right after the opening one (or its negation) is a member of the class.
            step = 3 if pattern[position + 1 : position + 3] == "^]" else 1
            step = 2 if pattern[position + 1 : position + 2] == "]" else step
        elif character == "(":
            ambiguous_inside.append(False)
        elif character == ")" and len(ambiguous_inside) > 1:
            closed_group_is_ambiguous = ambiguous_inside.pop()
            ambiguous_inside[-1] = ambiguous_inside[-1] or closed_group_is_ambiguous
        elif character == "|":
            ambiguous_inside[-1] = True
        elif character in _REPEATS:
            if after_group:
                return "a pattern that repeats a group which repeats or chooses inside"
            ambiguous_inside[-1] = True
            repeats += 1
        position += step
    if repeats > PATTERN_REPEATS_MAX:
        return f"a pattern with more than {PATTERN_REPEATS_MAX} repeats (*, + or {{)"
    return ""


class RuleManager(Generic[R]):
    """The rules of one kind: load a list, replace the old as one, find those of a resource.

    Args:
        settings: the engine's.
        lock: the engine's; held while rules change, so no call sees half of an update.
        changed: told, under the lock, which resource names are concerned; None means any.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        *,
        settings: Settings,
        lock: AbstractContextManager[object],
        changed: Callable[[frozenset[str] | None], None],
    ) -> None:
        self._settings = settings
        self._lock = lock
        self._changed = changed
        self._rules: tuple[R, ...] = ()
        self._by_resource: dict[str, tuple[R, ...]] = {}
        self._patterns: tuple[tuple[re.Pattern[str], R], ...] = ()

    @property
    def rules(self) -> tuple[R, ...]:
        """All rules in force, in the order they were given."""
        return self._rules

    def names(self, resource: str) -> bool:
        """Whether a rule names this resource, letter by letter."""
        return resource in self._by_resource

    def rules_for(self, resource: str) -> tuple[R, ...]:
        """The rules of one resource, in the order they are checked. Runs patterns."""
        named = self._by_resource.get(resource, ())
        if not self._patterns:
            return named
        return named + tuple(
            rule for pattern, rule in self._patterns if pattern.fullmatch(resource)
        )

    def load(
        self,
        rules: Sequence[R],
        *,
        indices: Sequence[int] | None = None,
        refused: Sequence[RuleProblem] = (),
        warnings: Sequence[RuleProblem] = (),
    ) -> LoadReport:
        """Put a whole list in force in place of the old one.

        Good rules are taken and bad ones named. A list that holds rules of which none is good
        changes nothing; an empty list takes all rules out.

        Args:
            rules: the new list.
            indices: the place of each rule in the document it came from; default its place here.
            refused: rules of that document that could not even be read.
            warnings: what the reader has to say about rules that it could read.

        Returns:
            What was done, rule by rule.
        """
        places = range(len(rules)) if indices is None else indices
        bad = list(refused)
        doubtful = list(warnings)
        merged: list[int] = []
        good: dict[R, None] = {}
        for place, rule in zip(places, rules, strict=True):
            problems = rule.problems()
            if not problems and rule not in good and len(good) >= RULE_COUNT_MAX:
                problems = (Problem("$", f"more than {RULE_COUNT_MAX} rules"),)
            if not problems:
                problems = self._conflicts(rule, good)
            if problems:
                bad.append(RuleProblem(place, rule.resource[:RESOURCE_SHOWN_MAX], problems))
            elif rule in good:
                merged.append(place)
            else:
                good[rule] = None
                if notes := rule.warnings():
                    doubtful.append(RuleProblem(place, rule.resource[:RESOURCE_SHOWN_MAX], notes))
        bad.sort(key=lambda problem: problem.index)
        doubtful.sort(key=lambda problem: problem.index)
        given = len(rules) + len(refused)
        keeps_old = bool(given) and not good
        if keeps_old and self._settings.differs(Difference.EMPTY_RESULT_KEEPS_RULES):
            applied = False
        else:
            self._replace(tuple(good))
            applied = True
        return LoadReport(
            kind=self.kind,
            given=given,
            in_force=len(self._rules),
            applied=applied,
            refused=tuple(bad),
            warnings=tuple(doubtful),
            merged=tuple(merged),
        )

    def _replace(self, rules: tuple[R, ...]) -> None:
        by_resource: dict[str, list[R]] = {}
        patterns: list[tuple[re.Pattern[str], R]] = []
        for rule in rules:
            if rule.regex:
                patterns.append((re.compile(rule.resource), rule))
            else:
                by_resource.setdefault(rule.resource, []).append(rule)
        with self._lock:
            concerned = self._concerned(by_resource, patterns=bool(patterns))
            self._rules = rules
            self._by_resource = {name: tuple(found) for name, found in by_resource.items()}
            self._patterns = tuple(patterns)
            self._replaced()
            self._changed(concerned)

    def _concerned(
        self, by_resource: dict[str, list[R]], *, patterns: bool
    ) -> frozenset[str] | None:
        """The names whose rules may differ after an update; None when it can be any."""
        if patterns or self._patterns:
            return None
        return frozenset(self._by_resource) | frozenset(by_resource)

    def _conflicts(self, _rule: R, _good: dict[R, None]) -> tuple[Problem, ...]:
        """What keeps a rule, good by itself, from standing beside the earlier ones of its list."""
        return ()

    def _replaced(self) -> None:
        """Under the lock, just after the rules changed: let go of what belonged to the old ones."""
