"""What the processes of a run do: a web process, an order worker."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

import structlog

from seckill.admission.errors import StockUnavailable
from seckill.admission.fence import Verdict
from seckill.admission.gate import AdmissionGate
from seckill.admission.marks import MarkWriter, make_folder_id
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
from seckill.runtime.logs import configure_logging
from seckill.runtime.metric_table import LAYOUT
from seckill.runtime.observers import AdmissionMetrics, HTTPMetrics, WorkerMetrics
from seckill.runtime.settings import Settings
from seckill.runtime.telemetry import Metrics
from seckill.runtime.web_ports import LedgerBooks, QueuedReservations, SalesOnShow, StoreWatch
from seckill.web.app import build_app
from seckill.web.limits import WebLimits
from seckill.web.parts import WebParts
from seckill.web.server import ServerSettings, new_event_loop, serve

__all__ = ["run_prepare", "run_web", "run_worker"]

_log = structlog.get_logger(__name__)

_KEEP_EVERY_S: Final = 0.25
_SWEEP_EVERY_S: Final = 0.2
_LAG_EVERY_S: Final = 1.0


def run_web(settings: Settings, slot: int) -> None:
    """Be a web process until SIGTERM.

    Raises:
        PartMissing: there is no listening socket; web processes are started by `seckill serve`.
        SeckillError: as `open_stores`.
    """
    _run(settings, "web", slot, _web)


def run_worker(settings: Settings, slot: int) -> None:
    """Be an order worker until SIGTERM. Raises SeckillError as `open_stores`."""
    _run(settings, "worker", slot, _worker)


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
                _log.warning("durability", warning=warning)
            await stores.fence.keep()
            if demo:
                await open_sample_sale(stores)

    asyncio.run(prepare())


Role = Callable[[Settings, int, Metrics, asyncio.Event], Coroutine[Any, Any, None]]


def _run(settings: Settings, role: str, slot: int, work: Role) -> None:
    configure_logging(
        level=settings.log_level, log_format=settings.log_format, role=role, slot=slot
    )
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
            for task in running:
                task.cancel()


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
        app = build_app(
            WebParts(
                gate=gate,
                books=LedgerBooks(stores.ledger),
                queued=QueuedReservations(stores.buckets),
                ids=stores.ids,
                catalogue=SalesOnShow(gate, stores.buckets, stores.clock),
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
        await stack.enter_async_context(_background(
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
        worker = OrderWorker(channel=channel, ledger=stores.ledger, observer=counts)
        settle_after_start()
        report_ready()
        async with _background(
            _again("keep the buckets", _KEEP_EVERY_S, lambda: _keep(stores, counts)),
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
            away = False
        except (StockUnavailable, LedgerAway, ChannelUnavailable) as error:
            if not away:
                _log.warning("waits", doing=doing, error=str(error))
            away = True
        await asyncio.sleep(pause_s)


async def _keep(stores: Stores, counts: WorkerMetrics) -> None:
    for verdict in (await stores.fence.keep()).values():
        if verdict is Verdict.REOPENED:
            counts.reopened()


async def _measure(channel: DirectChannel, counts: WorkerMetrics) -> None:
    lag = await channel.lag()
    counts.backlog(lag.entries, lag.oldest_ms)
