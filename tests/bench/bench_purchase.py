"""What a purchase costs in the web process: µs of its processor, Redis and the kernel's sockets apart.

    python -m pytest tests/bench/bench_purchase.py -s -q

Connections without sockets are handed the bytes of a purchase each, in one turn; what is behind them
is the product's own: reading, flow control, gate, batcher, answers, metrics, and a real Redis behind
a real connection. The shortest of many turns stands a busy machine: it is the turn in which nobody
else took the processor or its caches.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from seckill.admission.gate import AdmissionGate
from seckill.admission.keys import Keys
from seckill.runtime.flow_control import RedisCircuit
from seckill.runtime.gc_tuning import settle_after_start
from seckill.runtime.metric_table import LAYOUT
from seckill.runtime.observers import HTTPMetrics
from seckill.runtime.telemetry import Metrics
from seckill.sentinel import Sentinel
from seckill.web.addresses import Addresses
from seckill.web.connection import Connection
from seckill.web.dev_auth import DevAuth
from seckill.web.flow import FlowControl
from seckill.web.hot import HotRoutes
from seckill.web.limits import WebLimits
from services.redis import RedisServer
from services.stage import make_sale, open_gate, open_sale

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

SIZES = (1, 8, 16, 48)
TURNS = 600
WARM_UP = 60


class Client:
    """Takes the place of a transport, and of the client behind it."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bytes] | None = None

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 50_000) if name == "peername" else None

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        if self.answered is not None:
            self.answered.set_result(data)


class Host:
    """Takes the place of the server."""

    tick = 0
    stopping = False
    head_bytes_max = 65_536

    def __init__(self, hot: HotRoutes) -> None:
        self.route = self.other_route = hot.route

    def made(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...


def front(gate: AdmissionGate, sentinel: Sentinel, folder: Path) -> HotRoutes:
    tasks: set[asyncio.Task[None]] = set()
    return HotRoutes(
        gate=FlowControl(
            gate, sentinel, Addresses(), lambda work: tasks.add(asyncio.ensure_future(work))
        ),
        orders=None,  # type: ignore[arg-type]
        authenticator=DevAuth(),
        metrics=HTTPMetrics(Metrics(folder, "web-0", LAYOUT)),
        limits=WebLimits(),
        draining=asyncio.Event(),
        start=lambda work: tasks.add(asyncio.ensure_future(work)),
    )


async def turns_us(hot: HotRoutes, size: int, status: bytes) -> list[float]:
    """µs of processor for each purchase, turn by turn."""
    clients = [Client() for _ in range(size)]
    connections = [Connection(Host(hot)) for _ in clients]  # type: ignore[arg-type]
    for connection, client in zip(connections, clients, strict=True):
        connection.connection_made(client)  # type: ignore[arg-type]
    found = []
    for turn in range(WARM_UP + TURNS):
        requests = [
            b"POST /seckill/1?userId=u%d-%d-%d-%d HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n\r\n"
            % (os.getpid(), size, turn, n)
            for n in range(size)
        ]
        last = clients[-1].answered = asyncio.get_running_loop().create_future()
        begun_ns = time.process_time_ns()
        for connection, request in zip(connections, requests, strict=True):
            connection.data_received(request)
        answer = await last
        found.append((time.process_time_ns() - begun_ns) / size / 1_000)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
    return found[WARM_UP:]


@pytest.mark.parametrize(
    ("stock_units", "status"), [(10_000_000, b"202"), (0, b"409")], ids=["admitted", "sold out"]
)
def test_a_purchase(
    own_redis: RedisServer, tmp_path: Path, stock_units: int, status: bytes
) -> None:
    async def run() -> dict[int, list[float]]:
        sentinel = Sentinel()
        keys = Keys(f"bench-{status.decode()}")
        async with open_gate(
            own_redis.url, keys, tmp_path / "marks", circuit=RedisCircuit(sentinel)
        ) as gate:
            await open_sale(gate.redis, keys, make_sale(stock_units=stock_units))
            await gate.gate.catalogue.refresh()
            hot = front(gate.gate, sentinel, tmp_path / "metrics")
            settle_after_start()
            return {size: await turns_us(hot, size, status) for size in SIZES}

    found = uvloop.run(run())
    for size, each in found.items():
        each.sort()
        print(  # noqa: T201  -- a measurement, shown by `-s`
            f"{size:>3} a turn: least {each[0]:.1f} µs, median {each[len(each) // 2]:.1f} µs each"
        )
