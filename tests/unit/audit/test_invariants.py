"""Each promise as a pure function: it is green when kept, and red as soon as it is broken."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, strategies as st

from seckill.admission.bucket import BucketView, Holding
from seckill.admission.scripts import Status
from seckill.audit import Finding, Kind, invariants
from seckill.audit.invariants import LogSums, Part, Ref, ReservationFacts, Verdict
from seckill.audit.ports import EpochRow, HoldingFault, SaleSums, WrittenOrder, WrittenPlace
from seckill.audit.report import Tally
from seckill.audit.seqs import SeqSet
from seckill.domain.ids import AttemptId, GoodsId, ReservationId, SaleId, UserId
from seckill.domain.order import HOLDING_STATES, OrderState
from seckill.domain.reservation import Place

REF = Ref(SaleId(1), GoodsId("it's"), 0)
PLACE = Place(SaleId(1), 2, 0, 10)
USER = UserId("u")
VIEW = BucketView(Status.OK, 1, 2, 50, stock_units=60, put_units=100, held_units=40, buyers=40)


def sums(*, stock: int = 100, sold: int = 40, live: int = 40) -> SaleSums:
    return SaleSums(stock, sold, live, live, {}, 0, 0, 0)


def epoch(number: int, state: str, valid_to: int | None = None, origin: str = "") -> EpochRow:
    origin = origin or ("created" if number == 1 else "carried_on")
    return EpochRow(SaleId(1), 0, number, state, origin, 100, valid_to)


CARRIED_ON = [epoch(1, "closed", 30), epoch(2, "open")]


def one(findings: Sequence[Finding]) -> Finding:
    (finding,) = findings
    return finding


# No oversell, no duplicate, the ledger's own counters


@given(st.integers(0, 200), st.integers(0, 200))
def test_an_oversell_is_what_is_beyond_the_stock(stock: int, live: int) -> None:
    found = list(invariants.check_oversold(REF, sums(stock=stock, live=live)))
    assert sum(f.units for f in found) == max(0, live - stock)
    assert bool(found) == (live > stock)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5))))
def test_duplicates_are_the_units_beyond_the_limit(holdings: list[tuple[int, int]]) -> None:
    faults = [
        HoldingFault(UserId(f"u{n}"), live, live, limit) for n, (live, limit) in enumerate(holdings)
    ]
    found = list(invariants.check_duplicates(REF, faults))
    assert sum(f.units for f in found) == sum(max(0, live - limit) for live, limit in holdings)
    assert sum(f.count for f in found) == sum(live > limit for live, limit in holdings)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_counters_must_be_what_the_rows_say(sold: int, live: int, held: int, rows: int) -> None:
    faults = [HoldingFault(USER, rows, held, 99)]
    found = list(invariants.check_counters(REF, sums(sold=sold, live=live), faults))
    assert len(found) == (sold != live) + (held != rows)
    assert all(finding.kind is Kind.COUNTER for finding in found)


# Redis by itself, and against the log


@given(st.integers(-3, 9), st.integers(0, 9), st.integers(0, 9))
def test_stock_and_held_are_put_and_never_negative(stock: int, held: int, put: int) -> None:
    view = replace(VIEW, stock_units=stock, held_units=held, put_units=put)
    found = {f.kind: f for f in invariants.check_balance(REF, view)}
    assert (Kind.UNBALANCED in found) == (stock + held != put)
    assert (Kind.OVERSOLD in found) == (stock < 0)
    if Kind.UNBALANCED in found:
        assert found[Kind.UNBALANCED].units == abs(put - stock - held)


@given(st.integers(-2, 2), st.integers(-2, 2))
def test_counters_of_redis_must_be_what_the_log_adds_up_to(put_by: int, held_by: int) -> None:
    log = LogSums(opening_put=90, opening_held=5, admitted=50, released=15, changed=10)
    view = replace(VIEW, put_units=100 + put_by, held_units=40 + held_by)
    found = list(invariants.check_log(REF, view, log))
    assert [f.units for f in found] == [abs(by) for by in (put_by, held_by) if by]


@pytest.mark.parametrize(("put", "red"), [(100, False), (99, True), (101, True)])
def test_redis_must_have_put_on_sale_what_the_ledger_has(put: int, red: bool) -> None:
    assert bool(list(invariants.check_stock(REF, put, 100))) == red


def test_a_torn_bucket_says_which_part_is_lost() -> None:
    parts = [Part("outbox", 1, 1), Part("buyers", 40, 39)]
    assert not list(invariants.check_whole(REF, VIEW, parts))
    finding = one(list(invariants.check_whole(REF, replace(VIEW, status=Status.TORN), parts)))
    assert [subject.note for subject in finding.ids] == ["buyers: 39 there, 40 counted"]


# Trust


def test_a_whole_bucket_of_the_newest_epoch_is_trusted() -> None:
    for state in ("open", "opening"):
        rows = [epoch(1, "closed", 30), epoch(2, state)]
        assert invariants.why_unproven(rows, VIEW, {1: 99, 2: 50}) is None
    torn = replace(VIEW, status=Status.TORN)
    assert invariants.why_unproven(CARRIED_ON, torn, {}) is None


@pytest.mark.parametrize(
    ("rows", "view", "marks", "words"),
    [
        (CARRIED_ON, replace(VIEW, status=Status.MISSING), {}, "not there"),
        (CARRIED_ON, replace(VIEW, status=Status.SERVER), {}, "started again"),
        (CARRIED_ON, replace(VIEW, status=Status.FENCED_OFF), {}, "rebuild"),
        (CARRIED_ON, replace(VIEW, status=Status.BEHIND), {}, "behind"),
        ([], VIEW, {}, "does not know"),
        ([epoch(1, "open")], VIEW, {}, "does not know"),
        ([*CARRIED_ON, epoch(3, "opening")], VIEW, {}, "the ledger is at 3"),
        ([epoch(1, "closed", 30), epoch(2, "counted", 9)], VIEW, {}, "counted"),
        (CARRIED_ON, VIEW, {3: 1}, "answered under 3"),
        (CARRIED_ON, VIEW, {2: 51}, "back in time"),
    ],
)
def test_a_bucket_is_not_trusted_when(
    rows: list[EpochRow], view: BucketView, marks: dict[int, int], words: str
) -> None:
    reason = invariants.why_unproven(rows, view, marks)
    assert reason is not None
    assert words in reason
    assert reason in invariants.fenced(REF, reason, Tally()).what


# Completeness


@given(
    seq=st.integers(0, 30),
    in_outbox=st.sets(st.integers(1, 40)),
    in_ledger=st.sets(st.integers(1, 40)),
)
def test_every_place_up_to_the_look_is_in_a_log_or_missing(
    seq: int, in_outbox: set[int], in_ledger: set[int]
) -> None:
    view = replace(VIEW, epoch=1, seq=seq)
    last = invariants.places_given([epoch(1, "open")], view, {}, {1: max(in_ledger, default=0)})
    assert last == {1: seq}
    covered = SeqSet(in_outbox | in_ledger)
    found = invariants.gaps(last, {1: covered})
    expected = set(range(1, seq + 1)) - in_outbox - in_ledger
    assert set(found.get(1, SeqSet())) == expected
    assert (1 in found) == bool(expected)


@pytest.mark.parametrize(
    ("valid_to", "mark", "written", "last"),
    [(30, 0, 0, 30), (30, 35, 0, 35), (30, 35, 40, 40), (30, 0, 40, 40)],
)
def test_an_earlier_epoch_is_counted_as_far_as_anybody_knows_it(
    valid_to: int, mark: int, written: int, last: int
) -> None:
    rows = [epoch(1, "closed", valid_to), epoch(2, "open")]
    given_out = invariants.places_given(rows, VIEW, {1: mark}, {1: written})
    assert given_out == {1: last, 2: 50}


def test_of_a_bucket_that_is_gone_only_what_was_acknowledged_or_written_is_counted() -> None:
    gone = BucketView(Status.MISSING, 0, 0, 0, 0)
    assert invariants.places_given([epoch(1, "open")], gone, {1: 7}, {1: 5}) == {1: 7}


def test_the_counters_of_redis_begin_with_the_last_rebuild() -> None:
    rows = [
        epoch(1, "counted", 30),
        epoch(2, "counted", 9, "rebuilt"),
        epoch(3, "closed", 20, "rebuilt"),
        epoch(4, "open"),
    ]
    assert invariants.base_epoch(rows) == 3
    assert invariants.last_accepted(rows, replace(VIEW, epoch=4)) == {3: 20, 4: 50}
    assert invariants.base_epoch([epoch(1, "open")]) == 1


@pytest.mark.parametrize(
    ("place", "never"),
    [(PLACE, False), (PLACE._replace(seq=51), True), (PLACE._replace(epoch=1, seq=30), False),
     (PLACE._replace(epoch=1, seq=31), True), (PLACE._replace(epoch=9, seq=1), True)],
)  # fmt: skip
def test_a_place_that_redis_has_never_given_out(place: Place, never: bool) -> None:
    assert invariants.never_given(place, VIEW, {1: 30}) == never


# One reservation in both stores

HELD = Holding(PLACE, 2, AttemptId("a"))
FACTS = ReservationFacts(PLACE, USER, (HELD, HELD), None, False, False, 2)


def order(
    state: OrderState = OrderState.PAID,
    *,
    user: str = "u",
    quantity: int = 2,
    release_epoch: int | None = None,
) -> WrittenPlace:
    return WrittenPlace(
        "admission",
        WrittenOrder(ReservationId("r"), UserId(user), quantity, state, release_epoch),
    )


CANCELLED = OrderState.CANCELLED


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        # held
        ({"written": order()}, Verdict.RIGHT),
        ({"written": order(CANCELLED, release_epoch=2)}, Verdict.RIGHT),
        ({"written": order(CANCELLED, release_epoch=3)}, Verdict.RIGHT),
        ({"written": order(CANCELLED, release_epoch=1)}, Verdict.STRANDED),
        ({"written": order(CANCELLED)}, Verdict.STRANDED),
        ({"written": order(OrderState.COMPENSATED)}, Verdict.STRANDED),
        ({"written": order(user="other")}, Verdict.STRANDED),
        ({"written": order(quantity=1)}, Verdict.STRANDED),
        ({"written": WrittenPlace("release", None)}, Verdict.STRANDED),
        ({"under_way": True}, Verdict.RIGHT),
        ({"never_given": True}, Verdict.STRANDED),
        ({}, Verdict.LOST),
        # not held
        ({"held": (None, None), "written": order()}, Verdict.PHANTOM),
        ({"held": (None, None), "written": order(CANCELLED)}, Verdict.RIGHT),
        ({"held": (None, None), "written": order(user="other")}, Verdict.RIGHT),
        ({"held": (None, None)}, Verdict.RIGHT),
        # moved in between
        ({"held": (HELD, None), "written": order()}, Verdict.UNSTABLE),
        ({"held": (None, HELD)}, Verdict.UNSTABLE),
    ],
)
def test_the_judgement_of_one_reservation(changes: dict[str, object], verdict: Verdict) -> None:
    facts = replace(FACTS, **changes)  # type: ignore[arg-type]
    assert invariants.judge(facts) is verdict
    if verdict is Verdict.STRANDED:
        assert invariants.why_stranded(facts)


@dataclass
class _Reservation:
    """What both stores have of a reservation after each step of its life."""

    held: bool = False
    in_outbox: bool = False
    state: OrderState | None = None
    release_epoch: int | None = None
    epoch: int = 2

    def written(self) -> WrittenPlace | None:
        return None if self.state is None else order(self.state, release_epoch=self.release_epoch)


def lives(end: OrderState, *, carried_on: bool) -> list[_Reservation]:
    """The life of a reservation, one store changing at a time, as the software orders it."""
    now = _Reservation()
    steps = [now]

    def step(**changes: object) -> None:
        steps.append(replace(steps[-1], **changes))  # type: ignore[arg-type]

    step(held=True, in_outbox=True)
    step(state=OrderState.AWAITING_PAYMENT)
    step(in_outbox=False)
    step(state=end, release_epoch=None if end in HOLDING_STATES else 2)
    if end not in HOLDING_STATES:
        if carried_on:
            step(release_epoch=3)
            step(epoch=3)
        step(held=False)
        step(release_epoch=None)
    return steps


@given(
    end=st.sampled_from([OrderState.PAID, CANCELLED, OrderState.EXPIRED, OrderState.COMPENSATED]),
    carried_on=st.booleans(),
    data=st.data(),
)
def test_whenever_a_sound_reservation_is_read_it_is_not_found_wrong(
    end: OrderState, carried_on: bool, data: st.DataObject
) -> None:
    steps = lives(end, carried_on=carried_on)
    # From the admission on: a suspect is read again, so it was seen before.
    moments = st.lists(st.integers(1, len(steps) - 1), min_size=5, max_size=5)
    first, outbox, before, ledger, after = (
        steps[at] for at in sorted(data.draw(moments, label="read at"))
    )
    facts = ReservationFacts(
        PLACE,
        USER,
        (HELD if before.held else None, HELD if after.held else None),
        ledger.written(),
        outbox.in_outbox,
        never_given=False,
        epoch=first.epoch,
    )
    assert invariants.judge(facts) in {Verdict.RIGHT, Verdict.UNSTABLE}


def test_advice_can_be_pasted_into_a_shell() -> None:
    finding = one(list(invariants.check_oversold(REF, sums(live=101))))
    assert "`seckill sale pause 'it'\"'\"'s'`" in finding.advice


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (invariants.lost, Kind.LOST),
        (invariants.lost_events, Kind.LOST_EVENT),
        (invariants.stranded, Kind.STRANDED),
        (invariants.phantom, Kind.PHANTOM),
        (invariants.collided, Kind.COLLISION),
    ],
)
def test_a_tally_becomes_a_finding(make: object, kind: Kind) -> None:
    tally = Tally(units=7, count=3)
    finding = make(REF, tally)  # type: ignore[operator]
    assert (finding.kind, finding.units, finding.count) == (kind, 7, 3)
    assert finding.what
    assert finding.advice
