"""Builds Redis clients: the one place that knows the client library's switches."""

from typing import Any

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
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
    return Redis.from_url(
        url,
        max_connections=connections_max,
        retry=Retry(NoBackoff(), 0),
        **_options(url, timeout_ms),
    )


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
