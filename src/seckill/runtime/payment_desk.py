"""The web room's desk for payments, joined to ledger and provider."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog

from seckill.domain.ids import ReservationId, UserId
from seckill.domain.payment import NewsOutcome, PaymentId
from seckill.ledger.errors import DeadlinePassed, EventIdReused, TooManyPayments, WrongState
from seckill.ledger.sql_ledger import SQLLedger
from seckill.payment.errors import BadSignature, ProviderRefused, UnreadableNews
from seckill.payment.provider import PaymentProvider, PaymentRequest
from seckill.payment.webhook import WebhookReader
from seckill.web.ports import PayAnswer
from seckill.web.problems import HTTPProblem, RuleBroken

__all__ = ["Desk"]

_log = structlog.get_logger(__name__)

_SIGNATURE_WANTED: Final = ((b"www-authenticate", b'Webhook realm="payments"'),)


def _refusal(error: WrongState | TooManyPayments) -> str:
    match error:
        case DeadlinePassed():
            return "The order can be paid no more: its time is over."
        case TooManyPayments():
            return "The order was tried to be paid too often."
        case _:
            state = error.order.state.value
            return f"The order is {state}: only an unpaid one can be paid."


class Desk:
    """Implements `web.ports.PaymentDesk` on the ledger and a provider."""

    def __init__(self, ledger: SQLLedger, provider: PaymentProvider, reader: WebhookReader) -> None:
        self._ledger = ledger
        self._provider = provider
        self._reader = reader

    async def start(self, reservation_id: ReservationId, user_id: UserId) -> PayAnswer | None:
        """See PaymentDesk."""
        new_id = PaymentId(f"pay{secrets.token_hex(14)}")
        try:
            found = await self._ledger.payments.start(reservation_id, user_id, new_id=new_id)
        except (WrongState, TooManyPayments) as refused:
            return PayAnswer(refused.order, refusal=_refusal(refused))
        if found is None:
            return None
        order, payment = found
        if payment is None or payment.page_url is not None:
            return PayAnswer(order, payment)
        try:
            # Its id was written before, so asking again makes no second payment there.
            page_url = await self._provider.start(
                PaymentRequest(
                    payment_id=payment.payment_id,
                    reservation_id=reservation_id,
                    goods_id=order.goods_id,
                    quantity=order.quantity,
                    money=payment.money,
                    deadline_ms=payment.deadline_ms,
                )
            )
        except ProviderRefused as refused:
            _log.error(
                "the provider refuses a payment",
                payment_id=payment.payment_id,
                error=str(refused),
            )
            return PayAnswer(order, refusal="The payment provider does not take this payment.")
        page_url = await self._ledger.payments.page_made(payment.payment_id, page_url)
        return PayAnswer(order, replace(payment, page_url=page_url))

    async def take_news(self, headers: Mapping[str, str], body: bytes) -> None:
        """See PaymentDesk."""
        try:
            news = self._reader.read(headers, body)
            if news is None:
                return
            outcome, why = await self._ledger.payments.take(news)
        except BadSignature as bad:
            raise HTTPProblem(401, str(bad), headers=_SIGNATURE_WANTED) from None
        except UnreadableNews as unreadable:
            raise RuleBroken(unreadable.field, unreadable.rule) from None
        except EventIdReused as reused:
            raise RuleBroken("webhook-id", str(reused)) from None
        if outcome is NewsOutcome.IGNORED:
            _log.warning(
                "payment news ignored", payment_id=news.payment_id, kind=news.kind, why=why
            )
