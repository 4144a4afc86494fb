"""The fence's own books, on both databases: noticed once, claimed by one, ended with a statement."""

import asyncio

from contract.ledger.kit import ID_KEY, HandClock, open_shop
from seckill.admission.fence_ports import Recovered, Reopening, ReportedMark
from seckill.admission.judging import Folder
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.ids import AttemptId, UserId
from seckill.ledger import SQLLedger
from seckill.ledger.fence import LedgerFence
from seckill.ledger.reading import LOST_REASON

IDS = ReservationIds(ID_KEY)


def ended(new_epoch: int, *, rebuilt: bool = True) -> Reopening:
    return Reopening(rebuilt=rebuilt, new_epoch=new_epoch, put_units=5, held_units=1, buyers=1)


async def test_a_fence_is_noticed_once_whoever_sees_it(ledger: SQLLedger, clock: HandClock) -> None:
    shop = await open_shop(ledger)
    await ledger.epochs.mark_open(shop.bucket_id, 1)
    first = await ledger.fences.notice(shop.bucket_id, 1, "Redis was started again")
    clock.at_ms += 50
    again = await asyncio.gather(
        *(ledger.fences.notice(shop.bucket_id, 1, "me too") for _ in range(3))
    )
    assert [one for one in again if one != first] == []
    assert await ledger.fences.open_fences() == [first]
    assert await ledger.fences.notice(shop.bucket_id, 2, "not there yet") == first
    await ledger.epochs.carry_on(shop.bucket_id, 1, 0, "")
    clock.at_ms += 100
    assert await ledger.fences.reopened(shop.bucket_id, ended(2, rebuilt=False)) is not None
    assert await ledger.fences.reopened(shop.bucket_id, ended(2)) is None, "it ends once"
    await ledger.epochs.mark_open(shop.bucket_id, 2)
    assert await ledger.fences.notice(shop.bucket_id, 1, "a late word") is None
    (statement,) = await ledger.fences.statements()
    assert (statement.paused_ms, statement.outcome, statement.lost_count) == (150, "carried_on", 0)


async def test_a_claim_is_held_by_one_and_taken_over_when_it_stands_still(
    ledger: SQLLedger,
) -> None:
    shop = await open_shop(ledger)
    fences = ledger.fences
    fence = await fences.notice(shop.bucket_id, 1, "lost")
    assert fence is not None
    taken = await asyncio.gather(*(fences.claim(fence, who) for who in ("ann", "bob", "cid")))
    assert [beats for beats in taken if beats] == [1]
    (seen,) = await fences.open_fences()
    winner = seen.claimed_by
    assert winner is not None
    assert await fences.claim(fence, winner) == 2, "who has it keeps it"
    assert await fences.claim(seen, "dan") is None, "it has moved on since it was seen"
    (seen,) = await fences.open_fences()
    assert await fences.claim(seen, "dan") == 3, "it stood still"
    await fences.unclaim(shop.bucket_id, winner)
    assert (await fences.open_fences())[0].claimed_by == "dan"
    await fences.unclaim(shop.bucket_id, "dan")
    assert (await fences.open_fences())[0].claimed_by is None


async def test_what_a_rebuild_found_out_is_told_whoever_writes_the_last_words(
    ledger: SQLLedger,
) -> None:
    """A keeper that sees the bucket open may be faster than the rebuild that opened it."""
    shop = await open_shop(ledger, stock=10)
    fence = LedgerFence(ledger, HandClock())
    assert await fence.notice(shop.bucket_id, 1, "gone") is not None
    await fence.found_out(shop.bucket_id, recovered_orders=2, unknown=["a", "b"])
    # That rebuild died, and the next one has heard of a.
    await fence.found_out(shop.bucket_id, recovered_orders=1, unknown=["b"])
    await fence.plan_rebuild(shop.bucket_id, newest=1, given={}, withhold=True)
    await fence.reopened(shop.bucket_id, ended(2))
    await fence.found_out(shop.bucket_id, recovered_orders=1, unknown=["too late"])
    (statement,) = await ledger.fences.statements(shop.sale.sale_id)
    assert (statement.recovered_orders, statement.unknown) == (3, ["b"])


async def test_marks_of_all_hosts_are_kept_and_never_lowered(
    ledger: SQLLedger, clock: HandClock
) -> None:
    shop = await open_shop(ledger)
    at = shop.bucket_id
    for name in ("f1", "f2", "f3"):
        await ledger.mark_folders.seen(name, f"host-{name}")
    await ledger.fences.report_marks("f1", [ReportedMark(at, 1, 9, answered=True)], leaving=False)
    await ledger.fences.report_marks("f1", [ReportedMark(at, 1, 7, answered=False)], leaving=False)
    await ledger.fences.report_marks("f2", [ReportedMark(at, 1, 4, answered=False)], leaving=True)
    clock.at_ms += 40_000
    await ledger.mark_folders.seen("f1", "host-f1")
    found = sorted(await ledger.fences.folders(at, 1), key=lambda folder: folder.folder_id)
    assert found == [
        Folder("f1", "host-f1", 9, answered=True, left=False, silent_ms=0),
        Folder("f2", "host-f2", 4, answered=False, left=True, silent_ms=40_000),
        Folder("f3", "host-f3", 0, answered=False, left=False, silent_ms=40_000),
    ]
    assert await ledger.fences.marked_epochs(at) == {1: 9}
    await ledger.mark_folders.seen("f2", "host-f2")
    assert not any(folder.left for folder in await ledger.fences.folders(at, 1))


async def test_what_is_in_no_book_is_named_once_and_its_units_are_withheld(
    ledger: SQLLedger,
) -> None:
    shop = await open_shop(ledger, stock=10)
    fence = LedgerFence(ledger, HandClock())
    await ledger.write([shop.admitted(1), shop.admitted(3)])
    assert await fence.notice(shop.bucket_id, 1, "gone") is not None
    plan = await fence.plan_rebuild(shop.bucket_id, newest=1, given={1: 5}, withhold=True)
    assert plan.lost == [shop.place(seq) for seq in (2, 4, 5)]
    assert (plan.put_units, plan.withheld_units) == (7, 3)
    assert (await shop.now()).stock_units == 7
    again = await fence.plan_rebuild(shop.bucket_id, newest=2, given={1: 5}, withhold=True)
    assert (again.lost, again.put_units, again.withheld_units) == (plan.lost, 7, 0)
    await fence.reopened(shop.bucket_id, ended(3))
    (statement,) = await ledger.fences.statements(shop.sale.sale_id)
    lost = [IDS.encode(place) for place in plan.lost]
    assert (statement.lost, statement.lost_count, statement.withheld_units) == (lost, 3, 3)
    (order, *_) = await ledger.reading.lost_orders([lost[0], IDS.encode(shop.place(1))])
    assert (order.state, order.user_id, order.reason) == ("compensated", "", LOST_REASON)
    # One of them turns up after all, and too late: it is compensated, and not lost any more.
    await ledger.write([shop.admitted(4)])
    (statement,) = await ledger.fences.statements()
    assert (statement.lost_count, statement.compensated) == (2, 1)


async def test_never_more_is_withheld_than_is_unsold(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=3)
    fence = LedgerFence(ledger, HandClock())
    await ledger.write([shop.admitted(1), shop.admitted(2)])
    plan = await fence.plan_rebuild(shop.bucket_id, newest=1, given={1: 9}, withhold=True)
    assert (len(plan.lost), plan.withheld_units, plan.put_units) == (7, 1, 2)


async def test_a_release_that_is_known_by_word_is_no_loss(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=3)
    ann = shop.admitted(1, "ann")
    await ledger.write([ann])
    await ledger.orders.cancel(IDS.encode(ann.place), ann.user_id, actor="test", reason="")
    await ledger.confirm_releases([(IDS.encode(ann.place), 2)], epoch=1)
    fence = LedgerFence(ledger, HandClock())
    plan = await fence.plan_rebuild(shop.bucket_id, newest=1, given={1: 2}, withhold=True)
    assert (list(plan.lost), plan.put_units) == ([], 3)


async def test_books_that_are_older_take_in_what_only_redis_knows(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=3)
    fence = LedgerFence(ledger, HandClock())
    await fence.adopt_epochs(shop.bucket_id, 3)
    await fence.adopt_epochs(shop.bucket_id, 2)
    assert [row.epoch for row in await fence.current_epochs()] == [3]
    found = [
        Recovered(shop.place(1, epoch), UserId(f"u{epoch}"), 1, AttemptId(f"a{epoch}"))
        for epoch in (1, 2, 3)
    ]
    assert await fence.recover(found) == 3
    assert await fence.recover(found) == 0
    assert await shop.states() == dict.fromkeys(("u1", "u2", "u3"), "awaiting_payment")
    plan = await fence.plan_rebuild(shop.bucket_id, newest=3, given={1: 1, 3: 1}, withhold=True)
    assert (plan.epoch, len(plan.buyers), list(plan.lost)) == (4, 3, [])
