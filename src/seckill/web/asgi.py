"""Serving a request by ASGI: everything but the hot routes.

Each request runs in a task of its own. A client that leaves does not cancel it: it reads
``http.disconnect``, and what it still sends is dropped.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import unquote

import structlog

from seckill.web.connection import Request, Route, answer_problem
from seckill.web.ports import ASGIApp, Message, Scope
from seckill.web.problems import Fault
from seckill.web.requests import body_refused
from seckill.web.wire import date_line, status_line

__all__ = ["asgi_route"]

_LOG: Final = structlog.get_logger(__name__)

_BODILESS: Final = frozenset({204, 304})


class _ASGIRequest(Request):
    """A request that an application reads.

    Attributes:
        ended: set when the client has left, or the answer is complete.
        is_read: the application has the body.
    """

    __slots__ = ("ended", "is_read")

    ended: asyncio.Event
    is_read: bool

    async def receive(self) -> Message:
        """See ASGI: the whole body in one piece, then the end."""
        if not self.is_read:
            self.is_read = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.ended.wait()
        return {"type": "http.disconnect"}


class _Answer:
    """Writes what the application sends."""

    __slots__ = ("_closes", "_head", "_is_chunked", "_request", "complete", "started")

    def __init__(self, request: _ASGIRequest) -> None:
        self._request = request
        self._head = b""
        self._is_chunked = False
        self._closes = not request.keep_alive
        self.started = False
        self.complete = False

    async def send(self, message: Message) -> None:
        """See ASGI."""
        if message["type"] == "http.response.start":
            assert not self.started, "an answer begins once"
            self.started = True
            self._begin(message)
        elif message["type"] == "http.response.body":
            assert self.started, "an answer begins with its head"
            assert not self.complete, "an answer ends once"
            await self._body(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise ValueError(f"{message['type']} is not sent here")

    def _begin(self, message: Message) -> None:
        request, status = self._request, message["status"]
        lines = [status_line(status), date_line()]
        has_length = False
        for name, value in message.get("headers", ()):
            lowered = name.lower()
            if lowered == b"connection":
                self._closes = self._closes or value.lower() == b"close"
                continue
            if lowered == b"transfer-encoding":
                continue  # how a body is framed is decided here
            has_length = has_length or lowered == b"content-length"
            lines.append(b"%b: %b\r\n" % (name, value))
        if not has_length and status not in _BODILESS and request.method != b"HEAD":
            if request.is_old:
                self._closes = True
            else:
                self._is_chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
        if self._closes or request.connection.stopping:
            self._closes = True
            lines.append(b"connection: close\r\n")
        elif request.is_old:
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    async def _body(self, part: bytes, *, more: bool) -> None:
        request = self._request
        if request.method == b"HEAD":
            part = b""
        elif self._is_chunked:
            part = (b"%x\r\n%b\r\n" % (len(part), part) if part else b"") + (
                b"" if more else b"0\r\n\r\n"
            )
        data, self._head = self._head + part, b""
        if data:
            request.connection.write(request, data)
        if more:
            await request.connection.drained()
        else:
            self.complete = True
            request.ended.set()
            request.connection.answered(request, close=self._closes)


def asgi_route(
    app: ASGIApp,
    start: Callable[[Coroutine[Any, Any, None]], object],
    *,
    body_bytes_max: int,
    body_timeout_ms: int,
) -> Route:
    """The route that leads to an ASGI application.

    Args:
        app: the application.
        start: starts a coroutine as a task with an owner.
        body_bytes_max: see `Route`.
        body_timeout_ms: see `Route`.
    """

    def serve(request: _ASGIRequest) -> None:
        if request.fault is not None:
            problem = body_refused(request.fault, body_bytes_max, body_timeout_ms)
            answer_problem(request, problem)
            return
        request.ended = asyncio.Event()
        request.is_read = False
        start(_run(app, request))

    def left(request: _ASGIRequest) -> None:
        request.ended.set()

    return Route(
        request=_ASGIRequest,
        serve=serve,
        body_bytes_max=body_bytes_max,
        body_timeout_ms=body_timeout_ms,
        left=left,
    )


async def _run(app: ASGIApp, request: _ASGIRequest) -> None:
    answer = _Answer(request)
    try:
        await app(_scope(request), request.receive, answer.send)
    except Exception:  # noqa: BLE001  -- the outermost guard: answers 500 and records it
        _LOG.exception("a request met an error of this program", path=request.path)
    if answer.complete:
        return
    if answer.started:
        request.connection.abort()  # a part of an answer must not look like the whole of it
    else:
        answer_problem(request, Fault())


def _scope(request: _ASGIRequest) -> Scope:
    client, server = request.connection.peer("peername"), request.connection.peer("sockname")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.0" if request.is_old else "1.1",
        "method": request.method.decode("ascii"),
        "scheme": "http",
        "path": unquote(request.path.decode("ascii")),
        "raw_path": request.path,
        "query_string": request.query,
        "root_path": "",
        "headers": request.headers,
        "client": client[:2] if isinstance(client, tuple) else None,
        "server": server[:2] if isinstance(server, tuple) else None,
    }
