"""The way of a batch to Redis and back: a connection that is kept, the bytes, nothing else.

The client library takes a connection from its pool for each call, asks whether it is alive, makes
a task for its time limit and reports to its observers: 100 µs of processor, which a batch of thirty
purchases divides by thirty only. Here its connections are used (it knows how to reach a server, by
whichever scheme and with whichever password), and what is left is writing and reading.

A line is used by one call at a time. It is kept only when every reply of its call has been read:
one that was left behind would be taken for the answer to the next batch.
"""

import asyncio
import math
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
    ResponseError,
    TimeoutError as RedisTimeoutError,
)

__all__ = ["BatchLines", "write_command"]

_SPARE_MAX: Final = 8
"""Lines that are kept between calls. There is one call at a time for each bucket; those of a few
sales that run at once keep theirs, and further ones go through the pool."""


def write_command(*words: str | bytes | int) -> bytes:
    """A command in the protocol of Redis."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class BatchLines:
    """The lines of one process.

    Args:
        redis: the client whose connections are used; closing it closes them. Its
            ``socket_timeout`` is the limit for a whole call, connecting not counted.
    """

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._timeout_s: float | None = self._pool.connection_kwargs.get("socket_timeout")
        self._spare: list[AbstractConnection] = []

    async def call(self, data: bytes, replies: int) -> list[Any]:
        """Send commands and read the reply to each, in order.

        Returns:
            The replies; an error reply is among them as the exception that it stands for.

        Raises:
            RedisError, OSError: the connection failed, or there was none; whether the commands
                did anything is not known.
        """
        line = self._spare.pop() if self._spare else await self._connect()
        try:
            # A line that was cut while it lay here must not cost a batch its try.
            if not line.is_connected or await line.can_read():
                await line.disconnect()
                await line.connect()  # type: ignore[no-untyped-call]
            found = await self._exchange(line, data, replies)
        except BaseException:
            await self._drop(line)
            raise
        if len(self._spare) < _SPARE_MAX:
            self._spare.append(line)
        else:
            await self._pool.release(line)
        return found

    async def _connect(self) -> AbstractConnection:
        line: AbstractConnection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        return line

    async def _exchange(self, line: AbstractConnection, data: bytes, replies: int) -> list[Any]:
        writer = line._writer  # noqa: SLF001  -- its own way of writing makes a task for each call
        if writer is None:
            raise RedisConnectionError("the connection was closed")
        found: list[Any] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                writer.write(data)
                await writer.drain()
                for _ in range(replies):
                    try:
                        found.append(await line.read_response(timeout=math.inf))
                    except ResponseError as error:
                        found.append(error)
        except TimeoutError:
            raise RedisTimeoutError(f"no reply within {self._timeout_s} s") from None
        return found

    async def _drop(self, line: AbstractConnection) -> None:
        """Close a line and give its place back. What it may still hold is thrown away."""
        await line.disconnect(nowait=True)
        await self._pool.release(line)
