"""What the processes of a run do: a web process, an order worker."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

import structlog

from seckill.admission.errors import StockUnavailable
from seckill.admission.fence import Verdict
from seckill.admission.gate import AdmissionGate
from seckill.admission.marks import MarkWriter, make_folder_id
from seckill.admission.tasks import end_tasks
from seckill.domain.ids import GoodsId, SaleId
from seckill.domain.reservation import BucketId
from seckill.ledger.mark_folders import SEEN_EVERY_MS
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.errors import ChannelUnavailable, LedgerAway
from seckill.pipeline.sweep import Sweep
from seckill.pipeline.worker import OrderWorker
from seckill.runtime.bootstrap import Stores, authenticator, bounds, open_stores
from seckill.runtime.demo import open_sample_sale
from seckill.runtime.errors import PartMissing
from seckill.runtime.exposition import render
from seckill.runtime.gc_tuning import GarbageWatch, collect_when_idle, settle_after_start
from seckill.runtime.lifeline import listen_fd, report_ready, watch_lifeline
from seckill.runtime.logs import configure_logging, name_goods
from seckill.runtime.metric_table import LAYOUT
from seckill.runtime.observers import (
    AdmissionMetrics,
    HTTPMetrics,
    TimedLedger,
    WorkerMetrics,
)
from seckill.runtime.settings import Settings
from seckill.runtime.telemetry import Metrics
from seckill.runtime.web_ports import LedgerBooks, QueuedReservations, SalesOnShow, StoreWatch
from seckill.web.app import build_app
from seckill.web.limits import WebLimits
from seckill.web.parts import WebParts
from seckill.web.server import ServerSettings, new_event_loop, serve

__all__ = ["ClosedBuckets", "run_prepare", "run_web", "run_worker"]

_log = structlog.get_logger(__name__)

_WORKER_NICENESS: Final = 10
_KEEP_EVERY_S: Final = 0.25
_SWEEP_EVERY_S: Final = 0.2
_LAG_EVERY_S: Final = 1.0


def run_web(settings: Settings, slot: int) -> None:
    """Be a web process until SIGTERM.

    Raises:
        PartMissing: there is no listening socket; web processes are started by `seckill serve`.
        SlotTaken: another process is this web process.
        SeckillError: as `open_stores`.
    """
    _run(settings, "web", slot, _web)


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
    _run(settings, "worker", slot, _worker, on_begin)


def run_prepare(settings: Settings, *, demo: bool) -> None:
    """Do what is done once before the parts of a run start: schema, durability, open buckets.

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
            if demo:
                await open_sample_sale(stores)

    asyncio.run(prepare())


Role = Callable[[Settings, int, Metrics, asyncio.Event], Coroutine[Any, Any, None]]


def _run(
    settings: Settings,
    role: str,
    slot: int,
    work: Role,
    on_begin: Callable[[], object] = lambda: None,
) -> None:
    configure_logging(
        level=settings.log_level, log_format=settings.log_format, role=role, slot=slot
    )
    with settings.data.slot_locked(role, slot):
        on_begin()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
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
async def _background(*works: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Keep coroutines running inside the block; when one fails, so does the block."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work) for work in works]
        try:
            yield
        finally:
            await end_tasks(running)


async def _web(settings: Settings, slot: int, metrics: Metrics, stop: asyncio.Event) -> None:
    descriptor = listen_fd()
    if descriptor is None:
        raise PartMissing("a web process needs the listening socket of `seckill serve`")
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(settings))
        marks = stack.enter_context(MarkWriter(settings.data.marks, f"web-{slot}"))
        gate = await stack.enter_async_context(
            AdmissionGate(
                redis=stores.redis,
                scripts=stores.scripts,
                keys=stores.keys,
                ids=stores.ids,
                marks=marks,
                clock=stores.clock,
                bounds=bounds(settings),
                observer=AdmissionMetrics(metrics),
            )
        )
        here = make_folder_id(settings.data.marks)

        async def seen() -> None:
            await stores.ledger.mark_folders.seen(here, socket.gethostname())

        await seen()  # before anybody is admitted: the fence must know where the marks are
        with contextlib.suppress(StockUnavailable):
            await gate.catalogue.refresh()
        watch = StoreWatch(stores, gate)
        on_show = SalesOnShow(gate, stores.buckets, stores.clock)
        name_goods(on_show.goods_of)
        app = build_app(
            WebParts(
                gate=gate,
                books=LedgerBooks(stores.ledger),
                queued=QueuedReservations(stores.buckets),
                ids=stores.ids,
                catalogue=on_show,
                authenticator=authenticator(settings, stores.clock),
                dependencies=watch,
                metrics=HTTPMetrics(metrics),
                render_metrics=lambda: asyncio.to_thread(render, settings.data.metrics, LAYOUT),
                clock=stores.clock,
                limits=WebLimits(
                    body_bytes_max=settings.body_bytes_max,
                    body_timeout_ms=settings.body_timeout_ms,
                    sse_streams_max=max(settings.sse_streams_max, 1),
                ),
            )
        )
        await stack.enter_async_context(
            _background(
                watch.run(),
                collect_when_idle(),
                _again("register the marks", SEEN_EVERY_MS / 1000, seen),
            )
        )
        settle_after_start()
        report_ready()
        await serve(
            app,
            descriptor,
            # The supervisor kills at the end of the grace: be done a little before.
            ServerSettings(shutdown_grace_ms=int(settings.shutdown_grace_ms * 0.9)),
            stop,
        )


async def _worker(settings: Settings, slot: int, metrics: Metrics, stop: asyncio.Event) -> None:
    # The rush comes first: an order may be written a second later, a buyer must not be made to
    # wait for it. The outbox keeps what is not written yet, whatever dies.
    os.nice(_WORKER_NICENESS)
    async with open_stores(settings) as stores:
        counts = WorkerMetrics(metrics)
        channel = DirectChannel(
            redis=stores.redis,
            keys=stores.keys,
            consumer=f"worker-{slot}",
            bucket_ids=lambda: stores.fence.known_epochs,
            on_dead=lambda _bucket_id, _reason: counts.dead_letter(),
        )
        sweep = Sweep(
            ledger=stores.ledger,
            buckets=stores.buckets,
            epochs=lambda: stores.fence.known_epochs,
            on_released=counts.released,
        )
        worker = OrderWorker(
            channel=channel, ledger=TimedLedger(stores.ledger, counts), observer=counts
        )
        closed = ClosedBuckets()
        goods: dict[SaleId, GoodsId] = {}
        name_goods(goods.get)
        settle_after_start()
        report_ready()
        async with _background(
            _again("keep the buckets", _KEEP_EVERY_S, lambda: _keep(stores, counts, closed, goods)),
            _again("sweep releases", _SWEEP_EVERY_S, sweep.sweep),
            _again("measure the outbox", _LAG_EVERY_S, lambda: _measure(channel, counts)),
            collect_when_idle(),
        ):
            await worker.run(stop)


async def _again(
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
    stores: Stores, counts: WorkerMetrics, closed: ClosedBuckets, goods: dict[SaleId, GoodsId]
) -> None:
    verdicts = await stores.fence.keep()
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
