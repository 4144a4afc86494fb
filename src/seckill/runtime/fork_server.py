"""The process that the programs of a run are forked off: it has loaded once what all of them need.

Loading is nearly all that a start costs: a program that dies is back in a fifth of a second instead
of one, and what is loaded lies in memory once. Like the fork server of `multiprocessing`, and apart
from that because a program here is a child with its own log, pipes and death signal.

It speaks with the supervisor over a pair of ``SOCK_SEQPACKET`` sockets, one message a packet:

=======================  =========================================================================
from the supervisor      ``Request``, with its files
to the supervisor        ``Loaded`` once, then for each request ``Born`` with a pidfd or
                         ``NotBorn``; and ``Ended`` for each program that has ended
=======================  =========================================================================

It has one thread and serves nothing, so a fork finds no lock taken. It ends when the supervisor's
end of the pair is closed. When it is killed, the kernel takes its programs with it, as it takes
the fork server when the supervisor is killed; whoever keeps the programs starts both again.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final

import msgspec

from seckill.runtime.gc_tuning import settle_after_start

__all__ = [
    "FILES_MAX",
    "MESSAGE_BYTES_MAX",
    "OUTPUT",
    "SOCKET_FD_VARIABLE",
    "Answer",
    "Born",
    "Ended",
    "Loaded",
    "NotBorn",
    "Request",
    "can_fork",
    "die_with",
    "serve_forks",
]

SOCKET_FD_VARIABLE: Final = "SECKILL_FORK_SERVER_FD"
OUTPUT: Final = "output"
"""Name of the file that a program writes to, its standard output and standard error."""

FILES_MAX: Final = 8
MESSAGE_BYTES_MAX: Final = 131_072

_SET_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of prctl(2)
# Looked up once, before any fork.
_PRCTL: Final = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_HELD_BACK: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Request(msgspec.Struct, frozen=True):
    """Fork a program off.

    Attributes:
        words: what it is called with, such as ``web 0``.
        environment: variables, besides those of the fork server.
        files: what the files are that come along, in order: OUTPUT, or a variable that is to name
            the descriptor.
    """

    words: tuple[str, ...]
    environment: dict[str, str]
    files: tuple[str, ...]


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """Everything is loaded: programs can be forked off."""


class Born(msgspec.Struct, frozen=True, tag=True):
    """A program was forked off. Its pidfd comes along: its number alone could be used again."""

    pid: int


class NotBorn(msgspec.Struct, frozen=True, tag=True):
    """The system has refused the fork."""

    errno: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A program has ended: an exit code, or below zero the signal, as in `subprocess`."""

    pid: int
    code: int


Answer = Loaded | Born | NotBorn | Ended

_decode: Final = msgspec.json.Decoder(Request).decode


def can_fork() -> bool:
    """Whether there can be a fork server here: Linux with pidfds (5.3), and nobody forbids them."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def serve_forks(modules: Iterable[str]) -> list[str] | None:
    """Be the fork server, in the process that the supervisor has started for it.

    Args:
        modules: what to load before the first fork.

    Returns:
        In a program that was forked off: the words that it is called with; it is to run as if it
        had been started with them. None in the fork server, when the supervisor is gone.
    """
    channel = socket.socket(fileno=int(os.environ.pop(SOCKET_FD_VARIABLE)))
    channel.set_inheritable(False)
    for module in modules:
        import_module(module)
    settle_after_start()  # no collection of any program is to walk, and so copy, what is loaded
    try:
        return _ForkServer(channel).run()
    except (BrokenPipeError, ConnectionResetError):
        return None


class _ForkServer:
    """The fork server at work: waits for requests, and for programs that end."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        # Whoever ends a whole group of processes at once (systemd, say) means the programs to end
        # in order, which they do by themselves; this one ends behind them, with the supervisor.
        self._dispositions = {
            number: signal.signal(number, signal.SIG_IGN) for number in _HELD_BACK
        }
        self._wake, self._wake_write = os.pipe()
        for end in (self._wake, self._wake_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def run(self) -> list[str] | None:
        """See `serve_forks`."""
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        waiting.register(self._wake, select.POLLIN)
        self._tell(Loaded())
        while True:
            ready = {file for file, _ in waiting.poll()}
            self._tell_ended()
            if self._channel.fileno() not in ready:
                continue
            data, files, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES_MAX, FILES_MAX)
            if not data:
                return None
            if self._fork():
                return _as_asked(_decode(data), files)
            for file in files:
                os.close(file)

    def _tell(self, answer: Answer, *files: int) -> None:
        socket.send_fds(self._channel, [msgspec.json.encode(answer)], files)

    def _tell_ended(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = found
                self._tell(Ended(pid, os.waitstatus_to_exitcode(status)))

    def _fork(self) -> bool:
        """Fork, and tell of it. True in the child, which has its own group and signals."""
        parent = os.getpid()
        # A signal that meets the child before it is ready for it waits; ignored, it would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
        try:
            try:
                pid = os.fork()
            except OSError as error:
                self._tell(NotBorn(error.errno or 0))
                return False
            if pid == 0:
                os.setpgid(0, 0)
                die_with(parent, signal.SIGKILL)
                self._leave()
                return True
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
        pidfd = os.pidfd_open(pid)
        try:
            self._tell(Born(pid), pidfd)
        finally:
            os.close(pidfd)
        return False

    def _leave(self) -> None:
        """In the child: be a fork server no more."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, disposition in self._dispositions.items():
            signal.signal(number, disposition)
        self._channel.close()
        os.close(self._wake)
        os.close(self._wake_write)


def die_with(parent: int, number: signal.Signals) -> None:
    """In a new child: get this signal when the parent dies, where the kernel can do that.

    Args:
        parent: its number, asked for before the fork.
        number: the signal.
    """
    if _PRCTL is not None:
        _PRCTL(_SET_DEATH_SIGNAL, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)


def _as_asked(request: Request, files: Sequence[int]) -> list[str]:
    """In the child: take its files and variables, and show its name to whoever lists processes."""
    from setproctitle import setproctitle  # noqa: PLC0415  -- there is none for other systems

    os.environ.update(request.environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for name, file in zip(request.files, files, strict=True):
        if name == OUTPUT:
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)
        else:
            os.environ[name] = str(file)
    words = list(request.words)
    sys.argv[1:] = words
    setproctitle(f"seckill: {' '.join(words)}")
    return words
