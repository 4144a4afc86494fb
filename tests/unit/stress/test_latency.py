"""Percentiles are exact: checked against their definition, not against another formula."""

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from seckill.stress import Percentiles
from seckill.stress.latency import percentile_us, percentiles_of


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.integers(1, 1000))
def test_a_percentile_is_the_least_value_that_covers_its_share(
    values: list[int], per_mille: int
) -> None:
    found = percentile_us(sorted(values), per_mille)
    share = Fraction(per_mille, 1000) * len(values)
    assert found in values
    assert sum(value <= found for value in values) >= share
    assert sum(value < found for value in values) < share


def test_known_data() -> None:
    assert percentiles_of(range(1000, 0, -1)) == Percentiles(
        count=1000, p50_us=500, p90_us=900, p99_us=990, p99_9_us=999, max_us=1000
    )


def test_one_value_is_every_percentile() -> None:
    assert percentiles_of([7]) == Percentiles(1, 7, 7, 7, 7, 7)


def test_nothing_recorded_is_all_zero() -> None:
    assert percentiles_of([]) == Percentiles()


@pytest.mark.parametrize("per_mille", [0, 1001])
def test_there_is_no_percentile_outside_the_data(per_mille: int) -> None:
    with pytest.raises(AssertionError):
        percentile_us([1], per_mille)
