"""What an operator does with orders: for the commands, and for the operators' API."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from seckill.domain.ids import GoodsId, ReservationId, UserId
from seckill.domain.order import Order, OrderState
from seckill.domain.payment import Payment
from seckill.ledger.errors import NoSuchOrder
from seckill.ledger.reading import Move
from seckill.runtime.beside import Beside
from seckill.runtime.bootstrap import Stores
from seckill.web.order_json import order_members

__all__ = ["OrderDesk", "move_row", "payment_row"]

Row = dict[str, Any]


def move_row(move: Move) -> Row:
    """A move of an order as programs read it."""
    return asdict(move)


def payment_row(payment: Payment) -> Row:
    """A payment as programs read it."""
    return asdict(payment)


class OrderDesk:
    """Looks orders up, cancels and refunds them. Raises LedgerUnavailable when it is away.

    Args:
        beside: where traces are made; None for a command.
    """

    def __init__(self, stores: Stores, beside: Beside | None = None) -> None:
        self._stores = stores
        self._beside = beside

    async def page(
        self,
        orders_max: int,
        *,
        goods_id: GoodsId | None = None,
        user_id: UserId | None = None,
        state: OrderState | None = None,
        before: ReservationId | None = None,
    ) -> list[Row]:
        """Orders that are all of this, newest sale and newest purchase first.

        Raises:
            InvalidValue: as `OrderSearch.page`.
        """
        found = await self._stores.ledger.search.page(
            orders_max, goods_id=goods_id, user_id=user_id, state=state, before=before
        )
        return [order_members(order) for order in found]

    async def show(self, reservation_id: str) -> Row:
        """One order with its moves (who, when, why) and its payments. Raises NoSuchOrder."""
        order = await self._found(reservation_id)
        ledger = self._stores.ledger
        moves = await ledger.reading.moves_of(order.reservation_id)
        payments = await ledger.payments.of_order(order.reservation_id)
        return {
            "order": order_members(order),
            "moves": [move_row(move) for move in moves],
            "payments": [payment_row(payment) for payment in payments],
        }

    async def trace(self, reservation_id: str) -> Row:
        """The whole life of one purchase, out of all stores.

        Raises:
            NoSuchOrder: this installation never made such an id.
            Unavailable: as `Beside.run`.
        """
        if self._stores.ids.decode(reservation_id) is None:
            raise NoSuchOrder(ReservationId(reservation_id))
        assert self._beside is not None, "a command traces by itself"
        return dict(await self._beside.run("orders", "trace", reservation_id, "--json"))

    async def cancel(self, reservation_id: str, *, actor: str, reason: str) -> Row:
        """Cancel anybody's unpaid order; its units go back on sale. Again changes nothing.

        Raises:
            NoSuchOrder: it is not in the ledger.
            WrongState: it is paid, expired or compensated.
            InvalidValue: naming ``actor`` or ``reason``.
        """
        return await self._change(
            reservation_id,
            lambda name: self._stores.ledger.orders.cancel_for(
                name, actor=actor, reason=reason or "cancelled by the shop"
            ),
        )

    async def refund(self, reservation_id: str, *, actor: str, reason: str) -> Row:
        """Give the money of a paid order back, and its units to the sale. Again changes nothing.

        Raises:
            NoSuchOrder: it is not in the ledger.
            WrongState: it is not paid.
            InvalidValue: naming ``actor`` or ``reason``.
        """
        return await self._change(
            reservation_id,
            lambda name: self._stores.ledger.payments.refund(name, actor=actor, reason=reason),
        )

    async def _change(
        self, reservation_id: str, change: Callable[[ReservationId], Awaitable[Order | None]]
    ) -> Row:
        order = await self._found(reservation_id)
        return order_members(await change(order.reservation_id) or order)

    async def _found(self, reservation_id: str) -> Order:
        name = ReservationId(reservation_id)
        # An id that was never made is in no table; and some texts no database can be asked for.
        if self._stores.ids.decode(reservation_id) is None:
            raise NoSuchOrder(name)
        found = await self._stores.ledger.reading.orders_by_ids([name])
        if name not in found:
            raise NoSuchOrder(name)
        return found[name]
