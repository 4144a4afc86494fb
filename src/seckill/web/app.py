"""The web application: the hot routes in front, the framework behind them."""

import asyncio
import inspect
from collections.abc import Mapping
from time import perf_counter
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
import structlog
from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from seckill import __version__
from seckill.domain.errors import InvalidValue, SeckillError
from seckill.domain.ids import ReservationId, UserId, check_goods_id
from seckill.domain.instants import rfc3339_ms
from seckill.domain.order import OrderState
from seckill.web.admin.side import AdminSide
from seckill.web.docs_page import DOCS_CSP, docs_page
from seckill.web.flow import FlowControl
from seckill.web.hot import HotRoutes
from seckill.web.openapi import PROBLEM_RESPONSES, with_hot_routes
from seckill.web.order_json import order_document, page_document
from seckill.web.orders import OrderBook
from seckill.web.parts import WebParts
from seckill.web.payments import PaymentCalls, add_payments
from seckill.web.ports import (
    ASGIApp,
    DependencyStatus,
    Message,
    Receive,
    SaleOnShow,
    Scope,
    Send,
)
from seckill.web.problems import (
    BASE_HEADERS,
    Fault,
    HTTPProblem,
    Malformed,
    MethodNotAllowed,
    NotFound,
    RuleBroken,
    Unavailable,
)
from seckill.web.requests import known_method, pick_headers, read_segment
from seckill.web.schemas import GoodsPage, Health, Item, OrderPage, Purchased, Readiness
from seckill.web.sse import EventStream, OrderFeed

__all__ = ["WebApp", "build_app"]

_LOG: Final = structlog.get_logger(__name__)
_ENCODE: Final = msgspec.json.Encoder().encode

_PAGE_MAX: Final = 100
_STREAM_PATH_END: Final = "/events"
"""A stream has no length that a HEAD could tell, and would never come to its end."""
_DEFAULT_CSP: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_SECURITY_HEADERS: Final = (
    *BASE_HEADERS,
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)

PageSize = Annotated[int, Query(ge=1, le=_PAGE_MAX, description="entries on the page")]


class WebApp:
    """The application of one web process: the hot routes, and the framework for all others.

    `run` must be running while requests are served: look-ups, calls and streams live in it.
    `drain` announces the end.
    """

    def __init__(self, parts: WebParts) -> None:
        self._metrics = parts.metrics
        self._authenticator = parts.authenticator
        self._draining = parts.draining
        self._orders = orders = OrderBook(
            books=parts.books,
            queued=parts.queued,
            ids=parts.ids,
            catalogue=parts.catalogue,
            limits=parts.limits,
            metrics=parts.metrics,
        )
        self._feed = feed = OrderFeed(
            read_states=orders.states,
            limits=parts.limits,
            draining=parts.draining,
            metrics=parts.metrics,
        )
        self._payments = payments = PaymentCalls(parts, orders)
        framework = _framework()
        _add_goods(framework, parts)
        _add_orders(framework, parts, orders, feed)
        add_payments(framework, parts, payments)
        _add_operations(framework, parts)
        self._admin: AdminSide | None = None
        if parts.admin is not None:
            self._admin = AdminSide(
                parts.admin,
                addresses=parts.addresses,
                limits=parts.limits,
                metrics=parts.metrics,
                clock=parts.clock,
            )
            self._admin.add_to(framework)
        self._others: ASGIApp = _Edge(framework, parts)
        self._tasks = asyncio.TaskGroup()
        self._hot = HotRoutes(
            gate=FlowControl(parts.gate, parts.sentinel, parts.addresses, self._tasks.create_task),
            orders=orders,
            authenticator=parts.authenticator,
            metrics=parts.metrics,
            limits=parts.limits,
            draining=parts.draining,
            start=self._tasks.create_task,
        )
        self.route = self._hot.route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request that is not for a hot route."""
        await self._others(scope, receive, send)

    def refused(self, status: int) -> None:
        """Count what could not be read as a request."""
        self._metrics.requests("(none)", "OTHER", status, (0.0,))

    async def run(self) -> None:
        """Keep the parts going until cancelled. Once only."""
        async with self._tasks as parts:
            parts.create_task(self._orders.run())
            parts.create_task(self._payments.run())
            parts.create_task(self._feed.run())
            parts.create_task(self._authenticator.run())
            if self._admin is not None:
                parts.create_task(self._admin.run())

    def drain(self) -> None:
        """From now on: unready, every answer ends its connection, streams are sent away."""
        self._draining.set()


def build_app(parts: WebParts) -> WebApp:
    """Make the application out of its parts. Nothing is connected or started."""
    return WebApp(parts)


def _framework() -> FastAPI:
    app = FastAPI(
        title="Seckill",
        version=__version__,
        summary="A flash-sale (秒杀) service.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(HTTPProblem, _answer_problem)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(SeckillError, _answer_away)
    app.add_exception_handler(Exception, _answer_fault)
    return app


def _add_goods(app: FastAPI, parts: WebParts) -> None:
    catalogue, clock = parts.catalogue, parts.clock

    @app.get(
        "/goods",
        response_model=GoodsPage,
        responses=PROBLEM_RESPONSES(422, 503),
        summary="What is, was and will be on sale",
        tags=["goods"],
    )
    async def list_goods(
        limit: PageSize = _PAGE_MAX,
        after: Annotated[
            str | None, Query(description="goods id of the last entry of the page before")
        ] = None,
    ) -> Response:
        now_ms = clock.now_ms()
        shown = sorted(
            await catalogue.on_show(), key=lambda entry: entry.sale.sale_id, reverse=True
        )
        if after is not None:
            names: list[str] = [entry.sale.goods_id for entry in shown]
            shown = shown[names.index(after) + 1 :] if after in names else []
        page = shown[:limit]
        more = len(shown) > limit
        return _json(
            {
                "goods": [_on_sale(entry, now_ms) for entry in page],
                "next": _path("/goods", limit, "after", page[-1].sale.goods_id) if more else None,
                "server_time": rfc3339_ms(now_ms),
            }
        )

    @app.get(
        "/goods/{goods_id}",
        response_model=Item,
        responses=PROBLEM_RESPONSES(400, 404, 422, 503),
        summary="One item",
        tags=["goods"],
    )
    async def show_goods(goods_id: Annotated[str, Path()], request: Request) -> Response:  # noqa: ARG001  -- documents the path; read strictly below
        raw: bytes = request.scope["raw_path"]
        goods = check_goods_id(read_segment(raw.removeprefix(b"/goods/"), "goods_id"))
        entry = await catalogue.on_show_of(goods)
        if entry is None:
            raise NotFound
        return _json(_on_sale(entry, clock.now_ms()) | _whereabouts(entry))


def _whereabouts(entry: SaleOnShow) -> dict[str, object]:
    """Where the units are that were put on sale: left, held by unpaid orders, paid.

    The three add up to the stock. They are read a moment apart, so where they could not be those
    of one moment nothing is said.
    """
    left, paid = entry.remaining_units, entry.paid_units
    held = None if left is None or paid is None else entry.sale.stock_units - left - paid
    if held is None or held < 0:
        held, paid = None, None
    may_return = left == 0 and held and entry.next_due_ms is not None
    return {
        "held": held,
        "paid": paid,
        "next_release_at": rfc3339_ms(entry.next_due_ms or 0) if may_return else None,
    }


def _on_sale(entry: SaleOnShow, now_ms: int) -> dict[str, object]:
    sale = entry.sale
    return {
        "goods_id": sale.goods_id,
        "title": sale.title,
        "state": sale.state_at(now_ms).value,
        "starts_at": rfc3339_ms(sale.starts_at_ms),
        "ends_at": None if sale.ends_at_ms is None else rfc3339_ms(sale.ends_at_ms),
        "price_fen": sale.price_fen,
        "limit_per_user": sale.limit_per_user,
        "may_buy_again": sale.may_buy_again,
        "stock": sale.stock_units,
        "remaining": entry.remaining_units,
        "server_time": rfc3339_ms(now_ms),
    }


def _add_orders(app: FastAPI, parts: WebParts, orders: OrderBook, feed: OrderFeed) -> None:
    def buyer(request: Request) -> UserId:
        headers = pick_headers(request.scope["headers"])
        return parts.authenticator.identify(headers, request.scope["query_string"])

    # Named here, where the closure is: FastAPI reads it out of the annotation's value.
    me = Depends(buyer)

    @app.get(
        "/orders",
        response_model=OrderPage,
        responses=PROBLEM_RESPONSES(400, 401, 422, 503),
        summary="One's own purchases, newest first",
        tags=["orders"],
    )
    async def list_orders(
        limit: PageSize = 20,
        before: Annotated[
            str | None, Query(description="reservation id of the last entry of the page before")
        ] = None,
        user_id: UserId = me,
    ) -> Response:
        # One more than asked for tells whether there is another page.
        found = await orders.page(
            user_id, limit + 1, None if before is None else ReservationId(before)
        )
        page = found[:limit]
        more = len(found) > limit
        following = _path("/orders", limit, "before", page[-1].reservation_id) if more else None
        return Response(page_document(page, following), media_type="application/json")

    @app.post(
        "/orders/{reservation_id}/cancel",
        response_model=Purchased,
        responses=PROBLEM_RESPONSES(400, 401, 404, 409, 503),
        summary="Cancel one's own unpaid order",
        tags=["orders"],
    )
    async def cancel_order(reservation_id: str, user_id: UserId = me) -> Response:
        order = await orders.cancel(ReservationId(reservation_id), user_id)
        if order is None:
            raise NotFound
        if order.state is not OrderState.CANCELLED:
            raise HTTPProblem(
                409, f"The order is {order.state.value}: only an unpaid one can be cancelled."
            )
        return Response(order_document(order), media_type="application/json")

    @app.get(
        "/orders/{reservation_id}/events",
        response_class=Response,
        responses={
            200: {
                "description": "Events `state`, each with the order as data.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            204: {"description": "The client knows the last state: nothing will follow."},
            **PROBLEM_RESPONSES(400, 401, 404, 429, 503),
        },
        summary="The states of one's own purchase as they change",
        tags=["orders"],
    )
    async def follow_order(reservation_id: str, request: Request, user_id: UserId = me) -> Response:
        order = await orders.find(ReservationId(reservation_id), user_id)
        if order is None:
            raise NotFound
        return EventStream(feed, order, parts.limits, request.headers.get("last-event-id"))


def _add_operations(app: FastAPI, parts: WebParts) -> None:
    @app.get("/healthz", response_model=Health, summary="Alive", tags=["operations"])
    async def healthz() -> Response:
        return _json({"status": "alive"})

    @app.get(
        "/readyz",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "Draining: send no more traffic."}},
        summary="Takes traffic; how each dependency stands",
        tags=["operations"],
    )
    async def readyz() -> Response:
        # A dependency that is away does not make this process unready: it answers politely, and
        # taking every process out at once would turn a hiccup into an outage.
        states = parts.dependencies.states()
        status = "ready" if all(s.status is DependencyStatus.UP for s in states) else "degraded"
        if parts.draining.is_set():
            status = "draining"
        return _json(
            {
                "status": status,
                "dependencies": {
                    state.name: {
                        "status": state.status.value,
                        "since": rfc3339_ms(state.since_ms),
                        "detail": state.detail,
                    }
                    for state in states
                },
            },
            status_code=503 if parts.draining.is_set() else 200,
        )

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        summary="Prometheus metrics",
        tags=["operations"],
    )
    async def metrics() -> Response:
        page = parts.render_metrics()
        body = await page if inspect.isawaitable(page) else page
        return Response(body, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    document: dict[str, Any] = {}

    def described() -> dict[str, Any]:
        if not document:
            document.update(with_hot_routes(app.openapi(), parts.authenticator.security_schemes))
        return document

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return _json(described())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(
            docs_page(described()),
            media_type="text/html",
            headers={"content-security-policy": DOCS_CSP},
        )


def _json(members: Mapping[str, object], status_code: int = 200) -> Response:
    return Response(_ENCODE(members), status_code=status_code, media_type="application/json")


def _path(path: str, limit: int, cursor: str, value: str) -> str:
    return f"{path}?{urlencode({'limit': limit, cursor: value})}"


async def _answer_problem(request: Request, error: Exception) -> Response:  # noqa: ARG001  -- the framework's signature
    assert isinstance(error, HTTPProblem)
    return _problem_response(error)


async def _answer_away(request: Request, error: Exception) -> Response:  # noqa: ARG001  -- the framework's signature
    if isinstance(error, InvalidValue):
        return _problem_response(RuleBroken(error.field, error.rule))
    return _problem_response(Unavailable("This cannot be answered right now. Please ask again."))


async def _answer_fault(request: Request, error: Exception) -> Response:  # noqa: ARG001  -- the framework's signature
    # The framework raises it again after this answer, and `_Edge` records it.
    return _problem_response(Fault())


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:  # noqa: PLR2004
        return _problem_response(NotFound())
    if error.status_code == 405:  # noqa: PLR2004
        allowed = (error.headers or {}).get("Allow", "")
        streams = request.scope["path"].endswith(_STREAM_PATH_END)
        if "GET" in allowed.split(", ") and not streams:
            allowed += ", HEAD"
        return _problem_response(MethodNotAllowed(allowed))
    return _problem_response(HTTPProblem(error.status_code, str(error.detail)))


async def _answer_invalid(request: Request, error: Exception) -> Response:  # noqa: ARG001  -- the framework's signature
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = str(first["loc"][-1]) if first.get("loc") else "request"
    if first["type"] == "json_invalid":
        return _problem_response(Malformed(field, "must be JSON"))
    rule = str(first["msg"])
    return _problem_response(RuleBroken(field, rule[:1].lower() + rule[1:]))


def _problem_response(problem: HTTPProblem) -> Response:
    response = Response(
        problem.body(), status_code=problem.status, media_type="application/problem+json"
    )
    response.raw_headers.extend(problem.headers)
    return response


class _Edge:
    """Around the framework: security headers, HEAD, metrics, faults, the end of connections."""

    def __init__(self, app: ASGIApp, parts: WebParts) -> None:
        self._app = app
        self._metrics = parts.metrics
        self._draining = parts.draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        method: str = scope["method"]
        status = 0
        is_head = method == "HEAD" and not scope["path"].endswith(_STREAM_PATH_END)
        if is_head:
            # Every GET answers HEAD too: the framework makes the same answer, its body stays here.
            scope = {**scope, "method": "GET"}

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                route = getattr(scope.get("route"), "path", "(none)")
                self._metrics.requests(
                    route, known_method(method), status, (perf_counter() - began,)
                )
                message = {**message, "headers": self._headers(message["headers"])}
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except Exception:  # noqa: BLE001  -- the outermost guard: answers 500 and records it
            _LOG.exception(
                "a request met an error of this program", path=scope["path"], method=method
            )
            if status == 0:
                for message in Fault().messages():
                    await send_on(message)

    def _headers(self, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        names = {name for name, _ in given}
        headers = [*given]
        headers += [header for header in _SECURITY_HEADERS if header[0] not in names]
        if _DEFAULT_CSP[0] not in names:
            headers.append(_DEFAULT_CSP)
        if self._draining.is_set() and b"connection" not in names:
            headers.append((b"connection", b"close"))
        return headers
