"""Unpaid orders end: found by index, in batches, by several reapers, and never the paid ones."""

import asyncio

import pytest
from sqlalchemy import text

from contract.ledger.kit import ID_KEY, HandClock, assert_sound, open_shop, rows
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.order import OrderState
from seckill.ledger import Database, SQLLedger
from seckill.ledger.errors import ExpiryRefused
from seckill.ledger.tables import order_events, orders, releases

IDS = ReservationIds(ID_KEY)
WINDOW_MS = 900_000


async def test_due_orders_expire_once_however_many_reapers_there_are(
    ledger: SQLLedger, database: Database, clock: HandClock
) -> None:
    one, other = await open_shop(ledger), await open_shop(ledger, limit=2)
    await ledger.write([one.admitted(n) for n in range(1, 51)])
    await ledger.write([other.admitted(n, f"u{n // 2}") for n in range(1, 51)])
    assert await ledger.expiry.due(1_000) == []
    assert (await ledger.expiry.lag()).oldest_ms == 0
    clock.at_ms += WINDOW_MS + 3_000
    due = await ledger.expiry.due(1_000)
    assert len(due) == 100
    assert (await ledger.expiry.lag()).oldest_ms == 3_010  # admitted 10 ms before it was written
    expired = await asyncio.gather(*(ledger.expiry.expire(due) for _ in range(4)))
    assert sum(expired) == 100
    assert await ledger.expiry.due(1_000) == []
    assert {row["state"] for row in await rows(database, orders)} == {"expired"}
    assert len(await rows(database, releases)) == 100
    assert len(await rows(database, order_events)) == 200
    for shop in (one, other):
        assert await shop.sold() == 0
        await assert_sound(ledger, shop.sale.sale_id)


async def test_an_order_is_not_expired_before_its_deadline(
    ledger: SQLLedger, clock: HandClock
) -> None:
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(1)])
    order = IDS.encode(shop.place(1))
    clock.at_ms += WINDOW_MS - 11
    assert await ledger.expiry.expire([order]) == 0
    clock.at_ms += 1
    assert await ledger.expiry.due(10) == [order]
    assert await ledger.expiry.expire([order]) == 1


async def test_one_order_that_the_books_refuse_to_expire_is_set_aside_for_longer_each_time(
    ledger: SQLLedger, database: Database, clock: HandClock
) -> None:
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(n) for n in range(1, 4)])
    bad = IDS.encode(shop.place(2))
    await database.write(
        "break the books",
        lambda c: c.execute(text("UPDATE holdings SET units = 0 WHERE user_id = 'user-2'")),
    )
    clock.at_ms += WINDOW_MS
    due = await ledger.expiry.due(10)
    assert len(due) == 3
    with pytest.raises(ExpiryRefused):
        await ledger.expiry.expire(due)
    assert {row["state"] for row in await rows(database, orders)} == {"awaiting_payment"}
    pauses = []
    for _ in range(12):
        await ledger.expiry.set_aside(bad, "it does not add up")
        assert bad not in await ledger.expiry.due(10)
        (setback,) = await ledger.expiry.setbacks()
        pauses.append(setback.next_try_at_ms - clock.at_ms)
        clock.at_ms = setback.next_try_at_ms
        assert bad in await ledger.expiry.due(10)
    assert pauses[:4] == [1_000, 2_000, 4_000, 8_000]
    assert pauses[-1] == 300_000
    assert (setback.tries, setback.error) == (12, "it does not add up")
    assert (await ledger.expiry.lag()).set_aside == 1
    await database.write(
        "mend the books",
        lambda c: c.execute(text("UPDATE holdings SET units = 1 WHERE user_id = 'user-2'")),
    )
    assert await ledger.expiry.expire(await ledger.expiry.due(10)) == 3
    assert await ledger.expiry.setbacks() == []
    await assert_sound(ledger, shop.sale.sale_id)


async def test_what_is_due_is_found_by_its_index(ledger: SQLLedger, database: Database) -> None:
    """A look at the due orders must not cost what all orders ever made would cost."""
    shop = await open_shop(ledger, stock=10_000)
    await ledger.write([shop.admitted(n) for n in range(1, 201)])
    query = (
        "SELECT reservation_id FROM orders WHERE state = 'awaiting_payment' AND pay_by_ms <= 5"
        " ORDER BY pay_by_ms, reservation_id LIMIT 10"
    )
    if database.is_sqlite:
        plan = await database.read(
            "explain", lambda c: c.execute(text("EXPLAIN QUERY PLAN " + query))
        )
    else:
        await database.write("analyse", lambda c: c.execute(text("ANALYZE orders")))
        plan = await database.read("explain", lambda c: c.execute(text("EXPLAIN " + query)))
    shown = " ".join(str(row) for row in plan.all())
    assert "ix_orders_due" in shown, shown


async def test_expiry_leaves_the_money_of_the_paid_alone(
    ledger: SQLLedger, clock: HandClock, database: Database
) -> None:
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(1), shop.admitted(2)])
    cancelled = IDS.encode(shop.place(1))
    await ledger.orders.cancel_for(cancelled, actor="eve", reason="")
    clock.at_ms += WINDOW_MS
    both = [cancelled, IDS.encode(shop.place(2))]
    assert await ledger.expiry.expire(both) == 1
    states = {row["reservation_id"]: row["state"] for row in await rows(database, orders)}
    assert states == {both[0]: OrderState.CANCELLED, both[1]: OrderState.EXPIRED}
