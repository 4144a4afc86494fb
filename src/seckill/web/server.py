"""The HTTP server inside a web process: an event loop, one inherited socket, its connections.

The supervisor binds and listens, and keeps the sockets open as long as it lives; each web process
inherits one (see `serve`). So a process that is killed takes nothing with it but the connections
that it had accepted: what waits in the queue of its socket, and what still comes, is accepted by
the next process that is started on the same socket. Two processes may serve one socket, so a
process can be replaced without a gap: start the new one, then stop the old one.

What happens on a connection stands in connection.py, and why this server is our own in
docs/decisions/0006-own-http-lane.md.
"""

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from seckill.web.asgi import asgi_route
from seckill.web.connection import Connection, Route
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
    "new_event_loop",
    "serve",
]

_LOG: Final = structlog.get_logger(__name__)

BACKLOG: Final = 16_384
"""Connections that may wait to be accepted: more than come in the first second of a rush."""

_TICKS_PER_IDLE_TIMEOUT: Final = 8
_TICK_S_MIN: Final = 0.02
_TICK_S_MAX: Final = 5.0
_FILES_RESERVED: Final = 512
"""Open files that are not connections of clients: stores, logs, marks, the interpreter's own."""


class Application(Protocol):
    """What `serve` serves: an ASGI application with a life of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        ...

    def route(self, path: bytes) -> Route | None:
        """How requests for a path are served without ASGI; None: they are served by it."""
        ...

    def refused(self, status: int) -> None:
        """Something was answered that cannot be read as a request."""
        ...

    async def run(self) -> None:
        """Keep the parts of the application going until cancelled."""
        ...

    def drain(self) -> None:
        """Announce the end: unready, answers end their connections, streams are sent away."""
        ...


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
        body_bytes_max: of a request that is served by ASGI; more is answered 413.
        body_timeout_ms: from the end of its head to the end of its body.
        drain_ms: after the order to stop: how long connections are still served, each answer
            ending its connection, before the idle ones are closed.
        shutdown_grace_ms: from the order to stop to the end, the drain included. What is not
            answered by then is cut.
    """

    backlog: int = BACKLOG
    connections_max: int = 16_384
    idle_timeout_ms: int = 75_000
    head_bytes_max: int = 65_536
    body_bytes_max: int = 1_048_576
    body_timeout_ms: int = 30_000
    drain_ms: int = 1_000
    shutdown_grace_ms: int = 10_000


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop there is: uvloop, or asyncio's own where there is none."""
    return _new_loop()


class _Server:
    """Accepts connections on one listening socket, and knows all that are open.

    Implements `connection.Host`.
    """

    def __init__(
        self, app: Application, descriptor: int, settings: ServerSettings, tasks: asyncio.TaskGroup
    ) -> None:
        self.tick = 0
        self.stopping = False
        self.head_bytes_max = settings.head_bytes_max
        self._app = app
        self._descriptor = descriptor
        self._settings = settings
        self._tasks = tasks
        self._connections_max = _connections_max(settings.connections_max)
        self._connections: set[Connection] = set()
        self._accepted = 0
        self._listening: asyncio.Server | None = None
        self._is_full = False
        self._closed = False
        self._running: set[asyncio.Task[None]] = set()
        self._gone = asyncio.Event()
        self.route = app.route
        self.other_route = asgi_route(
            app,
            self._start,
            body_bytes_max=settings.body_bytes_max,
            body_timeout_ms=settings.body_timeout_ms,
        )

    # What connections ask.

    def made(self, connection: Connection) -> None:
        """See Host."""
        self._connections.add(connection)

    def lost(self, connection: Connection) -> None:
        """See Host."""
        self._connections.discard(connection)
        self._accepted -= 1
        if not self._connections:
            self._gone.set()
        if self._is_full and not self._closed and self._accepted < self._connections_max:
            self._is_full = False
            self._start(self.listen())

    def refused(self, status: int) -> None:
        """See Host."""
        self._app.refused(status)

    # The life of the server.

    async def listen(self) -> None:
        """Accept connections, until there are as many as there may be."""
        # A descriptor of its own: it is closed when this server stops to accept.
        listener = socket.socket(fileno=os.dup(self._descriptor))
        listener.setblocking(False)
        server = await asyncio.get_running_loop().create_server(
            self._accept, sock=listener, backlog=self._settings.backlog
        )
        self._listening = server
        if self._closed or self._is_full:
            self._pause()  # meanwhile it was stopped, or the last place was taken

    def _accept(self) -> Connection:
        self._accepted += 1
        if self._accepted >= self._connections_max and not self._is_full:
            self._is_full = True
            # Not now: the loop still has this connection in its hands.
            asyncio.get_running_loop().call_soon(self._pause_if_full)
        return Connection(self)

    def _pause_if_full(self) -> None:
        if self._is_full:
            self._pause()

    def _pause(self) -> None:
        """Accept no more. What comes waits in the backlog of the socket, which stays open."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def sweep(self) -> None:
        """End idle connections, until cancelled."""
        idle_s = self._settings.idle_timeout_ms / 1000
        step_s = min(max(idle_s / _TICKS_PER_IDLE_TIMEOUT, _TICK_S_MIN), _TICK_S_MAX)
        idle_ticks = max(round(idle_s / step_s), 1)
        while True:
            await asyncio.sleep(step_s)
            self.tick += 1
            oldest = self.tick - idle_ticks
            for connection in [c for c in self._connections if c.tick <= oldest and c.stalled]:
                connection.abort()

    def drain(self) -> None:
        """From now on every answer ends its connection."""
        self.stopping = True

    async def end(self, grace_s: float) -> bool:
        """Accept nothing more, answer what is under way, and end. Whether all was answered."""
        self._closed = True
        self._pause()
        for connection in list(self._connections):
            if connection.idle:
                connection.finish()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + grace_s
        try:
            async with asyncio.timeout(grace_s):
                while self._connections:
                    self._gone.clear()
                    await self._gone.wait()
        except TimeoutError:
            pass
        is_all_answered = all(connection.idle for connection in self._connections)
        if self._running:
            # Of clients that have left: what they asked for is still followed to its end.
            await asyncio.wait(self._running, timeout=max(ends_at - loop.time(), 0.0))
        return is_all_answered

    def cut(self) -> None:
        """End whatever is under way."""
        self._closed = True
        self._pause()
        for connection in list(self._connections):
            connection.abort()
        for task in self._running:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


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
        ExceptionGroup: a part of the application failed; nothing is served any more.
    """
    descriptor = listener if isinstance(listener, int) else listener.fileno()
    async with asyncio.TaskGroup() as tasks:
        server = _Server(app, descriptor, settings, tasks)
        life = tasks.create_task(app.run())
        sweep = tasks.create_task(server.sweep())
        try:
            await server.listen()
            await stop.wait()
            loop = asyncio.get_running_loop()
            ends_at = loop.time() + settings.shutdown_grace_ms / 1000
            server.drain()
            app.drain()
            await asyncio.sleep(min(settings.drain_ms, settings.shutdown_grace_ms) / 1000)
            if not await server.end(max(ends_at - loop.time(), 0.0)):
                _LOG.warning(
                    "requests were cut at the end of the grace",
                    grace_ms=settings.shutdown_grace_ms,
                )
        finally:
            server.cut()
        sweep.cancel()
        life.cancel()
