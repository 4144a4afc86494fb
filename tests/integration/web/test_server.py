"""Real web processes on one inherited socket."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.web.http import Client, until
from seckill.runtime.bind_address import BindAddress
from seckill.runtime.errors import AddressUnusable
from seckill.runtime.listener import open_listeners
from seckill.web.server import BACKLOG

HERE = Path(__file__).parent
GET = b"GET %s HTTP/1.1\r\nhost: t\r\n\r\n"


class Processes:
    """Starts web processes, each on a socket, and leaves none behind."""

    def __init__(self) -> None:
        self.listeners = open_listeners(BindAddress("127.0.0.1", 0), 2)
        self.port: int = self.listeners[0].getsockname()[1]
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, slot: int, settings: dict[str, int] | None = None, **env: str
    ) -> subprocess.Popen[str]:
        descriptor = self.listeners[slot].fileno()
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",  # the folder has a module of the name of a standard one
                str(HERE / "small_server.py"),
                str(descriptor),
                json.dumps({"drain_ms": 100, "shutdown_grace_ms": 60_000} | (settings or {})),
            ],
            pass_fds=[descriptor],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | env,
        )
        self.started.append(process)
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "ready\n":
            assert line, "the process ended before it was ready"
        return process

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for listener in self.listeners:
            listener.close()


class Alone(Processes):
    """One process that gets all connections."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners.pop().close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


@pytest.fixture
def alone() -> Iterator[Alone]:
    started = Alone()
    yield started
    started.end()


async def connect(port: int) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port))


async def fetch(port: int, path: str = "/") -> tuple[int, str]:
    client = await connect(port)
    try:
        client.send("GET", path)
        reply = await client.reply()
        return reply.status, reply.body.decode()
    finally:
        client.writer.close()
        with contextlib.suppress(ConnectionError):
            await client.writer.wait_closed()


async def test_connections_are_spread_over_the_processes(processes: Processes) -> None:
    pids = {str(processes.start(slot).pid) for slot in (0, 1)}
    clients = await asyncio.gather(*(connect(processes.port) for _ in range(200)))
    served: Counter[str] = Counter()
    for client in clients:
        client.send("GET", "/")
        served[(await client.reply()).body.decode()] += 1
        client.writer.close()
    assert set(served) == pids
    # 200 fair coins show 60 or fewer on one side once in ten million tries.
    assert min(served.values()) > 60


async def test_a_killed_process_refuses_nobody(processes: Processes) -> None:
    """Its socket lives on in the supervisor: what comes waits for the next process."""
    first, second = processes.start(0), processes.start(1)
    first.kill()
    first.wait()
    fetching = [asyncio.create_task(fetch(processes.port)) for _ in range(100)]
    await until(lambda: sum(task.done() for task in fetching) >= 20, "the other one serves")
    third = processes.start(0)
    answers = Counter(await asyncio.gather(*fetching))
    assert set(answers) == {(200, str(second.pid)), (200, str(third.pid))}


async def test_two_processes_may_share_one_socket(alone: Alone) -> None:
    old, new = alone.start(0), alone.start(0)
    assert {status for status, _ in [await fetch(alone.port) for _ in range(20)]} == {200}
    old.kill()
    old.wait()
    answers = await asyncio.gather(*(fetch(alone.port) for _ in range(50)))
    assert set(answers) == {(200, str(new.pid))}


def test_a_taken_address_is_noticed() -> None:
    """Even by those who could share it: two services on one port would take each other's buyers."""
    held = open_listeners(BindAddress("127.0.0.1", 0), 2)
    port = held[0].getsockname()[1]
    for processes in (1, 2):
        with pytest.raises(AddressUnusable, match="in use"):
            open_listeners(BindAddress("127.0.0.1", port), processes)
    for listener in held:
        listener.close()
    again = open_listeners(BindAddress("127.0.0.1", port), 2)
    assert {listener.getsockname()[1] for listener in again} == {port}
    for listener in again:
        listener.close()


async def test_stopping_answers_what_is_under_way_and_refuses_nothing(alone: Alone) -> None:
    old = alone.start(0, {"drain_ms": 300, "shutdown_grace_ms": 120_000})
    alone.start(0)
    finished = asyncio.Event()
    outcomes: Counter[int] = Counter()

    async def buyer() -> None:
        while not finished.is_set():
            status, _ = await fetch(alone.port, "/slow")
            outcomes[status] += 1

    buyers = [asyncio.create_task(buyer()) for _ in range(20)]
    await until(lambda: outcomes[200] >= 20, "buyers are served")
    # Long before the end of its grace, which nobody needs.
    old.send_signal(signal.SIGTERM)
    await until(lambda: old.poll() is not None, "the old process ended")
    assert old.returncode == 0
    before = outcomes[200]
    await until(lambda: outcomes[200] >= before + 20, "buyers are still served")
    finished.set()
    await asyncio.gather(*buyers)
    assert set(outcomes) == {200}


async def test_open_connections_are_told_to_close_while_draining(alone: Alone) -> None:
    process = alone.start(0, {"drain_ms": 600_000, "shutdown_grace_ms": 600_000})
    busy = await connect(alone.port)
    busy.send("GET", "/")
    assert "connection" not in (await busy.reply()).headers
    process.send_signal(signal.SIGTERM)
    headers: dict[str, str] = {}
    async with asyncio.timeout(60):
        while headers.get("connection") != "close":
            busy.send("GET", "/")
            reply = await busy.reply()
            assert reply.status == 200
            headers = dict(reply.headers)
    assert await busy.closed()
    busy.writer.close()


async def test_at_the_end_of_the_drain_whatever_is_idle_is_closed(alone: Alone) -> None:
    process = alone.start(0, {"drain_ms": 300, "shutdown_grace_ms": 600_000})
    idle = await connect(alone.port)
    idle.send("GET", "/")
    assert "connection" not in (await idle.reply()).headers
    process.send_signal(signal.SIGTERM)
    assert await idle.closed()
    await until(lambda: process.poll() is not None, "ended")
    assert process.returncode == 0
    idle.writer.close()


async def test_a_request_that_never_ends_is_cut_at_the_end_of_the_grace(
    alone: Alone,
) -> None:
    process = alone.start(0, {"drain_ms": 50, "shutdown_grace_ms": 600})
    stuck = await connect(alone.port)
    stuck.send("GET", "/stuck")
    assert (await fetch(alone.port))[0] == 200
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    await until(lambda: process.poll() is not None, "ended")
    assert 0.5 < time.monotonic() - began < 30
    assert process.returncode == 0
    stuck.writer.close()


async def test_a_failing_part_ends_the_process(alone: Alone) -> None:
    """A process whose look-ups are dead must not go on serving half of the API."""
    process = alone.start(0, FAIL_AFTER_S="0.2")
    await until(lambda: process.poll() is not None, "ended")
    assert process.returncode == 1
    _, errors = process.communicate()
    assert "a part of the application failed" in errors


async def test_a_head_that_does_not_come_is_not_waited_for(alone: Alone) -> None:
    hasty = alone.start(0, {"idle_timeout_ms": 300})
    slow = await connect(alone.port)
    slow.writer.write(b"GET / HTTP/1.1\r\nhost:")
    assert await slow.closed()
    slow.writer.close()
    hasty.kill()
    hasty.wait()
    alone.start(0, {"head_bytes_max": 8_192})
    big = await connect(alone.port)
    big.writer.write(b"GET / HTTP/1.1\r\nhost: t\r\nx: " + b"x" * 20_000 + b"\r\n\r\n")
    assert (await big.reply()).status == 431
    big.writer.close()


CONNECTIONS = 10_000


@pytest.mark.slow
async def test_ten_thousand_connections_at_once_are_all_answered(alone: Alone) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"only {hard} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    process = alone.start(0)
    loop = asyncio.get_running_loop()
    outcomes: Counter[str] = Counter()
    answered = asyncio.Event()

    async def buyer() -> None:
        connection = socket.socket()
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, ("127.0.0.1", alone.port))
            await loop.sock_sendall(connection, GET % b"/")
            reply = await loop.sock_recv(connection, 4096)
            outcomes[reply[9:12].decode() or "closed"] += 1
            if outcomes.total() == CONNECTIONS:
                answered.set()
            # Held open until all have their answers: all ten thousand are there at once.
            await answered.wait()
        except OSError as error:
            outcomes[repr(error)] += 1
            answered.set()
        finally:
            connection.close()

    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(buyer() for _ in range(CONNECTIONS)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert outcomes == {"200": CONNECTIONS}
    assert BACKLOG > CONNECTIONS
    assert process.poll() is None
