"""A small HTTP/1 server for commands: one request per connection, everything bounded.

A command port is idle almost always, and must never be the reason that the service behind it is
not. So there are a few connections, each has a few seconds for its request, what it may send is
bounded before it is read, and who may not command is refused before its body is read.

Like the original it closes after each answer; the dashboard's client understands.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import socket
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import parse_qsl, unquote

import httptools

from seckill.sentinel.rules import DOCUMENT_BYTES_MAX
from seckill.sentinel.transport.errors import CommandRefused, PortUnavailable
from seckill.sentinel.transport.settings import PORT_DEFAULT, PORT_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from seckill.sentinel.transport.access import Access

HEAD_BYTES_MAX: Final = 128 * 1024
"""Request line and headers. Old dashboards, and people, send whole rule lists in the URL."""

BODY_BYTES_MAX: Final = 3 * DOCUMENT_BYTES_MAX + 64 * 1024
"""The largest rule document, each of its bytes written with a percent sign, and some more."""

BODIES_BYTES_MAX: Final = 2 * BODY_BYTES_MAX
"""All bodies that are being read at one time."""

CONNECTION_COUNT_MAX: Final = 64
PARAMETER_COUNT_MAX: Final = 64
HEADER_COUNT_MAX: Final = 100
REQUEST_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 8.0
"""Less than the 10 s that the dashboard waits for a command."""

LINGER_S: Final = 1.0
"""How long what a refused client still sends is read and thrown away, so that it sees why."""

READ_BYTES: Final = 64 * 1024
IN_THREAD_BYTES_MIN: Final = 64 * 1024
PORT_TRIES: Final = 3
PORT_RETRY_S: Final = 0.03
PORT_COUNT_MAX: Final = 1_000
FORM: Final = "application/x-www-form-urlencoded"

_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered.

    Attributes:
        body: text; sent as UTF-8.
        status: of HTTP.
        content_type: of the body.
    """

    body: str
    status: int = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Command:
    """What is asked.

    Attributes:
        name: the path without its first slash, decoded.
        parameters: of the URL and of the body, decoded once; none is empty.
        peer: the address it comes from.
    """

    name: str
    parameters: dict[str, str]
    peer: str


class _Refused(Exception):  # noqa: N818  it is an answer, not a fault
    """The request is answered with an error without being carried out."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.reply = Reply(reason, status)


class HTTPServer:
    """Listens for commands and has them answered.

    Use it by ``async with``. What is still being answered at the end is cut off.

    Args:
        answer: carries a command out. ``CommandRefused`` becomes 400 with its text, anything else
            500.
        access: who may command.
        host: address to listen on.
        port: to begin with; the next free one is taken. 0 means any.
        request_timeout_s: for a request to arrive whole.
        answer_timeout_s: for a command to be carried out.
        connection_count_max: connections beyond it are answered with 503.

    Raises:
        PortUnavailable: on entering, when no port can be had.
        OSError: on entering, when the address is not one of this machine, or may not be used.

    Attributes:
        refused: requests that were not carried out, since the start; for metrics.
    """

    def __init__(
        self,
        answer: Callable[[Command], Awaitable[Reply]],
        *,
        access: Access,
        host: str = "127.0.0.1",
        port: int = PORT_DEFAULT,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        connection_count_max: int = CONNECTION_COUNT_MAX,
    ) -> None:
        self._answer = answer
        self._access = access
        self._host = host
        self._first_port = port
        self._request_timeout_s = request_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._connection_count_max = connection_count_max
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._bodies_bytes = 0
        self.refused = 0

    @property
    def host(self) -> str:
        """The address it listens on."""
        return self._host

    @property
    def port(self) -> int:
        """The port that was really bound.

        Raises:
            RuntimeError: it is not listening.
        """
        if self._server is None or not self._server.sockets:
            raise RuntimeError("the command port is not open")
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        listener = await _bound(self._host, self._first_port)
        try:
            self._server = await asyncio.start_server(
                self._connected, sock=listener, limit=READ_BYTES
            )
        except BaseException:
            listener.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve_one(reader, writer)
        except (ConnectionError, TimeoutError):
            # The client has gone, or does not take its answer.
            writer.transport.abort()
        except asyncio.CancelledError:
            # Only __aexit__ cancels, and the stream's own end of this task takes being cancelled
            # for a fault (Python 3.11).
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._request_timeout_s):
                command = await self._receive(reader, writer)
            if command is None:
                return
            reply = await self._carry_out(command)
        except TimeoutError:
            reply = Reply(
                f"the request did not arrive within {self._request_timeout_s:g} s",
                HTTPStatus.REQUEST_TIMEOUT,
            )
        except _Refused as refused:
            reply = refused.reply
        if reply.status != HTTPStatus.OK:
            self.refused += 1
        async with asyncio.timeout(self._request_timeout_s):
            writer.write(_written(reply))
            await writer.drain()
        await _linger(reader, writer)

    async def _receive(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Command | None:
        """The command of the connection's only request; None when the client said nothing."""
        if len(self._tasks) > self._connection_count_max:
            raise _Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"more than {self._connection_count_max} connections",
            )
        request = _Request()
        parser = httptools.HttpRequestParser(request)
        if not await _read_head(reader, parser, request):
            return None
        name, parameters = _read_url(bytes(request.url))
        peer = str((writer.get_extra_info("peername") or ("",))[0])
        refusal = self._access.refusal(peer, request.headers, parameters)
        if refusal is not None:
            raise _Refused(HTTPStatus.FORBIDDEN, refusal)
        method = parser.get_method()
        if method == b"POST":
            length = _announced_length(request.headers)
            with self._room_for(length):
                if request.headers.get("expect", "").lower() == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                while not request.complete:
                    data = await reader.read(READ_BYTES)
                    if not data:
                        raise _Refused(HTTPStatus.BAD_REQUEST, "the request ends within its body")
                    _feed(parser, request, data)
                assert len(request.body) == length, "the parser knows no other end"
                form = bytes(request.body)
                if length < IN_THREAD_BYTES_MIN:
                    parameters |= _read_form(form)
                else:
                    parameters |= await asyncio.to_thread(_read_form, form)
        elif method != b"GET":
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "commands are sent by GET or POST")
        return Command(name, parameters, peer)

    @contextlib.contextmanager
    def _room_for(self, length: int) -> Iterator[None]:
        """Count a body that is being read; there is room for a few large ones only."""
        if self._bodies_bytes + length > BODIES_BYTES_MAX:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests at one time")
        self._bodies_bytes += length
        try:
            yield
        finally:
            self._bodies_bytes -= length

    async def _carry_out(self, command: Command) -> Reply:
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                return await self._answer(command)
        except CommandRefused as refused:
            return Reply(str(refused), HTTPStatus.BAD_REQUEST)
        except TimeoutError:
            _LOG.error("the command %r took more than %g s", command.name, self._answer_timeout_s)
        except Exception:  # noqa: BLE001  whatever it is, it is in the log, and the service goes on
            _LOG.exception("the command %r failed", command.name)
        return Reply("Command server error", HTTPStatus.INTERNAL_SERVER_ERROR)


@dataclass(slots=True)
class _Request:
    """What the parser has seen of the first request. Its methods are the parser's callbacks."""

    url: bytearray = field(default_factory=bytearray)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    header_count: int = 0
    head_complete: bool = False
    complete: bool = False

    def on_url(self, url: bytes) -> None:
        if not self.complete:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.complete:
            return
        self.header_count += 1
        if self.header_count > HEADER_COUNT_MAX:
            raise _Refused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {HEADER_COUNT_MAX} headers"
            )
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        self.head_complete = True

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        if len(self.body) + len(body) > BODY_BYTES_MAX:
            raise _Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of more than {BODY_BYTES_MAX} bytes"
            )
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


def _feed(parser: httptools.HttpRequestParser, request: _Request, data: bytes) -> None:
    try:
        parser.feed_data(data)
    except httptools.HttpParserCallbackError as error:
        if isinstance(error.__context__, _Refused):
            raise error.__context__ from None
        raise
    except httptools.HttpParserUpgrade:
        raise _Refused(HTTPStatus.BAD_REQUEST, "this port speaks HTTP/1.1 only") from None
    except httptools.HttpParserError as error:
        # What comes behind the one request is nobody's business.
        if not request.complete:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"not a request of HTTP: {error}") from None


async def _read_head(
    reader: asyncio.StreamReader, parser: httptools.HttpRequestParser, request: _Request
) -> bool:
    """Read on to the end of the headers; False when the client says nothing at all."""
    read = 0
    while not request.head_complete:
        data = await reader.read(READ_BYTES)
        if not data:
            if not read:
                return False
            raise _Refused(HTTPStatus.BAD_REQUEST, "the request ends within its head")
        read += len(data)
        _feed(parser, request, data)
        if not request.head_complete and read > HEAD_BYTES_MAX:
            raise _Refused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"request line and headers are more than {HEAD_BYTES_MAX} bytes",
            )
    return True


def _announced_length(headers: dict[str, str]) -> int:
    """The length of a form, as its headers say.

    Raises:
        _Refused: it is no form, or its length is not said, or too large.
    """
    if FORM not in headers.get("content-type", "").lower():
        raise _Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Only form-encoded post request is supported"
        )
    text = headers.get("content-length", "")
    if not text.isascii() or not text.isdigit() or int(text[:20]) < 1:
        raise _Refused(HTTPStatus.LENGTH_REQUIRED, "No legal Content-Length")
    length = int(text[:20])
    if length > BODY_BYTES_MAX:
        raise _Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a body of {length} bytes; {BODY_BYTES_MAX} are the most",
        )
    return length


def _read_url(url: bytes) -> tuple[str, dict[str, str]]:
    """A command's name, and the parameters that stand in the URL."""
    try:
        text = url.decode()
    except UnicodeDecodeError:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the URL is not UTF-8") from None
    # Not urlsplit: it refuses some paths for the sake of what may stand before them.
    path, _, query = text.partition("#")[0].partition("?")
    if not path.startswith("/"):
        raise _Refused(HTTPStatus.BAD_REQUEST, "the URL must begin with a slash")
    try:
        return unquote(path, errors="strict").strip("/"), _decoded(query)
    except UnicodeDecodeError:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the path is not UTF-8") from None


def _read_form(form: bytes) -> dict[str, str]:
    try:
        return _decoded(form.decode())
    except UnicodeDecodeError:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the body is not UTF-8") from None


def _decoded(form: str) -> dict[str, str]:
    """Parameters, decoded once: the original does it twice and damages names with a plus."""
    if _BAD_PERCENT.search(form):
        raise _Refused(
            HTTPStatus.BAD_REQUEST, "a percent sign without two hexadecimal digits behind it"
        )
    try:
        pairs = parse_qsl(form, errors="strict", max_num_fields=PARAMETER_COUNT_MAX)
    except UnicodeDecodeError:
        raise _Refused(HTTPStatus.BAD_REQUEST, "a parameter is not UTF-8") from None
    except ValueError:
        raise _Refused(
            HTTPStatus.BAD_REQUEST, f"more than {PARAMETER_COUNT_MAX} parameters"
        ) from None
    found = {name: value for name, value in pairs if name}
    if len(found) < sum(bool(name) for name, _ in pairs):
        raise _Refused(HTTPStatus.BAD_REQUEST, "a parameter stands twice in one place")
    return found


def _written(reply: Reply) -> bytes:
    body = reply.body.encode(errors="replace")
    status = HTTPStatus(reply.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what is still coming for a moment: closing at once could destroy the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(READ_BYTES):
                pass


async def _bound(host: str, first_port: int) -> socket.socket:
    """A socket on the first port that can be had: each is tried 3 times, like the original.

    Raises:
        PortUnavailable: none can be had.
        OSError: the address is not one of this machine, or may not be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last = min(first_port + PORT_COUNT_MAX - 1, PORT_MAX)
    for port in range(first_port, last + 1):
        for attempt in range(PORT_TRIES):
            if attempt:
                await asyncio.sleep(PORT_RETRY_S)
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6 and host != "::":
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((host, port))
                listener.listen()
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            except BaseException:
                listener.close()
                raise
            else:
                listener.setblocking(False)
                return listener
    raise PortUnavailable(f"no port from {first_port} to {last} can be had on {host}")
