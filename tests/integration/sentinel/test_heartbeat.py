"""Heartbeats, against real servers that answer as dashboards do, or as nobody should."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest

from seckill.sentinel.transport import Dashboard, HeartbeatSender

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TAKEN = b'{"success":true,"code":0,"msg":"success","data":null}'
DEADLINE_S = 60


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class Console:
    """A tiny dashboard: keeps what it was sent, and answers what it is told to."""

    def __init__(self, reply: bytes | None = None) -> None:
        self.reply = answer(TAKEN) if reply is None else reply
        self.requests: list[bytes] = []
        self.came = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self.requests.append(head + await reader.readexactly(length))
            self.came.set()
            writer.write(self.reply)
            await writer.drain()
            if not self.reply:
                await reader.read()
        writer.close()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Console]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    @property
    def dashboard(self) -> Dashboard:
        return Dashboard.parse(f"127.0.0.1:{self.port}")


def sender(*dashboards: Dashboard, **more: object) -> HeartbeatSender:
    known = {
        "app": "小店 & co",
        "host_name": "web-1",
        "port": 8_720,
        "now_ms": lambda: 1_764_579_252_000,
        "timeout_s": 60.0,
    }
    return HeartbeatSender(dashboards, **(known | more))  # type: ignore[arg-type]


async def test_a_heartbeat_says_all_that_the_dashboard_wants() -> None:
    async with Console().open() as console:
        sent = await sender(console.dashboard).beat()
    assert sent == [("127.0.0.1", "")]
    head, _, body = console.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /registry/machine HTTP/1.1\r\n")
    assert b"Content-Type: application/x-www-form-urlencoded" in head
    assert parse_qs(body.decode(), strict_parsing=True) == {
        "app": ["小店 & co"],
        "app_type": ["0"],
        "hostname": ["web-1"],
        "ip": ["127.0.0.1"],
        "port": ["8720"],
        "v": ["1.8.8"],
        "version": ["1764579252000"],
    }


async def test_every_dashboard_gets_it_even_if_the_first_is_dead() -> None:
    async with Console().open() as dead:
        pass
    async with Console().open() as one, Console().open() as two:
        it = sender(dead.dashboard, one.dashboard, two.dashboard)
        sent = await it.beat()
    assert [bool(found.problem) for found in sent] == [True, False, False]
    assert (len(one.requests), len(two.requests)) == (1, 1)
    assert list(it.accepted.values()) == [0, 1, 1]
    assert list(it.failed.values()) == [1, 0, 0]


async def test_the_address_can_be_set() -> None:
    async with Console().open() as console:
        it = sender(console.dashboard, ip="10.0.0.7")
        assert it.ip == "10.0.0.7"
        await it.beat()
    assert b"ip=10.0.0.7" in console.requests[0]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (answer(b'{"success":false,"code":-1,"msg":"ip can\'t be null"}'), "ip can't be null"),
        (answer(b"who?", b"404 Not Found"), "status 404"),
        (answer(b"", b"302 Found"), "status 302"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000, "longer than"),
        (b"", "no answer within"),
    ],
    ids=["refused", "missing", "moved", "not-http", "endless", "silent"],
)
async def test_what_is_no_success_is_said_once(
    reply: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with Console(reply).open() as console:
        it = sender(console.dashboard, timeout_s=0.2)
        for _ in range(3):
            (sent,) = await it.beat()
            assert problem in sent.problem
        assert caplog.text.count("no heartbeat") == 1
        console.reply = answer(TAKEN)
        for _ in range(2):
            assert (await it.beat())[0].problem == ""
    assert caplog.text.count("knows this service") == 1


@pytest.mark.parametrize("body", [b"", b"OK", b"[]", b'{"success":true}'])
async def test_status_200_without_a_refusal_is_success(body: bytes) -> None:
    async with Console(answer(body)).open() as console:
        assert (await sender(console.dashboard).beat())[0].problem == ""


async def test_heartbeats_go_on_and_on() -> None:
    async with Console().open() as console, asyncio.timeout(DEADLINE_S):
        running = asyncio.create_task(sender(console.dashboard, delay_ms=10, interval_ms=10).run())
        while len(console.requests) < 3:
            console.came.clear()
            await console.came.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_the_first_comes_after_the_delay_and_not_before() -> None:
    async with Console().open() as console:
        running = asyncio.create_task(sender(console.dashboard, delay_ms=60_000).run())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await console.came.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10.0.0.5:8080", "http://10.0.0.5:8080"),
        ("http://console", "http://console:80"),
        ("https://console/sentinel/", "https://console:443/sentinel"),
        (" [::1]:8080 ", "http://[::1]:8080"),
    ],
)
def test_addresses_of_dashboards(text: str, shown: str) -> None:
    assert str(Dashboard.parse(text)) == shown


@pytest.mark.parametrize(
    "text", ["", "ftp://x", "http://", "x:y", "x:99999", "http://x/?a=b", "[::1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the address of a dashboard"):
        Dashboard.parse(text)


def test_dashboards_are_bounded() -> None:
    with pytest.raises(ValueError, match="more than 16"):
        sender(*[Dashboard.parse("x")] * 17)
