"""Moving orders along their edges: the one way in which a state changes after its order is written.

Each move is one guarded UPDATE (`statements.MOVE_ORDERS`) and one row of ``order_events``. When it
leaves the states in which an order holds its units, the units leave the sums and their release is
decided, all in the same transaction: the ledger's decision first; Redis follows by the sweep.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.ids import ReservationId
from seckill.domain.order import EDGES, HOLDING_STATES, Order, OrderState
from seckill.ledger import statements
from seckill.ledger.reading import order_from_row, select_orders
from seckill.ledger.tables import orders, sales

__all__ = ["MovingOrder", "lock_with_sale", "move_orders", "read_order"]

MovingOrder: TypeAlias = Row[Any]
"""A row of `statements.MOVING_ORDERS`."""

_BY_ID: Final = statements.MOVING_ORDERS


async def read_order(connection: AsyncConnection, reservation_id: ReservationId) -> Order:
    """An order that is there, as it is now."""
    query = select_orders().where(orders.c.reservation_id == reservation_id)
    return order_from_row((await connection.execute(query)).one())


async def lock_with_sale(
    connection: AsyncConnection, reservation_id: ReservationId, whose: ColumnElement[bool]
) -> MovingOrder | None:
    """An order, under the lock of its sale: needed before any move that gives units back.

    The sale comes first, always, so that two moves cannot wait for each other in a circle.
    """
    query = _BY_ID.where(orders.c.reservation_id == reservation_id, whose)
    found: MovingOrder | None = (await connection.execute(query)).one_or_none()
    if found is None:
        return None
    await connection.execute(statements.LOCK_SALES, {"sale_ids": [found.sale_id]})
    return found


async def move_orders(
    connection: AsyncConnection,
    found: Sequence[MovingOrder],
    start: OrderState,
    end: OrderState,
    *,
    at_ms: int,
    actor: str,
    reason: str | None,
    paid_at_ms: int | None = None,
    given_up: bool = False,
) -> list[MovingOrder]:
    """Move orders from ``start`` to ``end``; returns those that this call moved.

    Args:
        found: the orders; their own ``state`` is not believed, the database compares. When units
            are given back, the caller holds `statements.LOCK_SALES` of their sales.
        reason: why, for the order's buyer.
        paid_at_ms: with ``end`` PAID: when the money came.
        given_up: their buyers let them go, by not paying or by cancelling: where the sale lets
            nobody buy again, the units still count against their limit.
    """
    assert end in EDGES[start], f"there is no edge from {start} to {end}"
    won: set[str] = set()
    for some in statements.chunks([row.reservation_id for row in found]):
        result = await connection.execute(
            statements.MOVE_ORDERS,
            {
                "reservation_ids": some,
                "from_state": start.value,
                "to_state": end.value,
                "now_ms": at_ms,
                "because": reason,
                "paid_ms": paid_at_ms,
            },
        )
        won.update(result.scalars())
    moved = [row for row in found if row.reservation_id in won]
    if not moved:
        return []
    await connection.execute(
        statements.ADD_ORDER_EVENT,
        [
            {
                "reservation_id": row.reservation_id,
                "from_state": start.value,
                "to_state": end.value,
                "at_ms": at_ms,
                "actor": actor,
                "reason": reason,
            }
            for row in moved
        ],
    )
    if start in HOLDING_STATES and end not in HOLDING_STATES:
        await _give_back(connection, moved, because=end.value, at_ms=at_ms, given_up=given_up)
    return moved


async def _give_back(
    connection: AsyncConnection,
    moved: Sequence[MovingOrder],
    *,
    because: str,
    at_ms: int,
    given_up: bool,
) -> None:
    """Take the units of orders that are live no more out of the sums, and decide their release."""
    rules = {
        row.sale_id: row
        for row in await connection.execute(
            select(sales.c.sale_id, sales.c.may_buy_again, sales.c.retired_at_ms).where(
                sales.c.sale_id.in_({row.sale_id for row in moved})
            )
        )
    }
    spent = {sale_id for sale_id, rule in rules.items() if given_up and not rule.may_buy_again}
    # The keys of a retired sale are leaving Redis, or gone: there is nothing to give back to, and a
    # release that waits for it would wait for ever.
    retired = {sale_id for sale_id, rule in rules.items() if rule.retired_at_ms is not None}
    held: Counter[tuple[int, str]] = Counter()
    sold: Counter[int] = Counter()
    for row in moved:
        if row.sale_id not in spent:
            held[row.sale_id, row.user_id] += row.quantity
        sold[row.sale_id] += row.quantity
    if held:
        await connection.execute(
            statements.LOWER_HOLDING,
            [
                {"of_sale_id": sale_id, "of_user_id": user_id, "fewer": units}
                for (sale_id, user_id), units in sorted(held.items())
            ],
        )
    await connection.execute(
        statements.CHANGE_SALE_TOTALS,
        [
            {"of_sale_id": sale_id, "more_sold": -units, "more_stock": 0, "more_version": 0}
            for sale_id, units in sorted(sold.items())
        ],
    )
    # Every live order is counted by Redis in the current epoch: carrying a bucket on keeps its
    # buyers, and a rebuild puts the live orders of all older epochs among them.
    newest = {
        (sale_id, bucket): epoch
        for sale_id, bucket, epoch in await connection.execute(
            statements.NEWEST_EPOCHS, {"sale_ids": sorted(sold)}
        )
    }
    await connection.execute(
        statements.INSERTS[connection.dialect.name].release,
        [
            {
                "reservation_id": row.reservation_id,
                "sale_id": row.sale_id,
                "bucket": row.bucket,
                "r_epoch": row.epoch,
                "r_seq": row.seq,
                "epoch": newest[row.sale_id, row.bucket],
                "user_id": row.user_id,
                "units": row.quantity,
                "state": "counted" if row.sale_id in retired else "pending",
                "decided_at_ms": at_ms,
                "done_at_ms": at_ms if row.sale_id in retired else None,
                "reason": because,
                "spent": row.sale_id in spent,
            }
            for row in moved
        ],
    )
