"""Two connections at once: one wins, and without the guard the fault would show.

Each race runs on two `Database` objects, which are two processes as far as the database can tell.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from contract.ledger.kit import ID_KEY, HandClock, assert_sound, open_shop
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.ids import UserId
from seckill.domain.order import OrderState
from seckill.ledger import Database, SQLLedger
from seckill.ledger.tables import sales
from services.ledger_options import patient_options

IDS = ReservationIds(ID_KEY)
ROUNDS = 15


@pytest.fixture
async def rivals(
    database: Database, ledger: SQLLedger, clock: HandClock
) -> AsyncIterator[tuple[SQLLedger, SQLLedger]]:
    other = Database(patient_options(database.options.url, pool_size=2))
    yield ledger, SQLLedger(other, IDS, clock)
    await other.dispose()


async def test_two_who_race_for_the_last_unit_get_one_order_between_them(
    rivals: tuple[SQLLedger, SQLLedger],
) -> None:
    one, two = rivals
    for _ in range(ROUNDS):
        shop = await open_shop(one, stock=1)
        reports = await asyncio.gather(one.write([shop.admitted(1)]), two.write([shop.admitted(2)]))
        assert sum(report.ordered for report in reports) == 1
        assert sum(len(report.compensated) for report in reports) == 1
        await assert_sound(one, shop.sale.sale_id)
    assert len(await one.pending_releases(100)) == ROUNDS


async def test_one_user_who_races_with_himself_stays_within_the_limit(
    rivals: tuple[SQLLedger, SQLLedger],
) -> None:
    one, two = rivals
    for _ in range(ROUNDS):
        shop = await open_shop(one, limit=2)
        reports = await asyncio.gather(
            one.write([shop.admitted(1, "ann"), shop.admitted(2, "ann")]),
            two.write([shop.admitted(3, "ann"), shop.admitted(4, "ann")]),
        )
        assert sum(report.ordered for report in reports) == 2
        await assert_sound(one, shop.sale.sale_id)


async def test_the_same_batch_from_two_workers_is_written_once(
    rivals: tuple[SQLLedger, SQLLedger],
) -> None:
    one, two = rivals
    for _ in range(ROUNDS):
        shop = await open_shop(one)
        events = [shop.admitted(seq) for seq in range(1, 21)]
        reports = await asyncio.gather(one.write(events), two.write(list(reversed(events))))
        assert sorted((report.ordered, report.known) for report in reports) == [(0, 20), (20, 0)]


async def test_cancel_against_cancel_gives_the_unit_back_once(
    rivals: tuple[SQLLedger, SQLLedger],
) -> None:
    one, two = rivals
    for _ in range(ROUNDS):
        shop = await open_shop(one, stock=1)
        await one.write([shop.admitted(1, "ann")])
        cancelled = await asyncio.gather(
            *(
                ledger.orders.cancel(
                    IDS.encode(shop.place(1)), UserId("ann"), actor=actor, reason=""
                )
                for ledger, actor in ((one, "buyer"), (two, "admin"), (one, "buyer"))
            )
        )
        assert [order and order.state for order in cancelled] == [OrderState.CANCELLED] * 3
        assert await shop.sold() == 0
        await assert_sound(one, shop.sale.sale_id)
    assert len(await one.pending_releases(100)) == ROUNDS


async def test_writers_of_many_sales_in_any_order_do_not_wait_in_a_circle(
    rivals: tuple[SQLLedger, SQLLedger],
) -> None:
    one, two = rivals
    shops = [await open_shop(one, stock=1000) for _ in range(6)]
    async with asyncio.timeout(60):
        for base in range(0, 60, 10):
            events = [shop.admitted(base + n) for shop in shops for n in range(1, 6)]
            more = [shop.admitted(base + n) for shop in reversed(shops) for n in range(6, 11)]
            await asyncio.gather(
                one.write(events),
                two.write(more),
                one.sales.request_stock_change(f"c{base}", shops[2].sale.sale_id, 1, actor="op"),
                two.orders.cancel(
                    IDS.encode(shops[5].place(base + 1)),
                    UserId(f"user-{base + 1}"),
                    actor="a",
                    reason="",
                ),
                two.confirm_releases(
                    [(IDS.encode(shop.place(base + 1)), 9_000 + base) for shop in reversed(shops)],
                    epoch=1,
                ),
            )
    for shop in shops:
        await assert_sound(one, shop.sale.sale_id)


async def test_control_without_the_lock_the_last_unit_is_sold_twice(
    database: Database, ledger: SQLLedger
) -> None:
    """The same race by the naive way: read, then write what was read. It oversells.

    Neither the row lock (or BEGIN IMMEDIATE) nor the database's CHECK is there to stop it, so the
    races above are races that this suite can see.
    """
    shop = await open_shop(ledger, stock=1)
    both_have_read = asyncio.Barrier(2)
    of_sale = sales.c.sale_id == shop.sale.sale_id

    async def buy_naively() -> bool:
        async def look(connection: AsyncConnection) -> int:
            row = (
                await connection.execute(
                    select(sales.c.stock_units - sales.c.sold_units).where(of_sale)
                )
            ).one()
            return int(row[0])

        left = await database.read("look", look)
        await both_have_read.wait()
        if left < 1:
            return False

        async def take(connection: AsyncConnection) -> None:
            await connection.execute(update(sales).where(of_sale).values(sold_units=1))

        await database.write("take", take)
        return True

    sold = await asyncio.gather(buy_naively(), buy_naively())
    assert sum(sold) == 2, "two buyers have the one unit, and the counter says 1"
    assert await shop.sold() == 1


async def test_control_a_deferred_begin_fails_where_ours_waits(
    tmp_path: object, clock: HandClock
) -> None:
    """SQLite: two transactions that read and then write. Deferred, the second fails at once."""
    url = f"sqlite:///{tmp_path}/deferred.db"
    database = Database(patient_options(url))
    await database.write("make it", lambda c: c.execute(text("CREATE TABLE t (n INTEGER)")))
    await database.write("fill it", lambda c: c.execute(text("INSERT INTO t VALUES (0)")))

    async def add_one(connection: AsyncConnection, both_have_read: asyncio.Barrier | None) -> None:
        (n,) = (await connection.execute(text("SELECT n FROM t"))).one()
        if both_have_read is not None:
            await both_have_read.wait()
        await connection.execute(text("UPDATE t SET n = :n"), {"n": n + 1})

    barrier = asyncio.Barrier(2)

    async def add_one_deferred() -> None:
        # A snapshot begins a deferred transaction: the naive way.
        async with database.snapshot("add") as connection:
            await add_one(connection, barrier)
            await connection.execute(text("COMMIT"))

    naive = await asyncio.gather(*(add_one_deferred() for _ in range(2)), return_exceptions=True)
    assert sum(isinstance(result, Exception) and "locked" in str(result) for result in naive) == 1
    await asyncio.gather(*(database.write("add", lambda c: add_one(c, None)) for _ in range(4)))
    n = await database.read("look", lambda c: c.scalar(text("SELECT n FROM t")))
    assert n == 5
    await database.dispose()
