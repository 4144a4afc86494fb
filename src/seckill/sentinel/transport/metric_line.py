"""One line of the metric log: what one resource did in one second.

``fat`` is the form in files, ``thin`` that over HTTP; both are the original's, to the byte.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from seckill.sentinel.transport.counts import MS_PER_S

if TYPE_CHECKING:
    from datetime import tzinfo

    from seckill.sentinel.transport.counts import MetricRow

SEPARATOR: Final = "|"
SUBSTITUTE: Final = "_"
FAT_FIELDS: Final = range(8, 12)
THIN_FIELDS: Final = range(7, 11)
"""How many fields a line may have. The last three came with later versions."""


class MetricLine(NamedTuple):
    """One line. Counts are of that one second; see ``MetricRow``.

    Attributes:
        at_ms: when the second began.
        resource: its name, fit for a line.
        passed, blocked, success, exceptions: acquired units.
        rt_ms: whole milliseconds per finished unit.
        occupied: units let in ahead of time.
        concurrency: calls in flight.
        classification: what the resource stands for.
    """

    at_ms: int
    resource: str
    passed: int
    blocked: int
    success: int
    exceptions: int
    rt_ms: int
    occupied: int = 0
    concurrency: int = 0
    classification: int = 0


def line_of(row: MetricRow) -> MetricLine:
    """A second's counts as a line."""
    return MetricLine(
        row.at_ms,
        in_line(row.resource),
        row.passed,
        row.blocked,
        row.success,
        row.exceptions,
        row.average_rt_ms,
        row.occupied,
        row.concurrency,
        row.classification,
    )


def in_line(resource: str) -> str:
    """A name fit for a line. The original lets a line break through, and breaks its own file."""
    if resource.isprintable() and SEPARATOR not in resource:
        return resource
    return "".join(
        one if one.isprintable() and one != SEPARATOR else SUBSTITUTE for one in resource
    )


def fat(line: MetricLine, zone: tzinfo | None = None) -> str:
    """A line of a file, without its end. ``zone`` is that of the time in words; default here."""
    at = datetime.fromtimestamp(line.at_ms / MS_PER_S, zone)
    return SEPARATOR.join((str(line.at_ms), f"{at:%Y-%m-%d %H:%M:%S}", *_after_time(line)))


def thin(line: MetricLine) -> str:
    """A line over HTTP, without its end."""
    return SEPARATOR.join((str(line.at_ms), *_after_time(line)))


def read_fat(text: str) -> MetricLine | None:
    """A line of a file, of any version of the original; None if it is none."""
    fields = text.split(SEPARATOR)
    if len(fields) < FAT_FIELDS.start:
        return None
    return _read([fields[0], *fields[2 : FAT_FIELDS.stop - 1]])


def read_thin(text: str) -> MetricLine | None:
    """A line over HTTP, of any version of the original; None if it is none."""
    fields = text.split(SEPARATOR)
    if len(fields) < THIN_FIELDS.start:
        return None
    return _read(fields[: THIN_FIELDS.stop - 1])


def _after_time(line: MetricLine) -> tuple[str, ...]:
    return (line.resource, *(str(number) for number in line[2:]))


def _read(fields: list[str]) -> MetricLine | None:
    at_ms, resource, *numbers = fields
    try:
        return MetricLine(int(at_ms), resource, *map(int, numbers))
    except ValueError:
        return None
