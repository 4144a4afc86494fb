"""What the one process of a host does that speaks for it to a Sentinel dashboard.

It serves no buyer and holds up none: when it cannot take its port it says so and tries again, and
when it dies it is started anew. Rules that are set through it are stored; the web processes, which
look after the store, take them up within half a second.
"""

import asyncio
import contextlib
from typing import Final

import structlog

from seckill.runtime.bind_address import BindAddress
from seckill.runtime.data_dir import write_atomically
from seckill.runtime.flow_control import FlowSwitch, make_sentinel
from seckill.runtime.flow_statistics import PublishedStatistics, statistics_file
from seckill.runtime.gc_tuning import collect_when_idle
from seckill.runtime.lifeline import report_ready
from seckill.runtime.roles import background, run_role
from seckill.runtime.rule_stores import open_rules
from seckill.runtime.settings import Settings
from seckill.runtime.telemetry import Metrics
from seckill.sentinel import Change, LoadReport, Sentinel
from seckill.sentinel.stores import RuleFollower
from seckill.sentinel.transport import (
    EngineSource,
    SentinelTransport,
    SummedSource,
    TransportError,
    TransportSettings,
)

__all__ = ["run_sentinel"]

_LOG: Final = structlog.get_logger(__name__)

_AGAIN_S: Final = 5.0
_SETTLE_S: Final = 5
"""A second is written so long after its end: by then every process has told of it, a busy one too.
The dashboard has it earlier, from memory."""


def run_sentinel(settings: Settings, slot: int) -> None:
    """Be that process until SIGTERM.

    Raises:
        RulesUnusable: the stored rules cannot be read.
        SlotTaken: another process is this one.
    """
    run_role(settings, "sentinel", slot, _sentinel)


async def _sentinel(
    settings: Settings,
    _slot: int,
    _metrics: Metrics,
    stop: asyncio.Event,
) -> None:
    store = open_rules(settings)
    sentinel = make_sentinel(store)
    switch = FlowSwitch(settings.data)
    switch.set(enabled=True)
    settings.data.command_port.unlink(missing_ok=True)
    for slot in range(settings.workers):
        # What an earlier run told last; who runs tells again within a second.
        statistics_file(settings.data, slot).unlink(missing_ok=True)
    async with background(RuleFollower(sentinel, store).run(), collect_when_idle()):
        while not stop.is_set():
            try:
                await _serve(settings, sentinel, switch, stop)
            except (OSError, TransportError) as error:
                _LOG.error(
                    "the command port of flow control cannot be opened; the sale is not concerned",
                    bind=settings.sentinel_bind,
                    error=str(error),
                )
                report_ready()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _AGAIN_S)


async def _serve(
    settings: Settings, sentinel: Sentinel, switch: FlowSwitch, stop: asyncio.Event
) -> None:
    bind = BindAddress.parse(settings.sentinel_bind)
    published = [
        PublishedStatistics(statistics_file(settings.data, slot), sentinel.clock.now_ms)
        for slot in range(settings.workers)
    ]
    transport = SentinelTransport(
        SummedSource(
            lambda: [one for one in published if one.is_there()], now_ms=sentinel.clock.now_ms
        ),
        HostRules(sentinel, switch),
        TransportSettings(
            app=settings.sentinel_app,
            host=bind.host,
            port=bind.port,
            allow=settings.command_networks,
            token=settings.sentinel_token.get_secret_value(),
            dashboards=settings.dashboards,
            metric_folder=settings.data.flow_seconds,
            settle_s=_SETTLE_S,
        ),
    )
    address = settings.data.command_port
    async with transport:
        write_atomically(address, f"{BindAddress(bind.host, transport.port)}".encode())
        report_ready()
        try:
            await stop.wait()
        finally:
            address.unlink(missing_ok=True)


class HostRules:
    """A `RuleTarget`: rules go to the store and the switch to a file, where every process looks."""

    def __init__(self, sentinel: Sentinel, switch: FlowSwitch) -> None:
        self._rules = EngineSource(sentinel)
        self._switch = switch

    async def dump_rules(self, kind: str) -> str:
        """See RuleTarget."""
        return await self._rules.dump_rules(kind)

    async def load_rules(self, kind: str, document: str, change: Change) -> LoadReport:
        """See RuleTarget."""
        return await self._rules.load_rules(kind, document, change)

    async def enabled(self) -> bool:
        """See RuleTarget."""
        return self._switch.enabled()

    async def set_enabled(self, *, enabled: bool) -> None:
        """See RuleTarget."""
        self._switch.set(enabled=enabled)
