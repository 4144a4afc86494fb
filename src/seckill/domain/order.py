"""An order: what a reservation becomes in the ledger, its states and the edges between them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from seckill.domain.ids import GoodsId, ReservationId, SaleId, UserId

__all__ = [
    "EDGES",
    "HOLDING_STATES",
    "PAYABLE_STATES",
    "TERMINAL_STATES",
    "Order",
    "OrderState",
]


class OrderState(StrEnum):
    """Where a purchase stands. ``QUEUED`` is admitted and not yet in the ledger."""

    QUEUED = "queued"
    AWAITING_PAYMENT = "awaiting_payment"
    PAID = "paid"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    COMPENSATED = "compensated"
    REFUND_DUE = "refund_due"
    REFUNDED = "refunded"


HOLDING_STATES: Final = frozenset({OrderState.AWAITING_PAYMENT, OrderState.PAID})
"""States of the ledger in which an order holds its units ("live")."""

TERMINAL_STATES: Final = frozenset(
    {OrderState.PAID, OrderState.CANCELLED, OrderState.COMPENSATED, OrderState.REFUNDED}
)
"""States that an order does not leave by itself; ``EXPIRED`` can still meet late money."""

PAYABLE_STATES: Final = frozenset({OrderState.AWAITING_PAYMENT})
"""States in which money is waited for."""

EDGES: Final[dict[OrderState, frozenset[OrderState]]] = {
    OrderState.QUEUED: frozenset({OrderState.AWAITING_PAYMENT, OrderState.COMPENSATED}),
    OrderState.AWAITING_PAYMENT: frozenset(
        {OrderState.PAID, OrderState.EXPIRED, OrderState.CANCELLED}
    ),
    OrderState.PAID: frozenset({OrderState.REFUND_DUE}),
    OrderState.EXPIRED: frozenset({OrderState.REFUND_DUE}),
    OrderState.CANCELLED: frozenset({OrderState.REFUND_DUE}),
    OrderState.COMPENSATED: frozenset({OrderState.REFUND_DUE}),
    OrderState.REFUND_DUE: frozenset({OrderState.REFUNDED}),
    OrderState.REFUNDED: frozenset(),
}
"""The only moves there are; the database refuses every other one (``docs/reference/orders.md``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One purchase as its buyer may see it.

    Attributes:
        pay_by_ms: deadline of the payment; None while it is queued.
        reason: why it is in a state that the buyer did not ask for, in one sentence.
        paid_at_ms: when its payment was taken; it stays when the money goes back.
        continued_as: of an expired order whose money came late and took a free unit: the order
            that the money has paid.
    """

    reservation_id: ReservationId
    sale_id: SaleId
    goods_id: GoodsId
    user_id: UserId
    quantity: int
    price_fen: int
    state: OrderState
    admitted_at_ms: int
    pay_by_ms: int | None = None
    reason: str | None = None
    paid_at_ms: int | None = None
    continued_as: ReservationId | None = None
