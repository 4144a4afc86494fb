"""How the supervisor starts a program: by itself, or forked off one that has loaded everything."""

import asyncio
import os
import signal
import socket
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from seckill.runtime.fork_server import (
    FILES_MAX,
    MESSAGE_BYTES_MAX,
    OUTPUT,
    SOCKET_FD_VARIABLE,
    Answer,
    Born,
    Ended,
    Loaded,
    NotBorn,
    Request,
    die_with,
)
from seckill.runtime.output_tail import OutputTail

__all__ = ["Child", "ForkLauncher", "Launcher", "StartLauncher", "start_process"]

_LOAD_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 2.0
_GONE: Final = -int(signal.SIGKILL)

_decode: Final = msgspec.json.Decoder(Answer).decode


class Child(Protocol):
    """A process of the run; what `asyncio.subprocess.Process` can, as far as it is needed."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    @property
    def returncode(self) -> int | None:
        """None while it runs; its exit code, or below zero the signal that has ended it."""
        ...

    async def wait(self) -> int:
        """Wait for its end; returns `returncode`."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Signal it. Raises ProcessLookupError when it has ended."""
        ...

    def kill(self) -> None:
        """Send SIGKILL. Raises ProcessLookupError when it has ended."""
        ...


class Launcher(Protocol):
    """Starts programs of ours."""

    async def launch(self, words: Sequence[str], files: Mapping[str, int], output: int) -> Child:
        """Start one.

        Args:
            words: what it is called with: role, number, and what else `runtime.program` takes.
            files: descriptors that it gets, each under the variable that is to name it.
            output: the descriptor of its standard output and standard error.

        Raises:
            OSError: the system does not let it.
        """
        ...


class StartLauncher:
    """Starts each program by itself.

    Args:
        command: how one of this role and number is started; what else it is called with follows.
        environment: its whole environment, but for the files.
    """

    def __init__(
        self, command: Callable[[str, int], Sequence[str]], environment: Mapping[str, str]
    ) -> None:
        self._command = command
        self._environment = environment

    async def launch(self, words: Sequence[str], files: Mapping[str, int], output: int) -> Child:
        """See Launcher."""
        role, slot, *more = words
        return await start_process(
            [*self._command(role, int(slot)), *more],
            environment=self._environment,
            fds=files,
            death_signal=signal.SIGKILL,
            output=output,
        )


class ForkLauncher:
    """Forks programs off a fork server, which it starts, and starts again if that dies.

    Args:
        command: of the fork server.
        environment: of the fork server, and so of the programs.
        pass_on: takes what the fork server itself writes: why it cannot load, say.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        pass_on: Callable[[bytes], None],
    ) -> None:
        self._command = command
        self._environment = environment
        self._pass_on = pass_on
        self._variables: dict[str, str] = {}
        self._server: _Server | None = None
        self._starting = asyncio.Lock()

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """Have programs get these variables from now on."""
        self._variables = dict(variables)

    async def prepare(self) -> None:
        """Start the fork server, so that it loads while other things are done."""
        async with self._starting:
            if self._server is None or self._server.is_gone:
                if self._server is not None:
                    await self._server.close()
                self._server = await _Server.start(self._command, self._environment, self._pass_on)

    async def launch(self, words: Sequence[str], files: Mapping[str, int], output: int) -> Child:
        """See Launcher."""
        await self.prepare()
        assert self._server is not None
        return await self._server.fork(
            Request(tuple(words), self._variables, (OUTPUT, *files)), (output, *files.values())
        )

    async def close(self) -> None:
        """End the fork server. Its programs must have ended."""
        async with self._starting:
            if self._server is not None:
                await self._server.close()


class _Server:
    """One life of a fork server."""

    def __init__(self, channel: socket.socket, process: Process, output: OutputTail) -> None:
        self.is_gone = False
        self._channel = channel
        self._process = process
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[None] = self._loop.create_future()
        self._asking = asyncio.Lock()
        self._asked: asyncio.Future[_Forked] | None = None
        self._children: dict[int, _Forked] = {}
        self._loop.add_reader(channel, self._read)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        pass_on: Callable[[bytes], None],
    ) -> "_Server":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            try:
                process = await start_process(
                    command,
                    environment=environment,
                    fds={SOCKET_FD_VARIABLE: theirs.fileno()},
                    death_signal=signal.SIGKILL,
                )
            except BaseException:
                ours.close()
                raise
        output = OutputTail(pass_on)
        output.begin(process.stdout)
        return cls(ours, process, output)

    async def fork(self, request: Request, files: Sequence[int]) -> "_Forked":
        """Have a program forked off.

        Raises:
            OSError: it was refused, or the fork server has died or does not answer.
        """
        async with self._asking:
            asked: asyncio.Future[_Forked] = self._loop.create_future()
            self._asked = asked
            try:
                async with asyncio.timeout(_LOAD_TIMEOUT_S):
                    # It does not read before it has loaded; one message always has room.
                    await asyncio.shield(self._loaded)
                    self._send(request, files)
                    return await asked
            except TimeoutError:
                self._process.kill()  # alive or not, it is of no use
                raise ChildProcessError("the fork server does not answer") from None
            finally:
                self._asked = None

    def _send(self, request: Request, files: Sequence[int]) -> None:
        assert len(files) <= FILES_MAX
        try:
            socket.send_fds(self._channel, [msgspec.json.encode(request)], files)
        except OSError:
            self._lost()
            raise

    def _read(self) -> None:
        try:
            data, files, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES_MAX, 1)
        except BlockingIOError:
            return
        except OSError:
            data, files = b"", []
        if not data:
            self._lost()
            return
        match _decode(data):
            case Loaded():
                self._loaded.set_result(None)
            case Born(pid):
                child = self._children[pid] = _Forked(pid, files[0])
                if self._asked is not None and not self._asked.done():
                    self._asked.set_result(child)
                else:  # whoever asked has given up
                    child.kill()
            case NotBorn(number):
                if self._asked is not None and not self._asked.done():
                    self._asked.set_exception(OSError(number, os.strerror(number)))
            case Ended(pid, code):
                self._children.pop(pid).ended(code)

    def _lost(self) -> None:
        """The fork server is gone: the kernel ends its programs, of which nobody will tell."""
        if self.is_gone:
            return
        self.is_gone = True
        self._loop.remove_reader(self._channel)
        self._channel.close()
        for child in self._children.values():
            child.orphaned()
        self._children.clear()
        for waiting in (self._loaded, self._asked):
            if waiting is not None and not waiting.done():
                waiting.set_exception(ChildProcessError("the fork server has died"))
                waiting.exception()  # it may be that nobody waits

    async def close(self) -> None:
        """End it, and take in its last lines."""
        self._lost()
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._output.end()


class _Forked:
    """A program that was forked off: a `Child` whose end its parent tells.

    Its pidfd shows the end too, but not how it came. That counts when the parent is gone, or does
    not tell (frozen, say).
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid: Final = pid
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = self._loop.create_future()
        self._telling: asyncio.TimerHandle | None = None
        self._untold_s = _END_TIMEOUT_S
        self._loop.add_reader(pidfd, self._seen_to_end)

    @property
    def returncode(self) -> int | None:
        """See Child."""
        return self._end.result() if self._end.done() else None

    async def wait(self) -> int:
        """See Child."""
        return await asyncio.shield(self._end)

    def send_signal(self, number: int, /) -> None:
        """See Child."""
        if self._end.done():
            raise ProcessLookupError
        signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """See Child."""
        self.send_signal(signal.SIGKILL)

    def ended(self, code: int) -> None:
        """It has ended like this. Who says so first is right."""
        if not self._end.done():
            self._loop.remove_reader(self._pidfd)
            if self._telling is not None:
                self._telling.cancel()
            os.close(self._pidfd)
            self._end.set_result(code)

    def orphaned(self) -> None:
        """Its parent is gone, so the kernel ends it, and nobody will tell."""
        self._untold_s = 0.0
        if self._telling is not None:
            self.ended(_GONE)

    def _seen_to_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._telling = self._loop.call_later(self._untold_s, self.ended, _GONE)


async def start_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    fds: Mapping[str, int],
    death_signal: signal.Signals,
    output: int = PIPE,
    folder: Path | None = None,
    account: Mapping[str, Any] = MappingProxyType({}),
    open_files: Sequence[int] = (),
) -> Process:
    """Start a child in a process group of its own, with the given pipes and nothing else open.

    Args:
        fds: files that it gets, each under the variable that is to name it.
        death_signal: what the kernel is to send it when we die.
        output: what it writes to, a descriptor; a pipe if nothing is said.
        folder: its working folder; None is ours.
        account: who it runs as, in the words of subprocess; nothing is us.
        open_files: further files that stay open for it, under the same numbers.

    A group of its own, so that Ctrl-C in a terminal reaches the supervisor alone and the parts end
    in the right order.
    """
    parent = os.getpid()
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=DEVNULL,
        stdout=output,
        stderr=STDOUT,
        env={**environment, **{name: str(fd) for name, fd in fds.items()}},
        pass_fds=(*fds.values(), *open_files),
        process_group=0,
        cwd=folder,
        **account,
        preexec_fn=lambda: die_with(parent, death_signal),
    )
