"""Looking for orders, as operators do: by sale, buyer and state, page by page.

The order of the pages is the place of a purchase (sale, bucket, epoch, seq), backwards: the newest
sale first, and in it the newest purchase. It has an index already (``uq_orders_place``), so a page
out of a hundred thousand orders costs what one out of a hundred does, and writing orders costs
nothing more.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Select, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.errors import InvalidValue
from seckill.domain.ids import GoodsId, ReservationId, UserId
from seckill.domain.order import Order, OrderState
from seckill.ledger.engine import Database
from seckill.ledger.reading import order_from_row, select_orders
from seckill.ledger.tables import orders, sales

__all__ = ["ORDERS_FOUND_MAX", "OrderSearch"]

ORDERS_FOUND_MAX: Final = 201
"""One more than a page tells whether there is another."""

_SALES_OF_GOODS_MAX: Final = 1_000
_PLACE: Final = (orders.c.sale_id, orders.c.bucket, orders.c.epoch, orders.c.seq)


class OrderSearch:
    """Finds orders. Raises LedgerUnavailable when it cannot be asked now."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        orders_max: int,
        *,
        goods_id: GoodsId | None = None,
        user_id: UserId | None = None,
        state: OrderState | None = None,
        before: ReservationId | None = None,
    ) -> list[Order]:
        """Orders that are all of this, newest sale and newest purchase first.

        Args:
            orders_max: 1 to 201.
            goods_id: of every sale of these goods.
            user_id: of this buyer.
            state: in this state; needs one of the two above, or every order there ever was might
                have to be looked at.
            before: the last order of the page before; an unknown one gives an empty page.

        Raises:
            InvalidValue: naming ``limit`` or ``state``.
        """
        if not 1 <= orders_max <= ORDERS_FOUND_MAX:
            raise InvalidValue("limit", f"must be from 1 to {ORDERS_FOUND_MAX - 1}")
        if state is not None and goods_id is None and user_id is None:
            raise InvalidValue("state", "must come with goods_id or user_id")
        query = select_orders().order_by(*(part.desc() for part in _PLACE)).limit(orders_max)
        if user_id is not None:
            query = query.where(orders.c.user_id == user_id)
        if state is not None:
            query = query.where(orders.c.state == state.value)

        async def work(connection: AsyncConnection) -> list[Order]:
            found = query
            if goods_id is not None:
                of_goods = await connection.execute(
                    select(sales.c.sale_id)
                    .where(sales.c.goods_id == goods_id)
                    .order_by(sales.c.sale_id.desc())
                    .limit(_SALES_OF_GOODS_MAX)
                )
                found = _of_sales(found, of_goods.scalars().all())
            if before is not None:
                place = (
                    await connection.execute(
                        select(*_PLACE).where(orders.c.reservation_id == before)
                    )
                ).one_or_none()
                if place is None:
                    return []
                found = found.where(tuple_(*_PLACE) < tuple_(*place))
            return [order_from_row(row) for row in await connection.execute(found)]

        return await self._database.read("look for orders", work)


def _of_sales(
    query: Select[tuple[object, ...]], sale_ids: Sequence[int]
) -> Select[tuple[object, ...]]:
    # Of one sale, the usual case, the index gives the order; of several it is sorted.
    if len(sale_ids) == 1:
        return query.where(orders.c.sale_id == sale_ids[0])
    return query.where(orders.c.sale_id.in_(sale_ids))
