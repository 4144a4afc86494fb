"""Builds Redis clients: the one place that knows the client library's switches."""

import asyncio
from typing import Any

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.retry import Retry as BlockingRetry

__all__ = ["connect", "connect_blocking"]


def connect(url: str, *, timeout_ms: int, connections_max: int = 64) -> Redis:
    """A client for ``url``. Connects at the first command, not here.

    RESP2 is asked for: replies to stream commands differ between the protocols, and nothing here
    needs the newer one. The library's own retries are off, since a retry must know what it
    repeats: the batcher and the worker do that themselves.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        timeout_ms: longest wait for a connection and for a reply.
        connections_max: upper bound of the connection pool.
    """
    client: Redis = Redis.from_url(
        url,
        max_connections=connections_max,
        retry=Retry(NoBackoff(), 0),
        **_options(url, timeout_ms),
    )
    pool = client.connection_pool
    pool.connection_class = _heeding_cancellations(pool.connection_class)
    return client


def connect_blocking(url: str, *, timeout_ms: int) -> BlockingRedis:
    """The same for a thread of its own, which waits without holding up an event loop.

    Args:
        url: as above.
        timeout_ms: as above.
    """
    return BlockingRedis.from_url(
        url, retry=BlockingRetry(NoBackoff(), 0), **_options(url, timeout_ms)
    )


def _options(url: str, timeout_ms: int) -> dict[str, Any]:
    """What both kinds of clients are told."""
    options = {
        "protocol": 2,
        "socket_timeout": timeout_ms / 1000,
        "socket_connect_timeout": timeout_ms / 1000,
        "health_check_interval": 0,
        "retry_on_error": [],
    }
    if not url.startswith("unix:"):  # a socket of the file system has no such switch
        options["socket_keepalive"] = True
    return options


def _heeding_cancellations(base: type[AbstractConnection]) -> type[AbstractConnection]:
    """A kind of connection that loses no cancellation of whoever sends a command.

    The library sends in `asyncio.wait_for`, which on Python 3.11 drops a cancellation that meets
    the end of what it waits for (python/cpython#86296). A loop that was told once to end would go
    on for ever.
    """

    class Connection(base):  # type: ignore[valid-type,misc]  # one of the library's three
        async def send_packed_command(self, *command: Any, **options: Any) -> None:
            task = asyncio.current_task()
            asked = task.cancelling() if task is not None else 0
            await super().send_packed_command(*command, **options)
            if task is not None and task.cancelling() > asked:
                await self.disconnect(nowait=True)  # its reply would be the next command's
                raise asyncio.CancelledError

    return Connection
