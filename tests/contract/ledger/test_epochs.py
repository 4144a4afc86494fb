"""The fence's side of the ledger: opened, carried on, rebuilt, and crashed in between."""

import pytest

from contract.ledger.kit import ID_KEY, HandClock, assert_sound, open_shop, rows
from seckill.admission.bucket import Holding
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.ids import AttemptId, SaleId
from seckill.domain.reservation import BucketId
from seckill.ledger import Database, SQLLedger
from seckill.ledger.errors import EpochMoved, NoSuchSale
from seckill.ledger.fence import LedgerFence
from seckill.ledger.tables import epochs, releases

IDS = ReservationIds(ID_KEY)


async def test_an_opened_bucket_is_open_and_stays_so(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=7)
    for _ in range(2):
        await ledger.epochs.mark_open(shop.bucket_id, 1)
    (row,) = await ledger.epochs.current_epochs()
    assert (row.bucket_id, row.epoch, row.state) == (shop.bucket_id, 1, "open")
    assert (row.opening_units, row.valid_to_seq) == (7, None)
    for wrong in (0, 2):
        with pytest.raises(EpochMoved):
            await ledger.epochs.mark_open(shop.bucket_id, wrong)
    with pytest.raises(NoSuchSale):
        await ledger.epochs.mark_open(BucketId(SaleId(99), 0), 1)


async def test_the_ledger_knows_the_highest_place_of_any_kind(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=9)
    assert await ledger.epochs.known_seq(shop.bucket_id, 1) == 0
    ann = shop.admitted(4)
    await ledger.write([ann])
    assert await ledger.epochs.known_seq(shop.bucket_id, 1) == 4
    await ledger.write([shop.released(9, ann)])
    assert await ledger.epochs.known_seq(shop.bucket_id, 1) == 9
    assert await ledger.epochs.known_seq(shop.bucket_id, 2) == 0
    assert await ledger.epochs.unwritten(shop.bucket_id, 1, 10) == [1, 2, 3, 5, 6, 7, 8, 10]


async def test_a_bucket_that_lost_nothing_goes_on_with_its_pending_releases(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, stock=1)
    await ledger.epochs.mark_open(shop.bucket_id, 1)
    await ledger.write([shop.admitted(1), shop.admitted(2)])
    assert await ledger.epochs.carry_on(shop.bucket_id, 1, 2, "restart") == 2
    (release,) = await ledger.pending_releases(10)
    assert release.epoch == 2
    (row,) = await ledger.epochs.current_epochs()
    assert (row.epoch, row.state, row.origin, row.opening_units) == (2, "opening", "carried_on", 0)
    # The keeper died before Redis knew; it comes back and asks again.
    assert await ledger.epochs.carry_on(shop.bucket_id, 1, 2, "restart") == 2
    with pytest.raises(EpochMoved, match="last seq 2, not 3"):
        await ledger.epochs.carry_on(shop.bucket_id, 1, 3, "restart")
    await ledger.epochs.mark_open(shop.bucket_id, 2)
    with pytest.raises(EpochMoved):
        await ledger.epochs.carry_on(shop.bucket_id, 1, 2, "restart")
    states = [
        (row["epoch"], row["state"], row["valid_to_seq"]) for row in await rows(database, epochs)
    ]
    assert states == [(1, "closed", 2), (2, "open", None)]


async def test_a_bucket_behind_the_ledger_is_not_carried_on(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(5)])
    before = await rows(database, epochs)
    with pytest.raises(EpochMoved, match="rebuild"):
        await ledger.epochs.carry_on(shop.bucket_id, 1, 4, "restart")
    for wrong in (0, 2, 7):
        with pytest.raises(EpochMoved):
            await ledger.epochs.carry_on(shop.bucket_id, wrong, 9, "restart")
    assert await rows(database, epochs) == before


async def test_a_release_that_redis_confirmed_and_then_forgot_is_not_carried_on_without(
    ledger: SQLLedger,
) -> None:
    """Its event was lost with Redis: the unit was free in the books, and sold in Redis, for ever."""
    shop = await open_shop(ledger)
    cat = shop.admitted(1, "cat")
    await ledger.epochs.mark_open(shop.bucket_id, 1)
    await ledger.write([cat])
    assert await ledger.epochs.confirmed_seq(shop.bucket_id, 1) == 0
    await ledger.orders.cancel(IDS.encode(cat.place), cat.user_id, actor="buyer", reason="")
    await ledger.confirm_releases([(IDS.encode(cat.place), 2)], epoch=1)
    assert await ledger.epochs.known_seq(shop.bucket_id, 1) == 1
    assert await ledger.epochs.confirmed_seq(shop.bucket_id, 1) == 2
    with pytest.raises(EpochMoved, match="knows seq 2, beyond 1"):
        await ledger.epochs.carry_on(shop.bucket_id, 1, 1, "restart")
    assert await ledger.epochs.carry_on(shop.bucket_id, 1, 2, "restart") == 2
    assert await ledger.epochs.confirmed_seq(shop.bucket_id, 1) == 2, "it is closed there"


async def test_a_rebuild_counts_what_is_written_and_nothing_else(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, stock=10, limit=5)
    ann1, bob, ann2 = (
        shop.admitted(1, "ann", 2),
        shop.admitted(2, "bob"),
        shop.admitted(1, "ann", 3, epoch=2),
    )
    cat, dan = shop.admitted(2, "cat", 1, epoch=2), shop.admitted(3, "dan", 6, epoch=2)
    await ledger.write([ann1, bob])
    await ledger.epochs.carry_on(shop.bucket_id, 1, 4, "restart")
    await ledger.write([ann2, cat, dan])  # dan is over the limit
    await ledger.orders.cancel(IDS.encode(cat.place), cat.user_id, actor="buyer", reason="")
    assert len(await ledger.pending_releases(10)) == 2
    plan = await ledger.epochs.plan_rebuild(shop.bucket_id, "lost data")
    assert (plan.new_epoch, plan.put_units, plan.units_left) == (3, 10, 4)
    assert plan.buyers == [
        (
            "ann",
            [
                (ann1.place, 2, AttemptId("a-1-1-ann"), False),
                (ann2.place, 3, AttemptId("a-2-1-ann"), False),
            ],
        ),
        ("bob", [(bob.place, 1, AttemptId("a-1-2-bob"), False)]),
    ]
    assert await ledger.pending_releases(10) == []
    assert {row["state"] for row in await rows(database, releases)} == {"counted"}
    # Epoch 1 keeps the last seq that was promised when it was carried on: 3 and 4 are lost.
    kept = [
        (row["epoch"], row["state"], row["valid_to_seq"]) for row in await rows(database, epochs)
    ]
    assert kept == [(1, "counted", 4), (2, "counted", 3), (3, "opening", None)]
    again = await ledger.epochs.plan_rebuild(shop.bucket_id, "crashed in between")
    assert (again.new_epoch, again.put_units, again.buyers) == (4, 10, plan.buyers)
    await ledger.epochs.mark_open(shop.bucket_id, 4)
    # What Redis confirms late of the old bucket is nobody's business any more.
    await ledger.confirm_releases([(IDS.encode(cat.place), 9)], epoch=2)
    assert {row["state"] for row in await rows(database, releases)} == {"counted"}
    await ledger.orders.cancel(IDS.encode(bob.place), bob.user_id, actor="buyer", reason="")
    assert [release.epoch for release in await ledger.pending_releases(10)] == [4]
    await assert_sound(ledger, shop.sale.sale_id)


async def test_pending_stock_changes_are_asked_of_the_rebuilt_bucket(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=10)
    request = ledger.sales.request_stock_change
    await ledger.write([shop.admitted(1)])
    await request("more", shop.sale.sale_id, 5, actor="op")
    await request("less", shop.sale.sale_id, -3, actor="op")
    await request("gone", shop.sale.sale_id, -2, actor="op")
    # Redis took two away and said so; its event was lost with it.
    await ledger.confirm_stock_change("gone", epoch=1, seq=2)
    plan = await ledger.epochs.plan_rebuild(shop.bucket_id, "lost data")
    assert (plan.put_units, plan.units_left) == (8, 7)
    assert {change.change_id for change in await ledger.pending_stock_changes()} == {"more", "less"}
    assert (await shop.now()).stock_units == 13
    # The events of the old bucket come after all, and those of the new one: each counts once.
    await ledger.write(
        [shop.stock(2, "gone", -2), shop.stock(3, "more", 5), shop.stock(4, "less", -3)]
    )
    assert (await shop.now()).stock_units == 13
    assert len(await ledger.pending_stock_changes()) == 2
    await ledger.write([shop.stock(1, "more", 5, epoch=2), shop.stock(2, "less", -3, epoch=2)])
    assert (await shop.now()).stock_units == 10
    assert await ledger.pending_stock_changes() == []
    again = await ledger.epochs.plan_rebuild(shop.bucket_id, "once more")
    assert (again.put_units, again.units_left) == (10, 9)


async def test_the_fence_sees_the_ledger_in_its_own_words(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=5)
    fence = LedgerFence(ledger, HandClock())
    assert await fence.sales() == [shop.sale]
    (created,) = await fence.current_epochs()
    assert (created.state.value, created.put_units, created.by_rebuild) == ("opening", 5, False)
    ann = shop.admitted(1, "ann")
    await ledger.write([ann])
    assert await fence.carry_on(shop.bucket_id, 1, 1) == 2
    plan = await fence.plan_rebuild(shop.bucket_id, newest=2, given={}, withhold=True)
    assert (plan.epoch, plan.put_units) == (3, 5)
    assert plan.buyers == [("ann", [Holding(ann.place, 1, ann.attempt_id)])]
    (rebuilt,) = await fence.current_epochs()
    assert (rebuilt.epoch, rebuilt.by_rebuild) == (3, True)
    await fence.mark_open(shop.bucket_id, 3)
    assert await fence.known_seq(shop.bucket_id, 1) == 1
    assert await fence.unwritten(shop.bucket_id, 1, 2) == [2]
