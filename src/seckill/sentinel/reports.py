"""What happened to a list of rules that somebody wanted in force.

An update is never all or nothing and never silent: the good rules are taken, each bad one is named
by its place in the list, its field and the reason.
"""

from __future__ import annotations

from dataclasses import dataclass


def printable(text: str) -> str:
    """The text as one line that any log can take.

    What is refused may hold anything: a line break would forge a log line, and half a surrogate
    pair cannot be written at all.
    """
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with one rule.

    Attributes:
        field: the field's name in rule JSON (``maxQueueingTimeMs``), or a path into it.
        reason: what is wrong, and what would be right.
    """

    field: str
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.field}: {self.reason}")


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """One rule of a list that was refused, or taken with a warning.

    Attributes:
        index: the rule's place in the list as it was given, from 0.
        resource: the rule's resource, as far as it can be told; else empty.
        problems: at least one.
    """

    index: int
    resource: str
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        reasons = "; ".join(str(problem) for problem in self.problems)
        return f"rule {self.index} ({printable(self.resource) or 'no resource'}): {reasons}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The outcome of one update of one kind of rules.

    Attributes:
        kind: which rules: ``flow``, ``degrade``, ``system``, ``authority``, ``param-flow``.
        given: how many rules the list held.
        in_force: how many rules of the kind are in force now.
        applied: whether the list was put in force. False: the old rules still are.
        refused: the rules that were not taken.
        warnings: the rules that were taken, but not as they were meant.
        merged: indices of rules that say the same as an earlier one of the list.
        saved: whether the rules were stored; None without a store.
    """

    kind: str
    given: int
    in_force: int
    applied: bool
    refused: tuple[RuleProblem, ...] = ()
    warnings: tuple[RuleProblem, ...] = ()
    merged: tuple[int, ...] = ()
    saved: bool | None = None

    def __str__(self) -> str:
        verb = "applied" if self.applied else "NOT applied, the old rules stay"
        lines = [f"{self.kind}: {self.given} given, {self.in_force} in force ({verb})"]
        lines.extend(f"refused {problem}" for problem in self.refused)
        lines.extend(f"warning {problem}" for problem in self.warnings)
        lines.extend(f"merged rule {index}: same as an earlier one" for index in self.merged)
        if self.saved is False:
            lines.append("the rules are in force but could not be stored")
        return "\n".join(lines)
