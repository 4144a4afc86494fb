"""Paying: ``POST /orders/{id}/pay`` for buyers, ``POST /payments/webhook`` for the provider."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from fastapi import Depends, FastAPI, Request
from fastapi.responses import Response

from seckill.domain.errors import SeckillError
from seckill.domain.ids import ReservationId, UserId
from seckill.domain.instants import rfc3339_ms
from seckill.domain.payment import CURRENCY
from seckill.payment.webhook import BODY_BYTES_MAX, HEADERS
from seckill.web.batches import Lanes, TooManyWaiting
from seckill.web.openapi import PROBLEM_RESPONSES
from seckill.web.orders import OrderBook
from seckill.web.parts import WebParts
from seckill.web.ports import PayAnswer
from seckill.web.problems import HTTPProblem, Malformed, NotFound, Unavailable
from seckill.web.requests import BodyFault, body_announced, body_refused, pick_headers
from seckill.web.sandbox import sandbox_pages
from seckill.web.schemas import PaymentStarted

__all__ = ["PaymentCalls", "add_payments"]

_ENCODE: Final = msgspec.json.Encoder().encode
_BUSY: Final = "Orders cannot be paid right now. Please ask again."
_NO_PROVIDER: Final = "Nobody takes money here: no payment provider is set up."


class PaymentCalls:
    """Starts payments in tasks of its own: a buyer who leaves cuts none."""

    def __init__(self, parts: WebParts, orders: OrderBook) -> None:
        self._parts = parts
        self._orders = orders
        limits = parts.limits
        self._lanes = Lanes(lanes=limits.payment_call_lanes, waiting_max=limits.payment_calls_max)

    async def run(self) -> None:
        """Make the calls until cancelled."""
        await self._lanes.run()

    async def start(self, reservation_id: ReservationId, user_id: UserId) -> PayAnswer:
        """Start to pay the user's own order.

        Raises:
            HTTPProblem: 404 unknown or not theirs, 409 it cannot be paid (any more).
            Unavailable: a part is away, or too many wait. It is safe to ask again.
        """
        desk = self._parts.payments
        if not self._orders.is_known(reservation_id):
            raise NotFound
        if desk is None:
            if await self._orders.find(reservation_id, user_id) is None:
                raise NotFound
            raise HTTPProblem(409, _NO_PROVIDER)
        try:
            async with asyncio.timeout(self._parts.limits.payment_wait_ms / 1000):
                answer = await self._lanes.call(lambda: desk.start(reservation_id, user_id))
        except (TimeoutError, TooManyWaiting):
            self._parts.metrics.bound_met("payment_calls")
            raise Unavailable(_BUSY) from None
        except HTTPProblem:
            raise
        except SeckillError as away:
            raise Unavailable(_BUSY) from away
        if answer is None:
            await self._orders.refuse_queued(reservation_id, user_id)
            raise NotFound
        if answer.refusal:
            raise HTTPProblem(409, answer.refusal)
        return answer


def add_payments(app: FastAPI, parts: WebParts, calls: PaymentCalls) -> None:
    """Add the routes of payments, and the sandbox's page where it is in use."""

    def buyer(request: Request) -> UserId:
        headers = pick_headers(request.scope["headers"])
        return parts.authenticator.identify(headers, request.scope["query_string"])

    me = Depends(buyer)

    @app.post(
        "/orders/{reservation_id}/pay",
        response_model=PaymentStarted,
        responses=PROBLEM_RESPONSES(400, 401, 404, 409, 422, 503),
        summary="Start to pay one's own order",
        description=(
            "Asking again is safe: it goes on with the payment that is open. The provider's page"
            " takes the money; the order is paid when its news of that has come."
        ),
        tags=["orders"],
    )
    async def pay_order(reservation_id: str, user_id: UserId = me) -> Response:
        answer = await calls.start(ReservationId(reservation_id), user_id)
        return Response(_ENCODE(_started(answer)), media_type="application/json")

    if parts.payments is not None:
        _add_webhook(app, parts)
    if parts.sandbox is not None:
        app.mount("/sandbox", sandbox_pages(parts.sandbox))


def _started(answer: PayAnswer) -> dict[str, object]:
    order, payment = answer.order, answer.payment
    assert order.pay_by_ms is not None, "an order in the ledger has a deadline"
    return {
        "reservation_id": order.reservation_id,
        "state": order.state.value,
        "payment_id": None if payment is None else payment.payment_id,
        "page_url": None if payment is None else payment.page_url,
        "amount_fen": order.price_fen * order.quantity,
        "currency": CURRENCY,
        "pay_by": rfc3339_ms(order.pay_by_ms),
    }


def _add_webhook(app: FastAPI, parts: WebParts) -> None:
    desk = parts.payments
    assert desk is not None

    @app.post(
        "/payments/webhook",
        status_code=204,
        response_class=Response,
        responses=PROBLEM_RESPONSES(400, 401, 408, 413, 415, 422, 503),
        summary="News of the payment provider",
        description=(
            "Signed as Standard Webhooks. Taken once for each webhook-id; 204 also when it was"
            " known already, or came too late to change anything."
        ),
        tags=["payments"],
        openapi_extra=_webhook_parameters(),
    )
    async def take_news(request: Request) -> Response:
        headers = pick_headers(request.scope["headers"])
        body_announced(headers, BODY_BYTES_MAX)
        signature = _signature_headers(request.scope["headers"])
        body = await request.body()
        if len(body) > BODY_BYTES_MAX:  # one that came in chunks announces no length
            raise body_refused(BodyFault.TOO_LONG, BODY_BYTES_MAX, parts.limits.body_timeout_ms)
        await desk.take_news(signature, body)
        return Response(status_code=204)


def _signature_headers(headers: list[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """The three headers of a signed message.

    Raises:
        Malformed: one is given twice, so that nobody can say which one counts.
    """
    found: dict[str, str] = {}
    for raw_name, value in headers:
        name = raw_name.decode("latin-1")
        if name in HEADERS:
            if name in found:
                raise Malformed(name, "must be given at most once")
            found[name] = value.decode("latin-1")
    return found


def _webhook_parameters() -> dict[str, Any]:
    meanings = {
        "webhook-id": "names the event: the same one counts once",
        "webhook-timestamp": "when it was sent, seconds since 1970; at most five minutes off",
        "webhook-signature": "v1,… of id, timestamp and body; several, separated by spaces",
    }
    return {
        "parameters": [
            {
                "name": name,
                "in": "header",
                "required": True,
                "description": meaning,
                "schema": {"type": "string"},
            }
            for name, meaning in meanings.items()
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["type", "data"],
                        "properties": {
                            "type": {"type": "string", "examples": ["payment.paid"]},
                            "timestamp": {"type": "string", "format": "date-time"},
                            "data": {"type": "object"},
                        },
                    }
                }
            },
        },
    }
