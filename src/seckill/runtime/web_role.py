"""What a web process does. Apart from the other roles, which need not load an HTTP server."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterable
from contextlib import AsyncExitStack

from seckill.admission.bounds import Bounds
from seckill.admission.errors import StockUnavailable
from seckill.admission.gate import AdmissionGate
from seckill.admission.mark_reports import MarkReporter
from seckill.admission.marks import MarkWriter, make_folder_id
from seckill.domain.clock import Clock
from seckill.domain.sale import Sale
from seckill.ledger.errors import LedgerUnavailable
from seckill.ledger.mark_folders import SEEN_EVERY_MS
from seckill.payment.delivery import deliver_for_ever
from seckill.payment.sandbox import Sandbox
from seckill.payment.webhook import WebhookReader
from seckill.runtime.admin_parts import admin_parts
from seckill.runtime.bootstrap import open_stores
from seckill.runtime.contradictions import public_key_pem
from seckill.runtime.errors import PartMissing
from seckill.runtime.exposition import render
from seckill.runtime.flow_control import FlowControlParts
from seckill.runtime.gc_tuning import collect_when_idle, settle_after_start
from seckill.runtime.lifeline import listen_fd, report_ready
from seckill.runtime.logs import name_goods
from seckill.runtime.metric_table import LAYOUT
from seckill.runtime.observers import AdmissionMetrics, HTTPMetrics
from seckill.runtime.payment_desk import Desk
from seckill.runtime.pre_warming import PreWarmer
from seckill.runtime.providers import open_provider, webhook_secrets
from seckill.runtime.roles import REPORT_EVERY_S, again, background, run_role
from seckill.runtime.settings import Settings
from seckill.runtime.telemetry import Metrics
from seckill.runtime.web_ports import LedgerBooks, QueuedReservations, SalesOnShow, StoreWatch
from seckill.web.app import build_app
from seckill.web.dev_auth import DevAuth
from seckill.web.limits import WebLimits
from seckill.web.parts import WebParts
from seckill.web.ports import Authenticator
from seckill.web.server import ServerSettings, new_event_loop, serve

__all__ = ["authenticator", "bounds", "run_web"]


def run_web(settings: Settings, slot: int) -> None:
    """Be a web process until SIGTERM.

    Raises:
        PartMissing: there is no listening socket; web processes are started by `seckill serve`.
        SlotTaken: another process is this web process.
        SeckillError: as `open_stores`.
    """
    run_role(settings, "web", slot, _web, loop_factory=new_event_loop)


async def _web(settings: Settings, slot: int, metrics: Metrics, stop: asyncio.Event) -> None:
    descriptor = listen_fd()
    if descriptor is None:
        raise PartMissing("a web process needs the listening socket of `seckill serve`")
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(settings))
        flow = stack.enter_context(FlowControlParts(settings, metrics, slot))
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
                circuit=flow.circuit,
            )
        )
        here = make_folder_id(settings.data.marks)

        async def seen() -> None:
            await stores.ledger.mark_folders.seen(here, socket.gethostname())

        def sales() -> Iterable[Sale]:
            return gate.catalogue.sales.values()

        reporter = MarkReporter(
            folder=settings.data.marks, here=here, ledger=stores.fence_ledger, clock=stores.clock
        )

        async def report() -> None:
            await reporter.notice(gate.fenced_epochs)
            await reporter.report()

        await seen()  # before anybody is admitted: the fence must know where the marks are
        with contextlib.suppress(StockUnavailable):
            await gate.catalogue.refresh()
        base_url = _own_url(descriptor)
        provider = open_provider(settings, stores.clock, base_url=base_url)
        desk, sandbox = None, None
        if provider is not None:
            reader = WebhookReader(webhook_secrets(settings, provider))
            desk = Desk(stores.ledger, provider, reader)
        if isinstance(provider, Sandbox):
            sandbox = provider
            await stack.enter_async_context(
                background(deliver_for_ever(provider, f"{base_url}/payments/webhook"))
            )
        watch = StoreWatch(stores, gate)
        on_show = SalesOnShow(gate, stores.buckets, stores.clock, stores.ledger.reading)
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
                sentinel=flow.sentinel,
                addresses=flow.addresses,
                payments=desk,
                sandbox=sandbox,
                admin=admin_parts(stores),
                limits=WebLimits(
                    body_bytes_max=settings.body_bytes_max,
                    body_timeout_ms=settings.body_timeout_ms,
                    sse_streams_max=max(settings.sse_streams_max, 1),
                ),
            )
        )
        await stack.enter_async_context(
            background(
                watch.run(),
                collect_when_idle(),
                again("register the marks", SEEN_EVERY_MS / 1000, seen),
                *flow.works(),
                PreWarmer(
                    flow.sentinel,
                    sales,
                    stores.clock,
                    pre_warm=settings.pre_warm == "on",
                ).run(),
                again("report the marks", REPORT_EVERY_S, report),
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
        with contextlib.suppress(LedgerUnavailable):
            await reporter.leave(f"web-{slot}")


def _own_url(descriptor: int) -> str:
    """Where this process itself is reached: of the socket, since port 0 took a free one."""
    with socket.socket(fileno=os.dup(descriptor)) as listener:
        host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bounds(settings: Settings) -> Bounds:
    """The bounds of admission that the settings ask for."""
    return Bounds(
        batch_entries_max=settings.batch_entries_max,
        batch_bytes_max=settings.batch_bytes_max,
        queue_entries_max=settings.queue_entries_max,
        queue_wait_ms_max=settings.queue_wait_ms_max,
        sold_out_staleness_ms=settings.sold_out_staleness_ms,
    )


def authenticator(settings: Settings, clock: Clock) -> Authenticator:
    """Who says who the buyer is. The settings were checked for contradictions before."""
    if settings.auth == "dev":
        return DevAuth()
    # Only who has tokens to check pays for loading what that needs.
    from seckill.web.auth import FixedKey, JWTAuth, TokenKeys  # noqa: PLC0415
    from seckill.web.jwks import JWKSKeys  # noqa: PLC0415

    algorithm = settings.jwt_algorithm
    keys: TokenKeys
    if settings.jwt_jwks_url:
        keys = JWKSKeys(algorithm, settings.jwt_jwks_url, clock)
    elif settings.jwt_public_key:
        keys = FixedKey(algorithm, public_key_pem(settings.jwt_public_key))
    else:
        keys = FixedKey(algorithm, settings.jwt_secret.get_secret_value().encode())
    return JWTAuth(
        algorithm,
        keys,
        clock,
        audience=settings.jwt_audience or None,
        issuer=settings.jwt_issuer or None,
    )
