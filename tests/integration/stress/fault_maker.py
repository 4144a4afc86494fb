"""A small real HTTP server that sells honestly, until a test tells it to do something else.

Requests are read as they come and answered in order by a task of the connection, so that a slow
answer never keeps a request from being noted.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any


class Fault(Enum):
    NONE = auto()
    RESET = auto()
    """Cut the connection instead of answering."""
    HALF = auto()
    """Cut it in the middle of the answer."""
    SILENT = auto()
    """Never answer, and keep the connection."""
    GARBAGE = auto()
    """Send what is not HTTP."""
    TWICE = auto()
    """Send the answer two times."""
    SPLIT = auto()
    """Send the answer byte by byte."""
    CHUNKED = auto()
    """Send the body in chunks of three bytes."""
    EARLY_HINT = auto()
    """Send an interim answer first."""
    LAST = auto()
    """Announce the end of the connection and close it."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float
    nth_of_user: int
    peer: str

    @property
    def user_id(self) -> str:
        return self.headers["x-user-id"]

    @property
    def quantity(self) -> int:
        return json.loads(self.body)["quantity"] if self.body else 1


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    fault: Fault = Fault.NONE
    delay_s: float = 0.0
    after: asyncio.Event | None = None
    """Not before this has happened."""

    def but(self, **changes: Any) -> "Reply":
        return replace(self, **changes)


def purchase(status: int, code: int, reservation_id: str | None = None, **more: Any) -> Reply:
    headers = {}
    if code == 1:
        headers["Location"] = f"/orders/{reservation_id}"
    if code in {-1, -2, 8, 4}:
        headers["Retry-After"] = "1"
    return Reply(
        status, {"code": code, "message": "…", "reservation_id": reservation_id, **more}, headers
    )


BUSY = purchase(503, -2)
BLOCKED = purchase(429, -1)
SOLD_OUT = purchase(409, 0)


class Shop:
    """Sells honestly. Tests override `buy` and `order`."""

    def __init__(self, stock: int, limit: int = 1) -> None:
        self.left = stock
        self.limit = limit
        self.held: dict[str, list[tuple[str, int]]] = {}
        self.requests: list[Request] = []
        self.open_connections = 0
        self.connections_made = 0

    def answer(self, request: Request) -> Reply:
        return self.buy(request) if request.method == "POST" else self.order(request)

    def buy(self, request: Request) -> Reply:
        mine = self.held.setdefault(request.user_id, [])
        held_units = sum(units for _, units in mine)
        if held_units and held_units == self.limit:
            return purchase(409, 2, mine[-1][0])
        if held_units + request.quantity > self.limit:
            return purchase(409, 3, mine[-1][0] if mine else None)
        if self.left == 0:
            return SOLD_OUT
        if self.left < request.quantity:
            return purchase(409, 7, left=self.left)
        self.left -= request.quantity
        reservation_id = f"r.{request.user_id}.{len(mine)}"
        mine.append((reservation_id, request.quantity))
        return purchase(202, 1, reservation_id)

    def order(self, request: Request) -> Reply:
        reservation_id = request.path.rpartition("/")[2]
        for held_id, units in self.held.get(request.user_id, []):
            if held_id == reservation_id:
                return self.order_reply(request, units, "awaiting_payment")
        return Reply(404, {"title": "no such order"})

    def order_reply(self, request: Request, units: int, state: str) -> Reply:
        return Reply(
            200,
            {
                "reservation_id": request.path.rpartition("/")[2],
                "goods_id": "1",
                "user_id": request.user_id,
                "quantity": units,
                "state": state,
            },
        )

    @property
    def posts(self) -> list[Request]:
        return [request for request in self.requests if request.method == "POST"]


class Custom(Shop):
    """A shop whose purchase answers a test may change: the honest reply comes in."""

    def __init__(
        self,
        stock: int,
        change: Callable[[Request, Reply], Reply],
        *,
        change_order: Callable[[Request, Reply], Reply] | None = None,
        limit: int = 1,
    ) -> None:
        super().__init__(stock, limit)
        self._change = change
        self._change_order = change_order

    def buy(self, request: Request) -> Reply:
        return self._change(request, super().buy(request))

    def order(self, request: Request) -> Reply:
        honest = super().order(request)
        return honest if self._change_order is None else self._change_order(request, honest)


def _frame(reply: Reply) -> bytes:
    body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    headers = dict(reply.headers)
    if reply.fault is Fault.LAST:
        headers["Connection"] = "close"
    if reply.fault is Fault.CHUNKED:
        headers["Transfer-Encoding"] = "chunked"
        pieces = [body[at : at + 3] for at in range(0, len(body), 3)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        headers["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {reply.status} X\r\n{lines}\r\n".encode() + body


def _pieces(reply: Reply) -> list[bytes]:
    """What is written for a reply, one packet after the other."""
    frame = _frame(reply)
    match reply.fault:
        case Fault.HALF:
            return [frame[:-5]]
        case Fault.GARBAGE:
            return [b"SSH-2.0-OpenSSH_9.2\r\n"]
        case Fault.TWICE:
            return [frame * 2]
        case Fault.SPLIT:
            return [bytes([byte]) for byte in frame]
        case Fault.EARLY_HINT:
            return [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + frame]
        case _:
            return [frame]


class _Served:
    """One connection."""

    def __init__(self, shop: Shop, nth: Counter[str]) -> None:
        self.shop = shop
        self.nth = nth

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.shop.open_connections += 1
        self.shop.connections_made += 1
        replies: asyncio.Queue[Reply | None] = asyncio.Queue()
        answering = asyncio.create_task(self._answer(replies, writer))
        try:
            while (request := await self._read(reader, writer)) is not None:
                self.shop.requests.append(request)
                replies.put_nowait(self.shop.answer(request))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            answering.cancel()
            await asyncio.wait([answering])
            writer.transport.abort()
            self.shop.open_connections -= 1

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Request | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        user_id = headers.get("x-user-id", "")
        nth = self.nth[user_id]
        self.nth[user_id] += 1
        peer = writer.get_extra_info("peername")[0]
        now_s = asyncio.get_running_loop().time()
        return Request(method, path, headers, body, now_s, nth, peer)

    async def _answer(
        self, replies: "asyncio.Queue[Reply | None]", writer: asyncio.StreamWriter
    ) -> None:
        while (reply := await replies.get()) is not None:
            if reply.after is not None:
                await reply.after.wait()
            if reply.delay_s:
                await asyncio.sleep(reply.delay_s)
            if reply.fault is Fault.SILENT:
                return
            if reply.fault is Fault.RESET:
                writer.transport.abort()
                return
            for piece in _pieces(reply):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if reply.fault in {Fault.HALF, Fault.LAST}:
                writer.close()
                return


@asynccontextmanager
async def serving(shop: Shop) -> AsyncIterator[str]:
    """Serve ``shop`` on a free port; gives the address."""
    nth: Counter[str] = Counter()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _Served(shop, nth).serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=4096)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        # Python 3.12 waits for the connections at the end; the generator must have closed its own.
        async with asyncio.timeout(60):
            while shop.open_connections:
                await asyncio.sleep(0.01)
