"""Numbers as they go from engines to whoever shows them: plain, and made to be added up.

What two processes counted is added field by field; averages are made only at the very end. All are
plain values of plain types, so that they can travel between processes in any form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MS_PER_S = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What one thing (a resource, a caller, a place in the call tree) counted.

    Attributes:
        name: of the thing.
        resource_type: what a resource stands for; 0 for anything else.
        concurrency: calls in flight.
        passed, blocked, success, exceptions: acquired units in the last second.
        rt_ms: sum of the response times of the calls that ended in the last second.
        minute_passed, minute_blocked, minute_exceptions: units in the last 60 seconds.
    """

    name: str
    resource_type: int = 0
    concurrency: int = 0
    passed: int = 0
    blocked: int = 0
    success: int = 0
    exceptions: int = 0
    rt_ms: int = 0
    minute_passed: int = 0
    minute_blocked: int = 0
    minute_exceptions: int = 0

    @property
    def average_rt_ms(self) -> float:
        """Milliseconds per finished unit of the last second; 0 when none finished."""
        return self.rt_ms / self.success if self.success else 0.0

    @property
    def total(self) -> int:
        """Units that came in the last second."""
        return self.passed + self.blocked

    @property
    def minute_total(self) -> int:
        """Units that came in the last 60 seconds."""
        return self.minute_passed + self.minute_blocked

    def plus(self, other: Counts) -> Counts:
        """Both together, under this one's name and type."""
        return Counts(
            name=self.name,
            resource_type=self.resource_type,
            concurrency=self.concurrency + other.concurrency,
            passed=self.passed + other.passed,
            blocked=self.blocked + other.blocked,
            success=self.success + other.success,
            exceptions=self.exceptions + other.exceptions,
            rt_ms=self.rt_ms + other.rt_ms,
            minute_passed=self.minute_passed + other.minute_passed,
            minute_blocked=self.minute_blocked + other.minute_blocked,
            minute_exceptions=self.minute_exceptions + other.minute_exceptions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One place in the call tree. A tree is a list of these, each after its parent.

    Attributes:
        parent: where its parent stands in the list; -1 for the root, which comes first.
        entrance: whether it is the root or a context, rather than a resource.
        counts: its numbers; of the root and of contexts the sums of their children's.
    """

    parent: int
    entrance: bool
    counts: Counts


class MetricRow(NamedTuple):
    """What one resource counted in one whole second.

    Attributes:
        at_ms: when the second began; a multiple of 1,000.
        resource: its name.
        passed, blocked, success, exceptions: acquired units.
        rt_ms: sum of the response times.
        occupied: units let in ahead of time.
        concurrency: calls in flight; the original writes 0.
        classification: what the resource stands for.
    """

    at_ms: int
    resource: str
    passed: int
    blocked: int
    success: int
    exceptions: int
    rt_ms: int
    occupied: int
    concurrency: int
    classification: int

    @property
    def average_rt_ms(self) -> int:
        """Whole milliseconds per finished unit; the sum when none finished, as in the original."""
        return self.rt_ms // self.success if self.success else self.rt_ms

    def plus(self, other: MetricRow) -> MetricRow:
        """Both together, for the same resource and second."""
        return MetricRow(
            self.at_ms,
            self.resource,
            self.passed + other.passed,
            self.blocked + other.blocked,
            self.success + other.success,
            self.exceptions + other.exceptions,
            self.rt_ms + other.rt_ms,
            self.occupied + other.occupied,
            self.concurrency + other.concurrency,
            self.classification,
        )


class MachineLoad(NamedTuple):
    """How busy the machine is. Below 0: cannot be told.

    Attributes:
        load: average of the last minute.
        cpu_usage: 0 to 1.
    """

    load: float
    cpu_usage: float


def summed(groups: Iterable[Iterable[Counts]]) -> list[Counts]:
    """Counts of several processes as one list, added up by name, in order of first sight."""
    found: dict[str, Counts] = {}
    for group in groups:
        for counts in group:
            known = found.get(counts.name)
            found[counts.name] = counts if known is None else known.plus(counts)
    return list(found.values())


def summed_rows(groups: Iterable[Iterable[MetricRow]]) -> list[MetricRow]:
    """Seconds of several processes, added up by second and resource, in order of time."""
    found: dict[tuple[int, str], MetricRow] = {}
    for group in groups:
        for row in group:
            key = (row.at_ms, row.resource)
            known = found.get(key)
            found[key] = row if known is None else known.plus(row)
    return sorted(found.values(), key=lambda row: row.at_ms)


def summed_trees(trees: Iterable[Sequence[TreeRow]]) -> list[TreeRow]:
    """Call trees of several processes laid over each other, each row after its parent."""
    merged: list[TreeRow] = []
    places: dict[tuple[int, str], int] = {}
    for tree in trees:
        moved: list[int] = []
        for row in tree:
            parent = moved[row.parent] if row.parent >= 0 else -1
            key = (parent, row.counts.name)
            place = places.get(key)
            if place is None:
                place = places[key] = len(merged)
                merged.append(TreeRow(parent=parent, entrance=row.entrance, counts=row.counts))
            else:
                known = merged[place]
                merged[place] = TreeRow(
                    parent=parent, entrance=known.entrance, counts=known.counts.plus(row.counts)
                )
            moved.append(place)
    return merged
