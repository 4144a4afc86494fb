"""One connection: requests are read one after the other, and answered in that order.

The bytes are read by llhttp, the parser of Node.js, through httptools; what is said here is only
what happens between its events. A request is served when it has come whole, its body too, so
nothing half-read ever reaches the application. There is one way for each kind of request, a
`Route`: the hot routes answer by calls, everything else is served by ASGI (asgi.py).

What is bounded, and by whom:

* a head: in bytes by ``head_bytes_max``, in time by ``idle_timeout_ms``, which is also how long a
  connection may be silent between two requests;
* a body: in bytes and in time by its route;
* requests that come without waiting for their answers: one is served at a time, and while others
  wait nothing more is read;
* answers that are not taken: nothing more is read, and the connection is cut after the idle time.

An answer that ends its connection closes one direction first, and what the client still sends is
read and thrown away for a moment: closing with unread bytes would reset the connection, and the
answer could be lost with it.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import httptools
import structlog

from seckill.web.problems import Fault, HTTPProblem
from seckill.web.requests import BodyFault
from seckill.web.wire import CONTINUE, with_connection

__all__ = ["Connection", "Host", "Request", "Route", "answer_problem"]

_LOG: Final = structlog.get_logger(__name__)

_LINGER_S: Final = 1.0
_HEADERS_MAX: Final = 256
_FRAMING: Final = frozenset(
    {b"connection", b"content-length", b"expect", b"transfer-encoding", b"upgrade"}
)
_NOT_ASCII: Final = re.compile(rb"[\x80-\xff]")


class Request:
    """One request, whole. Made by the connection; a route may add slots of its own.

    Attributes:
        path: as it came, still percent-encoded.
        query: what stands behind the question mark, as it came.
        headers: names in lower case, in the order in which they came.
        body: whole; empty with a fault.
        fault: what is wrong with the body. Such a request must be refused.
        keep_alive: the client wants to send more on this connection.
        is_old: the client speaks HTTP/1.0.
    """

    __slots__ = (
        "body",
        "connection",
        "fault",
        "headers",
        "is_old",
        "keep_alive",
        "method",
        "path",
        "query",
        "route",
    )

    connection: "Connection"
    route: "Route"
    method: bytes
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    fault: BodyFault | None
    keep_alive: bool
    is_old: bool


def _ignore(_request: Any) -> None:
    """Nothing needs to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How requests of one kind are served.

    Attributes:
        request: what is made for each; `Request` or a subclass.
        serve: called with a request when it has come whole. The answer is given to
            `Connection.answer`, now or later.
        body_bytes_max: longest body.
        body_timeout_ms: from the end of the head to the end of the body.
        given_up: called when the client left in the middle of its request.
        left: called when the client left before its answer.
    """

    request: type[Any]
    serve: Callable[[Any], None]
    body_bytes_max: int
    body_timeout_ms: int
    given_up: Callable[[Any], None] = _ignore
    left: Callable[[Any], None] = _ignore


class Host(Protocol):
    """The server, as its connections see it.

    Attributes:
        tick: a clock that takes a step now and then; what is older than ``idle_ticks`` is idle.
        stopping: answers end their connections.
        head_bytes_max: see `ServerSettings`.
        other_route: of the paths that `route` does not know.
    """

    tick: int
    stopping: bool
    head_bytes_max: int
    other_route: Route

    @property
    def route(self) -> Callable[[bytes], Route | None]:
        """How requests for a path are served."""
        ...

    def made(self, connection: "Connection") -> None:
        """A connection was accepted."""
        ...

    def lost(self, connection: "Connection") -> None:
        """It has ended."""
        ...

    def refused(self, status: int) -> None:
        """Something was answered that cannot be read as a request."""
        ...


class _Refused(Exception):  # noqa: N818  -- stops the parser; the answer is in `Connection._refusal`
    """This request will not be read any further."""


def answer_problem(request: Request, problem: HTTPProblem, *, close: bool = False) -> None:
    """Answer a request with a problem."""
    request.connection.answer(request, problem.answer(head=request.method == b"HEAD"), close=close)


class Connection(asyncio.Protocol):
    """One connection of one client."""

    __slots__ = (
        "_body",
        "_body_timer",
        "_current",
        "_deaf",
        "_framing",
        "_head_bytes",
        "_head_ended",
        "_headers",
        "_host",
        "_incoming",
        "_linger_timer",
        "_long_read",
        "_parser",
        "_queue",
        "_refusal",
        "_target",
        "_transport",
        "_writable",
        "peer_host",
        "tick",
    )

    def __init__(self, host: Host) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._framing = False
        self._head_bytes = 0
        self._head_ended = False
        self._body = bytearray()
        self._long_read = False
        self._incoming: Request | None = None
        self._current: Request | None = None
        self._queue: deque[Request] = deque()
        self._refusal: HTTPProblem | None = None
        self._deaf = False
        self._body_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Event | None = None
        self.tick = host.tick
        self.peer_host: str | None = None
        """Address of the client, as the connection shows it."""

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass
        self._parser = httptools.HttpRequestParser(self)
        peer = transport.get_extra_info("peername")
        self.peer_host = peer[0] if isinstance(peer, tuple) else None
        self._host.made(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  -- either way it is gone
        """See asyncio.Protocol."""
        incoming, current = self._incoming, self._current
        self._incoming = self._current = None
        self._queue.clear()
        self._deaf = True
        for timer in (self._body_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        if self._writable is not None:
            self._writable.set()
        # The parser holds this connection: without this only the garbage collector could free both.
        self._parser = self._transport = None
        self._host.lost(self)
        if incoming is not None and incoming is not current:
            incoming.route.given_up(incoming)
        if current is not None:
            current.route.left(current)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._deaf:
            return
        host, parser = self._host, self._parser
        if self._incoming is None and not self._target and not data.isascii():
            data = _with_plain_target(data)
        self._long_read = len(data) > host.head_bytes_max
        self._head_ended = False
        try:
            parser.feed_data(data)  # type: ignore[union-attr]  # there is one while there is data
        except httptools.HttpParserUpgrade:
            self._end_behind_last()
        except httptools.HttpParserError as error:
            self._refuse(error)
            return
        if self._target:
            # A head has begun and is not whole yet. Behind another one only what is known of it
            # counts: the rest of these bytes is not its own.
            self._head_bytes += (
                _size(self._target, self._headers) if self._head_ended else len(data)
            )
            if self._head_bytes > host.head_bytes_max:
                self._refusal = _head_too_large(host.head_bytes_max)
                self._refuse(None)
        elif self._incoming is not None and self._body_timer is None and not self._deaf:
            self._body_timer = asyncio.get_running_loop().call_later(
                self._incoming.route.body_timeout_ms / 1000, self._body_late
            )

    def eof_received(self) -> bool:
        """See asyncio.Protocol. Who has said all may still want to hear the answer."""
        current = self._current
        if current is None:
            return False
        current.keep_alive = False
        self._queue.clear()
        current.route.left(current)
        return True

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.tick = self._host.tick
        if self._writable is None:
            self._writable = asyncio.Event()
        self._writable.clear()
        self._pause_reading()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        assert self._writable is not None
        self._writable.set()
        if self._current is None:
            self._next()

    # What the parser calls.

    def on_url(self, part: bytes) -> None:
        """The target, or a part of it."""
        self._target = self._target + part if self._target else part

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        name = name.lower()
        self._headers.append((name, value))
        if name in _FRAMING:
            self._framing = True

    def on_headers_complete(self) -> None:
        """The head is whole."""
        parser, host = self._parser, self._host
        assert parser is not None
        self._head_ended = True
        target, headers, framing = self._target, self._headers, self._framing
        self._target, self._headers, self._framing = b"", [], False
        if self._head_bytes or self._long_read or len(headers) > _HEADERS_MAX:
            self._check_head(target, headers)
        if target.startswith(b"/") and b"#" not in target:
            path, _, query = target.partition(b"?")
        else:
            path, query = _split_target(target)
        route = host.route(path) or host.other_route
        request: Request = route.request()
        request.connection, request.route = self, route
        request.method, request.path, request.query = parser.get_method(), path, query
        request.headers, request.body, request.fault = headers, b"", None
        request.is_old = False
        self._incoming = request
        if framing:
            self._expect_body(request, parser)

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        request = self._incoming
        if request is None or request.fault is not None:
            return
        self._body += part
        if len(self._body) > request.route.body_bytes_max:
            self._without_body(request, BodyFault.TOO_LONG)

    def on_message_complete(self) -> None:
        """The request is whole."""
        request, parser = self._incoming, self._parser
        assert parser is not None
        if request is None or request.fault is not None:
            return
        self._incoming = None
        if self._body:
            request.body = bytes(self._body)
            self._body = bytearray()
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        request.keep_alive = keep_alive = parser.should_keep_alive()
        if not keep_alive:
            request.is_old = self._is_old(parser)
        if self._current is None and not self._queue:
            self._serve(request)
        else:
            self._queue.append(request)
            self._pause_reading()

    # The way of a request.

    def _serve(self, request: Request) -> None:
        self._current = request
        try:
            request.route.serve(request)
        except Exception:  # noqa: BLE001  -- answers 500 and records it; the connection goes on
            _LOG.exception("a request met an error of this program", path=request.path)
            if self._current is request:
                answer_problem(request, Fault())

    def answer(self, request: Request, answer: bytes, *, close: bool = False) -> None:
        """Answer the request that is being served. A client that has left hears nothing.

        Args:
            answer: the whole answer, without a ``Connection`` header.
            close: end the connection behind it.
        """
        if request is not self._current:
            return
        host, transport = self._host, self._transport
        assert transport is not None
        if close or not request.keep_alive or host.stopping:
            close = True
            answer = with_connection(answer, b"close")
        elif request.is_old:
            answer = with_connection(answer, b"keep-alive")
        # One that is closing will say so in its own time; until then uvloop refuses to write.
        if not transport.is_closing():
            transport.write(answer)
        self._current = None
        self.tick = host.tick
        if close:
            self.finish()
        elif self._queue:
            asyncio.get_running_loop().call_soon(self._next)

    def write(self, request: Request, data: bytes) -> None:
        """Send a part of the answer to the request that is being served."""
        if request is self._current:
            assert self._transport is not None
            if not self._transport.is_closing():
                self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the client takes more."""
        if self._writable is not None:
            await self._writable.wait()

    def answered(self, request: Request, *, close: bool) -> None:
        """The answer to the request that is being served is complete."""
        if request is not self._current:
            return
        self._current = None
        self.tick = self._host.tick
        if close:
            self.finish()
        elif self._queue:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Serve the next of those that have come without waiting."""
        if self._current is not None:
            return
        if self._writable is not None and not self._writable.is_set():
            return
        if self._queue:
            self._serve(self._queue.popleft())
        if not self._queue and not self._deaf and self._transport is not None:
            self._transport.resume_reading()

    def _end_behind_last(self) -> None:
        """No other protocol is spoken here. What was asked is answered, and that is the end."""
        last = self._queue[-1] if self._queue else self._current
        if last is None:
            self.finish()
        else:
            self._deaf, last.keep_alive = True, False

    def _pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    # The end of a connection.

    @property
    def stopping(self) -> bool:
        """Whether every answer ends its connection now."""
        return self._host.stopping

    @property
    def idle(self) -> bool:
        """Whether nothing is being served, and no request has come in part."""
        return self._current is None and self._incoming is None and not self._queue

    @property
    def stalled(self) -> bool:
        """Whether it waits for its client: for a head, or for an answer to be taken."""
        if self._writable is not None and not self._writable.is_set():
            return True
        return self._current is None and self._incoming is None

    def peer(self, name: str) -> Any:
        """What the transport knows: ``peername``, ``sockname``."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def finish(self) -> None:
        """End the connection: say no more, and hear for a moment what the client still says."""
        self._deaf = True
        self._queue.clear()
        transport = self._transport
        if transport is None or self._linger_timer is not None:
            return
        self._linger_timer = asyncio.get_running_loop().call_later(_LINGER_S, self.abort)
        if transport.is_closing():
            return
        try:
            transport.write_eof()
        except OSError:  # the client has gone already
            transport.abort()
        else:
            transport.resume_reading()

    def abort(self) -> None:
        """End the connection now, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    # What is refused.

    def _refuse(self, error: httptools.HttpParserError | None) -> None:
        """Answer what cannot be read, behind the answers that are still due, and hear no more."""
        problem = self._refusal
        if problem is None:
            problem = _unreadable(error)
        self._deaf = True
        self._incoming = None
        if self._body_timer is not None:
            self._body_timer.cancel()
        request = Request()
        request.connection, request.headers, request.body = self, [], b""
        request.method, request.path, request.query = b"GET", b"", b""
        request.keep_alive, request.is_old, request.fault = False, False, None

        def serve(request: Request) -> None:
            self._host.refused(problem.status)
            answer_problem(request, problem, close=True)

        request.route = Route(request=Request, serve=serve, body_bytes_max=0, body_timeout_ms=1)
        if self._current is None and not self._queue:
            self._serve(request)
        else:
            self._queue.append(request)

    def _check_head(self, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self._head_bytes = 0
        if _size(target, headers) > self._host.head_bytes_max or len(headers) > _HEADERS_MAX:
            self._refusal = _head_too_large(self._host.head_bytes_max)
            raise _Refused

    def _is_old(self, parser: httptools.HttpRequestParser) -> bool:
        """Whether HTTP/1.0 is spoken. The parser takes 0.9 and 2.0 too, which is not meant here."""
        version = parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            self._refusal = HTTPProblem(
                505,
                "HTTP/1.1 is spoken here.",
                field="request",
                rule="must be HTTP/1.1 or HTTP/1.0",
            )
            raise _Refused
        return version == "1.0"

    def _expect_body(self, request: Request, parser: httptools.HttpRequestParser) -> None:
        """Look at the headers that say how the request goes on."""
        headers = dict(request.headers)
        request.is_old = self._is_old(parser)
        length = headers.get(b"content-length", b"")
        has_body = b"transfer-encoding" in headers or length.strip(b"0") != b""
        if parser.should_upgrade() and has_body:
            self._refusal = HTTPProblem(
                400,
                "A request with a body must not ask for another protocol.",
                field="Upgrade",
                rule="must not be sent with a body",
            )
            raise _Refused
        if len(length) > 15 or int(length or 0) > request.route.body_bytes_max:  # noqa: PLR2004
            self._without_body(request, BodyFault.TOO_LONG)
        elif (
            has_body
            and headers.get(b"expect", b"").lower() == b"100-continue"
            and not (request.is_old or self._current or self._queue)
        ):
            assert self._transport is not None
            self._transport.write(CONTINUE)

    def _body_late(self) -> None:
        self._body_timer = None
        if self._incoming is not None:
            self._without_body(self._incoming, BodyFault.TOO_SLOW)

    def _without_body(self, request: Request, fault: BodyFault) -> None:
        """Serve a request whose body will not be read; it is the last one here."""
        request.fault, request.body, request.keep_alive = fault, b"", False
        self._deaf = True
        self._incoming = None
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        if self._current is None and not self._queue:
            self._serve(request)
        else:
            self._queue.append(request)


def _with_plain_target(data: bytes) -> bytes:
    """Write the bytes of a request line that are no ASCII as percent escapes, which they mean.

    A URL has none of them (RFC 3986), but people type them, and command-line clients send them as
    they are. The parser would refuse them.
    """
    end = data.find(b"\n")
    line = data if end < 0 else data[:end]
    if line.isascii():
        return data
    return _NOT_ASCII.sub(lambda found: b"%%%02X" % found[0][0], line) + data[len(line) :]


def _size(target: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    """Bytes of a head, as far as it is known."""
    return len(target) + sum(len(name) + len(value) for name, value in headers)


def _split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a target that is not the usual one."""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        return target, b""  # such as `*`: a path that nobody serves
    return url.path or b"/", url.query or b""


def _head_too_large(bytes_max: int) -> HTTPProblem:
    return HTTPProblem(
        431,
        f"Request line and headers may have at most {bytes_max} bytes, in {_HEADERS_MAX} headers.",
        field="headers",
        rule=f"must have at most {bytes_max} bytes in {_HEADERS_MAX} headers",
    )


def _unreadable(error: httptools.HttpParserError | None) -> HTTPProblem:
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return HTTPProblem(501, "There is no such method here.")
    if isinstance(error, httptools.HttpParserCallbackError) and error.__context__ is not None:
        _LOG.error("reading a request met an error of this program", exc_info=error.__context__)
        return Fault()
    return HTTPProblem(
        400,
        f"This cannot be read as HTTP/1.1: {error}".rstrip(": "),
        field="request",
        rule="must be HTTP/1.1 as RFC 9112 writes it",
    )
