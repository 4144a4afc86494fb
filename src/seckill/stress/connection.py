"""A buyer's one connection: requests go out when they are due, answers come back in order.

HTTP/1.1 pipelining (RFC 9112, section 9.3.2): a request never waits for the answer to the one
before it, since the server answers in the order of arrival. That keeps a buyer at one descriptor
however often they click, and keeps a slow server from slowing the buyer.
"""

import asyncio
import errno
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self, cast

import httptools

from seckill.stress.answers import Answer
from seckill.stress.target import Endpoint

__all__ = ["ANSWER_BYTES_MAX", "Connection", "ConnectionPool", "Exchange"]

ANSWER_BYTES_MAX: Final = 65_536
"""A longer answer body is a broken promise, not something to keep in memory."""
_IP_BIND_ADDRESS_NO_PORT: Final = 24  # in the socket module from Python 3.12 on
_RESET_AT_ONCE: Final = struct.pack("ii", 1, 0)
_CONNECTED: Final = frozenset({0, errno.EISCONN})
_UNDER_WAY: Final = frozenset({errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK})
_FIRST_FINAL_STATUS: Final = 200
_CLOSE_WAIT_S: Final = 5.0


class Exchange(Protocol):
    """One request and what becomes of it: ``sent``, then one of the other three."""

    @property
    def given_up(self) -> bool:
        """Whether its timeout has passed: a late answer is welcome, but nobody waits for it."""
        ...

    def sent(self, at_us: int) -> None:
        """The bytes were handed to the kernel."""
        ...

    def answered(self, answer: Answer) -> None:
        """The whole answer is here."""
        ...

    def misanswered(self, reason: str) -> None:
        """What came instead of an answer is not HTTP, or is too long."""
        ...

    def failed(self, reason: str) -> None:
        """There will be no answer: the connection could not be made, or it broke."""
        ...


class Connection(asyncio.Protocol):
    """One connection, opened when first needed and again when needed after it was lost.

    Requests given while there is no connection leave as soon as there is one.
    """

    __slots__ = (
        "_body",
        "_closing",
        "_complete",
        "_connecting",
        "_index",
        "_location",
        "_parser",
        "_pool",
        "_retry_after",
        "_transport",
        "_under_way",
        "_waiting",
    )

    def __init__(self, pool: "ConnectionPool", index: int) -> None:
        self._pool = pool
        self._index = index
        self._transport: asyncio.Transport | None = None
        self._connecting = False
        self._closing = False
        self._under_way: deque[tuple[Exchange, bytes]] = deque()
        self._waiting: list[tuple[Exchange, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._location: bytes | None = None
        self._retry_after: bytes | None = None
        self._complete: list[tuple[int, bytes, bytes | None, bytes | None, bool]] = []

    # --- requests ---

    def submit(self, exchange: Exchange, request: bytes) -> None:
        """Send a request now, or as soon as there is a connection."""
        transport = self._transport
        if transport is None or self._closing:
            self._waiting.append((exchange, request))
            if transport is None and not self._connecting:
                self._connecting = True  # already now: the task has not begun
                self._pool.connect_soon(self)
            return
        self._under_way.append((exchange, request))
        transport.write(request)
        exchange.sent(self._pool.now_us())

    def leave_when_stuck(self) -> None:
        """Drop the connection when all that is under way on it has been given up.

        A request sent behind them would wait for the very answer that does not come.
        """
        if (
            self._transport is not None
            and not self._closing
            and self._under_way
            and all(exchange.given_up for exchange, _ in self._under_way)
        ):
            self._under_way.clear()
            self._abort()

    def is_on(self, transport: asyncio.BaseTransport) -> bool:
        """Whether this is the transport in use: not one that was lost meanwhile."""
        return self._transport is transport

    async def connect(self) -> None:
        """Open the connection. A failure is told to the waiting requests, never raised."""
        self._connecting = True
        try:
            async with asyncio.timeout(self._pool.connect_timeout_s):
                await self._pool.open_socket(self, self._index)
        except TimeoutError:
            self._connect_failed("connecting timed out")
        except OSError as error:
            self._connect_failed(f"connecting: {_why(error)}")

    def _connect_failed(self, reason: str) -> None:
        self._connecting = False
        self._pool.connect_failures[reason] = self._pool.connect_failures.get(reason, 0) + 1
        waiting, self._waiting = self._waiting, []
        for exchange, _ in waiting:
            exchange.failed(reason)

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what was waiting."""
        # A cast, since the transports of uvloop are no subclass of asyncio's.
        opened = cast("asyncio.Transport", transport)
        with self._pool.no_bug_hidden():
            self._opened(opened)

    def data_received(self, data: bytes) -> None:
        """Read answers, in the order of the requests."""
        with self._pool.no_bug_hidden():
            self._read(data)

    def eof_received(self) -> None:
        """The server will say no more; the loop closes the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Settle what is under way, and open again when something is waiting."""
        with self._pool.no_bug_hidden():
            self._lost(exc)

    # --- what they do ---

    def _opened(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._connecting = self._closing = False
        # A new connection begins a new message, whatever was left of the last one.
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._complete = [], []
        self._location = self._retry_after = None
        self._pool.open_count += 1
        # Who gave up before there was a connection sends nothing any more.
        waiting = [entry for entry in self._waiting if not entry[0].given_up]
        self._waiting.clear()
        if waiting:
            self._under_way.extend(waiting)
            transport.write(b"".join(request for _, request in waiting))
            now_us = self._pool.now_us()
            for exchange, _ in waiting:
                exchange.sent(now_us)

    def _read(self, data: bytes) -> None:
        now_us = self._pool.now_us()
        if self._closing:
            return
        broken = ""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            broken = f"not HTTP: {type(error).__name__} {error}"
        except httptools.HttpParserUpgrade:
            broken = "an upgrade of the protocol that nobody asked for"
        complete = self._complete
        if complete:
            self._complete = []
            for status, body, location, retry_after, keep_alive in complete:
                answer = Answer(status, body, location, retry_after, now_us)
                if not self._answered(answer, keep_alive=keep_alive):
                    return
        if not broken and sum(len(piece) for piece in self._body) > ANSWER_BYTES_MAX:
            broken = f"an answer of more than {ANSWER_BYTES_MAX} bytes"
        if broken:
            if self._under_way:
                self._under_way.popleft()[0].misanswered(broken)
            self._abort()

    def _lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.lost(self)
        resend = self._closing
        self._closing = False
        under_way, self._under_way = self._under_way, deque()
        if resend:
            # After an answer with "Connection: close" the server touches no later request of
            # the connection (RFC 9112, section 9.6), so these were not seen by anybody.
            self._pool.resent += len(under_way)
            self._waiting[:0] = under_way
        else:
            reason = "closed without an answer" if exc is None else _why(exc)
            for exchange, _ in under_way:
                exchange.failed(reason)
        if self._waiting and not self._connecting and not self._pool.closed:
            self._connecting = True
            self._pool.connect_soon(self)

    def _answered(self, answer: Answer, *, keep_alive: bool) -> bool:
        """Hand an answer to its request; return whether another may follow."""
        if not self._under_way:
            self._pool.unasked.append(answer.shown())
            self._abort()
            return False
        exchange, _ = self._under_way.popleft()
        exchange.answered(answer)
        if not keep_alive and self._transport is not None:
            # The server said that this answer is the last: what follows means nothing.
            self._closing = True
            self._transport.abort()
        return keep_alive

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            # Until connection_lost comes, nothing more is read and nothing sent on it; what is
            # still under way was perhaps seen by the server, so it fails instead of going again.
            under_way, self._under_way = self._under_way, deque()
            self._closing = True
            for exchange, _ in under_way:
                exchange.failed("left unanswered behind a broken answer")

    def discard(self) -> None:
        """Close at the end of the run: nobody is told anything any more."""
        self._under_way.clear()
        self._waiting.clear()
        if self._transport is not None:
            # With a reset instead of the usual goodbye no port stays taken for a minute: the next
            # run would spend seconds of processor time on looking for free ones.
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
            self._transport.abort()

    # --- what the parser calls ---

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the two headers that matter. The length is looked at first: it is the cheapest."""
        length = len(name)
        if length == 8:  # noqa: PLR2004
            if name.lower() == b"location":
                self._location = value
        elif length == 11 and name.lower() == b"retry-after":  # noqa: PLR2004
            self._retry_after = value

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Note a whole answer. It is looked at outside the parser, whose errors mean bad HTTP."""
        status = self._parser.get_status_code()
        pieces, self._body = self._body, []
        if status < _FIRST_FINAL_STATUS:
            return  # 103 and its like announce an answer and are none
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._complete.append(
            (
                status,
                body,
                self._location,
                self._retry_after,
                self._parser.should_keep_alive(),
            )
        )
        self._location = self._retry_after = None


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__


class _Guard:
    """Notes an error that passes. One object for the whole run: this is entered per answer."""

    __slots__ = ("_pool",)

    def __init__(self, pool: "ConnectionPool") -> None:
        self._pool = pool

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None and self._pool.bug is None:
            self._pool.bug = exc


class ConnectionPool:
    """The connections of a run: a fixed number, made in tasks that the caller's group owns.

    Attributes:
        connect_timeout_s: bound of one attempt to connect.
        open_count: connections that are open now.
        resent: requests sent again after the server announced that it closes the connection.
        connect_failures: attempts to connect that failed, by reason.
        unasked: answers that came to no request, shown in one line each.
        closed: the run is over.
        bug: an error of ours in what the event loop called; the run must not go on.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        count: int,
        sources: tuple[str, ...],
        connect_timeout_s: float,
        tasks: asyncio.TaskGroup,
        now_us: Callable[[], int],
    ) -> None:
        self._endpoint = endpoint
        self._sources = sources
        self._tasks = tasks
        self.now_us = now_us
        self.connect_timeout_s = connect_timeout_s
        self.open_count = 0
        self.resent = 0
        self.connect_failures: dict[str, int] = {}
        self.unasked: list[str] = []
        self.closed = False
        self.bug: BaseException | None = None
        self._guard = _Guard(self)
        self._connecting: set[asyncio.Task[None]] = set()
        self._all_lost = asyncio.Event()
        self._connections = [Connection(self, index) for index in range(count)]

    def __len__(self) -> int:
        return len(self._connections)

    def no_bug_hidden(self) -> "_Guard":
        """Around what the event loop calls: it would log an error of ours and carry on."""
        return self._guard

    def of_buyer(self, buyer: int) -> Connection:
        """The connection of a buyer; with fewer connections than buyers they take turns."""
        return self._connections[buyer % len(self._connections)]

    async def open_all(self, *, at_once_max: int, tick: Callable[[], None]) -> None:
        """Open every connection, so many at a time. Those that fail are tried again when needed.

        Args:
            at_once_max: attempts at a time: a queue of arriving connections is short.
            tick: called after each attempt.
        """
        remaining = iter(self._connections)

        async def open_some() -> None:
            for connection in remaining:
                await connection.connect()
                tick()

        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once_max, len(self._connections))):
                group.create_task(open_some())

    def connect_soon(self, connection: Connection) -> None:
        """Open one connection in a task of its own."""
        if self.closed:
            return
        task = self._tasks.create_task(connection.connect())
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def open_socket(self, connection: Connection, index: int) -> None:
        """Connect a socket and hand it to ``connection``.

        Raises:
            OSError: it could not be connected.
        """
        loop = asyncio.get_running_loop()
        sock = socket.socket(self._endpoint.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._sources:
                if sys.platform == "linux":
                    # Let connect() choose the port: bind() alone would take one away from every
                    # other destination too.
                    sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                sock.bind((self._sources[index % len(self._sources)], 0))
            address = (self._endpoint.host, self._endpoint.port)
            # On loopback the handshake is over when connect() returns, and asking again says so:
            # that costs a third of what waiting for it through the loop does.
            code = sock.connect_ex(address) and sock.connect_ex(address)
            if code in _UNDER_WAY:
                await loop.sock_connect(sock, address)
            elif code not in _CONNECTED:
                raise OSError(code, os.strerror(code))  # noqa: TRY301  -- closed just below
        except BaseException:
            sock.close()
            raise
        # From here on the socket is the loop's, which closes it when this is cut short.
        transport, _ = await loop.create_connection(lambda: connection, sock=sock)
        if not connection.is_on(transport):
            # Lost before it was ours, since the other side is going away. uvloop has closed the
            # descriptor by then without telling the socket object, which would close it a second
            # time later: whatever has its number by then. Elsewhere it knows, and this is nothing.
            sock.detach()

    def lost(self, connection: Connection) -> None:
        """Note that ``connection`` is open no more."""
        assert self.open_count > 0, connection
        self.open_count -= 1
        if self.open_count == 0 and self.closed:
            self._all_lost.set()

    async def close(self) -> None:
        """Close every connection and wait, for a bounded time, until the loop let go of them."""
        self.closed = True
        for task in list(self._connecting):
            task.cancel()
        for connection in self._connections:
            connection.discard()
        if self.open_count:
            async with asyncio.timeout(_CLOSE_WAIT_S):
                await self._all_lost.wait()
