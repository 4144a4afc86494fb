"""Serving the application with granian inside this process.

The supervisor binds and listens, and keeps the sockets open as long as it lives; each web process
inherits one (see `listen`). So a process that is killed takes nothing with it but the connections
that it had accepted: what waits in the queue of its socket, and what still comes, is accepted by
the next process that is started on the same socket. Two processes may serve one socket, so a
process can be replaced without a gap: start the new one, then stop the old one.
"""

import asyncio
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.net import SocketHolder  # type: ignore[attr-defined]  # its re-export is not declared
from granian.server.embed import Server

from seckill.domain.errors import SeckillError
from seckill.web.ports import Receive, Scope, Send

_new_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop as _new_loop
except ImportError:  # there is none for this platform
    _new_loop = asyncio.new_event_loop

__all__ = [
    "BACKLOG",
    "Application",
    "ServerSettings",
    "ServerStopped",
    "new_event_loop",
    "serve",
]

_LOG: Final = structlog.get_logger(__name__)

BACKLOG: Final = 16_384
"""Connections that may wait to be accepted: more than come in the first second of a rush."""

_FILES_RESERVED: Final = 512
"""Open files that are not connections of clients: stores, logs, marks, the interpreter's own."""


class Application(Protocol):
    """What `serve` serves: an ASGI application with a life of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        ...

    async def run(self) -> None:
        """Keep the parts of the application going until cancelled."""
        ...

    def drain(self) -> None:
        """Announce the end: unready, answers end their connections, streams are sent away."""
        ...


class ServerStopped(SeckillError):  # noqa: N818  -- names what happened
    """The HTTP server ended although nobody asked it to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How to serve.

    Attributes:
        backlog: connections that may wait to be accepted. The system caps it at
            ``net.core.somaxconn``, without a word.
        connections_max: connections served at once by one process; further ones wait in the
            backlog. Idle ones count too, so this is far above what is busy at once.
        idle_timeout_ms: how long a connection may be open without a whole request head arriving,
            between requests too. Longer than the 60 s of the usual proxies, or they would meet
            connections that are just being closed.
        head_bytes_max: request line and headers together; more is answered 431.
        drain_ms: after the order to stop: how long connections are still served, each answer
            ending its connection, before the idle ones are closed.
        shutdown_grace_ms: from the order to stop to the end, the drain included. What is not
            answered by then is cut.
    """

    backlog: int = BACKLOG
    connections_max: int = 16_384
    idle_timeout_ms: int = 75_000
    head_bytes_max: int = 65_536
    drain_ms: int = 1_000
    shutdown_grace_ms: int = 10_000


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop there is: uvloop, or asyncio's own where there is none."""
    return _new_loop()


class _InheritedSocketServer(Server):
    """granian's embedded server, on a socket that somebody else has opened.

    The embedded server can only bind an address of its own. Its workers, though, take a
    `SocketHolder`, the very object by which granian's own processes share a socket, and that can
    be made of any descriptor. The one override below is all that is needed.
    """

    def __init__(self, app: Application, descriptor: int, settings: ServerSettings) -> None:
        self._descriptor = descriptor
        super().__init__(
            app,
            # The life of the application is `Application.run`, in the caller's hands: the
            # embedded server would go on serving after its lifespan task has failed.
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            runtime_threads=1,
            blocking_threads=1,
            backlog=settings.backlog,
            backpressure=_connections_max(settings.connections_max),
            http1_settings=HTTP1Settings(
                header_read_timeout=settings.idle_timeout_ms,
                keep_alive=True,
                max_buffer_size=settings.head_bytes_max,
            ),
            log_level=LogLevels.error,
            # Incremental: anything else would throw away the handlers of this process.
            log_dictconfig={
                "version": 1,
                "incremental": True,
                "formatters": {},
                "handlers": {},
                "loggers": {},
            },
        )

    def _init_shared_socket(self) -> None:
        # The worker closes the descriptor when it stops to accept, so it gets one of its own.
        self._shd: Any = SocketHolder(self._descriptor, False, self.backlog)  # type: ignore[call-arg]
        self._ssp: Any = None


def _connections_max(wanted: int) -> int:
    """As many connections as wanted, or as there can be files.

    At the limit of open files accepting fails again and again without a pause; a bound below it
    leaves the rest in the backlog instead.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _FILES_RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    possible = max(soft - _FILES_RESERVED, soft // 2)
    _LOG.warning(
        "fewer connections than asked for: the limit of open files",
        connections_max=possible,
        open_files=soft,
    )
    return possible


async def serve(
    app: Application,
    listener: socket.socket | int,
    settings: ServerSettings,
    stop: asyncio.Event,
) -> None:
    """Serve until told to stop, then end cleanly within the grace.

    Args:
        app: what to serve; its `run` is kept going meanwhile.
        listener: a listening TCP socket, or its descriptor. Stays open and the caller's.
        settings: how to serve.
        stop: set it to end.

    Raises:
        ServerStopped: the HTTP server ended by itself.
        ExceptionGroup: a part of the application failed; nothing is served any more.
    """
    descriptor = listener if isinstance(listener, int) else listener.fileno()
    server = _InheritedSocketServer(app, os.dup(descriptor), settings)
    async with asyncio.TaskGroup() as tasks:
        life = tasks.create_task(app.run())
        serving = tasks.create_task(_serve(server))
        await stop.wait()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + settings.shutdown_grace_ms / 1000
        app.drain()
        await asyncio.sleep(min(settings.drain_ms, settings.shutdown_grace_ms) / 1000)
        server.stop()  # type: ignore[no-untyped-call]  # granian's own has no types
        done, _ = await asyncio.wait({serving}, timeout=max(ends_at - loop.time(), 0.0))
        if not done:
            _LOG.warning(
                "requests were cut at the end of the grace", grace_ms=settings.shutdown_grace_ms
            )
            serving.cancel()
        life.cancel()


async def _serve(server: _InheritedSocketServer) -> None:
    await server.serve()
    if not server.interrupt_signal:
        raise ServerStopped("the HTTP server ended by itself; its log says why")
