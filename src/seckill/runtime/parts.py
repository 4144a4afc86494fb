"""The processes that a run is made of: how each is started, is known to be ready, and is ended."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from seckill.runtime.embedded_postgres import EmbeddedPostgres, as_account
from seckill.runtime.embedded_redis import EmbeddedRedis
from seckill.runtime.errors import PartFailed
from seckill.runtime.lifeline import (
    LIFELINE_FD_VARIABLE,
    LISTEN_FD_VARIABLE,
    READY_BYTE,
    READY_FD_VARIABLE,
)

if TYPE_CHECKING:
    from seckill.runtime.embedded_kafka import EmbeddedKafka

__all__ = [
    "KafkaPart",
    "OutputTail",
    "Part",
    "PostgresPart",
    "ProgramPart",
    "RedisPart",
    "part_failed",
]

_TAIL_LINES: Final = 5
_LINE_BYTES_MAX: Final = 8_192
_CHUNK_BYTES: Final = 65_536
_LAST_LINES_S: Final = 0.2
_SET_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of prctl(2)
# Looked up once, before any fork: a fork of a process with threads must not load libraries.
_PRCTL: Final = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


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

    async def start(self) -> Process:
        """Start it. Raises OSError when the system does not let it."""
        ...

    async def wait_ready(self, process: Process) -> None:
        """Wait until it does its work; may wait for ever when it dies before that.

        Raises:
            SeckillError: it will not, and starting it again cannot help.
        """
        ...

    async def ask_to_stop(self, process: Process) -> None:
        """Ask it to come to an orderly end. Does not wait for that."""
        ...

    async def clear_up(self) -> None:
        """To be called after its end: take in what it wrote last, close what was for this life."""
        ...

    def last_words(self) -> str:
        """What it wrote last, on one line; may be empty."""
        ...


class OutputTail:
    """Passes on what a child writes, line by line, and remembers the end of it.

    Args:
        pass_on: takes whole lines, as bytes with their line end.
    """

    def __init__(self, pass_on: Callable[[bytes], None]) -> None:
        self._pass_on = pass_on
        self._lines: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._task: asyncio.Task[None] | None = None

    def begin(self, stream: asyncio.StreamReader | None) -> None:
        """Carry until the child has closed its side."""
        assert stream is not None
        self._lines.clear()
        self._task = asyncio.create_task(self._carry(stream), name="carry output")

    async def end(self) -> None:
        """Take in the last lines of a child that has died.

        Does not wait for ever: a process that it started may still hold the pipe.
        """
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_LAST_LINES_S)
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _carry(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stream.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:  # a line without end must not grow here
                lines, rest = [*lines, rest], b""
            self._take(lines)
        if rest:
            self._take([rest])

    def _take(self, lines: Sequence[bytes]) -> None:
        if lines:
            self._lines.extend(line for line in lines if line.strip())
            self._pass_on(b"\n".join(lines) + b"\n")

    def text(self) -> str:
        """The last lines as one."""
        return " / ".join(line.decode("utf-8", "replace").strip() for line in self._lines)


class ProgramPart:
    """A program of ours: it tells through a pipe that it is ready, and ends at SIGTERM.

    Args:
        command: program and arguments.
        environment: its whole environment, but for the pipes.
        lifeline_fd: read end of the pipe whose other end only the supervisor holds.
        listen_fd: the listening socket, for a web process.
        pass_on: takes what it writes.
    """

    def __init__(
        self,
        role: str,
        slot: int,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        lifeline_fd: int,
        listen_fd: int | None,
        pass_on: Callable[[bytes], None],
    ) -> None:
        self.role: Final = role
        self.slot: Final = slot
        self._command = command
        self._environment = environment
        self._fds = {LIFELINE_FD_VARIABLE: lifeline_fd}
        if listen_fd is not None:
            self._fds[LISTEN_FD_VARIABLE] = listen_fd
        self._output = OutputTail(pass_on)
        self._ready: _ReadyPipe | None = None

    async def start(self) -> Process:
        """Start it with a fresh pipe for its readiness."""
        ready_read, ready_write = os.pipe()
        try:
            process = await _spawn(
                self._command,
                environment=self._environment,
                fds=self._fds | {READY_FD_VARIABLE: ready_write},
                death_signal=signal.SIGKILL,
            )
        except BaseException:
            os.close(ready_read)
            raise
        finally:
            os.close(ready_write)
        self._ready = _ReadyPipe(ready_read)
        self._output.begin(process.stdout)
        return process

    async def wait_ready(self, process: Process) -> None:
        """Wait for the byte. Without it, the process has died or will not tell: wait for ever."""
        _ = process
        assert self._ready is not None
        await self._ready.came

    async def ask_to_stop(self, process: Process) -> None:
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

    async def start(self) -> Process:
        """Start the server on its configuration. When the supervisor dies it ends by itself."""
        self._redis.note_start()
        process = await _spawn(
            self._redis.command, environment=os.environ, fds={}, death_signal=signal.SIGTERM
        )
        self._output.begin(process.stdout)
        return process

    async def wait_ready(self, process: Process) -> None:
        """Wait until it has loaded its data and answers."""
        await self._redis.wait_ready(process.pid)

    async def ask_to_stop(self, process: Process) -> None:
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

    async def start(self) -> Process:
        """Start the broker on its configuration. When the supervisor dies it ends by itself."""
        process = await _spawn(
            self._kafka.command,
            environment=self._kafka.environment,
            fds={},
            death_signal=signal.SIGTERM,
            folder=self._kafka.folder,
        )
        self._kafka.note_start(process.pid)
        self._output.begin(process.stdout)
        return process

    async def wait_ready(self, process: Process) -> None:
        """Wait until it answers."""
        _ = process
        await self._kafka.wait_ready()

    async def ask_to_stop(self, process: Process) -> None:
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

    async def start(self) -> Process:
        """Start the server inside of its data. When the supervisor dies it ends by itself."""
        self._postgres.note_start()
        process = await _spawn(
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

    async def wait_ready(self, process: Process) -> None:
        """Wait until it takes connections."""
        await self._postgres.wait_ready(process.pid)

    async def ask_to_stop(self, process: Process) -> None:
        """Send SIGINT: it ends every connection, writes out everything and ends."""
        _send(process, signal.SIGINT)

    async def clear_up(self) -> None:
        """Take in its last lines."""
        await self._output.end()

    def last_words(self) -> str:
        """The last warnings of its log, or what it said before it had one."""
        return self._postgres.last_words() or self._output.text()


async def _spawn(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    fds: Mapping[str, int],
    death_signal: signal.Signals,
    folder: Path | None = None,
    account: Mapping[str, Any] = MappingProxyType({}),
    open_files: Sequence[int] = (),
) -> Process:
    """Start a child in a process group of its own, with the given pipes and nothing else open.

    Args:
        folder: its working folder; None is ours.
        account: who it runs as, in the words of subprocess; nothing is us.
        open_files: further files that stay open for it, under the same numbers.

    A group of its own, so that Ctrl-C in a terminal reaches the supervisor alone and the parts end
    in the right order.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        if _PRCTL is not None:
            _PRCTL(_SET_DEATH_SIGNAL, int(death_signal), 0, 0, 0)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

    return await asyncio.create_subprocess_exec(
        *command,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        env={**environment, **{name: str(fd) for name, fd in fds.items()}},
        pass_fds=(*fds.values(), *open_files),
        process_group=0,
        cwd=folder,
        **account,
        preexec_fn=die_with_parent,
    )


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


def _send(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def part_failed(part: Part, reason: str) -> PartFailed:
    """The error that ends a run because of this part."""
    return PartFailed(part.role, part.slot, reason, part.last_words())
