"""An order moves along the edges and nowhere else, whoever asks the database for it."""

import itertools

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from contract.ledger.kit import ID_KEY, HandClock, open_shop, rows
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.order import EDGES, OrderState
from seckill.ledger import Database, SQLLedger
from seckill.ledger.errors import LedgerBroken
from seckill.ledger.tables import order_events, orders

IDS = ReservationIds(ID_KEY)
IN_THE_BOOKS = [state for state in OrderState if state is not OrderState.QUEUED]

# How a row gets into each state along the edges.
WAYS = {
    OrderState.AWAITING_PAYMENT: [],
    OrderState.PAID: [OrderState.PAID],
    OrderState.EXPIRED: [OrderState.EXPIRED],
    OrderState.CANCELLED: [OrderState.CANCELLED],
    OrderState.REFUND_DUE: [OrderState.EXPIRED, OrderState.REFUND_DUE],
    OrderState.REFUNDED: [OrderState.EXPIRED, OrderState.REFUND_DUE, OrderState.REFUNDED],
}


async def set_state(database: Database, reservation_id: str, state: OrderState) -> None:
    paid_at_ms = {
        OrderState.PAID: "1",
        OrderState.REFUND_DUE: "paid_at_ms",
        OrderState.REFUNDED: "paid_at_ms",
    }.get(state, "NULL")
    statement = (
        f"UPDATE orders SET state = '{state}', paid_at_ms = {paid_at_ms}"  # noqa: S608
        f" WHERE reservation_id = '{reservation_id}'"
    )

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(text(statement))

    await database.write("move an order by hand", work)


async def refused(database: Database, reservation_id: str, state: OrderState) -> str:
    """Why the database refuses a move; empty when it does not."""
    try:
        await set_state(database, reservation_id, state)
    except LedgerBroken as refusal:
        return str(refusal)
    return ""


async def test_the_database_takes_the_edges_and_refuses_every_other_pair(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, stock=1, limit=1)
    taken = set()
    for seq, (start, end) in enumerate(itertools.permutations(IN_THE_BOOKS, 2)):
        if start is OrderState.COMPENSATED:  # the second of two, with a stock of one
            place = shop.place(1_000 + seq)
            await ledger.write([shop.admitted(1_000 + seq)])
            await ledger.write([shop.admitted(2_000 + seq)])
            place = shop.place(2_000 + seq)
        else:
            place = shop.place(1_000 + seq)
            await ledger.write([shop.admitted(1_000 + seq)])
        reservation_id = IDS.encode(place)
        for state in WAYS.get(start, []):
            await set_state(database, reservation_id, state)
        allowed = end in EDGES[start]
        refusal = await refused(database, reservation_id, end)
        assert (refusal == "") == allowed, f"{start} to {end}: {refusal}"
        if allowed:
            taken.add((start, end))
        else:
            # By the guard of the edges; the check on paid_at alone would let most pairs pass.
            assert "cannot go" in refusal or "paid_state" in refusal, refusal
        # The stock is free for the next pair.
        await database.write(
            "free it",
            lambda c: c.execute(text("UPDATE sales SET sold_units = 0")),
        )
    assert taken == {
        (start, end)
        for start, ends in EDGES.items()
        if start is not OrderState.QUEUED
        for end in ends
    }


@pytest.mark.parametrize("state", IN_THE_BOOKS)
async def test_an_order_begins_awaiting_its_payment_or_compensated(
    ledger: SQLLedger, database: Database, state: OrderState
) -> None:
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(1)])

    async def copy(connection: AsyncConnection) -> None:
        columns = ", ".join(c.name for c in orders.columns)
        values = columns.replace("reservation_id", "'another'").replace(" seq,", " 99,")
        values = values.replace(" state,", f" '{state}',").replace(
            "paid_at_ms", "1" if state is OrderState.PAID else "NULL"
        )
        await connection.execute(
            text(f"INSERT INTO orders ({columns}) SELECT {values} FROM orders")  # noqa: S608
        )

    first = state in {OrderState.AWAITING_PAYMENT, OrderState.COMPENSATED}
    if first:
        await database.write("insert an order", copy)
    else:
        with pytest.raises(LedgerBroken):
            await database.write("insert an order", copy)
    assert len(await rows(database, orders)) == 1 + first


async def test_what_was_paid_for_is_never_in_a_state_that_gave_its_units_back(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(1)])
    for change in ("state = 'paid'", "paid_at_ms = 5", "state = 'expired', paid_at_ms = 5"):
        with pytest.raises(LedgerBroken):
            await database.write(
                "break it",
                lambda c, change=change: c.execute(text(f"UPDATE orders SET {change}")),  # noqa: S608
            )
    assert (await rows(database, orders))[0]["state"] == "awaiting_payment"


async def test_each_move_is_recorded_with_who_what_when_and_why(
    ledger: SQLLedger, database: Database, clock: HandClock
) -> None:
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(1)])
    clock.at_ms += 5
    reservation_id = IDS.encode(shop.place(1))
    await ledger.orders.cancel_for(reservation_id, actor="cli:eve", reason="a fraud")
    born, moved = await rows(database, order_events)
    assert (born["from_state"], born["to_state"], born["actor"]) == (
        "queued",
        "awaiting_payment",
        "worker",
    )
    assert moved == {
        "event_id": moved["event_id"],
        "reservation_id": reservation_id,
        "from_state": "awaiting_payment",
        "to_state": "cancelled",
        "at_ms": clock.at_ms,
        "actor": "cli:eve",
        "reason": "a fraud",
    }
