"""Percentiles, exact: read from all recorded values, never estimated from a histogram."""

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Percentiles", "percentile_us", "percentiles_of"]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Integer microseconds; all 0 when nothing was recorded.

    Attributes:
        count: how many values there are.
    """

    count: int = 0
    p50_us: int = 0
    p90_us: int = 0
    p99_us: int = 0
    p99_9_us: int = 0
    max_us: int = 0


def percentile_us(ordered: list[int], per_mille: int) -> int:
    """The nearest-rank percentile: the least value that so many per mille do not exceed.

    Args:
        ordered: at least one value, ascending.
        per_mille: 1 to 1000. Whole numbers, since 0.999 times a count is none.
    """
    assert ordered
    assert 1 <= per_mille <= 1000, per_mille  # noqa: PLR2004
    rank = -(-len(ordered) * per_mille // 1000)
    return ordered[rank - 1]


def percentiles_of(values_us: Iterable[int]) -> Percentiles:
    """The percentiles of a report. Complexity: one sort."""
    ordered = sorted(values_us)
    if not ordered:
        return Percentiles()
    return Percentiles(
        count=len(ordered),
        p50_us=percentile_us(ordered, 500),
        p90_us=percentile_us(ordered, 900),
        p99_us=percentile_us(ordered, 990),
        p99_9_us=percentile_us(ordered, 999),
        max_us=ordered[-1],
    )
