"""The processes that a run is made of: how each is started, is known to be ready, and is ended."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from seckill.runtime.embedded_postgres import EmbeddedPostgres, as_account
from seckill.runtime.embedded_redis import EmbeddedRedis
from seckill.runtime.errors import PartFailed
from seckill.runtime.launching import Child, Launcher, start_process
from seckill.runtime.lifeline import (
    LIFELINE_FD_VARIABLE,
    LISTEN_FD_VARIABLE,
    READY_BYTE,
    READY_FD_VARIABLE,
)
from seckill.runtime.output_tail import OutputTail

if TYPE_CHECKING:
    from seckill.runtime.embedded_kafka import EmbeddedKafka

__all__ = [
    "KafkaPart",
    "Part",
    "PostgresPart",
    "ProgramPart",
    "RedisPart",
    "part_failed",
]


class Part(Protocol):
    """One process of the run, seen by its keeper."""

    @property
    def role(self) -> str:
        """Such as ``web``."""
        ...

    @property
    def slot(self) -> int:
        """Number among those of its role."""
        ...

    async def start(self) -> Child:
        """Start it. Raises OSError when the system does not let it."""
        ...

    async def wait_ready(self, process: Child) -> None:
        """Wait until it does its work; may wait for ever when it dies before that.

        Raises:
            SeckillError: it will not, and starting it again cannot help.
        """
        ...

    async def ask_to_stop(self, process: Child) -> None:
        """Ask it to come to an orderly end. Does not wait for that."""
        ...

    async def clear_up(self) -> None:
        """To be called after its end: take in what it wrote last, close what was for this life."""
        ...

    def last_words(self) -> str:
        """What it wrote last, on one line; may be empty."""
        ...


class ProgramPart:
    """A program of ours: it tells through a pipe that it is ready, and ends at SIGTERM.

    Args:
        launcher: starts it.
        lifeline_fd: read end of the pipe whose other end only the supervisor holds.
        listen_fd: the listening socket, for a web process.
        pass_on: takes what it writes.
    """

    def __init__(
        self,
        role: str,
        slot: int,
        *,
        launcher: Launcher,
        lifeline_fd: int,
        listen_fd: int | None,
        pass_on: Callable[[bytes], None],
    ) -> None:
        self.role: Final = role
        self.slot: Final = slot
        self._launcher = launcher
        self._fds = {LIFELINE_FD_VARIABLE: lifeline_fd}
        if listen_fd is not None:
            self._fds[LISTEN_FD_VARIABLE] = listen_fd
        self._output = OutputTail(pass_on)
        self._ready: _ReadyPipe | None = None

    async def start(self) -> Child:
        """Start it with fresh pipes for its readiness and its words."""
        output = await self._output.begin_pipe()
        ready_read, ready_write = os.pipe()
        try:
            process = await self._launcher.launch(
                (self.role, str(self.slot)), self._fds | {READY_FD_VARIABLE: ready_write}, output
            )
        except BaseException:
            os.close(ready_read)
            raise
        finally:
            os.close(ready_write)
            os.close(output)
        self._ready = _ReadyPipe(ready_read)
        return process

    async def wait_ready(self, process: Child) -> None:
        """Wait for the byte. Without it, the process has died or will not tell: wait for ever."""
        _ = process
        assert self._ready is not None
        await self._ready.came

    async def ask_to_stop(self, process: Child) -> None:
        """Send SIGTERM."""
        _send(process, signal.SIGTERM)

    async def clear_up(self) -> None:
        """Take in its last lines, close the pipe."""
        await self._output.end()
        if self._ready is not None:
            self._ready.close()

    def last_words(self) -> str:
        """The last lines that it wrote."""
        return self._output.text()


class RedisPart:
    """The Redis server of our own, which is asked over its own protocol."""

    role: Final = "redis"
    slot: Final = 0

    def __init__(self, redis: EmbeddedRedis, *, pass_on: Callable[[bytes], None]) -> None:
        self._redis = redis
        self._output = OutputTail(pass_on)

    async def start(self) -> Child:
        """Start the server on its configuration. When the supervisor dies it ends by itself."""
        self._redis.note_start()
        process = await start_process(
            self._redis.command, environment=os.environ, fds={}, death_signal=signal.SIGTERM
        )
        self._output.begin(process.stdout)
        return process

    async def wait_ready(self, process: Child) -> None:
        """Wait until it has loaded its data and answers."""
        await self._redis.wait_ready(process.pid)

    async def ask_to_stop(self, process: Child) -> None:
        """Send SHUTDOWN; where that is refused, SIGTERM, which it takes as the same."""
        if not await self._redis.ask_to_stop():
            _send(process, signal.SIGTERM)

    async def clear_up(self) -> None:
        """Take in its last lines."""
        await self._output.end()

    def last_words(self) -> str:
        """The last warnings of its log, or what it said before it had one."""
        return self._redis.last_words() or self._output.text()


class KafkaPart:
    """The Kafka broker of our own, which is asked over its own protocol."""

    role: Final = "kafka"
    slot: Final = 0

    def __init__(self, kafka: "EmbeddedKafka", *, pass_on: Callable[[bytes], None]) -> None:
        self._kafka = kafka
        self._output = OutputTail(pass_on)

    async def start(self) -> Child:
        """Start the broker on its configuration. When the supervisor dies it ends by itself."""
        process = await start_process(
            self._kafka.command,
            environment=self._kafka.environment,
            fds={},
            death_signal=signal.SIGTERM,
            folder=self._kafka.folder,
        )
        self._kafka.note_start(process.pid)
        self._output.begin(process.stdout)
        return process

    async def wait_ready(self, process: Child) -> None:
        """Wait until it answers."""
        _ = process
        await self._kafka.wait_ready()

    async def ask_to_stop(self, process: Child) -> None:
        """Send SIGTERM, at which it writes out everything and ends."""
        _send(process, signal.SIGTERM)

    async def clear_up(self) -> None:
        """Take in its last lines."""
        await self._output.end()

    def last_words(self) -> str:
        """The last warnings of its log, or what it said before it had one."""
        return self._kafka.last_words() or self._output.text()


class PostgresPart:
    """The PostgreSQL server of our own. What it says is in its own log, and not in ours."""

    role: Final = "postgres"
    slot: Final = 0

    def __init__(self, postgres: EmbeddedPostgres) -> None:
        self._postgres = postgres
        self._output = OutputTail(lambda _lines: None)

    async def start(self) -> Child:
        """Start the server inside of its data. When the supervisor dies it ends by itself."""
        self._postgres.note_start()
        process = await start_process(
            self._postgres.command,
            environment=os.environ,
            fds={},
            death_signal=signal.SIGINT,
            folder=Path("/"),
            account=as_account(self._postgres.account),
            open_files=self._postgres.open_files,
        )
        self._output.begin(process.stdout)
        return process

    async def wait_ready(self, process: Child) -> None:
        """Wait until it takes connections."""
        await self._postgres.wait_ready(process.pid)

    async def ask_to_stop(self, process: Child) -> None:
        """Send SIGINT: it ends every connection, writes out everything and ends."""
        _send(process, signal.SIGINT)

    async def clear_up(self) -> None:
        """Take in its last lines."""
        await self._output.end()

    def last_words(self) -> str:
        """The last warnings of its log, or what it said before it had one."""
        return self._postgres.last_words() or self._output.text()


class _ReadyPipe:
    """The read end of a pipe through which a child says that it is ready.

    Attributes:
        came: done when the byte has come; never when the pipe ends without it.
    """

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = fd
        self.came: Final[asyncio.Future[None]] = self._loop.create_future()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read, fd)

    def _read(self, fd: int) -> None:
        try:
            byte = os.read(fd, 1)
        except BlockingIOError:
            return
        except OSError:
            byte = b""
        self.close()
        if byte == READY_BYTE and not self.came.done():
            self.came.set_result(None)

    def close(self) -> None:
        """Close the pipe; safe to call again."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


def _send(process: Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def part_failed(part: Part, reason: str) -> PartFailed:
    """The error that ends a run because of this part."""
    return PartFailed(part.role, part.slot, reason, part.last_words())
