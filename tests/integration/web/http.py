"""A small HTTP/1.1 client that shows what is on the wire, and a server to talk to."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from seckill.runtime.bind_address import BindAddress
from seckill.runtime.listener import open_listeners
from seckill.web.app import WebApp, build_app
from seckill.web.server import ServerSettings, serve
from unit.web.doubles import World


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(
        self,
        method: str,
        path: str | bytes,
        headers: Mapping[str, str | bytes] | list[tuple[str, str | bytes]] | None = None,
        body: bytes | None = None,
    ) -> None:
        raw_path = path.encode() if isinstance(path, str) else path
        lines = [method.encode() + b" " + raw_path + b" HTTP/1.1", b"host: test"]
        pairs = list(headers.items()) if isinstance(headers, Mapping) else (headers or [])
        for name, value in pairs:
            raw = value.encode() if isinstance(value, str) else value
            lines.append(name.encode() + b": " + raw)
        if body is not None and not any(
            name.lower() in {"content-length", "transfer-encoding"} for name, _ in pairs
        ):
            lines.append(b"content-length: %d" % len(body))
        self.writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + (body or b""))

    async def head(self) -> tuple[int, dict[str, str]]:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *rest = text.split("\r\n")
        headers = {}
        for line in rest:
            if line:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
        return int(first.split(" ")[1]), headers

    async def reply(self, *, to_head: bool = False) -> Reply:
        async with asyncio.timeout(60):
            status, headers = await self.head()
            body = b""
            if not to_head and status != 204:
                if "content-length" in headers:
                    body = await self.reader.readexactly(int(headers["content-length"]))
                elif headers.get("transfer-encoding") == "chunked":
                    while chunk := await self.chunk():
                        body += chunk
            return Reply(status, headers, body)

    async def chunk(self) -> bytes:
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def closed(self) -> bool:
        async with asyncio.timeout(60):
            return await self.reader.read(1) == b""


class Service:
    """The application behind the real server, in this event loop."""

    def __init__(self, world: World, app: WebApp, port: int, stop: asyncio.Event) -> None:
        self.world = world
        self.app = app
        self.port = port
        self.stop = stop

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def ask(
        self,
        method: str,
        path: str | bytes,
        headers: Mapping[str, str | bytes] | list[tuple[str, str | bytes]] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        async with self.connect() as client:
            client.send(method, path, headers, body)
            return await client.reply(to_head=method == "HEAD")


@contextlib.asynccontextmanager
async def running(world: World, settings: ServerSettings | None = None) -> AsyncIterator[Service]:
    [listener] = open_listeners(BindAddress("127.0.0.1", 0), 1)
    stop = asyncio.Event()
    app = build_app(world.parts)
    serving = asyncio.create_task(
        serve(app, listener, settings or ServerSettings(drain_ms=0, shutdown_grace_ms=60_000), stop)
    )
    try:
        yield Service(world, app, listener.getsockname()[1], stop)
    finally:
        stop.set()
        await serving
        listener.close()


async def until(condition: Any, what: str, seconds: float = 60) -> None:
    """Wait until ``condition()`` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
    assert condition(), what
