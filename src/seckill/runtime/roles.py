"""What the processes of a run do: how each runs, and what an order worker does."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from seckill.admission.errors import StockUnavailable
from seckill.admission.fence import Verdict
from seckill.admission.late import LateAdmission
from seckill.admission.mark_reports import MarkReporter
from seckill.admission.marks import make_folder_id
from seckill.admission.tasks import end_tasks
from seckill.domain.ids import GoodsId, SaleId
from seckill.domain.reservation import BucketId
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.errors import ChannelUnavailable, LedgerAway
from seckill.pipeline.giving_way import GivingWay, wait_until_calm
from seckill.pipeline.reaper import Reaper
from seckill.pipeline.sweep import Sweep
from seckill.pipeline.worker import AtOnce, OrderWorker, Pace
from seckill.runtime.bootstrap import Stores, open_stores
from seckill.runtime.demo import open_sample_sale
from seckill.runtime.gc_tuning import GarbageWatch, collect_when_idle, settle_after_start
from seckill.runtime.lifeline import report_ready, watch_lifeline
from seckill.runtime.logs import configure_logging, name_goods
from seckill.runtime.metric_table import LAYOUT
from seckill.runtime.observers import (
    ReaperMetrics,
    TimedLedger,
    WorkerMetrics,
)
from seckill.runtime.processor_time import counts_processor_time, read_processor_time
from seckill.runtime.providers import open_provider
from seckill.runtime.rebuilds import Rebuilds
from seckill.runtime.settings import Settings
from seckill.runtime.setup_link import leave_setup_link
from seckill.runtime.telemetry import Metrics

if TYPE_CHECKING:
    from seckill.audit.report import AuditReport
    from seckill.runtime.kafka_parts import KafkaParts

__all__ = [
    "LAG_EVERY_S",
    "REPORT_EVERY_S",
    "WORKER_NICENESS",
    "ClosedBuckets",
    "again",
    "background",
    "outbox_reader",
    "reaper_works",
    "run_prepare",
    "run_reaper",
    "run_role",
    "run_worker",
]

_log = structlog.get_logger(__name__)

WORKER_NICENESS: Final = 10
_KEEP_EVERY_S: Final = 0.25
_SWEEP_EVERY_S: Final = 0.2
_CLEAN_UP_EVERY_S: Final = 10.0
REPORT_EVERY_S: Final = 0.25
"""How often a host looks whether it has to report its marks: one small read of the ledger."""
LAG_EVERY_S: Final = 1.0
_PAYMENTS_EVERY_S: Final = 0.25


def run_worker(
    settings: Settings, slot: int, *, on_begin: Callable[[], object] = lambda: None
) -> None:
    """Be an order worker until SIGTERM.

    Args:
        on_begin: is called once this process has its number.

    Raises:
        SlotTaken: another process is this worker.
        SeckillError: as `open_stores`.
    """
    run_role(settings, "worker", slot, _worker, on_begin=on_begin)


def run_reaper(
    settings: Settings, slot: int, *, on_begin: Callable[[], object] = lambda: None
) -> None:
    """Be a reaper in a process of its own until SIGTERM.

    Args:
        on_begin: is called once this process has its number.

    Raises:
        SlotTaken: another process is this reaper.
        SeckillError: as `open_stores` and `reaper_works`.
    """
    run_role(settings, "reaper", slot, _reaper, on_begin=on_begin)


def run_prepare(settings: Settings, *, demo: bool) -> None:
    """Do what is done once before the parts of a run start: schema, durability, open buckets.

    As long as nobody is an admin, it leaves a set-up link for whoever starts the run.

    Args:
        demo: open the sample sale too.

    Raises:
        DurabilityRefused: Redis is not configured to keep what the settings promise.
        SeckillError: as `open_stores`.
    """
    configure_logging(
        level=settings.log_level, log_format=settings.log_format, role="prepare", slot=0
    )

    async def prepare() -> None:
        async with open_stores(settings) as stores:
            for warning in stores.durability_warnings:
                _log.warning("Redis is not configured as one expects", what=warning)
            await stores.fence.keep()
            await leave_setup_link(stores)
            if demo:
                await open_sample_sale(stores)

    asyncio.run(prepare())


Role = Callable[[Settings, int, Metrics, asyncio.Event], Coroutine[Any, Any, None]]


def run_role(
    settings: Settings,
    role: str,
    slot: int,
    work: Role,
    *,
    on_begin: Callable[[], object] = lambda: None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a role in this process until SIGTERM: logging, slot, signals, metrics.

    Args:
        work: the role; it ends once the event that it gets is set.
        on_begin: is called once this process has its number.
        loop_factory: makes the event loop; None takes asyncio's own.

    Raises:
        SlotTaken: another process has this role and number.
    """
    configure_logging(
        level=settings.log_level, log_format=settings.log_format, role=role, slot=slot
    )
    with settings.data.slot_locked(role, slot):
        on_begin()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_with_signals(settings, role, slot, work))


async def _with_signals(settings: Settings, role: str, slot: int, work: Role) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    watch_lifeline(partial(loop.call_soon_threadsafe, stop.set))
    metrics = Metrics(settings.data.metrics, f"{role}-{slot}", LAYOUT)
    garbage = GarbageWatch(metrics)
    garbage.start()
    try:
        await work(settings, slot, metrics, stop)
    finally:
        garbage.stop()
        metrics.close()


@asynccontextmanager
async def background(*works: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Keep coroutines running inside the block; when one fails, so does the block.

    One failure is raised as what it is: it may be a sentence for the operator.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(work) for work in works]
            try:
                yield
            finally:
                await end_tasks(running)
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from None


async def _worker(settings: Settings, slot: int, metrics: Metrics, stop: asyncio.Event) -> None:
    # The rush comes first: an order may be written a second later, a buyer must not be made to
    # wait for it. The outbox keeps what is not written yet, whatever dies.
    os.nice(WORKER_NICENESS)
    async with open_stores(settings) as stores:
        counts = WorkerMetrics(metrics)
        sweep = Sweep(
            ledger=stores.ledger,
            buckets=stores.buckets,
            epochs=lambda: stores.fence.known_epochs,
            on_released=counts.released,
            on_stuck=counts.stuck,
        )
        # A web process needs a host to report for it even when all of its own are dead.
        reporter = MarkReporter(
            folder=settings.data.marks,
            here=make_folder_id(settings.data.marks),
            ledger=stores.fence_ledger,
            clock=stores.clock,
        )
        rebuilds = Rebuilds(stores.fence, automatic=settings.fence_rebuild == "automatic")
        closed = ClosedBuckets()
        goods: dict[SaleId, GoodsId] = {}
        name_goods(goods.get)
        reaping = reaper_works(stores, metrics) if settings.reaper == "worker" else ()
        settle_after_start()
        report_ready()
        async with background(
            *reaping,
            again(
                "keep the buckets",
                _KEEP_EVERY_S,
                lambda: _keep(stores, counts, closed, goods, rebuilds),
            ),
            again("report the marks", REPORT_EVERY_S, reporter.report),
            rebuilds.run(),
            again("sweep releases", _SWEEP_EVERY_S, sweep.sweep),
            _audits(stores, counts) if slot == 0 and settings.audit_every_s else _nothing(),
            _clean_ups(stores) if slot == 0 and settings.clean_up_after_s else _nothing(),
            collect_when_idle(),
        ):
            if stores.kafka is None:
                await _work_from_outbox(stores, slot, counts, stop)
            else:
                await _work_from_kafka(stores, stores.kafka, slot, counts, stop)


async def _work_from_outbox(
    stores: Stores, slot: int, counts: WorkerMetrics, stop: asyncio.Event
) -> None:
    channel = outbox_reader(
        stores, f"worker-{slot}", lambda: stores.fence.known_epochs, counts.dead_letter
    )
    stores.outbox_log.in_hand = channel.has_in_hand
    worker = OrderWorker(
        channel=channel,
        ledger=TimedLedger(stores.ledger, counts),
        observer=counts,
        pace=_pace(stores.settings, counts),
    )
    async with background(
        again("measure the outbox", LAG_EVERY_S, lambda: _measure(channel, counts))
    ):
        await worker.run(stop)


def _pace(settings: Settings, counts: WorkerMetrics) -> Pace:
    if settings.order_defer_ms == 0 or not counts_processor_time():
        return AtOnce()
    return GivingWay(
        look=read_processor_time,
        longest_s=settings.order_defer_ms / 1000,
        rested=counts.rested,
    )


async def _work_from_kafka(
    stores: Stores, kafka: "KafkaParts", slot: int, counts: WorkerMetrics, stop: asyncio.Event
) -> None:
    from seckill.pipeline.kafka.channel import KafkaChannel  # noqa: PLC0415
    from seckill.runtime.relay_role import know_topics  # noqa: PLC0415

    if not await know_topics(kafka.options, stop, tell=False):
        return
    channel = KafkaChannel(
        kafka.options,
        f"worker-{slot}@{socket.gethostname()}",
        dead=kafka.dead,
        on_dead=lambda _reason: counts.dead_letter(),
        on_commit_failed=counts.commit_failed,
        on_rebalance=counts.rebalanced,
    )
    worker = OrderWorker(
        channel=channel,
        ledger=TimedLedger(stores.ledger, counts),
        observer=counts,
        deliveries_max=stores.settings.kafka_batch_messages_max,
    )

    async def measure() -> None:
        counts.topic_backlog(await kafka.under_way.pending(), channel.oldest_ms)

    try:
        async with background(again("measure the topic", LAG_EVERY_S, measure)):
            await worker.run(stop)
    finally:
        await channel.close()


def outbox_reader(
    stores: Stores,
    consumer: str,
    bucket_ids: Callable[[], Iterable[BucketId]],
    on_dead: Callable[[], None],
) -> DirectChannel:
    """The outbox, as worker and relay read it."""
    return DirectChannel(
        redis=stores.redis,
        keys=stores.keys,
        consumer=consumer,
        bucket_ids=bucket_ids,
        on_dead=lambda _bucket_id, _reason: on_dead(),
    )


async def _audits(stores: Stores, counts: WorkerMetrics) -> None:
    # Loaded by the one worker that audits, and not before it works.
    from seckill.runtime.auditing import audit  # noqa: PLC0415
    from seckill.runtime.background_audit import BackgroundAudit  # noqa: PLC0415

    async def audited() -> "AuditReport":
        report = await audit(stores)
        await stores.ledger.audit_results.keep(
            report.to_dict(), ok=report.ok, at_ms=report.started_at_ms
        )
        return report

    every_s = stores.settings.audit_every_s
    await BackgroundAudit(
        audited,
        every_ms=every_s * 1000,
        calm=partial(wait_until_calm, read_processor_time, every_s)
        if counts_processor_time()
        else _nothing,
        observer=counts,
        clock=stores.clock,
    ).run()


async def _clean_ups(stores: Stores) -> None:
    from seckill.runtime.clean_up import clean_up  # noqa: PLC0415

    grace_ms = stores.settings.clean_up_after_s * 1000
    await again("clean up", _CLEAN_UP_EVERY_S, lambda: clean_up(stores, grace_ms))


async def _nothing() -> None:
    """Not in this process."""


async def _reaper(settings: Settings, slot: int, metrics: Metrics, stop: asyncio.Event) -> None:  # noqa: ARG001  -- the signature of a role
    os.nice(WORKER_NICENESS)
    async with open_stores(settings) as stores:
        works = reaper_works(stores, metrics)
        settle_after_start()
        report_ready()
        async with background(*works, collect_when_idle()):
            await stop.wait()


def reaper_works(stores: Stores, metrics: Metrics) -> tuple[Coroutine[Any, Any, None], ...]:
    """What a reaper does, as coroutines that run for ever.

    Raises:
        ProviderUnusable: the payment provider of the settings cannot be used.
    """
    reaper = Reaper(
        expiry=stores.ledger.expiry,
        payments=stores.ledger.payments,
        late_units=LateAdmission(
            stores.scripts,
            stores.buckets,
            stores.keys,
            stores.ledger.retirement.is_retired,
        ),
        provider=open_provider(stores.settings, stores.clock),
        clock=stores.clock,
        observer=ReaperMetrics(metrics),
    )
    pause_s = stores.settings.reaper_every_ms / 1000
    return (
        again("expire unpaid orders", pause_s, reaper.expire_due),
        again("finish payments", min(pause_s, _PAYMENTS_EVERY_S), reaper.finish_payments),
    )


async def again(
    doing: str, pause_s: float, work: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    """Do a work again and again; a store that is away is no reason to stop, nor to fill the log."""
    away = False
    while True:
        try:
            await work()
            if away:
                _log.info("store answers again", doing=doing)
            away = False
        except (StockUnavailable, LedgerAway, ChannelUnavailable) as error:
            if not away:
                _log.warning("waiting for a store", doing=doing, error=str(error))
            away = True
        await asyncio.sleep(pause_s)


class ClosedBuckets:
    """Counts the buckets that admit nobody, out of verdicts that come in parts.

    The keeper looks at a sale that is over now and then only, so its last verdict stands meanwhile.
    """

    _OPEN: Final = frozenset({Verdict.FINE, Verdict.REOPENED})

    def __init__(self) -> None:
        self._closed: set[BucketId] = set()

    def count(self, verdicts: Mapping[BucketId, Verdict], known: Collection[BucketId]) -> int:
        """How many are closed now, after the verdicts of one look.

        Args:
            verdicts: of the buckets that were looked at.
            known: every bucket that there is.
        """
        self._closed -= verdicts.keys()
        self._closed |= {at for at, verdict in verdicts.items() if verdict not in self._OPEN}
        self._closed.intersection_update(known)
        return len(self._closed)


async def _keep(
    stores: Stores,
    counts: WorkerMetrics,
    closed: ClosedBuckets,
    goods: dict[SaleId, GoodsId],
    rebuilds: Rebuilds,
) -> None:
    verdicts = await stores.fence.keep()
    rebuilds.take(verdicts)
    for verdict in verdicts.values():
        if verdict is Verdict.REOPENED:
            counts.reopened()
    counts.fenced(closed.count(verdicts, stores.fence.known_epochs))
    if any(at.sale_id not in goods for at in stores.fence.known_epochs):
        sales = await stores.ledger.sales.sales(closed=True)
        goods.update((sale.sale_id, sale.goods_id) for sale in sales)


async def _measure(channel: DirectChannel, counts: WorkerMetrics) -> None:
    lag = await channel.lag()
    counts.backlog(lag.entries, lag.oldest_ms)
