"""What a bucket is judged by. Each test takes one thing away, and the ruling must change."""

from dataclasses import replace

import pytest

from seckill.admission.bucket import BucketView
from seckill.admission.fence_ports import CurrentEpoch, EpochState
from seckill.admission.judging import (
    Evidence,
    Folder,
    HostMarks,
    Patience,
    Ruling,
    Step,
    first_sight,
    host_marks,
    judge,
    ledger_behind,
    unknown_hosts,
    why_fenced,
)
from seckill.admission.scripts import Status
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId

BUCKET = BucketId(SaleId(1), 0)
PATIENCE = Patience(quiet_ms=1_500, reports_ms=3_000, gone_ms=30_000)
HERE = HostMarks("here", 90)
CALM = Evidence(seq=90, hosts=[HERE], written_seq=90, carried_seq=0, waited_ms=0)


def view(status: Status = Status.OK, epoch: int = 3, seq: int = 90, written: int = 0) -> BucketView:
    return BucketView(status, 1, epoch, seq, 10, written_seq=written)


def current(epoch: int = 3, state: EpochState = EpochState.OPEN, **more: bool) -> CurrentEpoch:
    return CurrentEpoch(
        BUCKET,
        epoch,
        state,
        100,
        by_rebuild=more.get("by_rebuild", False),
        begun=more.get("begun", True),
    )


def test_nothing_behind_goes_on_at_once() -> None:
    assert judge(CALM, PATIENCE).ruling is Ruling.GO_ON


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (replace(CALM, hosts=[replace(HERE, seq=91)]), "acknowledged to a buyer"),
        (replace(CALM, hosts=[HERE, HostMarks("b", 91)]), "acknowledged to a buyer"),
        (replace(CALM, written_seq=91), "in the ledger"),
        (replace(CALM, carried_seq=91), "on its way"),
        (replace(CALM, confirmed_seq=91), "confirmed by Redis"),
    ],
)
def test_whoever_knows_a_later_change_than_redis_has_it_rebuilt(
    evidence: Evidence, words: str
) -> None:
    judgement = judge(evidence, PATIENCE)
    assert judgement.ruling is Ruling.REBUILD
    assert words in judgement.why
    assert "91" in judgement.why


def test_an_epoch_that_was_closed_goes_on_from_there_or_is_rebuilt() -> None:
    closed = replace(CALM, closed=True, confirmed_seq=CALM.seq)
    assert judge(closed, PATIENCE).ruling is Ruling.GO_ON
    judgement = judge(replace(closed, seq=CALM.seq + 1), PATIENCE)
    assert judgement.ruling is Ruling.REBUILD
    assert "beyond becomes no order" in judgement.why


def test_a_host_that_has_not_reported_is_waited_for_and_then_counts_as_behind() -> None:
    silent = HostMarks("b", 40, complete=False, awaited=True)
    evidence = replace(CALM, hosts=[HERE, silent], waited_ms=2_999)
    assert judge(evidence, PATIENCE).ruling is Ruling.AWAIT_REPORTS
    judgement = judge(replace(evidence, waited_ms=3_000), PATIENCE)
    assert judgement.ruling is Ruling.REBUILD
    assert "host b did not report" in judgement.why
    assert unknown_hosts(evidence.hosts) == [
        "host b did not report: what it acknowledged after seq 40 is not known"
    ]


def test_a_reply_under_way_is_waited_for_but_not_for_ever() -> None:
    evidence = replace(CALM, hosts=[replace(HERE, in_flight=True)], waited_ms=1_499)
    assert judge(evidence, PATIENCE).ruling is Ruling.WAIT
    assert judge(replace(evidence, waited_ms=1_500), PATIENCE).ruling is Ruling.GO_ON


@pytest.mark.parametrize(
    ("folder", "complete", "awaited"),
    [
        (Folder("f", "b", 9, answered=True, left=False, silent_ms=0), True, False),
        (Folder("f", "b", 9, answered=True, left=False, silent_ms=99_999), True, False),
        (Folder("f", "b", 9, answered=False, left=False, silent_ms=0), False, True),
        (Folder("f", "b", 9, answered=False, left=False, silent_ms=30_001), False, False),
        # It said goodbye: but only when nobody there spoke since is it believed.
        (Folder("f", "b", 9, answered=False, left=True, silent_ms=100), False, True),
        (Folder("f", "b", 9, answered=False, left=True, silent_ms=30_001), True, False),
    ],
)
def test_what_is_known_of_another_host(folder: Folder, *, complete: bool, awaited: bool) -> None:
    assert host_marks(folder, PATIENCE) == HostMarks("b", 9, complete=complete, awaited=awaited)


@pytest.mark.parametrize(
    ("status", "step"),
    [
        (Status.OK, Step.FINE),
        (Status.SERVER, Step.JUDGE),
        (Status.TORN, Step.REBUILD),
        (Status.FENCED_OFF, Step.REBUILD),
    ],
)
def test_a_look_at_an_open_bucket(status: Status, step: Step) -> None:
    assert first_sight(view(status), current(), suspected=False).step is step
    # Older than the ledger knows it, it is rebuilt whatever else may be.
    assert first_sight(view(status, epoch=2), current(), suspected=False).step is Step.REBUILD
    # Newer than the ledger knows it, a rebuild would forget what only Redis knows.
    assert first_sight(view(status, epoch=4), current(), suspected=False).step is Step.LEDGER_BEHIND


def test_a_bucket_that_looks_well_again_does_not_go_on_under_the_epoch_that_was_fenced() -> None:
    """Redis failed over and back: whoever has seen it waits for a later epoch."""
    assert first_sight(view(), current(), suspected=True).step is Step.JUDGE


def test_a_missing_bucket() -> None:
    gone = BucketView(Status.MISSING, 0, 0, 0, 0)
    opening = current(1, EpochState.OPENING)
    assert first_sight(gone, current(), suspected=False).step is Step.REBUILD
    assert first_sight(gone, opening, suspected=False).step is Step.OPEN_FIRST
    late = current(2, EpochState.OPENING)
    assert first_sight(gone, late, suspected=False).step is Step.REBUILD


def test_what_the_ledger_has_decided_and_redis_does_not_know_yet_is_judged_again() -> None:
    opening = current(4, EpochState.OPENING)
    sight = first_sight(view(Status.SERVER), opening, suspected=False)
    assert (sight.step, sight.to_epoch) == (Step.JUDGE, 4)
    assert first_sight(view(epoch=4), opening, suspected=False).step is Step.CONFIRM
    rebuilt = current(4, EpochState.OPENING, by_rebuild=True)
    assert first_sight(view(), rebuilt, suspected=False).step is Step.REBUILD


def test_every_status_has_its_words() -> None:
    assert len({why_fenced(status) for status in Status}) == len(Status)


def test_books_that_are_less_far_than_they_were_are_older() -> None:
    assert ledger_behind(view(written=80), 80) is None
    assert ledger_behind(view(written=80), 95) is None
    older = ledger_behind(view(written=80), 79)
    assert older is not None
    assert "up to seq 80" in older
    assert "79 now" in older
