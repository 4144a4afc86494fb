"""An order as its buyer reads it."""

from typing import Final

import msgspec

from seckill.domain.instants import rfc3339_ms
from seckill.domain.order import Order

__all__ = ["order_document", "order_members", "page_document"]

_ENCODE: Final = msgspec.json.Encoder().encode


def order_members(order: Order) -> dict[str, object]:
    """The members of an order, in the order in which people want to read them."""
    return {
        "reservation_id": order.reservation_id,
        "goods_id": order.goods_id,
        "user_id": order.user_id,
        "quantity": order.quantity,
        "state": order.state.value,
        "price_fen": order.price_fen,
        "total_fen": order.price_fen * order.quantity,
        # Only the ledger knows the instant; 0 is that of a purchase on its way there.
        "admitted_at": rfc3339_ms(order.admitted_at_ms) if order.admitted_at_ms else None,
        "pay_by": None if order.pay_by_ms is None else rfc3339_ms(order.pay_by_ms),
        "paid_at": None if order.paid_at_ms is None else rfc3339_ms(order.paid_at_ms),
        "continued_as": order.continued_as,
        "reason": order.reason,
    }


def order_document(order: Order) -> bytes:
    """One order as JSON."""
    return _ENCODE(order_members(order))


def page_document(orders: list[Order], next_page: str | None) -> bytes:
    """A page of orders as JSON; ``next`` is the path of the next page, or null."""
    return _ENCODE({"orders": [order_members(order) for order in orders], "next": next_page})
