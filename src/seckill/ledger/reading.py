"""What buyers read of their orders."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row, Select, and_, func, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.errors import InvalidValue
from seckill.domain.ids import ReservationId, SaleId, UserId
from seckill.domain.order import Order, OrderState
from seckill.ledger import statements
from seckill.ledger.engine import Database
from seckill.ledger.tables import collisions, losses, order_events, orders, sales

__all__ = [
    "ORDERS_PER_PAGE_MAX",
    "Move",
    "OrderMark",
    "OrderPage",
    "OrderReading",
    "Standing",
    "order_from_row",
    "select_orders",
]

ORDERS_PER_PAGE_MAX: Final = 200

COLLISION_REASON: Final = (
    "The stock service lost this purchase in a failure and gave its number to another buyer."
)


LOST_REASON: Final = (
    "The stock service lost this purchase in a failure before an order could be made of it. You owe"
    " nothing; money that was paid goes back. You can buy again while the sale lasts."
)


def select_orders() -> Select[Any]:
    """The columns that `order_from_row` reads."""
    return select(
        orders.c.reservation_id,
        orders.c.sale_id,
        sales.c.goods_id,
        orders.c.user_id,
        orders.c.quantity,
        orders.c.price_fen,
        orders.c.state,
        orders.c.admitted_at_ms,
        orders.c.pay_by_ms,
        orders.c.reason,
        orders.c.paid_at_ms,
        orders.c.continued_as,
        orders.c.created_at_ms,
    ).join(sales, sales.c.sale_id == orders.c.sale_id)


def order_from_row(row: Row[Any]) -> Order:
    """The order in a row of `select_orders`."""
    return Order(
        reservation_id=row.reservation_id,
        sale_id=row.sale_id,
        goods_id=row.goods_id,
        user_id=row.user_id,
        quantity=row.quantity,
        price_fen=row.price_fen,
        state=OrderState(row.state),
        admitted_at_ms=row.admitted_at_ms,
        pay_by_ms=row.pay_by_ms,
        reason=row.reason,
        paid_at_ms=row.paid_at_ms,
        continued_as=row.continued_as,
    )


@dataclass(frozen=True, slots=True)
class OrderMark:
    """Where a page of a user's orders ends: the next one begins before it.

    The reservation id only tells orders of the same millisecond apart; it is no order in time.
    """

    created_at_ms: int
    reservation_id: ReservationId


@dataclass(frozen=True, slots=True)
class Move:
    """One move of an order: from where to where, when, by whom and why."""

    from_state: str
    to_state: str
    at_ms: int
    actor: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How a sale stands in the books.

    Attributes:
        paid_units: units of its paid orders.
        next_due_ms: the earliest deadline of its unpaid orders; None when there is none.
    """

    paid_units: int
    next_due_ms: int | None


@dataclass(frozen=True, slots=True)
class OrderPage:
    """Some orders of a user, newest first.

    Attributes:
        next_before: where the next page begins; None when this is the last.
    """

    orders: tuple[Order, ...]
    next_before: OrderMark | None


class OrderReading:
    """Reads orders for their buyers. Raises LedgerUnavailable when it cannot be asked now."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ping(self) -> None:
        """Ask the database for nothing, to see that it answers."""

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(select(literal(1)))

        await self._database.read("answer", work)

    async def orders_by_ids(
        self, reservation_ids: Sequence[ReservationId]
    ) -> dict[ReservationId, Order]:
        """The orders of these reservations that are in the ledger, whoever's they are.

        A missing one is not known here: still queued, or made up. The caller checks the owner.
        """

        async def work(connection: AsyncConnection) -> dict[ReservationId, Order]:
            found: dict[ReservationId, Order] = {}
            for some in statements.chunks(reservation_ids):
                result = await connection.execute(
                    select_orders().where(orders.c.reservation_id.in_(some))
                )
                for row in result:
                    found[row.reservation_id] = order_from_row(row)
            return found

        return await self._database.read(f"read {len(reservation_ids)} orders", work)

    async def lost_orders(self, reservation_ids: Sequence[ReservationId]) -> list[Order]:
        """Those of these reservations that are named as lost, as compensated orders.

        Whose they were nobody knows any more: the user id is empty, and the quantity is the least
        that it can have been. An id can be neither counted nor guessed, so whoever has it is the
        buyer who was told it.
        """

        async def work(connection: AsyncConnection) -> list[Order]:
            found: list[Order] = []
            for some in statements.chunks(reservation_ids):
                rows = await connection.execute(
                    select(losses, sales.c.goods_id, sales.c.price_fen)
                    .join(sales, sales.c.sale_id == losses.c.sale_id)
                    .where(losses.c.reservation_id.in_(some))
                )
                found += [_order_from_loss(row) for row in rows]
            return found

        return await self._database.read("read which purchases are lost", work)

    async def order_of(self, reservation_id: ReservationId, user_id: UserId) -> Order | None:
        """A user's own order, or None when it is not in the ledger or not theirs.

        A user whose purchase collided with another one (see `tables.collisions`) gets a
        compensated order: nobody who was told "success" finds nothing.
        """

        async def work(connection: AsyncConnection) -> Order | None:
            result = await connection.execute(
                select_orders().where(
                    orders.c.reservation_id == reservation_id, orders.c.user_id == user_id
                )
            )
            row = result.one_or_none()
            if row is not None:
                return order_from_row(row)
            collided = await connection.execute(
                select(collisions, sales.c.goods_id, sales.c.price_fen)
                .join(sales, sales.c.sale_id == collisions.c.sale_id)
                .where(
                    collisions.c.reservation_id == reservation_id,
                    collisions.c.user_id == user_id,
                    collisions.c.kind == "admission",
                )
                .order_by(collisions.c.recorded_at_ms, collisions.c.content_hash)
                .limit(1)
            )
            row = collided.one_or_none()
            return None if row is None else _order_from_collision(row)

        return await self._database.read(f"read order {reservation_id}", work)

    async def standing(self, sale_id: SaleId) -> Standing:
        """What of a sale is paid, and when the next unpaid order lets go of its units."""

        async def work(connection: AsyncConnection) -> Standing:
            paid = await connection.scalar(
                select(func.coalesce(func.sum(orders.c.quantity), 0)).where(
                    orders.c.sale_id == sale_id, orders.c.state == OrderState.PAID.value
                )
            )
            next_due_ms = await connection.scalar(
                select(orders.c.pay_by_ms)
                .where(
                    orders.c.state == OrderState.AWAITING_PAYMENT.value,
                    orders.c.sale_id == sale_id,
                )
                .order_by(orders.c.pay_by_ms, orders.c.reservation_id)
                .limit(1)
            )
            return Standing(int(paid or 0), next_due_ms)

        return await self._database.read(f"read how sale {sale_id} stands", work)

    async def moves_of(self, reservation_id: ReservationId) -> list[Move]:
        """How an order came into the state that it is in, oldest first."""
        query = (
            select(
                order_events.c.from_state,
                order_events.c.to_state,
                order_events.c.at_ms,
                order_events.c.actor,
                order_events.c.reason,
            )
            .where(order_events.c.reservation_id == reservation_id)
            .order_by(order_events.c.event_id)
        )

        async def work(connection: AsyncConnection) -> list[Move]:
            return [Move(*row) for row in await connection.execute(query)]

        return await self._database.read(f"read the moves of order {reservation_id}", work)

    async def mark_of(self, reservation_id: ReservationId, user_id: UserId) -> OrderMark | None:
        """Where an order of the user stands among theirs; None when they have no such order."""

        async def work(connection: AsyncConnection) -> OrderMark | None:
            created_at_ms = await connection.scalar(
                select(orders.c.created_at_ms).where(
                    orders.c.reservation_id == reservation_id, orders.c.user_id == user_id
                )
            )
            return None if created_at_ms is None else OrderMark(created_at_ms, reservation_id)

        return await self._database.read(f"read order {reservation_id}", work)

    async def orders_of_user(
        self, user_id: UserId, limit: int, before: OrderMark | None = None
    ) -> OrderPage:
        """A page of a user's orders, the newest first.

        Args:
            user_id: the user.
            limit: orders in the page, 1 to 200.
            before: `OrderPage.next_before` of the page before this one.

        Raises:
            InvalidValue: naming ``limit``.
        """
        if not 1 <= limit <= ORDERS_PER_PAGE_MAX:
            raise InvalidValue("limit", f"must be from 1 to {ORDERS_PER_PAGE_MAX}")
        query = (
            select_orders()
            .where(orders.c.user_id == user_id)
            .order_by(orders.c.created_at_ms.desc(), orders.c.reservation_id.desc())
            .limit(limit + 1)
        )
        if before is not None:
            query = query.where(
                or_(
                    orders.c.created_at_ms < before.created_at_ms,
                    and_(
                        orders.c.created_at_ms == before.created_at_ms,
                        orders.c.reservation_id < before.reservation_id,
                    ),
                )
            )

        async def work(connection: AsyncConnection) -> OrderPage:
            rows = (await connection.execute(query)).all()
            page = rows[:limit]
            last = page[-1] if len(rows) > limit else None
            return OrderPage(
                tuple(order_from_row(row) for row in page),
                None if last is None else OrderMark(last.created_at_ms, last.reservation_id),
            )

        return await self._database.read("read the orders of a user", work)


def _order_from_loss(row: Row[Any]) -> Order:
    return Order(
        reservation_id=row.reservation_id,
        sale_id=row.sale_id,
        goods_id=row.goods_id,
        user_id=UserId(""),
        quantity=1,
        price_fen=row.price_fen,
        state=OrderState.COMPENSATED,
        admitted_at_ms=row.named_at_ms,
        reason=LOST_REASON,
    )


def _order_from_collision(row: Row[Any]) -> Order:
    return Order(
        reservation_id=row.reservation_id,
        sale_id=row.sale_id,
        goods_id=row.goods_id,
        user_id=row.user_id,
        quantity=row.units,
        price_fen=row.price_fen,
        state=OrderState.COMPENSATED,
        admitted_at_ms=row.at_ms,
        reason=COLLISION_REASON,
    )
