"""The two routes that a sale lives on, in front of the framework.

``POST /seckill/{goods_id}`` and ``GET /orders/{reservation_id}`` are served here as plain ASGI;
everything else goes on to the inner application. A framework's request object and router would
cost a third of the throughput.

Every bad input is refused before admission. When the client leaves, or the server cuts this
request, only its own answer is given up: the batch that it is part of goes on.
"""

import asyncio
from time import perf_counter
from typing import Final

import structlog

from seckill.admission.decision import Decision
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import GoodsId, ReservationId, check_goods_id
from seckill.domain.order import Order
from seckill.web.answers import PurchaseAnswers
from seckill.web.attempts import AttemptIds
from seckill.web.flow import FlowControl
from seckill.web.languages import Languages
from seckill.web.limits import WebLimits
from seckill.web.order_json import order_document
from seckill.web.orders import OrderBook
from seckill.web.ports import (
    ASGIApp,
    Authenticator,
    Message,
    Receive,
    Scope,
    Send,
    WebMetrics,
)
from seckill.web.problems import Fault, HTTPProblem, MethodNotAllowed, NotFound, RuleBroken, respond
from seckill.web.requests import (
    ClientGone,
    body_announced,
    known_method,
    pick_headers,
    read_body,
    read_purchase,
    read_segment,
)

__all__ = ["ORDER_ROUTE", "PURCHASE_ROUTE", "HotRoutes"]

_LOG: Final = structlog.get_logger(__name__)

PURCHASE_ROUTE: Final = "/seckill/{goods_id}"
ORDER_ROUTE: Final = "/orders/{reservation_id}"

_PURCHASE_PREFIX: Final = b"/seckill/"
_ORDER_PREFIX: Final = b"/orders/"
_GOODS_IDS_MAX: Final = 1024
_CLIENT_GONE: Final = 499
_JSON: Final = ((b"content-type", b"application/json"),)


class HotRoutes:
    """An ASGI callable that answers the two hot routes itself.

    Args:
        gate: decides purchases, flow control in front.
        orders: finds orders.
        authenticator: names the buyer.
        metrics: counts.
        limits: bounds of bodies.
        draining: set when this process is about to stop; answers then end their connections.
        inner: serves everything else.
    """

    def __init__(
        self,
        *,
        gate: FlowControl,
        orders: OrderBook,
        authenticator: Authenticator,
        metrics: WebMetrics,
        limits: WebLimits,
        draining: asyncio.Event,
        inner: ASGIApp,
    ) -> None:
        self._gate = gate
        self._orders = orders
        self._authenticator = authenticator
        self._metrics = metrics
        self._limits = limits
        self._draining = draining
        self._inner = inner
        self._answers = PurchaseAnswers()
        self._languages = Languages()
        self._attempts = AttemptIds()
        self._goods_ids: dict[bytes, GoodsId] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            path: bytes = scope["raw_path"]
            if path.startswith(_PURCHASE_PREFIX):
                segment = path[len(_PURCHASE_PREFIX) :]
                if segment and b"/" not in segment:
                    await self._purchase(segment, scope, receive, send)
                    return
            elif path.startswith(_ORDER_PREFIX):
                segment = path[len(_ORDER_PREFIX) :]
                if segment and b"/" not in segment:
                    await self._order(segment, scope, send)
                    return
        await self._inner(scope, receive, send)

    async def _purchase(self, segment: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        close = self._draining.is_set()
        method: str = scope["method"]
        try:
            if method != "POST":
                raise MethodNotAllowed("POST")  # noqa: TRY301  -- one place turns problems to answers
            goods_id = self._goods_ids.get(segment) or self._read_goods_id(segment)
            headers = pick_headers(scope["headers"])
            user_id = self._authenticator.identify(headers, scope["query_string"])
            key = headers.get(b"idempotency-key")
            attempt_id = self._attempts.fresh() if key is None else self._attempts.of_key(key)
            length = body_announced(headers, self._limits.body_bytes_max)
            quantity = 1 if length == 0 else await self._read_quantity(receive, length)
            decision = self._gate.admit_now(goods_id, user_id, quantity, attempt_id, scope)
            if not isinstance(decision, Decision):
                # Cancelling this request gives up its own answer; the batch goes on without it.
                decision = await decision
            language = self._languages.choose(headers.get(b"accept-language"))
            answer = self._answers.of(decision, language, close=close)
            self._metrics.decision(decision.outcome, decision.cause)
        except HTTPProblem as problem:
            # A body that was not read to its end stands in the way of the next request.
            answer = problem.messages(close=close or problem.status in {408, 413})
        except ClientGone:
            self._metrics.request(PURCHASE_ROUTE, method, _CLIENT_GONE, perf_counter() - began)
            return
        except Exception:  # noqa: BLE001  -- the outermost guard: answers 500 and records it
            _LOG.exception("a purchase request met an error of this program", path=scope["path"])
            answer = Fault().messages(close=close)
        await send(answer[0])
        await send(answer[1])
        self._count(PURCHASE_ROUTE, method, answer, began)

    async def _read_quantity(self, receive: Receive, length: int | None) -> int:
        """The units that the body asks for."""
        body = await read_body(
            receive,
            length,
            bytes_max=self._limits.body_bytes_max,
            timeout_ms=self._limits.body_timeout_ms,
        )
        return read_purchase(body).quantity

    def _read_goods_id(self, segment: bytes) -> GoodsId:
        """Read a goods id out of the path and remember it: there are few, and they come often."""
        try:
            goods_id = check_goods_id(read_segment(segment, "goods_id"))
        except InvalidValue as invalid:
            raise RuleBroken(invalid.field, invalid.rule) from None
        if len(self._goods_ids) >= _GOODS_IDS_MAX:
            self._goods_ids.clear()
        self._goods_ids[segment] = goods_id
        return goods_id

    async def _order(self, segment: bytes, scope: Scope, send: Send) -> None:
        began = perf_counter()
        close = self._draining.is_set()
        method: str = scope["method"]
        head = method == "HEAD"
        try:
            order = await self._find(segment, scope)
            answer = respond(200, order_document(order), _JSON, close=close, head=head)
        except HTTPProblem as problem:
            answer = problem.messages(close=close, head=head)
        except Exception:  # noqa: BLE001  -- as above
            _LOG.exception("looking up an order met an error of this program", path=scope["path"])
            answer = Fault().messages(close=close, head=head)
        await send(answer[0])
        await send(answer[1])
        self._count(ORDER_ROUTE, method, answer, began)

    async def _find(self, segment: bytes, scope: Scope) -> Order:
        if scope["method"] not in {"GET", "HEAD"}:
            raise MethodNotAllowed("GET, HEAD")
        headers = pick_headers(scope["headers"])
        user_id = self._authenticator.identify(headers, scope["query_string"])
        # An id is plain ASCII; whatever else stands here names nothing.
        reservation_id = ReservationId(segment.decode("latin-1"))
        order = await self._orders.find(reservation_id, user_id)
        if order is None:
            raise NotFound
        return order

    def _count(
        self, route: str, method: str, answer: tuple[Message, Message], began: float
    ) -> None:
        self._metrics.request(
            route, known_method(method), answer[0]["status"], perf_counter() - began
        )
