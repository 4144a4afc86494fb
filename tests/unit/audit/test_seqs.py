"""The interval set against Python's own set."""

from itertools import pairwise

from hypothesis import given, strategies as st

from seckill.audit.seqs import SeqSet

seqs = st.sets(st.integers(1, 60))


@given(st.lists(st.integers(1, 60)))
def test_adding_in_any_order_gives_the_same_members(numbers: list[int]) -> None:
    ours, model = SeqSet(), set[int]()
    for number in numbers:
        assert ours.add(number) == (number not in model)
        model.add(number)
    assert list(ours) == sorted(model)
    assert len(ours) == len(model)
    assert bool(ours) == bool(model)
    assert ours.last == max(model, default=0)
    assert ours == SeqSet(sorted(model))
    assert [n for n in range(62) if n in ours] == sorted(model)


@given(st.lists(st.integers(1, 60)))
def test_intervals_are_disjoint_and_never_touch(numbers: list[int]) -> None:
    intervals = list(SeqSet(numbers).intervals())
    assert all(first <= last for first, last in intervals)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(intervals))


@given(seqs, st.integers(1, 60), st.integers(0, 20))
def test_an_interval_counts_what_is_new_in_it(numbers: set[int], first: int, length: int) -> None:
    ours = SeqSet(numbers)
    more = set(range(first, first + length + 1))
    assert ours.add_interval(first, first + length) == len(more - numbers)
    assert set(ours) == numbers | more


@given(seqs, seqs)
def test_union_and_difference(one: set[int], other: set[int]) -> None:
    union = SeqSet(one)
    union.update(SeqSet(other))
    assert set(union) == one | other
    assert list(SeqSet(one).minus(SeqSet(other))) == sorted(one - other)


@given(seqs, st.integers(0, 70))
def test_what_is_missing_up_to_a_last_one(numbers: set[int], last: int) -> None:
    assert list(SeqSet(numbers).missing(last)) == sorted(set(range(1, last + 1)) - numbers)


def test_a_million_in_a_row_are_one_interval() -> None:
    ours = SeqSet(range(1, 1_000_001))
    assert list(ours.intervals()) == [(1, 1_000_000)]
    assert not ours.missing(1_000_000)
