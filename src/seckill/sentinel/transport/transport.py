"""All that a dashboard needs of a service, as one thing to start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Self

from seckill.sentinel.transport.access import Access
from seckill.sentinel.transport.command_center import CommandCenter
from seckill.sentinel.transport.heartbeat import DASHBOARD_COUNT_MAX, Dashboard, HeartbeatSender
from seckill.sentinel.transport.http_server import HTTPServer
from seckill.sentinel.transport.metric_files import MetricFileReader, MetricFileWriter
from seckill.sentinel.transport.metric_recorder import MetricRecorder

if TYPE_CHECKING:
    from seckill.sentinel.transport.http_server import Command, Reply
    from seckill.sentinel.transport.settings import TransportSettings
    from seckill.sentinel.transport.sources import RuleTarget, StatisticsSource

_LOG: Final = logging.getLogger(__name__)


class SentinelTransport:
    """Command port, heartbeats and metric log of one service on one machine.

    Use it by ``async with``, in the one process of the machine that speaks for all::

        source = EngineSource(sentinel)
        async with SentinelTransport(source, source, TransportSettings(app="shop")) as transport:
            ...  # transport.port

    Args:
        source: of the numbers.
        target: of the rules.
        settings: everything else.
        host_name: of this machine; default its own name.

    Raises:
        ValueError: an address in the settings is none, or there are too many dashboards.
        OSError: on entering, when the address to listen on, or the metric folder, cannot be used.
        PortUnavailable: on entering, when no port can be had.

    Attributes:
        server: the command port.
        heartbeats: the sender; None outside ``async with``, and without dashboards.
        recorder: of seconds; None outside ``async with``.
    """

    def __init__(
        self,
        source: StatisticsSource,
        target: RuleTarget,
        settings: TransportSettings,
        *,
        host_name: str = "",
    ) -> None:
        self._source = source
        self._target = target
        self._settings = settings
        self._host_name = host_name or socket.gethostname()
        self._dashboards = [Dashboard.parse(one) for one in settings.dashboards]
        if len(self._dashboards) > DASHBOARD_COUNT_MAX:
            raise ValueError(f"more than {DASHBOARD_COUNT_MAX} dashboards")
        self._access = Access(
            allow=settings.allow,
            token=settings.token,
            host_names=(*settings.host_names, self._host_name),
        )
        self.server = HTTPServer(
            self._answer, access=self._access, host=settings.host, port=settings.port
        )
        self.heartbeats: HeartbeatSender | None = None
        self.recorder: MetricRecorder | None = None
        self._center: CommandCenter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """The command port that was really bound.

        Raises:
            RuntimeError: it is not open.
        """
        return self.server.port

    async def __aenter__(self) -> Self:
        settings = self._settings
        writer = reader = None
        if settings.metric_folder is not None:
            reader = MetricFileReader(settings.metric_folder, settings.app)
            writer = MetricFileWriter(
                settings.metric_folder,
                settings.app,
                file_bytes_max=settings.metric_file_bytes_max,
                file_count_max=settings.metric_file_count_max,
            )
        self.recorder = MetricRecorder(
            self._source, writer=writer, reader=reader, settle_s=settings.settle_s
        )
        self._center = CommandCenter(
            self._source,
            self._target,
            self.recorder,
            host_name=self._host_name,
            ip=self._ip,
        )
        await self.server.__aenter__()
        if settings.port not in (0, self.server.port):
            _LOG.warning(
                "port %d is taken: commands go to port %d", settings.port, self.server.port
            )
        self._tasks.append(asyncio.create_task(self.recorder.run()))
        if self._dashboards:
            self.heartbeats = HeartbeatSender(
                self._dashboards,
                app=settings.app,
                host_name=self._host_name,
                port=self.server.port,
                now_ms=self._source.now_ms,
                ip=settings.heartbeat_ip,
                interval_ms=settings.heartbeat_interval_ms,
                delay_ms=settings.heartbeat_delay_ms,
                first_told=self._warn_of_deaf_ends,
            )
            self._tasks.append(asyncio.create_task(self.heartbeats.run()))
        _LOG.info("commands are taken on %s port %d", self.server.host, self.server.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.__aexit__()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        self.heartbeats = self.recorder = self._center = None

    async def _answer(self, command: Command) -> Reply:
        assert self._center is not None, "the server runs inside"
        return await self._center.answer(command)

    def _ip(self) -> str:
        told = self.heartbeats.ip if self.heartbeats is not None else ""
        return told or self._settings.heartbeat_ip or self._settings.host

    def _warn_of_deaf_ends(self, dashboard: Dashboard, peer: str, told: str) -> None:
        """Say so when a dashboard is told an address at which it will not be heard."""
        host = self._settings.host
        if _is_loopback(host) and not _is_loopback(told):
            _LOG.warning(
                "the dashboard %s is told %s, but commands are taken on %s only: it will show this "
                "service and be unable to ask it anything. Listen on %s, and allow %s",
                dashboard,
                told,
                host,
                told,
                peer,
            )
        elif not self._access.allows(peer):
            _LOG.warning(
                "the dashboard %s asks from %s, which may not command: it will show this service "
                "and be refused. Allow %s",
                dashboard,
                peer,
                peer,
            )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
