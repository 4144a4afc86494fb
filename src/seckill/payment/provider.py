"""The port that a payment provider is joined by. Everything is in the words of the domain.

A provider of yours is an object with these two methods and the secrets that it signs its news with;
the setting ``payment_provider`` names what makes it (``docs/operate/payments.md``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from seckill.domain.ids import GoodsId, ReservationId
from seckill.domain.payment import Money, PaymentId

__all__ = ["PaymentProvider", "PaymentRequest", "RefundRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentRequest:
    """A buyer wishes to pay.

    Attributes:
        payment_id: names the payment for good: asking twice must make one.
        deadline_ms: after this no money should be taken; money that comes all the same is late.
    """

    payment_id: PaymentId
    reservation_id: ReservationId
    goods_id: GoodsId
    quantity: int
    money: Money
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundRequest:
    """Money is to go back.

    Attributes:
        refund_id: names the refund for good: asking twice must give back once.
    """

    refund_id: str
    payment_id: PaymentId
    money: Money


class PaymentProvider(Protocol):
    """Takes money and gives it back. Its news comes by the webhook.

    Each method raises ProviderAway when it should be called again, and ProviderRefused when that
    would not help. It must bound its own waiting: five seconds are a good limit.
    """

    @property
    def webhook_secrets(self) -> Sequence[str]:
        """The secrets that its news may be signed with (``whsec_…``), newest first."""
        ...

    async def start(self, request: PaymentRequest) -> str:
        """Begin a payment; returns the address of the page where the buyer makes it."""
        ...

    async def refund(self, request: RefundRequest) -> bool:
        """Give money back. True when it is back; False when news of it will follow."""
        ...
