"""What a host reports of its marks, when, and which of its processes does it."""

import asyncio
from pathlib import Path

from seckill.admission.fence_ports import Fence, ReportedMark
from seckill.admission.mark_reports import MarkReporter, reports_due
from seckill.admission.marks import Mark, MarkWriter, make_folder_id
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId
from services.stage import MemoryFenceLedger, make_sale

A, B = BucketId(SaleId(1), 0), BucketId(SaleId(2), 0)


def mark(seq: int, *, slot: str = "web-0", at: BucketId = A, in_flight: bool = False) -> Mark:
    return Mark(slot, at, 1, seq, in_flight)


def fence(at: BucketId = A) -> Fence:
    return Fence(at, 1, "", needs_operator=False, noticed_at_ms=0)


def test_a_fence_asks_for_the_highest_mark_of_all_slots_of_its_bucket() -> None:
    marks = [mark(7), mark(9, slot="web-1"), mark(50, at=B)]
    due = reports_due(marks, [fence()], {}, waited=set(), unasked=False)
    assert due == [ReportedMark(A, 1, 9, answered=True)]
    # Said once, it is not said again; and a host without a mark of it says so too.
    said = {(A, 1): (9, True)}
    assert reports_due(marks, [fence()], said, waited=set(), unasked=False) == []
    assert reports_due([], [fence()], {}, waited=set(), unasked=False) == [
        ReportedMark(A, 1, 0, answered=True)
    ]


def test_while_a_reply_is_under_way_what_is_reported_is_not_final() -> None:
    marks = [mark(7), mark(5, slot="web-1", in_flight=True)]
    due = reports_due(marks, [fence()], {}, waited=set(), unasked=False)
    assert due == [ReportedMark(A, 1, 7, answered=False)]
    due = reports_due(marks, [fence()], {(A, 1): (7, False)}, waited={(A, 1)}, unasked=False)
    assert due == [ReportedMark(A, 1, 7, answered=True)]


def test_unasked_only_what_is_new_is_reported_and_never_as_final() -> None:
    due = reports_due(
        [mark(7), mark(3, at=B)], [], {(A, 1): (7, False)}, waited=set(), unasked=True
    )
    assert due == [ReportedMark(B, 1, 3, answered=False)]


async def test_a_yes_after_the_final_report_is_reported_all_the_same(tmp_path: Path) -> None:
    """A fence may be noticed before the bucket stands still: what is told until then must be known."""
    ledger = MemoryFenceLedger([make_sale()])
    here = make_folder_id(tmp_path)
    reporter = MarkReporter(folder=tmp_path, here=here, ledger=ledger, clock=_Clock())
    await ledger.notice(A, 1, "somebody does not trust it")
    with MarkWriter(tmp_path, "web-0") as marks:
        assert await reporter.report() == 1
        assert ledger.reported[here, A, 1] == ReportedMark(A, 1, 0, answered=True)
        marks.acknowledge(A, 1, 7)
        assert await reporter.report() == 1
        assert ledger.reported[here, A, 1].seq == 7
        assert await reporter.report() == 0


async def test_one_process_of_a_folder_reports_for_all_and_another_takes_its_place(
    tmp_path: Path,
) -> None:
    ledger = MemoryFenceLedger([make_sale()])
    here = make_folder_id(tmp_path)
    clock = _Clock()
    one, other = (
        MarkReporter(folder=tmp_path, here=here, ledger=ledger, clock=clock) for _ in range(2)
    )
    with MarkWriter(tmp_path, "web-0") as marks:
        marks.acknowledge(A, 1, 5)
        await ledger.notice(A, 1, "test")
        assert sorted(await asyncio.gather(one.report(), other.report())) == [0, 1]
        assert ledger.reported[here, A, 1] == ReportedMark(A, 1, 5, answered=True)
        assert await other.report() <= 1  # alone now, it may say so once more
        assert await other.report() == 0


async def test_a_host_whose_last_process_ends_in_good_order_says_goodbye(tmp_path: Path) -> None:
    ledger = MemoryFenceLedger([make_sale()])
    here = make_folder_id(tmp_path)
    reporter = MarkReporter(folder=tmp_path, here=here, ledger=ledger, clock=_Clock())
    with MarkWriter(tmp_path, "web-0") as first, MarkWriter(tmp_path, "web-1"):
        first.acknowledge(A, 1, 5)
        await reporter.leave("web-0")
        assert ledger.left == set(), "web-1 still lives there"
        assert ledger.reported[here, A, 1].seq == 5
    with MarkWriter(tmp_path, "web-1"):
        await reporter.leave("web-1")
        assert ledger.left == {here}


async def test_a_process_tells_of_each_fenced_epoch_once(tmp_path: Path) -> None:
    ledger = MemoryFenceLedger([make_sale()])
    reporter = MarkReporter(folder=tmp_path, here="h", ledger=ledger, clock=_Clock())
    await reporter.notice([(A, 0, "it never knew the epoch")])
    assert ledger.fences == {}
    await reporter.notice([(A, 1, "another server")])
    assert ledger.fences[A].cause == "another server"
    ledger.fences.clear()
    await reporter.notice([(A, 1, "another server")])
    assert ledger.fences == {}, "a fence that is over is not opened again by a late word"


class _Clock:
    def now_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> float:
        return 0.0
