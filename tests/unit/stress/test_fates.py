"""One fate for each buyer, whatever they were told."""

from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from seckill.domain.outcomes import Outcome
from seckill.stress import BuyerFate, Fate
from seckill.stress.click import End
from seckill.stress.fates import find_fates


@dataclass(frozen=True)
class Told:
    end: End
    outcome: Outcome | None = None
    reservation_id: str | None = None
    number: int = 0
    quantity: int = 1
    done_us: int = 0
    detail: str = ""

    @property
    def unknown(self) -> bool:
        return self.end is not End.ANSWERED or self.outcome is Outcome.UNDECIDED


def yes(reservation_id: str = "r1", **more: int) -> Told:
    return Told(End.ANSWERED, Outcome.SUCCESS, reservation_id, **more)


def no(outcome: Outcome, reservation_id: str | None = None, **more: int) -> Told:
    return Told(End.ANSWERED, outcome, reservation_id, **more)


LOST = Told(End.CONNECTION_FAILED, detail="ECONNRESET")
SILENT = Told(End.TIMED_OUT, detail="no answer in time", done_us=9)


def fate_of(*clicks: Told, limit: int = 1, idempotent: bool = False) -> BuyerFate:
    return find_fates([("u", clicks)], limit_per_user=limit, idempotent=idempotent)[0]


@pytest.mark.parametrize(
    ("clicks", "fate", "outcome"),
    [
        ([yes(), no(Outcome.DUPLICATE, "r1")], Fate.WON, None),
        ([no(Outcome.BLOCKED), yes()], Fate.WON, None),
        ([LOST, yes()], Fate.WON, None),
        ([no(Outcome.SOLD_OUT)], Fate.REFUSED, Outcome.SOLD_OUT),
        (
            [no(Outcome.NOT_ENOUGH_LEFT, done_us=2), no(Outcome.SOLD_OUT, done_us=1)],
            Fate.REFUSED,
            Outcome.NOT_ENOUGH_LEFT,
        ),
        (
            [no(Outcome.SOLD_OUT, done_us=1), no(Outcome.BLOCKED, done_us=2)],
            Fate.REFUSED,
            Outcome.SOLD_OUT,
        ),
        ([no(Outcome.UNDECIDED), no(Outcome.SOLD_OUT)], Fate.REFUSED, Outcome.SOLD_OUT),
        ([no(Outcome.UNDECIDED), no(Outcome.BLOCKED)], Fate.REFUSED, Outcome.BLOCKED),
        ([no(Outcome.PAUSED)], Fate.REFUSED, Outcome.PAUSED),
        ([no(Outcome.DUPLICATE, "old")], Fate.REFUSED, Outcome.DUPLICATE),
        ([SILENT, no(Outcome.UNDECIDED)], Fate.UNDECIDED, None),
        ([LOST, SILENT], Fate.TIMEOUT, None),
        ([LOST], Fate.CONNECTION_ERROR, None),
        ([SILENT, no(Outcome.SOLD_OUT)], Fate.REFUSED, Outcome.SOLD_OUT),
        ([Told(End.MISANSWERED, detail="<html>"), yes()], Fate.VIOLATION, None),
        ([yes("r1"), yes("r2", number=1)], Fate.VIOLATION, None),
        ([yes("r1"), yes("r1", number=1)], Fate.VIOLATION, None),
        ([yes("r1"), no(Outcome.DUPLICATE, "r2")], Fate.VIOLATION, None),
    ],
)
def test_the_firmest_word_is_the_fate(
    clicks: list[Told], fate: Fate, outcome: Outcome | None
) -> None:
    found = fate_of(*clicks)
    assert (found.fate, found.outcome) == (fate, outcome)


def test_a_reservation_learned_of_later_is_won() -> None:
    found = fate_of(LOST, no(Outcome.DUPLICATE, "r1", number=1))
    assert found.fate is Fate.WON
    assert [(won.reservation_id, won.recovered) for won in found.won] == [("r1", True)]
    assert found.unknown_units == 0


@pytest.mark.parametrize("outcome", [Outcome.OVER_LIMIT, Outcome.KEY_REUSED])
def test_every_answer_that_names_a_holding_tells_of_a_lost_success(outcome: Outcome) -> None:
    assert fate_of(LOST, no(outcome, "r1", number=1)).fate is Fate.WON


def test_two_reservations_within_the_limit_are_both_won() -> None:
    found = fate_of(yes("r1"), yes("r2", number=1), no(Outcome.DUPLICATE, "r2"), limit=2)
    assert found.fate is Fate.WON
    assert len(found.won) == 2


def test_a_larger_quantity_than_the_limit_is_a_violation() -> None:
    found = fate_of(yes("r1", quantity=2))
    assert found.fate is Fate.VIOLATION
    assert found.over_limit


def test_a_key_repeats_its_own_success_and_no_others() -> None:
    assert fate_of(yes("r1"), yes("r1"), idempotent=True).fate is Fate.WON
    assert fate_of(yes("r1"), yes("r1", number=1), idempotent=True).fate is Fate.VIOLATION
    assert fate_of(yes("r1"), yes("r1")).fate is Fate.VIOLATION


def test_what_may_be_held_unknowingly_stays_within_the_limit() -> None:
    assert fate_of(LOST, LOST, LOST).unknown_units == 1
    lost = [Told(End.TIMED_OUT, number=number, quantity=2) for number in range(3)]
    assert fate_of(*lost, limit=5).unknown_units == 5
    assert fate_of(yes(), LOST).unknown_units == 0


def test_both_who_share_an_id_are_told_apart_from_everybody_else() -> None:
    fates = find_fates(
        [("a", [yes("r1")]), ("b", [no(Outcome.DUPLICATE, "r1")]), ("c", [yes("r3")])],
        limit_per_user=1,
        idempotent=False,
    )
    assert [one.fate for one in fates] == [Fate.VIOLATION, Fate.VIOLATION, Fate.WON]
    assert [one.shared_id for one in fates] == [True, True, False]


tolds = st.builds(
    Told,
    end=st.sampled_from([end for end in End if end is not End.PENDING]),
    outcome=st.none(),
    number=st.integers(0, 3),
    quantity=st.integers(1, 3),
    done_us=st.integers(0, 100),
    detail=st.just("x"),
) | st.builds(
    no,
    outcome=st.sampled_from(Outcome),
    reservation_id=st.sampled_from([None, "r1", "r2", "r3"]),
    number=st.integers(0, 3),
    quantity=st.integers(1, 3),
    done_us=st.integers(0, 100),
)


@given(st.lists(st.lists(tolds, min_size=1, max_size=6), max_size=5), st.integers(1, 4))
def test_everybody_has_exactly_one_fate_and_it_agrees_with_what_they_hold(
    told: list[list[Told]], limit: int
) -> None:
    fates = find_fates(
        [(str(number), clicks) for number, clicks in enumerate(told)],
        limit_per_user=limit,
        idempotent=False,
    )
    assert [one.user_id for one in fates] == [str(number) for number in range(len(told))]
    for one in fates:
        held = sum(won.quantity for won in one.won)
        assert (one.outcome is not None) == (one.fate is Fate.REFUSED)
        assert bool(one.won) or one.fate is not Fate.WON
        assert not one.won or one.fate in {Fate.WON, Fate.VIOLATION}
        assert held <= limit or one.fate is Fate.VIOLATION
        assert one.unknown_units >= 0
        assert held + one.unknown_units <= max(limit, held)
    winners_of = [won.reservation_id for one in fates if one.fate is Fate.WON for won in one.won]
    assert len(winners_of) == len(set(winners_of))
