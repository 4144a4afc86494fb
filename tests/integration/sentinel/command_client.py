"""A client of the command port that sends exactly the bytes it is given."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple
from urllib.parse import urlencode

ANSWER_WITHIN_S = 60


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


def read_answer(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    assert len(body) == int(headers["content-length"])
    return Answer(int(first.split()[1]), headers, body.decode())


async def send(port: int, raw: bytes, *, host: str = "127.0.0.1") -> Answer:
    """Send bytes on a connection of their own, and read until the other side closes."""
    async with asyncio.timeout(ANSWER_WITHIN_S):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(raw)
            # The server may have answered, and closed, before it took all.
            try:
                await writer.drain()
                answer = await reader.read()
            except ConnectionError:
                answer = b""
        finally:
            writer.transport.abort()
    return read_answer(answer)


async def get(port: int, path: str, **headers: str) -> Answer:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return await send(
        port, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}\r\n".encode()
    )


async def post(port: int, path: str, **form: str) -> Answer:
    body = urlencode(form).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n"
        "Content-Type: application/x-www-form-urlencoded; charset=UTF-8\r\n\r\n"
    )
    return await send(port, head.encode() + body)
