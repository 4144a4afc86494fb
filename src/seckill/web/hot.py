"""The two routes that a sale lives on, in front of the framework.

``POST /seckill/{goods_id}`` and ``GET /orders/{reservation_id}`` are answered here by calls: the
connection hands over a request, the gate calls back with a decision, and the answers of one batch
are written together. A purchase makes one record and no task, future or scope of ASGI; the
framework's own would cost several times as much as everything that is done here.

Every bad input is refused before admission. A client that leaves gives up its own answer and
nothing else: the batch that its request is part of goes on.
"""

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, Final

import structlog

from seckill.admission.decision import Decision
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import AttemptId, GoodsId, ReservationId, UserId, check_goods_id
from seckill.domain.outcomes import OUTCOME_TEXTS
from seckill.sentinel import Entry
from seckill.web.answers import PurchaseAnswers
from seckill.web.attempts import AttemptIds
from seckill.web.connection import Request, Route
from seckill.web.flow import FlowControl
from seckill.web.languages import Language, Languages
from seckill.web.limits import WebLimits
from seckill.web.order_json import order_document
from seckill.web.orders import OrderBook
from seckill.web.ports import Authenticator, WebMetrics
from seckill.web.problems import (
    Fault,
    HTTPProblem,
    MethodNotAllowed,
    NotFound,
    RuleBroken,
    respond,
)
from seckill.web.requests import (
    body_announced,
    body_refused,
    known_method,
    pick_headers,
    read_purchase,
    read_segment,
    read_traceparent,
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


class _Purchase(Request):
    """A purchase request on its way: the one record that is made for it.

    It is what flow control and gate call back (`flow.Caller`), and holds what the gate and the
    answer need.
    """

    __slots__ = (
        "attempt_id",
        "began",
        "deadline_ms",
        "decision",
        "entry",
        "language",
        "quantity",
        "routes",
        "traceparent",
        "user_id",
        "user_id_bytes",
    )

    user_id: UserId
    user_id_bytes: int
    attempt_id: AttemptId
    quantity: int
    traceparent: str
    deadline_ms: float
    began: float
    language: Language
    decision: Decision
    entry: Entry | None
    routes: "HotRoutes"

    def decided(self, decision: Decision) -> None:
        """See Caller. Told at the end of this turn, together with others."""
        self.decision = decision
        decided = self.routes.decided
        if not decided:
            asyncio.get_running_loop().call_soon(self.routes.tell)
        decided.append(self)


class HotRoutes:
    """Answers the two hot routes.

    Args:
        gate: decides purchases, flow control in front.
        orders: finds orders.
        authenticator: names the buyer.
        metrics: counts.
        limits: bounds of bodies.
        draining: set when this process is about to stop; answers then end their connections.
        start: starts a coroutine as a task with an owner.
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
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._gate = gate
        self._orders = orders
        self._authenticator = authenticator
        self._metrics = metrics
        self._limits = limits
        self._draining = draining
        self._start = start
        self._answers = PurchaseAnswers()
        self._languages = Languages()
        self._attempts = AttemptIds()
        # By the whole path: who has it needs neither look for its route nor cut it.
        self._goods_ids: dict[bytes, GoodsId] = {}
        self.decided: list[_Purchase] = []
        """Decided and not told yet."""
        self._purchase_route = Route(
            request=_Purchase,
            serve=self._purchase,
            body_bytes_max=limits.body_bytes_max,
            body_timeout_ms=limits.body_timeout_ms,
            given_up=self._purchase_given_up,
        )
        self._order_route = Route(
            request=Request,
            serve=self._order,
            body_bytes_max=limits.body_bytes_max,
            body_timeout_ms=limits.body_timeout_ms,
        )

    def route(self, path: bytes) -> Route | None:
        """How a path is served here; None: it is not one of the two routes."""
        if path in self._goods_ids:
            return self._purchase_route
        if path.startswith(_PURCHASE_PREFIX):
            if path.find(b"/", len(_PURCHASE_PREFIX)) < 0 and len(path) > len(_PURCHASE_PREFIX):
                return self._purchase_route
        elif (
            path.startswith(_ORDER_PREFIX)
            and path.find(b"/", len(_ORDER_PREFIX)) < 0
            and len(path) > len(_ORDER_PREFIX)
        ):
            return self._order_route
        return None

    # Purchases.

    def _purchase(self, request: _Purchase) -> None:
        request.began = perf_counter()
        request.routes = self
        try:
            decision = self._decide(request)
        except HTTPProblem as problem:
            self._refuse(request, problem)
        except Exception:  # noqa: BLE001  -- the outermost guard: answers 500 and records it
            _LOG.exception("a purchase request met an error of this program", path=request.path)
            self._refuse(request, Fault())
        else:
            if decision is not None:
                request.decided(decision)

    def _decide(self, request: _Purchase) -> Decision | None:
        """Read a purchase and ask the gate. None: it will call back."""
        if request.method != b"POST":
            raise MethodNotAllowed("POST")
        goods_id = self._goods_ids.get(request.path) or self._read_goods_id(request.path)
        headers = pick_headers(request.headers)
        request.user_id = self._authenticator.identify(headers, request.query)
        key = headers.get(b"idempotency-key")
        request.attempt_id = self._attempts.fresh() if key is None else self._attempts.of_key(key)
        if headers or request.body or request.fault is not None:
            request.language = self._languages.choose(headers.get(b"accept-language"))
            request.traceparent = read_traceparent(headers.get(b"traceparent"))
            self._read_body(request, headers)
        else:
            request.language, request.quantity, request.traceparent = Language.ZH, 1, ""
        return self._gate.admit_now(
            goods_id, request, request.connection.peer_host, request.headers
        )

    def _read_body(self, request: _Purchase, headers: dict[bytes, bytes]) -> None:
        limits = self._limits
        body_announced(headers, limits.body_bytes_max)
        if request.fault is not None:
            raise body_refused(request.fault, limits.body_bytes_max, limits.body_timeout_ms)
        request.quantity = read_purchase(request.body).quantity

    def _read_goods_id(self, path: bytes) -> GoodsId:
        """Read a goods id out of the path and remember it: there are few, and they come often."""
        try:
            goods_id = check_goods_id(read_segment(path[len(_PURCHASE_PREFIX) :], "goods_id"))
        except InvalidValue as invalid:
            raise RuleBroken(invalid.field, invalid.rule) from None
        if len(self._goods_ids) >= _GOODS_IDS_MAX:
            self._goods_ids.clear()
        self._goods_ids[path] = goods_id
        return goods_id

    def tell(self) -> None:
        """Write the answers of all purchases that were decided in one turn of the loop."""
        told, self.decided = self.decided, []
        close = self._draining.is_set()
        answers = self._answers
        answers.set_date()
        self._gate.end(told)
        for request in told:
            try:
                answer = answers.of(request.decision, request.language)
            except Exception:  # noqa: BLE001  -- the others of the batch have their answers coming
                _LOG.exception("a decision cannot be told", outcome=request.decision.outcome.name)
                answer = Fault().answer()
            request.connection.answer(request, answer, close=close)
        self._count_purchases(told)

    def _count_purchases(self, told: list[_Purchase]) -> None:
        """Count a batch: by outcome, and the times together."""
        now = perf_counter()
        kinds = {(request.decision.outcome, request.decision.cause) for request in told}
        for outcome, cause in kinds:
            seconds = [
                now - request.began
                for request in told
                if request.decision.outcome is outcome and request.decision.cause == cause
            ]
            self._metrics.decisions(outcome, cause, len(seconds))
            status = OUTCOME_TEXTS[outcome].http_status
            self._metrics.requests(PURCHASE_ROUTE, "POST", status, seconds)

    def _refuse(self, request: _Purchase, problem: HTTPProblem) -> None:
        head = request.method == b"HEAD"
        request.connection.answer(request, problem.answer(head=head), close=self._draining.is_set())
        self._count(PURCHASE_ROUTE, request, problem.status, request.began)

    def _purchase_given_up(self, request: Request) -> None:
        self._count(PURCHASE_ROUTE, request, _CLIENT_GONE, perf_counter())

    # Orders.

    def _order(self, request: Request) -> None:
        began = perf_counter()
        try:
            user_id = self._buyer_of(request)
        except HTTPProblem as problem:
            self._answer_order(request, problem, began)
        else:
            self._start(self._find(request, user_id, began))

    def _buyer_of(self, request: Request) -> UserId:
        if request.method not in {b"GET", b"HEAD"}:
            raise MethodNotAllowed("GET, HEAD")
        if request.fault is not None:
            limits = self._limits
            raise body_refused(request.fault, limits.body_bytes_max, limits.body_timeout_ms)
        return self._authenticator.identify(pick_headers(request.headers), request.query)

    async def _find(self, request: Request, user_id: UserId, began: float) -> None:
        # An id is plain ASCII; whatever else stands here names nothing.
        reservation_id = ReservationId(request.path[len(_ORDER_PREFIX) :].decode("latin-1"))
        try:
            order = await self._orders.find(reservation_id, user_id)
            found: bytes | HTTPProblem = NotFound() if order is None else order_document(order)
        except HTTPProblem as problem:
            found = problem
        except Exception:  # noqa: BLE001  -- as above
            _LOG.exception("looking up an order met an error of this program", path=request.path)
            found = Fault()
        self._answer_order(request, found, began)

    def _answer_order(self, request: Request, found: bytes | HTTPProblem, began: float) -> None:
        head = request.method == b"HEAD"
        if isinstance(found, HTTPProblem):
            status, answer = found.status, found.answer(head=head)
        else:
            status, answer = 200, respond(200, found, _JSON, head=head)
        request.connection.answer(request, answer, close=self._draining.is_set())
        self._count(ORDER_ROUTE, request, status, began)

    def _count(self, route: str, request: Request, status: int, began: float) -> None:
        method = known_method(request.method.decode("ascii"))
        self._metrics.requests(route, method, status, (perf_counter() - began,))
