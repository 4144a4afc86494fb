"""A TCP proxy between a client and a server, for faults of the wire: slow, cut, half open, frozen."""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["TCPProxy"]

_CHUNK_BYTES = 65_536


class TCPProxy:
    """Listens on a free port of 127.0.0.1 and passes bytes to ``port`` and back.

    Attributes:
        delay_ms: each chunk of a reply waits so long on its way back; order is kept, and many
            chunks wait at the same time, as on a long wire.
        accepted: connections so far.
        bytes_up: bytes passed towards the server so far.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._deaf = False
        self.delay_ms = 0.0
        self.accepted = 0
        self.bytes_up = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._refusing = True
        self._server.close()
        self.thaw()
        self.cut()
        await self._server.wait_closed()
        async with asyncio.timeout(60):
            while self._writers:
                await asyncio.sleep(0.005)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def freeze(self) -> None:
        """Pass nothing in either direction; nothing is lost."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Reset every connection. New ones are served, unless `refuse` was called."""
        for writer in self._writers:
            writer.transport.abort()

    def refuse(self) -> None:
        """Reset every connection and each new one at once."""
        self._refusing = True
        self.cut()

    def serve_again(self) -> None:
        self._refusing = False

    def half_open(self) -> None:
        """Requests reach the server, replies are thrown away, and nobody is told."""
        self._deaf = True

    def hear_again(self) -> None:
        """Replies pass again. Connections that lost some are cut: their streams make no sense."""
        self._deaf = False
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        both = (writer, up_writer)
        self._writers.update(both)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_up(reader, up_writer, both))
                tasks.create_task(self._pass_down(up_reader, writer, both))
        finally:
            for one in both:
                one.transport.abort()
            self._writers.difference_update(both)

    async def _pass_up(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._flowing.wait()
                self.bytes_up += len(chunk)
                writer.write(chunk)
                await writer.drain()
        _abort(both)

    async def _pass_down(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._flowing.wait()
                if self._deaf:
                    continue
                if self.delay_ms:
                    loop.call_later(self.delay_ms / 1000, _late(writer, chunk))
                else:
                    writer.write(chunk)
                    await writer.drain()
        _abort(both)


def _late(writer: asyncio.StreamWriter, chunk: bytes) -> Callable[[], None]:
    def write() -> None:
        if not writer.transport.is_closing():
            writer.write(chunk)

    return write


def _abort(writers: tuple[asyncio.StreamWriter, ...]) -> None:
    for writer in writers:
        writer.transport.abort()
