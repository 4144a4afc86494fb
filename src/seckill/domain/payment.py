"""A payment: one attempt of a buyer to pay one order, and the news that its provider sends.

An order may have several: the first was abandoned, the second went through. The order is paid by
one of them; money of any other goes back.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

from seckill.domain.ids import ReservationId

__all__ = [
    "CURRENCY",
    "MONEY_STATES",
    "Money",
    "NewsKind",
    "NewsOutcome",
    "Payment",
    "PaymentId",
    "PaymentNews",
    "PaymentState",
]

PaymentId = NewType("PaymentId", str)
"""Names a payment here and at its provider: drawn here, so that it can be asked for twice."""

CURRENCY: Final = "CNY"
"""Prices are in fen, so this is what every order is paid in."""


class PaymentState(StrEnum):
    """Where a payment stands."""

    STARTED = "started"
    FAILED = "failed"
    PAID = "paid"
    LATE = "late"
    """The money is here and the order's units are gone: a free unit is looked for."""
    REFUND_DUE = "refund_due"
    REFUNDED = "refunded"


MONEY_STATES: Final = frozenset(
    {PaymentState.PAID, PaymentState.LATE, PaymentState.REFUND_DUE, PaymentState.REFUNDED}
)
"""States in which money has come."""


class NewsKind(StrEnum):
    """What a provider tells of a payment, in its own words on the wire."""

    PAID = "payment.paid"
    FAILED = "payment.failed"
    EXPIRED = "payment.expired"
    REFUNDED = "refund.succeeded"
    REFUND_FAILED = "refund.failed"


class NewsOutcome(StrEnum):
    """What became of a piece of news."""

    APPLIED = "applied"
    IGNORED = "ignored"
    """It came too late, or again under another name: recorded with the reason, nothing moved."""
    KNOWN = "known"
    """This very event was taken before."""


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in the smallest unit of a currency."""

    amount_fen: int
    currency: str = CURRENCY

    def __str__(self) -> str:
        return f"{self.amount_fen} {self.currency} (smallest unit)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """One payment as the ledger holds it.

    Attributes:
        attempt: counts the payments of one order, from 1.
        page_url: where the buyer pays; None until the provider was asked.
        deadline_ms: when the provider must take no more money: the order's own deadline.
        received: what came, when any did.
        reason: why it failed, or why the money goes back.
        refunds: how often a refund was begun; part of its name at the provider.
    """

    payment_id: PaymentId
    reservation_id: ReservationId
    attempt: int
    money: Money
    state: PaymentState
    deadline_ms: int
    page_url: str | None = None
    received: Money | None = None
    reason: str | None = None
    refunds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentNews:
    """One event of a provider, its signature already checked.

    Attributes:
        event_id: the provider's name of the event: the same one counts once.
        money: with ``PAID`` and the refunds: how much.
        at_ms: when it happened, by the provider's clock.
        content_hash: of the whole message, so that one name with two contents is noticed.
        reason: the provider's own words.
    """

    event_id: str
    kind: NewsKind
    payment_id: PaymentId
    money: Money | None
    at_ms: int
    content_hash: str
    reason: str | None = None
