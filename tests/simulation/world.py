"""One simulated sale: its processes, their stores, and what can happen to them.

Real are every script, every statement, and the code of batcher, marks, relay, order worker, sweep
and fence. Not real are the wire (wire.py), the topic (topic.py), the death of a process, time, and
the past of Redis (stores.py).
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seckill.admission import marks as marks_module
from seckill.admission.batcher import Batcher
from seckill.admission.bounds import Bounds
from seckill.admission.bucket import Buckets
from seckill.admission.circuit import AlwaysClosed
from seckill.admission.decision import Decision
from seckill.admission.errors import AdmissionError
from seckill.admission.fence import FenceKeeper, Verdict
from seckill.admission.judging import why_fenced
from seckill.admission.late import LateAdmission
from seckill.admission.mark_reports import MarkReporter
from seckill.admission.marks import MarkWriter
from seckill.admission.observer import SilentObserver
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import LOOK
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import AttemptId, GoodsId, ReservationId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.payment import NewsKind, PaymentId, PaymentNews
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import NewSale
from seckill.ledger import SQLLedger
from seckill.ledger.errors import LedgerError, WrongState
from seckill.ledger.fence import LedgerFence
from seckill.payment.provider import RefundRequest
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.errors import PipelineError
from seckill.pipeline.outbox_log import OutboxLog
from seckill.pipeline.reaper import Reaper
from seckill.pipeline.relay import Relay, SaleBook
from seckill.pipeline.sweep import Sweep
from seckill.pipeline.worker import OrderWorker
from simulation.loop import SteppedLoop
from simulation.rules import SCRIPT_EDITS, CallersIds, Rule
from simulation.stores import KEYS, Picture, RedisWithAPast, Stores
from simulation.topic import Topic, TopicChannel, TopicProducer, TopicUnderWay
from simulation.wire import Call, Process, Store, WireDatabase, WireRedis, WireScripts

__all__ = ["World"]

STOCK_UNITS = 3
USERS = 6
ASKS = 14
_LIMITS = (1, 1, 2)
_PRICE_FEN = 100
_STOCK_CHANGES_MAX = 3
_PAYMENTS_MAX = 3
_CRASHES_MAX = 2
_NOT_AGAIN = 3
"""Every fourth sale sells nothing more to whoever let an order expire: this is which."""
_MOODS = (0.3, 1.0, 1.0, 3.0)
"""How much a schedule is given to something, beside what is usual. Schedules that are all alike
never get to what takes much of one thing and little of another."""
_TIMEOUT_S = 1.0
_LONG = 12
"""How many others go on before a call that takes long."""
_REPORT_EVERY_S = 0.25
_SEEN_EVERY_S = 5.0
_NEVER_MS = 2**40
_BASE_MS = 4_000_000_000_000
"""Later than any clock that Redis may have: every order may expire at any moment."""
_ID_KEY = bytes(range(16))
_WAITING = {
    "fences": "outcome IS NULL",
    "releases": "state = 'pending'",
    "stock_changes": "state = 'pending'",
    "payments": "next_try_at_ms IS NOT NULL",
}
_EXPECTED = (AdmissionError, PipelineError, LedgerError)


class LoopClock:
    """Both clocks, as the loop has them."""

    def __init__(self, loop: SteppedLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return _BASE_MS + round(self._loop.time() * 1000)

    def monotonic_ms(self) -> float:
        return self._loop.time() * 1000


class _EarlyClock:
    """Before every deadline: when a buyer begins to pay."""

    def now_ms(self) -> int:
        return 1

    def monotonic_ms(self) -> float:
        return 1


class _HastyClock(LoopClock):
    """Goes on by a minute with each look: what a reaper has claimed is free again at once.

    So two of them work on one payment whenever a schedule wishes, and nothing is waited for.
    """

    _looks = 0

    def now_ms(self) -> int:
        self._looks += 1
        return super().now_ms() + self._looks * 60_000


class _Provider:
    """Takes money and gives it back, at once."""

    webhook_secrets = ()

    async def start(self, _request: Any) -> str:
        raise AssertionError("buyers are at the provider already")

    async def refund(self, _request: RefundRequest) -> bool:
        return True


class Ask:
    """One request of a buyer, as the batcher sees it. It is asked again until it is decided."""

    def __init__(self, world: "World", user: str, attempt: str, quantity: int) -> None:
        self._world = world
        self.user_id = UserId(user)
        self.attempt_id = AttemptId(attempt)
        self.quantity = quantity
        self.traceparent = ""
        self.user_id_bytes = 0
        self.deadline_ms = 0.0
        self.web: Web | None = None

    def decided(self, decision: Decision) -> None:
        web, self.web = self.web, None
        if web is None or web.process.dead:
            return  # the connection is gone, and so is the answer
        web.asks.remove(self)
        self._world.answered(self, decision)


class _Marks:
    """The marks of a process, for as long as it lives: a dead one writes nothing."""

    def __init__(self, process: Process, writer: MarkWriter) -> None:
        self._process = process
        self._writer = writer

    def acknowledged(self, bucket_id: BucketId, epoch: int) -> int:
        return 0 if self._process.dead else self._writer.acknowledged(bucket_id, epoch)

    def sending(self, bucket_id: BucketId, epoch: int) -> None:
        if not self._process.dead:
            self._writer.sending(bucket_id, epoch)

    def settled(self, bucket_id: BucketId, epoch: int) -> None:
        if not self._process.dead:
            self._writer.settled(bucket_id, epoch)

    def acknowledge(self, bucket_id: BucketId, epoch: int, seq: int) -> None:
        if not self._process.dead:
            self._writer.acknowledge(bucket_id, epoch, seq)


class _Silent:
    """Hears what relay and worker count."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_options: None


@dataclass(eq=False)
class Web:
    """A web process."""

    process: Process
    writer: MarkWriter
    batcher: Batcher
    reporter: MarkReporter
    ledger: SQLLedger
    folder: Path
    asks: list[Ask] = field(default_factory=list)
    seen_at_s: float = float("-inf")


@dataclass(eq=False)
class Worker:
    """An order worker with its keeper, its sweep and its reaper."""

    process: Process
    ledger: SQLLedger
    keeper: FenceKeeper
    orders: OrderWorker
    sweep: Sweep
    reaper: Reaper
    verdict: Verdict | None = None


@dataclass(eq=False)
class RelayProcess:
    """A relay."""

    process: Process
    relay: Relay


class World:
    """One schedule.

    Args:
        folder: for marks; its own.
        without: rules that are taken out.
        trace: is told of everything that happens, in words.
    """

    def __init__(
        self,
        stores: Stores,
        seed: int,
        folder: Path,
        *,
        without: frozenset[Rule] = frozenset(),
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.without = without
        self._trace = trace
        self._stores = stores
        self._folder = folder
        self.calls: list[Call] = []
        self.topic = Topic()
        self.ids = (CallersIds if Rule.ID_IN_SCRIPT in without else ReservationIds)(_ID_KEY)
        self.limit_per_user = self.chance.choice(_LIMITS)
        self.to_ask: list[Ask] = []
        self.asked = 0
        self.crashes = 0
        self.lost_places: set[Place] = set()
        self.lossy = False
        self.stormy = True
        self.changes: list[tuple[str, int]] = []
        self.news: list[PaymentNews] = []
        self.paying = 0
        self.sluggish = self.chance.choice((0.0, 0.05, 0.05, 0.2))
        self.violence = self.chance.choice((0.5, 1.0, 1.0, 2.0))
        self.told: dict[ReservationId, UserId] = {}
        self.shown: dict[ReservationId, UserId] = {}

    async def begin(self, loop: SteppedLoop) -> None:
        """Open the sale."""
        self.loop = loop
        self.clock = LoopClock(loop)
        self._stores.clear()
        self.operator = self._process("operator")
        ledger = self._ledger(self.operator)
        creating = self.operator.spawn(
            "create",
            ledger.sales.create_sale(
                NewSale(
                    goods_id=GoodsId("g"),
                    stock_units=STOCK_UNITS,
                    limit_per_user=self.limit_per_user,
                    price_fen=_PRICE_FEN,
                    starts_at_ms=0,
                    may_buy_again=self.seed % 4 != _NOT_AGAIN,
                ),
                actor="simulation",
            ),
        )
        await self.deliver_all()
        self.bucket_id = BucketId(creating.result().sale_id, 0)
        self.keys = KEYS.bucket(self.bucket_id)
        edits = [edit for rule in sorted(self.without) for edit in SCRIPT_EDITS.get(rule, ())]
        self.hasty_clock = _HastyClock(loop)
        self.redis = RedisWithAPast(self._stores.redis, self.keys, edits)
        self.webs = [self._web(0), self._web(1)]
        self.workers = [self._worker(0), self._worker(1)]
        self.relays = [self._relay(0)]

    # Processes

    def _process(self, name: str) -> Process:
        return Process(name, self.calls)

    def _database(self, process: Process) -> WireDatabase:
        return WireDatabase(process, self._stores.engine)

    def _ledger(self, process: Process) -> SQLLedger:
        return SQLLedger(self._database(process), self.ids, self.clock)  # type: ignore[arg-type]

    def _redis(self, process: Process) -> Any:
        return WireRedis(
            process,
            self._stores.redis,
            self.redis.execute,
            lambda: _NEVER_MS if self.stormy else 0,
        )

    def _marks_folder(self, host: int) -> Path:
        """Of a host. Its name is drawn in the service; here it is the same each time."""
        folder = self._folder / f"host-{host}"
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / marks_module._ID_FILE).write_text(f"host-{host}", encoding="ascii")
        return folder

    def _web(self, number: int) -> Web:
        process = self._process(f"web-{number}")
        redis, ledger, folder = (
            self._redis(process),
            self._ledger(process),
            self._marks_folder(number),
        )
        scripts = WireScripts(redis)
        writer = MarkWriter(folder, f"web-{number}")
        batcher = Batcher(
            self.bucket_id,
            keys=self.keys,
            scripts=scripts,
            buckets=Buckets(redis, scripts, KEYS),
            ids=self.ids,
            marks=_Marks(process, writer),  # type: ignore[arg-type]
            clock=self.clock,
            bounds=Bounds(),
            observer=SilentObserver(),
            circuit=AlwaysClosed(),
            start=lambda work: process.spawn("batcher", work),
            changed=lambda *_: None,
        )
        reporter = MarkReporter(
            folder=folder,
            here=f"host-{number}",
            ledger=LedgerFence(ledger, self.clock),
            clock=self.clock,
        )
        return Web(process, writer, batcher, reporter, ledger, folder)

    def _worker(self, number: int) -> Worker:
        process = self._process(f"worker-{number}")
        redis, ledger = self._redis(process), self._ledger(process)
        buckets = Buckets(redis, WireScripts(redis), KEYS)
        hasty = SQLLedger(self._database(process), self.ids, self.hasty_clock)  # type: ignore[arg-type]
        keeper = FenceKeeper(
            redis=redis,
            buckets=buckets,
            keys=KEYS,
            ledger=LedgerFence(ledger, self.clock),
            channel=OutboxLog(redis, KEYS, behind=TopicUnderWay(process, self.topic)),
            marks_folder=self._marks_folder(number),
            ids=self.ids,
            clock=self.clock,
        )
        return Worker(
            process,
            ledger,
            keeper,
            OrderWorker(
                channel=TopicChannel(process, self.topic), ledger=ledger, observer=_Silent()
            ),
            Sweep(
                ledger=ledger,
                buckets=buckets,
                epochs=lambda: keeper.known_epochs,
                on_released=lambda _: None,
            ),
            Reaper(
                expiry=ledger.expiry,
                payments=hasty.payments,
                late_units=LateAdmission(WireScripts(redis), buckets, KEYS),
                provider=_Provider(),
                clock=self.clock,
                observer=_Silent(),
            ),
        )

    def _relay(self, number: int) -> RelayProcess:
        process = self._process(f"relay-{number}")
        ledger = self._ledger(process)
        relay = Relay(
            outbox=DirectChannel(
                redis=self._redis(process),
                keys=KEYS,
                consumer=process.name,
                bucket_ids=lambda: [self.bucket_id],
                on_dead=lambda _bucket, reason: self.say(f"dead letter: {reason}"),
            ),
            producer=TopicProducer(process, self.topic),
            topic="orders",
            sales=SaleBook(lambda: ledger.sales.sales(closed=True)),
            ids=self.ids,
            observer=_Silent(),
            grace_ms=0,
        )
        return RelayProcess(process, relay)

    def redis_of(self, process: Process) -> Any:
        """A client of the real Redis over the wire."""
        return self._redis(process)

    def buckets_of(self, process: Process) -> Buckets:
        """The same, as buckets."""
        redis = self._redis(process)
        return Buckets(redis, WireScripts(redis), KEYS)

    # What is told

    def say(self, what: str) -> None:
        """Tell the trace."""
        if self._trace is not None:
            self._trace(f"{self.loop.time():8.3f} {what}")

    def answered(self, ask: Ask, decision: Decision) -> None:
        """A buyer hears the answer; who hears none asks again later."""
        self.say(
            f"{ask.user_id} {ask.attempt_id} hears {decision.outcome.name}"
            f" {self.name_of(decision.reservation_id)} {decision.cause}"
        )
        match decision.outcome:
            case Outcome.UNDECIDED:
                self.to_ask.append(ask)
            case Outcome.SUCCESS:
                assert decision.reservation_id is not None
                self.told[decision.reservation_id] = ask.user_id
            case _ if decision.reservation_id is not None:
                self.shown[decision.reservation_id] = ask.user_id

    def name_of(self, reservation_id: ReservationId | None) -> str:
        """A reservation by its place: epoch and seq."""
        place = None if reservation_id is None else self.ids.decode(reservation_id)
        return "-" if place is None else f"e{place.epoch}s{place.seq}"

    # The wire

    async def deliver_all(self, held: Callable[[Call], bool] = lambda _call: False) -> None:
        """Let every call under way arrive and be answered, in order, but for those held up."""
        await self.loop.stillness()
        while going := [call for call in self.calls if not held(call)]:
            call = going[0]
            self.calls.remove(call)
            if not call.arrived:
                self.arrive(call)
            call.deliver()
            await self.loop.stillness()

    def carry(self) -> None:
        """Let one call get a step further, or be lost."""
        call = self.chance.choice(self.calls)
        if call.patience is None:
            call.patience = _LONG if self.chance.random() < self.sluggish else 0
        if call.patience > 0 and len(self.calls) > 1:
            call.patience -= 1  # the others go on while it is under way
            return
        draw = self.chance.random()
        loses = self.stormy and call.store is not Store.LEDGER and draw < 0.03
        if call.arrived or loses:
            self.calls.remove(call)
            if loses:
                self.say(
                    f"{call.process.name}: {call.what} is lost{' on its way back' * call.arrived}"
                )
                call.lose()
            else:
                call.deliver()
            return
        self.arrive(call)
        if draw > 0.4:
            self.calls.remove(call)
            call.deliver()

    def arrive(self, call: Call) -> None:
        """Let the store do it."""
        call.arrive()
        self.say(f"{call.process.name}: {call.what} -> {call.error or _short(call.result)}")
        writes = call.store is Store.REDIS and not call.what.endswith(LOOK.sha)
        if writes and self.stormy and self.crashes < _CRASHES_MAX and self.chance.random() < 0.5:
            self.redis.remember()

    # What can happen

    def ask(self) -> None:
        """A buyer asks for the first time, or again."""
        if self.to_ask and (self.asked == ASKS or self.chance.random() < 0.5):
            # Often late: what it had won may have expired by then.
            ask = self.to_ask.pop(self.chance.randrange(len(self.to_ask)))
        elif self.asked < ASKS:
            self.asked += 1
            user, quantity = (
                self.chance.randrange(USERS),
                self.chance.randint(1, self.limit_per_user),
            )
            ask = Ask(self, f"u{user}", f"a{self.asked}", quantity)
        else:
            return
        web = self.chance.choice(self.webs)
        if web.process.dead:
            self.to_ask.append(ask)
        else:
            self.submit(ask, web)

    def submit(self, ask: Ask, web: Web) -> None:
        """A request comes to a web process."""
        ask.web = web
        web.asks.append(ask)
        decision = web.batcher.submit(ask)
        if decision is not None:
            ask.decided(decision)

    def _start(self, process: Process, name: str, work: Callable[[], Any]) -> None:
        if not process.dead and not process.runs(name):
            process.spawn(name, _calmly(self, process, name, work))

    def carry_outbox(self) -> None:
        """The relay takes a step."""
        relay = self.chance.choice(self.relays)
        self._start(relay.process, "relay", relay.relay.step)

    def write_orders(self) -> None:
        """An order worker takes a step."""
        worker = self.chance.choice(self.workers)
        self._start(worker.process, "orders", worker.orders.step)

    def keep(self, worker: Worker | None = None) -> None:
        """A keeper looks, and rebuilds what needs it."""
        worker = worker or self.chance.choice(self.workers)

        async def look() -> None:
            worker.verdict = None
            verdicts = await worker.keeper.keep()
            worker.verdict = verdicts.get(self.bucket_id)
            if worker.verdict is Verdict.NEEDS_REBUILD:
                self._start(
                    worker.process,
                    "rebuild",
                    lambda: worker.keeper.rebuild(self.bucket_id, deadline_ms=60_000),
                )

        self._start(worker.process, "keep", look)

    def sweep(self) -> None:
        """Pending releases go to Redis."""
        worker = self.chance.choice(self.workers)
        self._start(worker.process, "sweep", worker.sweep.sweep)

    def expire(self) -> None:
        """An unpaid order expires."""
        worker = self.chance.choice(self.workers)

        async def expire() -> None:
            due = await worker.ledger.expiry.due(100)
            if due:
                named = sorted(due, key=lambda one: self.ids.decode(one) or one)
                await worker.ledger.expiry.expire([self.chance.choice(named)])

        self._start(worker.process, "expire", expire)

    def cancel(self) -> None:
        """A buyer cancels an order that was promised to them."""
        if not self.told:
            return
        web = self.chance.choice(self.webs)
        name = self.chance.choice(list(self.told))

        async def cancel() -> None:
            with suppress(WrongState):
                await web.ledger.orders.cancel(name, self.told[name], actor="buyer", reason="")

        self._start(web.process, "cancel", cancel)

    def change_stock(self) -> None:
        """An operator puts units on sale or takes some off, or asks for the same once more."""
        if len(self.changes) < _STOCK_CHANGES_MAX:
            delta = self.chance.choice((1, 1, 2, -1, -2))
            self.changes.append((f"c{len(self.changes) + 1}", delta))
        change_id, delta = self.chance.choice(self.changes)

        async def change() -> None:
            with suppress(InvalidValue):
                await self._ledger(self.operator).sales.request_stock_change(
                    change_id, self.bucket_id.sale_id, delta, actor="operator"
                )

        self._start(self.operator, "change the stock", change)

    def pay(self) -> None:
        """A buyer pays at the provider, who will tell of it."""
        if not self.told or self.paying >= _PAYMENTS_MAX:
            return
        web = self.chance.choice(self.webs)
        name = self.chance.choice(list(self.told))
        self.paying += 1
        payment_id = PaymentId(f"p{self.paying}")
        book = SQLLedger(self._database(web.process), self.ids, _EarlyClock())  # type: ignore[arg-type]

        async def pay() -> None:
            with suppress(WrongState):
                started = await book.payments.start(name, self.told[name], new_id=payment_id)
                payment = None if started is None else started[1]
                if payment is not None:
                    self.news.append(
                        PaymentNews(
                            event_id=f"paid-{payment.payment_id}",
                            kind=NewsKind.PAID,
                            payment_id=payment.payment_id,
                            money=payment.money,
                            at_ms=1,
                            content_hash="",
                        )
                    )

        self._start(web.process, "pay", pay)

    def hear(self) -> None:
        """News of the provider comes; it comes again unless its answer says that it was taken."""
        web = self.chance.choice(self.webs)
        if not self.news or web.process.dead:
            return
        news = self.chance.choice(self.news)
        book = SQLLedger(self._database(web.process), self.ids, self.hasty_clock)  # type: ignore[arg-type]

        async def hear() -> None:
            await book.payments.take(news)
            if news in self.news:
                self.news.remove(news)

        self._start(web.process, "hear", hear)

    def finish_payments(self) -> None:
        """A reaper finds a unit for money that came late, or gives it back."""
        worker = self.chance.choice(self.workers)
        self._start(worker.process, "payments", worker.reaper.finish_payments)

    def report(self, web: Web) -> None:
        """A web process says what it does not trust, what it acknowledged, and that it lives."""

        async def report() -> None:
            if self.loop.time() - web.seen_at_s >= _SEEN_EVERY_S:
                await web.ledger.mark_folders.seen(web.folder.name, web.folder.name)
                web.seen_at_s = self.loop.time()
            batcher = web.batcher
            if batcher.fenced is not None:
                await web.reporter.notice(
                    [(self.bucket_id, batcher.epoch, why_fenced(batcher.fenced))]
                )
            if Rule.REPORT not in self.without:
                await web.reporter.report()

        self._start(web.process, "report", report)

    def pass_time(self) -> None:
        """Let a moment pass, for everybody.

        Whoever is dead or silent for longer than the fence has patience is a case of its own, with
        tests of its own: here every host lives again, and has reported, before time goes on.
        """
        if any(web.process.dead or web.process.runs("report") for web in self.webs):
            return
        span_s = min(self.loop.next_timer_s or _REPORT_EVERY_S, _REPORT_EVERY_S)
        self.loop.advance(span_s)
        for call in list(self.calls):
            if (
                call.store is Store.REDIS
                and not call.answer.done()
                and self.loop.time() - call.sent_at_s >= _TIMEOUT_S
            ):
                self.say(f"{call.process.name}: {call.what} timed out")
                call.lose()
                # What nobody waits for any more may still arrive.
                if call.arrived or self.chance.random() < 0.5:
                    self.calls.remove(call)
        for web in self.webs:
            self.report(web)

    # Accidents

    def accident(self) -> None:
        """Something breaks."""
        if self.crashes >= _CRASHES_MAX:
            return
        self.crashes += 1
        before = self.redis.take_picture()
        self.lose(lambda: self._break(before))

    def lose(self, breaking: Callable[[], None]) -> None:
        """Let something break, and take down which purchases are in no log any more."""
        known = self.redis.outbox_places(self.bucket_id)
        breaking()
        published = {event.place for event in self.topic.events}
        self.lost_places |= known - self.redis.outbox_places(self.bucket_id) - published

    def _break(self, before: Picture) -> None:
        draw = self.chance.random() ** self.violence
        if draw < 0.12:
            self.say("Redis forgets everything")
            self.lossy |= before.place != (0, 0)
            self.redis.forget_all()
        elif draw < 0.2:
            name = self.redis.forget_key(self.chance.choice)
            self.say(f"Redis loses {name}")
            self.lossy |= name is not None
        elif draw < 0.35:
            self.say("Redis is resynchronised from another one, under living connections")
            self._go_back(before.place)
            self.redis.be_another_server()
        elif draw < 0.8:
            if self.chance.random() < 0.6:
                self._go_back(before.place)
            self.redis.be_another_server()
            self.say(f"Redis starts again: {self.redis.take_picture().place}")
            for call in [call for call in self.calls if call.store is Store.REDIS]:
                self.calls.remove(call)
                call.lose()
            if self.chance.random() < 0.3:
                self.kill(self.chance.choice([*self.webs, *self.workers, *self.relays]))
        else:
            self.kill(self.chance.choice([*self.webs, *self.workers, *self.relays]))

    def _go_back(self, now: tuple[int, int]) -> None:
        if not self.redis.pictures:
            return
        picture = self.chance.choice(self.redis.pictures)
        self.say(f"Redis goes back from {now} to {picture.place}")
        self.lossy |= picture.place != now
        self.redis.go_back(picture)

    def kill(self, victim: Web | Worker | RelayProcess) -> None:
        """kill -9. What it had sent may still arrive."""
        process = victim.process
        if process.dead:
            return
        self.say(f"{process.name} is killed")
        process.die()
        for call in [call for call in self.calls if call.process is process]:
            if call.arrived or self.chance.random() < 0.5:
                self.calls.remove(call)
        if isinstance(victim, Web):
            victim.writer.close()
            if Rule.MARK_SURVIVES in self.without:
                (victim.folder / f"{process.name}.marks").unlink(missing_ok=True)
            for ask in victim.asks:
                ask.web = None
                if self.chance.random() < 0.7:  # else the buyer has had enough
                    self.to_ask.append(ask)
            victim.asks = []

    def revive(self) -> None:
        """A process that died is started again."""
        for group, make in (
            (self.webs, self._web),
            (self.workers, self._worker),
            (self.relays, self._relay),
        ):
            for at, one in enumerate(group):  # type: ignore[var-annotated]
                if one.process.dead and not one.process.tasks:
                    group[at] = make(at)  # type: ignore[operator, index]
                    self.say(f"{one.process.name} is started again")
                    return

    # The run

    async def storm(self, steps: int) -> None:
        """Let things happen, in an order that the seed decides."""
        happenings: list[tuple[Callable[[], None], int]] = [
            (self.ask, 8),
            (self.carry_outbox, 4),
            (self.write_orders, 4),
            (self.keep, 3),
            (self.sweep, 2),
            (self.expire, 1),
            (self.cancel, 1),
            (self.change_stock, 1),
            (self.pay, 1),
            (self.hear, 1),
            (self.finish_payments, 1),
            (self.pass_time, 2),
            (self.revive, 3),
            (self.accident, 1),
        ]
        what = [happen for happen, _ in happenings]
        weights = [usual * self.chance.choice(_MOODS) for _, usual in happenings]
        haste = self.chance.choice((0.6, 0.75, 0.75, 0.9))
        for web in self.webs:
            self.report(web)
        for _ in range(steps):
            await self.loop.stillness()
            if self.calls and self.chance.random() < haste:
                self.carry()
            else:
                self.chance.choices(what, weights)[0]()

    async def settle(self, rounds_max: int = 120) -> bool:
        """Let everything come to rest, without further accidents; False when it does not."""
        self.stormy = False
        self.say("the storm is over")
        for _ in range(rounds_max):
            await self.loop.stillness()
            while any(one.process.dead for one in [*self.webs, *self.workers, *self.relays]):
                self.revive()
                await self.loop.stillness()
            for happen in (
                *[self.ask] * ASKS,
                self.carry_outbox,
                self.write_orders,
                self.keep,
                *[self.sweep] * self._waits("releases", "stock_changes"),
                *[self.hear] * len(self.news),
                *[self.finish_payments] * self._waits("payments"),
            ):
                happen()
            await self._carry_all()
            if self._is_quiet():
                return True
            self.pass_time()
        return False

    async def _carry_all(self) -> None:
        await self.loop.stillness()
        while self.calls:
            self.carry()
            await self.loop.stillness()

    def _is_quiet(self) -> bool:
        if (
            self.asked < ASKS
            or self.to_ask
            or self.topic.committed < len(self.topic.messages)
            or any(not web.batcher.idle for web in self.webs)
            or any(worker.verdict not in {None, Verdict.FINE} for worker in self.workers)
            or all(worker.verdict is None for worker in self.workers)
            or self.news
            or self._stores.redis.xlen(self.keys.outbox)
        ):
            return False
        return not self._waits("fences", "releases", "stock_changes", "payments")

    def _waits(self, *books: str) -> bool:
        """Whether the ledger still waits for something, in any of some of its books."""
        # Past SQLAlchemy: it is asked again and again.
        questions = (f"EXISTS (SELECT 1 FROM {book} WHERE {_WAITING[book]})" for book in books)  # noqa: S608  -- names of ours
        (waits,) = self._stores.ask(f"SELECT {' OR '.join(questions)}")
        return bool(waits)

    async def end(self) -> None:
        """End every process."""
        everybody = [one.process for one in [*self.webs, *self.workers, *self.relays]]
        for process in [*everybody, self.operator]:
            process.die()
        self.calls.clear()
        await self.loop.stillness()
        while any(process.tasks for process in everybody):
            self.loop.advance(self.loop.next_timer_s or 0.0)
            await self.loop.stillness()
        for web in self.webs:
            if not web.writer._map.closed:
                web.writer.close()


async def _calmly(world: World, process: Process, name: str, work: Callable[[], Any]) -> None:
    """Do something; what a store does not answer is tried again later, as its loop would."""
    try:
        await work()
    except _EXPECTED as error:
        world.say(f"{process.name}: {name} waits: {error}")


def _short(result: Any) -> str:
    text = repr(result)
    return text if len(text) < 160 else text[:160] + "…"
