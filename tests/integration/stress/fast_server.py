"""A trivially fast seckill service of one process, run as a program: shows what the generator costs.

Usage: fast_server.py STOCK. Prints its port. Counts requests by their blank lines and admits the
first STOCK users who ask; it checks nothing, since only its speed is wanted.
"""

import asyncio
import re
import sys
from typing import ClassVar

import uvloop

USER = re.compile(rb"POST /seckill/([^ ]+) [^\0]*?X-User-Id: ([^\r]+)\r\n[^\0]*?\r\n\r\n")
ORDER = re.compile(rb"GET /orders/([^ ]+) [^\0]*?X-User-Id: ([^\r]+)\r\n")


def answer(status: bytes, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s" % (
        status,
        more,
        len(body),
        body,
    )


SOLD_OUT = answer(b"409 Conflict", b'{"code":0,"message":"Sold out","reservation_id":null}')


class Shop(asyncio.Protocol):
    stock = 0
    holders: ClassVar[dict[bytes, bytes]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self.transport.write(b"".join(map(self.order, ORDER.findall(data))))
        else:
            self.transport.write(b"".join(self.buy(user) for _, user in USER.findall(data)))

    def buy(self, user: bytes) -> bytes:
        held = self.holders.get(user)
        if held is not None:
            body = b'{"code":2,"message":"You have already ordered","reservation_id":"%s"}' % held
            return answer(b"409 Conflict", body)
        if len(self.holders) >= Shop.stock:
            return SOLD_OUT
        held = self.holders[user] = b"r%d" % len(self.holders)
        body = b'{"code":1,"message":"You got it","reservation_id":"%s"}' % held
        return answer(b"202 Accepted", body, b"Location: /orders/%s\r\n" % held)

    def order(self, found: tuple[bytes, bytes]) -> bytes:
        reservation, user = found
        body = (
            b'{"reservation_id":"%s","goods_id":"1","user_id":"%s","quantity":1,'
            b'"state":"awaiting_payment"}' % (reservation, user)
        )
        return answer(b"200 OK", body)


async def main() -> None:
    Shop.stock = int(sys.argv[1])
    server = await asyncio.get_running_loop().create_server(Shop, "127.0.0.1", 0, backlog=16384)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


uvloop.run(main())
