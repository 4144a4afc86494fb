"""Buyers cancel, units go back once, buyers read their own orders."""

from collections.abc import Awaitable, Callable

import pytest

from contract.ledger.kit import ID_KEY, HandClock, assert_sound, open_shop, rows
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.errors import InvalidValue
from seckill.domain.events import Admitted
from seckill.domain.ids import UserId
from seckill.domain.order import OrderState
from seckill.ledger import Database, SQLLedger
from seckill.ledger.errors import WrongState
from seckill.ledger.tables import holdings, order_events, releases

IDS = ReservationIds(ID_KEY)


async def test_a_cancelled_order_gives_its_units_back_once(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, stock=5, limit=3)
    ann = shop.admitted(1, "ann", 2)
    await ledger.write([ann])
    reservation_id = IDS.encode(ann.place)
    for _ in range(2):
        order = await ledger.orders.cancel(reservation_id, ann.user_id, actor="buyer", reason="no")
        assert order is not None
        assert (order.state, order.reason) == (OrderState.CANCELLED, "no")
    assert await shop.sold() == 0
    assert [row["units"] for row in await rows(database, holdings)] == [0]
    (release,) = await ledger.pending_releases(10)
    assert (release.reservation, release.user_id, release.quantity) == (ann.place, "ann", 2)
    assert len(await rows(database, order_events)) == 2
    await ledger.confirm_releases([(reservation_id, 2)], epoch=1)
    await ledger.confirm_releases([(reservation_id, 7)], epoch=1)
    (row,) = await rows(database, releases)
    assert (row["state"], row["release_seq"]) == ("done", 2)
    # The limit is free again.
    assert (await ledger.write([shop.released(2, ann), shop.admitted(3, "ann", 3)])).ordered == 1
    await assert_sound(ledger, shop.sale.sale_id)


async def _expire(ledger: SQLLedger, clock: HandClock, of: Admitted) -> None:
    clock.at_ms += 900_001
    assert await ledger.expiry.expire([IDS.encode(of.place)]) == 1


async def _cancel(ledger: SQLLedger, _clock: HandClock, of: Admitted) -> None:
    await ledger.orders.cancel(IDS.encode(of.place), of.user_id, actor="buyer", reason="")


@pytest.mark.parametrize("give_up", [_expire, _cancel])
async def test_who_gave_an_order_up_may_not_buy_again_where_the_sale_says_so(
    ledger: SQLLedger,
    database: Database,
    clock: HandClock,
    give_up: Callable[[SQLLedger, HandClock, Admitted], Awaitable[None]],
) -> None:
    """The units are for others; they count against the limit of the one who had them."""
    shop = await open_shop(ledger, stock=3, limit=2, may_buy_again=False)
    ann = shop.admitted(1, "ann", 2)
    await ledger.write([ann])
    await give_up(ledger, clock, ann)
    assert await shop.sold() == 0
    (release,) = await ledger.pending_releases(10)
    assert release.spent
    assert [row["units"] for row in await rows(database, holdings)] == [2]
    written = await ledger.write([shop.released(2, ann), shop.admitted(3, "ann", 1)])
    assert (written.ordered, len(written.compensated)) == (0, 1)
    assert (await ledger.write([shop.admitted(4, "bob", 2)])).ordered == 1
    await assert_sound(ledger, shop.sale.sale_id)
    # A bucket that is made anew knows of them still.
    plan = await ledger.epochs.plan_rebuild(shop.bucket_id, "lost data")
    assert (plan.put_units, plan.units_left) == (3, 1)
    assert [(user, [(r[0], r[3]) for r in held]) for user, held in plan.buyers] == [
        ("ann", [(ann.place, True)]),
        ("bob", [(shop.place(4), False)]),
    ]


async def test_what_an_operator_cancels_counts_against_nobody(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, stock=3, may_buy_again=False)
    ann = shop.admitted(1, "ann")
    await ledger.write([ann])
    await ledger.orders.cancel_for(IDS.encode(ann.place), actor="eve", reason="a mistake of ours")
    (release,) = await ledger.pending_releases(10)
    assert not release.spent
    assert [row["units"] for row in await rows(database, holdings)] == [0]
    assert (await ledger.write([shop.admitted(2, "ann")])).ordered == 1


async def test_a_release_that_redis_does_not_know_is_done_without_a_place(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(1, "ann")])
    await ledger.orders.cancel(IDS.encode(shop.place(1)), UserId("ann"), actor="a", reason="")
    await ledger.confirm_releases(
        [(IDS.encode(shop.place(1)), 0), (IDS.encode(shop.place(2)), 5)], epoch=1
    )
    (row,) = await rows(database, releases)
    assert (row["state"], row["release_seq"]) == ("done", None)
    await ledger.confirm_releases([], epoch=1)


async def test_nobody_cancels_the_order_of_somebody_else(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(1, "ann")])
    reservation_id = IDS.encode(shop.place(1))
    assert await ledger.orders.cancel(reservation_id, UserId("bob"), actor="bob", reason="") is None
    unknown = IDS.encode(shop.place(99))
    assert await ledger.orders.cancel(unknown, UserId("ann"), actor="ann", reason="") is None
    assert await shop.states() == {"ann": "awaiting_payment"}
    with pytest.raises(InvalidValue):
        await ledger.orders.cancel(reservation_id, UserId("ann"), actor="", reason="")


async def test_what_is_not_awaiting_payment_is_not_cancelled(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=1)
    await ledger.write([shop.admitted(1, "ann"), shop.admitted(2, "bob")])
    with pytest.raises(WrongState) as caught:
        await ledger.orders.cancel(IDS.encode(shop.place(2)), UserId("bob"), actor="b", reason="")
    assert caught.value.order.state is OrderState.COMPENSATED
    assert await shop.sold() == 1
    assert len(await ledger.pending_releases(10)) == 1


async def test_releases_come_oldest_first_and_a_fenced_bucket_does_not_block_the_others(
    ledger: SQLLedger, clock: HandClock
) -> None:
    fenced, other = await open_shop(ledger), await open_shop(ledger)
    for shop, seqs in ((fenced, (1, 2)), (other, (1,))):
        for seq in seqs:
            clock.at_ms += 1
            event = shop.admitted(seq)
            await ledger.write([event])
            await ledger.orders.cancel(IDS.encode(event.place), event.user_id, actor="b", reason="")
    found = await ledger.pending_releases(2)
    assert [release.reservation for release in found] == [fenced.place(1), fenced.place(2)]
    found = await ledger.pending_releases(2, except_buckets=[fenced.bucket_id])
    assert [release.reservation for release in found] == [other.place(1)]
    for wrong in (0, 10_001):
        with pytest.raises(InvalidValue):
            await ledger.pending_releases(wrong)


async def test_a_buyer_reads_all_their_orders_newest_first_in_pages(
    ledger: SQLLedger, clock: HandClock
) -> None:
    shop = await open_shop(ledger, limit=50)
    for seq in range(1, 8):
        if seq % 3 == 0:
            clock.at_ms += 1  # several orders share a millisecond
        await ledger.write([shop.admitted(seq, "ann"), shop.admitted(seq + 100, "bob")])
    seen = []
    page = await ledger.reading.orders_of_user(UserId("ann"), 3)
    sizes = [len(page.orders)]
    seen.extend(page.orders)
    while page.next_before is not None:
        last = page.orders[-1].reservation_id
        assert await ledger.reading.mark_of(last, UserId("ann")) == page.next_before
        assert await ledger.reading.mark_of(last, UserId("bob")) is None
        page = await ledger.reading.orders_of_user(UserId("ann"), 3, page.next_before)
        sizes.append(len(page.orders))
        seen.extend(page.orders)
    assert sizes == [3, 3, 1]
    assert {order.reservation_id for order in seen} == {
        IDS.encode(shop.place(seq)) for seq in range(1, 8)
    }
    places = [IDS.decode(order.reservation_id) for order in seen]
    blocks = [(place.seq + 0) // 3 for place in places if place is not None]
    assert blocks == sorted(blocks, reverse=True)
    assert (await ledger.reading.orders_of_user(UserId("cat"), 3)).orders == ()
    for wrong in (0, 201):
        with pytest.raises(InvalidValue):
            await ledger.reading.orders_of_user(UserId("ann"), wrong)


async def test_orders_are_read_by_id_however_many(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=10_000)
    events = [shop.admitted(seq) for seq in range(1, 6_002)]
    await ledger.write(events)
    ids = IDS.encode_many([event.place for event in events])
    found = await ledger.reading.orders_by_ids([*ids, IDS.encode(shop.place(9_999))])
    assert set(found) == set(ids)
    await ledger.reading.ping()


async def test_the_audit_reads_everything_in_slices_at_one_instant(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=12_000)
    await ledger.write([shop.admitted(seq) for seq in range(1, 10_002)])
    async with ledger.audit.books() as books:
        sizes = []
        seqs: list[int] = []
        async for some in books.orders(shop.sale.sale_id):
            if not sizes:  # written while the audit reads: not in its picture
                await ledger.write([shop.admitted(10_002)])
            sizes.append(len(some))
            seqs.extend(order.place.seq for order in some)
        assert sizes == [5000, 5000, 1]
        assert seqs == list(range(1, 10_002))
        sums = await books.sums(shop.sale.sale_id)
        assert sums is not None
        assert (sums.sold_units, sums.live_units, sums.held_units) == (10_001,) * 3
        assert sums.orders_by_state == {OrderState.AWAITING_PAYMENT: (10_001, 10_001)}
    assert await shop.sold() == 10_002


async def test_the_audit_sees_holdings_that_do_not_fit_the_orders(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, limit=3)
    await ledger.write([shop.admitted(1, "ann"), shop.admitted(2, "bob"), shop.admitted(3, "cat")])
    await ledger.orders.cancel(IDS.encode(shop.place(3)), UserId("cat"), actor="c", reason="")
    async with ledger.audit.books() as books:
        assert await books.holding_faults(shop.sale.sale_id) == []

    async def spoil(connection) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        await connection.execute(
            holdings.update().where(holdings.c.user_id != "bob").values(units=2)
        )

    await database.write("spoil the books", spoil)
    async with ledger.audit.books() as books:
        faults = await books.holding_faults(shop.sale.sale_id)
        assert [(f.user_id, f.live_units, f.held_units, f.limit_units) for f in faults] == [
            ("ann", 1, 2, 3),
            ("cat", 0, 2, 3),
        ]
        assert len(await books.holding_faults(shop.sale.sale_id, 1)) == 1
        releases_seen = [r async for some in books.releases(shop.sale.sale_id) for r in some]
        assert [(r.reservation, r.state) for r in releases_seen] == [(shop.place(3), "pending")]
        assert [row.epoch for row in await books.epochs(shop.sale.sale_id)] == [1]
        assert [sale.sale_id for sale in await books.sales(closed=False)] == [shop.sale.sale_id]
        assert [c async for some in books.collisions(shop.sale.sale_id) for c in some] == []
