"""A whole shop in one event loop, all parts real but the payment provider: HTTP, gate, Redis,
outbox, order worker, ledger, sweep and reapers. A test says which of them run, and when.
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from sqlalchemy import text

from contract.ledger.kit import rows
from integration.web.http import Client, Reply
from seckill.admission.bounds import Bounds
from seckill.admission.bucket import Buckets
from seckill.admission.fence import FenceKeeper
from seckill.admission.gate import AdmissionGate
from seckill.admission.keys import Keys
from seckill.admission.late import LateAdmission
from seckill.admission.marks import MarkWriter
from seckill.admission.redis_client import connect
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Scripts
from seckill.audit import AuditOptions, AuditReport, BucketReader, run_audit
from seckill.domain.ids import AttemptId, GoodsId, ReservationId, UserId
from seckill.domain.order import EDGES, HOLDING_STATES, Order, OrderState
from seckill.domain.outcomes import Outcome
from seckill.domain.payment import NewsKind, PaymentId
from seckill.domain.reservation import BucketId
from seckill.domain.sale import LatePayment, NewSale, Sale
from seckill.ledger import Database, SQLLedger
from seckill.ledger.fence import LedgerFence
from seckill.ledger.looks import SQLAuditLedger
from seckill.ledger.tables import order_events, orders, releases
from seckill.payment.provider import PaymentRequest, RefundRequest
from seckill.payment.webhook import HEADERS, WebhookReader, sign
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.outbox_log import OutboxLog
from seckill.pipeline.ports import ExpiryLag, WriteReport
from seckill.pipeline.reaper import Reaper
from seckill.pipeline.sweep import Sweep
from seckill.pipeline.worker import OrderWorker
from seckill.runtime.bind_address import BindAddress
from seckill.runtime.listener import open_listeners
from seckill.runtime.payment_desk import Desk
from seckill.runtime.web_ports import LedgerBooks, QueuedReservations, SalesOnShow
from seckill.web.app import build_app
from seckill.web.dev_auth import DevAuth
from seckill.web.parts import WebParts
from seckill.web.server import ServerSettings, serve
from services.ledger_options import patient_options
from services.patient_loop import PatientClock
from services.stage import Counts
from unit.web.doubles import PATIENT, Neighbours, Tally

__all__ = ["PRICE_FEN", "PayShop", "Provider", "ReaperCounts", "open_pay_shop", "running_works"]

ID_KEY = bytes(range(16))
SECRET = "whsec_" + "c2Vja2lsbC10ZXN0LXNlY3JldC1vZi0zMi1ieXRlcyE="
PRICE_FEN = 9_900
_CONNECTIONS = 48
_goods = itertools.count(1)


class Provider:
    """A payment provider that does as it is told, and remembers what it was asked."""

    webhook_secrets: Sequence[str] = (SECRET,)

    def __init__(self) -> None:
        self.started: list[PaymentRequest] = []
        self.refunds: list[RefundRequest] = []
        self.done = True
        self.error: Exception | None = None
        self.silent = False
        self.silent_for: set[PaymentId] = set()

    async def start(self, request: PaymentRequest) -> str:
        if self.error is not None:
            raise self.error
        self.started.append(request)
        return f"https://pay.example/{request.payment_id}"

    async def refund(self, request: RefundRequest) -> bool:
        if self.error is not None:
            raise self.error
        self.refunds.append(request)
        if self.silent or request.payment_id in self.silent_for:
            await asyncio.Event().wait()
        return self.done


@dataclass
class ReaperCounts:
    """A ReaperObserver that remembers."""

    expired_orders: int = 0
    runs: int = 0
    lag: ExpiryLag = field(default_factory=lambda: ExpiryLag(0, 0))
    taken: list[bool] = field(default_factory=list)
    refunds: int = 0

    def expired(self, orders: int) -> None:
        self.expired_orders += orders

    def run_ended(self, lag: ExpiryLag) -> None:
        self.runs += 1
        self.lag = lag

    def late_settled(self, *, taken: bool) -> None:
        self.taken.append(taken)

    def refund_asked(self) -> None:
        self.refunds += 1


class _Silent:
    def written(self, report: WriteReport) -> None: ...
    def ledger_away(self) -> None: ...


@dataclass
class PayShop:
    """See the top of the file."""

    redis: Redis
    keys: Keys
    database: Database
    ledger: SQLLedger
    buckets: Buckets
    keeper: FenceKeeper
    gate: AdmissionGate
    ids: ReservationIds
    worker: OrderWorker
    sweep: Sweep
    provider: Provider
    marks_folder: Path
    late_units: LateAdmission
    counts: ReaperCounts
    clients: asyncio.Queue[Client]
    port: int
    attempts: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def reaper(self) -> Reaper:
        return Reaper(
            expiry=self.ledger.expiry,
            payments=self.ledger.payments,
            late_units=self.late_units,
            provider=self.provider,
            clock=PatientClock(),
            observer=self.counts,
        )

    # Sales and orders

    async def sale(
        self, *, stock: int, window_ms: int = 900_000, limit: int = 1, **more: Any
    ) -> Sale:
        sale = await self.ledger.sales.create_sale(
            NewSale(
                goods_id=GoodsId(f"g{next(_goods)}"),
                stock_units=stock,
                limit_per_user=limit,
                price_fen=PRICE_FEN,
                starts_at_ms=1,
                pay_window_ms=window_ms,
                late_payment=LatePayment(more.pop("late_payment", "take_free_unit")),
                **more,
            ),
            actor="test",
        )
        await self.keeper.keep()
        await self.gate.catalogue.refresh()
        return sale

    async def buy(self, sale: Sale, users: Iterable[str]) -> dict[str, ReservationId]:
        """Buy through the gate, and let the worker write; who got one, and which."""
        names = list(users)
        decisions = await asyncio.gather(
            *(
                self.gate.admit(
                    sale.goods_id, UserId(name), 1, AttemptId(f"t{next(self.attempts)}")
                )
                for name in names
            )
        )
        await self.write()
        return {
            name: decision.reservation_id
            for name, decision in zip(names, decisions, strict=True)
            if decision.outcome is Outcome.SUCCESS and decision.reservation_id
        }

    async def write(self) -> None:
        while await self.worker.step():
            pass

    async def settle(self) -> None:
        """Carry every decided release, and write what comes of it."""
        while await self.sweep.sweep():
            await self.write()
        await self.write()

    async def make_due(
        self, reservation_ids: Iterable[ReservationId], at_ms: Callable[[], int] = lambda: 1
    ) -> None:
        """As if the pay window had passed, or would pass at an instant."""
        wanted = list(reservation_ids)

        async def work(connection: Any) -> None:
            for name in wanted:
                await connection.execute(
                    text("UPDATE orders SET pay_by_ms = :at_ms WHERE reservation_id = :name"),
                    {"name": name, "at_ms": at_ms()},
                )

        await self.database.write("move deadlines", work)

    async def order(self, reservation_id: ReservationId) -> Order:
        return (await self.ledger.reading.orders_by_ids([reservation_id]))[reservation_id]

    async def remaining(self, sale: Sale) -> int:
        return (await self.buckets.look(BucketId(sale.sale_id, 0))).stock_units

    # HTTP

    async def ask(
        self, method: str, path: str, user: str = "", body: bytes | None = None, **headers: str
    ) -> Reply:
        client = await self.clients.get()
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            if user:
                given["x-user-id"] = user
            client.send(method, path, given, body)
            return await client.reply()
        finally:
            self.clients.put_nowait(client)

    async def pay(self, reservation_id: ReservationId, user: str) -> str:
        """Start to pay; the payment id."""
        reply = await self.ask("POST", f"/orders/{reservation_id}/pay", user)
        assert reply.status == 200, reply.body
        payment_id: str = reply.json["payment_id"]
        return payment_id

    async def tell(
        self,
        kind: NewsKind,
        payment_id: str,
        *,
        event_id: str | None = None,
        amount_fen: int = PRICE_FEN,
    ) -> Reply:
        """The provider's news, over HTTP, signed."""
        data: dict[str, object] = {"payment_id": payment_id}
        if kind in {NewsKind.PAID, NewsKind.REFUNDED}:
            data |= {"amount_fen": amount_fen, "currency": "CNY"}
        body = json.dumps({"type": kind.value, "data": data}).encode()
        name = event_id or f"{kind.value}-{payment_id}"
        at_s = int(time.time())
        values = (name, str(at_s), sign(SECRET, name, at_s, body))
        return await self.ask(
            "POST", "/payments/webhook", "", body, **dict(zip(HEADERS, values, strict=True))
        )

    # What must hold

    async def states(self) -> dict[str, str]:
        found = await rows(self.database, orders)
        return {str(row["reservation_id"]): str(row["state"]) for row in found}

    async def assert_sound(self, *sales: Sale) -> AuditReport:
        """Allowed edges only, each unit released once, books and Redis agree."""
        await self.settle()
        moves = await rows(self.database, order_events)
        for row in moves:
            start, end = OrderState(row["from_state"]), OrderState(row["to_state"])
            assert end in EDGES[start], row
        # The moves of an order lead from one state to the next, and end where it is.
        at: dict[str, str] = {}
        for row in moves:
            name = str(row["reservation_id"])
            assert at.get(name, "queued") == row["from_state"], row
            at[name] = str(row["to_state"])
        written = await rows(self.database, orders)
        assert at == {row["reservation_id"]: row["state"] for row in written}
        ended = set()
        for row in written:
            state = OrderState(row["state"])
            if state not in HOLDING_STATES:
                ended.add(row["reservation_id"])
            if row["paid_at_ms"] is not None:
                assert state in {OrderState.PAID, OrderState.REFUND_DUE, OrderState.REFUNDED}
        given_back = await rows(self.database, releases)
        assert {row["reservation_id"] for row in given_back} == ended
        assert all(row["state"] == "done" for row in given_back)
        for sale in sales:
            view = await self.buckets.look(BucketId(sale.sale_id, 0))
            now = await self.ledger.sales.sale(sale.sale_id)
            assert now is not None
            sold = await self.ledger.sales.sold_units(sale.sale_id)
            assert (view.held_units, view.stock_units) == (sold, now.stock_units - sold)
        report = await self.audit()
        assert report.ok, report.findings
        return report

    async def audit(self) -> AuditReport:
        return await run_audit(
            reader=BucketReader(self.redis, self.buckets, self.keys),
            ledger=SQLAuditLedger(self.database, PatientClock()),
            reservation_ids=self.ids,
            clock=PatientClock(),
            marks_folder=self.marks_folder,
            options=AuditOptions(settle_ms=2, patience_ms=200),
        )


@contextlib.asynccontextmanager
async def running_works(
    *works: Callable[[], Awaitable[object]], every_s: float
) -> AsyncIterator[None]:
    """Repeat works beside the block; an error of one fails the block."""

    async def again(work: Callable[[], Awaitable[object]]) -> None:
        while True:
            await work()
            await asyncio.sleep(every_s)

    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(again(work)) for work in works]
        yield
        for task in started:
            task.cancel()


@contextlib.asynccontextmanager
async def open_pay_shop(
    redis_url: str, keys: Keys, ledger_url: str, marks_folder: Path, *, slot: str = "web-0"
) -> AsyncIterator[PayShop]:
    clock = PatientClock()
    redis = connect(redis_url, timeout_ms=60_000)
    # Races are what is tested here: nobody is refused because the machine is slow.
    database = Database(patient_options(ledger_url, pool_size=8))
    ids = ReservationIds(ID_KEY)
    ledger = SQLLedger(database, ids, clock)
    scripts = Scripts(redis)
    buckets = Buckets(redis, scripts, keys)
    outbox_log = OutboxLog(redis, keys)
    keeper = FenceKeeper(
        channel=outbox_log,
        redis=redis,
        buckets=buckets,
        keys=keys,
        ledger=LedgerFence(ledger, clock),
        marks_folder=marks_folder,
        ids=ids,
        clock=clock,
    )
    provider = Provider()
    channel = DirectChannel(
        redis=redis,
        keys=keys,
        consumer=slot,
        bucket_ids=lambda: keeper.known_epochs,
        on_dead=lambda *_: None,
    )
    outbox_log.in_hand = channel.has_in_hand
    [listener] = open_listeners(BindAddress("127.0.0.1", 0), 1)
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        marks = stack.enter_context(MarkWriter(marks_folder, slot))
        gate = AdmissionGate(
            redis=redis,
            scripts=scripts,
            keys=keys,
            ids=ids,
            marks=marks,
            clock=clock,
            bounds=Bounds(queue_wait_ms_max=60_000),
            observer=Counts(),
        )
        await gate.__aenter__()
        app = build_app(
            WebParts(
                gate=gate,
                books=LedgerBooks(ledger),
                queued=QueuedReservations(buckets),
                ids=ids,
                catalogue=SalesOnShow(gate, buckets, clock, ledger.reading),
                authenticator=DevAuth(),
                dependencies=Neighbours(),
                metrics=Tally(),
                render_metrics=lambda: b"",
                clock=clock,
                payments=Desk(ledger, provider, WebhookReader(provider.webhook_secrets)),
                limits=replace(PATIENT, order_calls_max=10_000, payment_calls_max=10_000),
            )
        )
        serving = asyncio.create_task(
            serve(app, listener, ServerSettings(drain_ms=0, shutdown_grace_ms=60_000), stop)
        )
        port = listener.getsockname()[1]
        clients: asyncio.Queue[Client] = asyncio.Queue()
        writers = []
        for _ in range(_CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            clients.put_nowait(Client(reader, writer))
            writers.append(writer)
        try:
            yield PayShop(
                redis=redis,
                keys=keys,
                database=database,
                ledger=ledger,
                buckets=buckets,
                keeper=keeper,
                gate=gate,
                ids=ids,
                worker=OrderWorker(channel=channel, ledger=ledger, observer=_Silent()),
                sweep=Sweep(
                    ledger=ledger,
                    buckets=buckets,
                    epochs=lambda: keeper.known_epochs,
                    on_released=lambda _: None,
                ),
                provider=provider,
                marks_folder=marks_folder,
                late_units=LateAdmission(scripts, buckets, keys),
                counts=ReaperCounts(),
                clients=clients,
                port=port,
            )
        finally:
            for writer in writers:
                writer.close()
            stop.set()
            await serving
            listener.close()
            await gate.__aexit__(None, None, None)
            await redis.aclose()
            await ledger.dispose()
