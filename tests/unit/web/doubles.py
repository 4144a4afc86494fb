"""Stand-ins for the other rooms, for tests in which what they decide is not what is tested."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from seckill.admission.batcher import Waiting
from seckill.admission.decision import Decision
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.errors import SeckillError
from seckill.domain.ids import GoodsId, ReservationId, SaleId, UserId
from seckill.domain.order import Order, OrderState
from seckill.domain.outcomes import Outcome
from seckill.domain.payment import Money, Payment, PaymentId, PaymentNews, PaymentState
from seckill.domain.reservation import Place
from seckill.domain.sale import Sale
from seckill.payment.errors import BadSignature, UnreadableNews
from seckill.payment.webhook import WebhookReader
from seckill.web.dev_auth import DevAuth
from seckill.web.limits import WebLimits
from seckill.web.parts import WebParts
from seckill.web.ports import (
    Authenticator,
    DependencyState,
    DependencyStatus,
    PayAnswer,
    SaleOnShow,
)
from seckill.web.problems import HTTPProblem, RuleBroken

IDS = ReservationIds(b"0123456789abcdef")
WEBHOOK_SECRET = "whsec_" + "c2Vja2lsbC10ZXN0LXNlY3JldC1vZi0zMi1ieXRlcyE="
NOW_MS = 1_796_126_400_123
PATIENT = WebLimits(
    body_timeout_ms=60_000,
    order_wait_ms=60_000,
    payment_wait_ms=60_000,
    admin_begin_ms=60_000,
    admin_wait_ms=60_000,
)
"""For whatever does not test these waits: a machine that stands still must not look like one."""


class PartAway(SeckillError):  # noqa: N818  -- names the state
    """Stands for any part that cannot be reached."""


def place(seq: int, sale_id: int = 7) -> Place:
    return Place(SaleId(sale_id), 1, 0, seq)


def reservation(seq: int, sale_id: int = 7) -> ReservationId:
    return IDS.encode(place(seq, sale_id))


def order(
    seq: int,
    user_id: str = "ann",
    state: OrderState = OrderState.AWAITING_PAYMENT,
    quantity: int = 1,
    reason: str | None = None,
) -> Order:
    return Order(
        reservation_id=reservation(seq),
        sale_id=SaleId(7),
        goods_id=GoodsId("tea"),
        user_id=UserId(user_id),
        quantity=quantity,
        price_fen=1999,
        state=state,
        admitted_at_ms=NOW_MS - 5_000,
        pay_by_ms=NOW_MS + 900_000,
        reason=reason,
    )


def sale(goods_id: str = "tea", sale_id: int = 7, **changes: object) -> Sale:
    fields: dict[str, object] = {
        "sale_id": SaleId(sale_id),
        "goods_id": GoodsId(goods_id),
        "title": "绿茶 Tea",
        "price_fen": 1999,
        "limit_per_user": 2,
        "stock_units": 100,
        "starts_at_ms": NOW_MS - 60_000,
        "ends_at_ms": NOW_MS + 60_000,
        "pay_window_ms": 900_000,
        "paused": False,
        "version": 1,
    }
    return Sale(**(fields | changes))  # type: ignore[arg-type]


class FixedClock:
    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.at_ms = now_ms
        self.monotonic = 0.0

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> float:
        return self.monotonic


class ScriptedGate:
    """Answers what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int, str]] = []
        self.traces: list[str] = []
        self.decision: Decision | Exception = Decision(Outcome.SUCCESS, reservation(1))
        self.futures: list[asyncio.Future[Decision]] = []
        self.holds = False

    def admit_now(self, goods_id: GoodsId, waiting: Waiting) -> Decision | None:
        self.calls.append((goods_id, waiting.user_id, waiting.quantity, waiting.attempt_id))
        self.traces.append(waiting.traceparent)
        if isinstance(self.decision, Exception):
            raise self.decision
        if self.holds:
            future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: waiting.decided(done.result()))
            self.futures.append(future)
            return None
        return self.decision


class ShelfOfOrders:
    """A ledger in memory that counts its reads, and can be slow or away."""

    def __init__(self, *orders: Order) -> None:
        self.orders = {entry.reservation_id: entry for entry in orders}
        self.reads: list[list[ReservationId]] = []
        self.in_flight = 0
        self.in_flight_most = 0
        self.lost: dict[ReservationId, Order] = {}
        self.before_read: Callable[[], Awaitable[None]] | None = None
        self.error: Exception | None = None

    async def _read(self) -> None:
        self.in_flight += 1
        self.in_flight_most = max(self.in_flight_most, self.in_flight)
        try:
            if self.before_read is not None:
                await self.before_read()
            if self.error is not None:
                raise self.error
        finally:
            self.in_flight -= 1

    async def orders_by_ids(self, reservation_ids: Sequence[ReservationId]) -> Sequence[Order]:
        self.reads.append(list(reservation_ids))
        await self._read()
        return [self.orders[name] for name in reservation_ids if name in self.orders]

    async def lost_orders(self, reservation_ids: Sequence[ReservationId]) -> Sequence[Order]:
        await self._read()
        return [self.lost[name] for name in reservation_ids if name in self.lost]

    async def orders_of_user(
        self, user_id: UserId, *, orders_max: int, before: ReservationId | None
    ) -> Sequence[Order]:
        await self._read()
        own = sorted(
            (entry for entry in self.orders.values() if entry.user_id == user_id),
            key=lambda entry: (IDS.decode(entry.reservation_id) or place(1)).seq,
            reverse=True,
        )
        if before is not None:
            names = [entry.reservation_id for entry in own]
            own = own[names.index(before) + 1 :] if before in names else []
        return own[:orders_max]

    async def cancel(self, reservation_id: ReservationId, user_id: UserId) -> Order | None:
        await self._read()
        found = self.orders.get(reservation_id)
        if found is None or found.user_id != user_id:
            return None
        if found.state is OrderState.AWAITING_PAYMENT:
            self.move(reservation_id, OrderState.CANCELLED)
        return self.orders[reservation_id]

    def move(self, reservation_id: ReservationId, state: OrderState) -> None:
        found = self.orders[reservation_id]
        self.orders[reservation_id] = Order(
            reservation_id=found.reservation_id,
            sale_id=found.sale_id,
            goods_id=found.goods_id,
            user_id=found.user_id,
            quantity=found.quantity,
            price_fen=found.price_fen,
            state=state,
            admitted_at_ms=found.admitted_at_ms,
            pay_by_ms=found.pay_by_ms,
        )


class Queue:
    """Purchases on their way, in memory."""

    def __init__(self) -> None:
        self.held: dict[tuple[Place, str], int] = {}
        self.asked: list[tuple[Place, str]] = []
        self.on_ask: Callable[[], None] | None = None
        self.error: Exception | None = None

    async def holding(self, place: Place, user_id: UserId) -> int | None:
        self.asked.append((place, user_id))
        if self.on_ask is not None:
            self.on_ask()
        if self.error is not None:
            raise self.error
        return self.held.get((place, user_id))


class Shop:
    """A catalogue in memory."""

    def __init__(self, *entries: SaleOnShow) -> None:
        self.entries = list(entries) or [SaleOnShow(sale(), 40)]
        self.error: Exception | None = None

    async def on_show(self) -> Sequence[SaleOnShow]:
        if self.error is not None:
            raise self.error
        return self.entries

    async def on_show_of(self, goods_id: GoodsId) -> SaleOnShow | None:
        if self.error is not None:
            raise self.error
        return next((e for e in self.entries if e.sale.goods_id == goods_id), None)

    def sale(self, sale_id: SaleId) -> Sale | None:
        return next((e.sale for e in self.entries if e.sale.sale_id == sale_id), None)


class Till:
    """A payment desk in memory: every payment has its page at once, news is only counted."""

    def __init__(self, books: ShelfOfOrders) -> None:
        self.books = books
        self.payments: dict[ReservationId, Payment] = {}
        self.news: list[PaymentNews] = []
        self.reader = WebhookReader([WEBHOOK_SECRET])
        self.error: Exception | None = None

    async def start(self, reservation_id: ReservationId, user_id: UserId) -> PayAnswer | None:
        if self.error is not None:
            raise self.error
        order = self.books.orders.get(reservation_id)
        if order is None or order.user_id != user_id:
            return None
        if order.state is OrderState.PAID:
            return PayAnswer(order)
        if order.state is not OrderState.AWAITING_PAYMENT:
            return PayAnswer(order, refusal=f"The order is {order.state.value}.")
        number = len(self.payments) + 1
        payment = self.payments.setdefault(
            reservation_id,
            Payment(
                payment_id=PaymentId(f"pay{number}"),
                reservation_id=reservation_id,
                attempt=1,
                money=Money(order.price_fen * order.quantity),
                state=PaymentState.STARTED,
                deadline_ms=order.pay_by_ms or 0,
                page_url=f"https://pay.example/{number}",
            ),
        )
        return PayAnswer(order, payment)

    async def take_news(self, headers: Mapping[str, str], body: bytes) -> None:
        if self.error is not None:
            raise self.error
        try:
            news = self.reader.read(headers, body)
        except BadSignature as bad:
            raise HTTPProblem(401, str(bad)) from None
        except UnreadableNews as unreadable:
            raise RuleBroken(unreadable.field, unreadable.rule) from None
        if news is not None:
            self.news.append(news)


class Neighbours:
    def __init__(self) -> None:
        self.status = {"redis": DependencyStatus.UP, "ledger": DependencyStatus.UP}

    def states(self) -> Sequence[DependencyState]:
        return [DependencyState(name, status, NOW_MS) for name, status in self.status.items()]


class Tally:
    """Metrics that a test can read."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        self.decided: Counter[tuple[Outcome, str]] = Counter()
        self.bounds: Counter[str] = Counter()
        self.streams = 0

    def requests(self, route: str, method: str, status: int, seconds: Sequence[float]) -> None:
        assert all(each >= 0 for each in seconds)
        self.answered[route, method, status] += len(seconds)

    def decisions(self, outcome: Outcome, cause: str, count: int) -> None:
        self.decided[outcome, cause] += count

    def streams_open(self, count: int) -> None:
        self.streams = count

    def bound_met(self, bound: str) -> None:
        self.bounds[bound] += 1


class World:
    """One web process's surroundings, all in memory."""

    def __init__(self, limits: WebLimits | None = None, auth: Authenticator | None = None) -> None:
        self.gate = ScriptedGate()
        self.books = ShelfOfOrders()
        self.queue = Queue()
        self.shop = Shop()
        self.neighbours = Neighbours()
        self.tally = Tally()
        self.clock = FixedClock()
        self.till = Till(self.books)
        self.parts = WebParts(
            gate=self.gate,
            books=self.books,
            queued=self.queue,
            ids=IDS,
            catalogue=self.shop,
            authenticator=auth or DevAuth(),
            dependencies=self.neighbours,
            metrics=self.tally,
            render_metrics=lambda: b"# HELP up\nup 1\n",
            clock=self.clock,
            payments=self.till,
            limits=limits or PATIENT,
        )


def headers_of(**headers: str) -> Mapping[bytes, bytes]:
    return {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
