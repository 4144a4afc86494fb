"""Heartbeats: how dashboards learn that this service is there, and where to ask it.

The original sends to the first dashboard of its list only, does not read the answer, and guesses
its own address. Here every dashboard gets them; a refusal is read and said; and the address is that
of the very socket which reaches the dashboard, unless another is set.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import urlencode, urlsplit

import httptools

from seckill.sentinel.transport.settings import APP_TYPE_COMMON, PROTOCOL_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PATH: Final = "/registry/machine"
BEAT_TIMEOUT_S: Final = 3.0
ANSWER_BYTES_MAX: Final = 64 * 1024
DASHBOARD_COUNT_MAX: Final = 16
HOST_NAME_LENGTH_MAX: Final = 256
REASON_LENGTH_MAX: Final = 300

_PORTS: Final = {"http": 80, "https": 443}
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Where a dashboard is.

    Attributes:
        scheme: ``http`` or ``https``.
        host: name or address, without brackets.
        port: its port.
        path: where its pages begin; empty for the root.
    """

    scheme: str
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``host:port`` or a URL. Without a port it is 80, or 443 for https.

        Raises:
            ValueError: it is neither.
        """
        address = text.strip()
        try:
            parts = urlsplit(address if "://" in address else f"http://{address}")
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{text!r} is not the address of a dashboard: {error}") from None
        if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(
                f"{text!r} is not the address of a dashboard, such as 10.0.0.5:8080 or "
                "https://sentinel.example/"
            )
        return cls(
            parts.scheme,
            parts.hostname,
            _PORTS[parts.scheme] if port is None else port,
            parts.path.rstrip("/"),
        )

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


class Sent(NamedTuple):
    """What came of one heartbeat.

    Attributes:
        ip: the address that was told; empty when the dashboard was not reached.
        problem: why it was not taken; empty when it was.
    """

    ip: str
    problem: str


@dataclass(slots=True)
class _Line:
    """What is known of one dashboard."""

    dashboard: Dashboard
    last: Sent | None = None
    accepted: int = 0
    failed: int = 0
    told_ips: set[str] = field(default_factory=set)


class HeartbeatSender:
    """Tells dashboards that this service is there.

    Args:
        dashboards: all of them get every heartbeat.
        app: the service's name.
        host_name: of this machine, as people know it.
        port: the command port, as bound.
        now_ms: the service's clock.
        ip: told instead of the address that reaches the dashboard.
        interval_ms: between two.
        delay_ms: before the first.
        timeout_s: for one to be taken.
        first_told: told once for each dashboard and address: the dashboard, its own address, and
            the one it was told. For warnings about addresses that cannot work.

    Raises:
        ValueError: more than ``DASHBOARD_COUNT_MAX`` dashboards.
    """

    def __init__(
        self,
        dashboards: Iterable[Dashboard],
        *,
        app: str,
        host_name: str,
        port: int,
        now_ms: Callable[[], int],
        ip: str = "",
        interval_ms: int = 10_000,
        delay_ms: int = 5_000,
        timeout_s: float = BEAT_TIMEOUT_S,
        first_told: Callable[[Dashboard, str, str], None] | None = None,
    ) -> None:
        self._lines = [_Line(dashboard) for dashboard in dashboards]
        if len(self._lines) > DASHBOARD_COUNT_MAX:
            raise ValueError(f"more than {DASHBOARD_COUNT_MAX} dashboards")
        self._app = app
        self._host_name = host_name[:HOST_NAME_LENGTH_MAX]
        self._port = port
        self._now_ms = now_ms
        self._ip = ip
        self._interval_s = interval_ms / 1_000
        self._delay_s = delay_ms / 1_000
        self._timeout_s = timeout_s
        self._first_told = first_told
        self._secure: ssl.SSLContext | None = None

    @property
    def accepted(self) -> dict[str, int]:
        """Heartbeats that each dashboard took, since the start; for metrics."""
        return {str(line.dashboard): line.accepted for line in self._lines}

    @property
    def failed(self) -> dict[str, int]:
        """Heartbeats that each dashboard did not take, since the start; for metrics."""
        return {str(line.dashboard): line.failed for line in self._lines}

    @property
    def ip(self) -> str:
        """The address that was told last; empty before the first heartbeat."""
        told = (line.last.ip for line in self._lines if line.last is not None)
        return self._ip or next((ip for ip in told if ip), "")

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        await asyncio.sleep(self._delay_s)
        while True:
            started_s = asyncio.get_running_loop().time()
            await self.beat()
            spent_s = asyncio.get_running_loop().time() - started_s
            await asyncio.sleep(max(0.0, self._interval_s - spent_s))

    async def beat(self) -> list[Sent]:
        """Send one heartbeat to each dashboard, all at the same time; what came of each.

        A failure is said once, until it is another one or over.
        """
        return list(await asyncio.gather(*(self._beat_one(line) for line in self._lines)))

    async def _beat_one(self, line: _Line) -> Sent:
        try:
            async with asyncio.timeout(self._timeout_s):
                sent = await self._send(line)
        except TimeoutError:
            sent = Sent("", f"no answer within {self._timeout_s:g} s")
        except Exception as error:  # noqa: BLE001  whatever ails one dashboard, the next beat is tried
            sent = Sent("", f"{error}" or type(error).__name__)
        before, line.last = line.last, sent
        if sent.problem:
            line.failed += 1
            if before is None or before.problem != sent.problem:
                _LOG.warning("no heartbeat to the dashboard %s: %s", line.dashboard, sent.problem)
        else:
            line.accepted += 1
            if before is None or before.problem:
                _LOG.info(
                    "the dashboard %s knows this service as %s:%d",
                    line.dashboard,
                    sent.ip,
                    self._port,
                )
        return sent

    async def _send(self, line: _Line) -> Sent:
        dashboard = line.dashboard
        reader, writer = await asyncio.open_connection(
            dashboard.host, dashboard.port, ssl=self._security(dashboard), limit=ANSWER_BYTES_MAX
        )
        try:
            ip = self._ip or _literal(writer.get_extra_info("sockname")[0])
            if self._first_told is not None and ip not in line.told_ips:
                line.told_ips.add(ip)
                self._first_told(dashboard, _literal(writer.get_extra_info("peername")[0]), ip)
            writer.write(self._request(dashboard, ip))
            await writer.drain()
            answer = _Answer()
            await answer.read(reader)
        finally:
            writer.transport.abort()
        return Sent(ip, answer.problem())

    def _security(self, dashboard: Dashboard) -> ssl.SSLContext | None:
        if dashboard.scheme != "https":
            return None
        if self._secure is None:
            self._secure = ssl.create_default_context()
        return self._secure

    def _request(self, dashboard: Dashboard, ip: str) -> bytes:
        form = urlencode(
            {
                "app": self._app,
                "app_type": APP_TYPE_COMMON,
                "hostname": self._host_name,
                "ip": ip,
                "port": self._port,
                "v": PROTOCOL_VERSION,
                # Not a version, whatever its name: the clock.
                "version": self._now_ms(),
            }
        ).encode()
        host = f"[{dashboard.host}]" if ":" in dashboard.host else dashboard.host
        head = (
            f"POST {dashboard.path}{PATH} HTTP/1.1\r\n"
            f"Host: {host}:{dashboard.port}\r\n"
            "Content-Type: application/x-www-form-urlencoded; charset=UTF-8\r\n"
            f"Content-Length: {len(form)}\r\n"
            "Accept: application/json\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + form


class _BadAnswer(Exception):  # noqa: N818  it is one
    """What answered does not speak HTTP, or says too much, or too little."""


class _Answer:
    """The answer of a dashboard. Its ``on_`` methods are the parser's callbacks."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False
        self.status = 0

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read it to its end.

        Raises:
            _BadAnswer: it is none.
        """
        parser = httptools.HttpResponseParser(self)
        read = 0
        while not self.complete:
            data = await reader.read(ANSWER_BYTES_MAX)
            read += len(data)
            if not data or read > ANSWER_BYTES_MAX:
                break
            try:
                parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                raise _BadAnswer(f"the answer is not HTTP: {error}") from error
        if not read:
            raise _BadAnswer("the connection was closed without an answer")
        if read > ANSWER_BYTES_MAX:
            raise _BadAnswer(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
        self.status = parser.get_status_code()

    def problem(self) -> str:
        """Why the dashboard did not take the heartbeat; empty when it did."""
        if self.status != HTTPStatus.OK:
            return f"it answered with status {self.status}"
        try:
            said = json.loads(bytes(self.body))
        except (ValueError, RecursionError):
            # The original asks for the status alone, and so may others that speak like it.
            return ""
        if isinstance(said, dict) and said.get("success") is False:
            return f"it refused: {said.get('msg')!s}"[:REASON_LENGTH_MAX]
        return ""


def _literal(address: str) -> str:
    """An address as the dashboard takes it: without a zone, IPv4 as IPv4."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found)
