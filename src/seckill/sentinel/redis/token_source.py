"""The token sources over Redis: a task, or a thread, carries the exchanges of a ``LeaseBook``."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final, Self

from redis.exceptions import RedisError

from seckill.sentinel.clock import NANOSECONDS_PER_S
from seckill.sentinel.redis.keys import SentinelKeys
from seckill.sentinel.redis.lease_book import LeaseBook, LeaseSettings
from seckill.sentinel.redis.scripts import Script
from seckill.sentinel.settings import MS_PER_S

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

    from seckill.sentinel.redis.exchange import Exchange

LEASE: Final = Script("lease")
LEAVE_TIMEOUT_S: Final = 0.5

_FAULTS: Final = (RedisError, OSError, TimeoutError)


class RedisTokenSource(LeaseBook):
    """Tokens of a whole service, leased from Redis by a task of this process's event loop.

    ::

        source = RedisTokenSource(client, namespace="shop", worker_id="web-1", workers_expected=4)
        sentinel = Sentinel(token_source=source)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(source.run())

    Args:
        client: of ``redis.asyncio``, with a connection to spare. Never closed here.
        namespace: of the service, see ``SentinelKeys``.
        worker_id, workers_expected: see ``LeaseBook``.
        settings: bounds and spans of time.

    Raises:
        ValueError: an argument is out of bounds; the text says which.
    """

    def __init__(
        self,
        client: AsyncRedis,
        *,
        namespace: str,
        worker_id: str,
        workers_expected: int | None = None,
        settings: LeaseSettings | None = None,
    ) -> None:
        settings = LeaseSettings() if settings is None else settings
        super().__init__(
            SentinelKeys(namespace),
            worker_id=worker_id,
            workers_expected=workers_expected,
            settings=settings,
        )
        self._client = client
        self._timeout_s = settings.timeout_ms / MS_PER_S

    async def run(self) -> None:
        """Lease until cancelled; then give everything back. Faults of Redis never end it."""
        loop = asyncio.get_running_loop()
        due = asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(due.set)

        self.on_due = tell
        try:
            while True:
                due.clear()
                exchange = self.exchange()
                if exchange is not None:
                    await self._carry(exchange, self._timeout_s)
                    _let_be_cancelled()
                wait_s = (self.next_ns() - self._now_ns()) / NANOSECONDS_PER_S
                if wait_s > 0:
                    try:
                        async with asyncio.timeout(wait_s):
                            await due.wait()
                    except TimeoutError:
                        continue
        finally:
            # Whoever asks for tokens after this does not find a loop that has ended.
            self.on_due = due.set
            exchange = self.exchange(leaving=True)
            if exchange is not None:
                await self._carry(exchange, LEAVE_TIMEOUT_S)

    async def _carry(self, exchange: Exchange, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                raw = await LEASE.run_async(self._client, exchange.keys, exchange.body)
        except asyncio.CancelledError as error:
            # It may have been carried out; whoever leaves next tells what is owed.
            self.unanswered(exchange, error)
            raise
        except _FAULTS as error:
            self.unanswered(exchange, error)
        else:
            self.answered(exchange, raw)


class ThreadedRedisTokenSource(LeaseBook):
    """The same, leased by a thread: for services without an event loop, or with a busy one.

    ::

        with ThreadedRedisTokenSource(client, namespace="shop", worker_id="web-1") as source:
            sentinel = Sentinel(token_source=source)

    Args:
        client: of ``redis``. Its own ``socket_timeout`` is what counts here: without one, a Redis
            that hangs holds the thread, and ``stop``. Never closed here.
        namespace: of the service, see ``SentinelKeys``.
        worker_id, workers_expected: see ``LeaseBook``.
        settings: bounds and spans of time; ``timeout_ms`` has no effect.

    Raises:
        ValueError: an argument is out of bounds; the text says which.
    """

    def __init__(
        self,
        client: Redis,
        *,
        namespace: str,
        worker_id: str,
        workers_expected: int | None = None,
        settings: LeaseSettings | None = None,
    ) -> None:
        super().__init__(
            SentinelKeys(namespace),
            worker_id=worker_id,
            workers_expected=workers_expected,
            settings=LeaseSettings() if settings is None else settings,
        )
        self._client = client
        self._wake = threading.Event()
        self._ending = False
        self._thread: threading.Thread | None = None
        self.on_due = self._wake.set

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to lease.

        Raises:
            RuntimeError: it was started before.
        """
        if self._thread is not None:
            raise RuntimeError("a token source is started once")
        self._thread = threading.Thread(target=self._run, name="sentinel-tokens", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Give everything back and end; waits for a call in flight."""
        self._ending = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ending:
            self._wake.clear()
            exchange = self.exchange()
            if exchange is not None:
                self._carry(exchange)
            wait_s = (self.next_ns() - self._now_ns()) / NANOSECONDS_PER_S
            if wait_s > 0 and not self._ending:
                self._wake.wait(wait_s)
        exchange = self.exchange(leaving=True)
        if exchange is not None:
            self._carry(exchange)

    def _carry(self, exchange: Exchange) -> None:
        try:
            raw = LEASE.run(self._client, exchange.keys, exchange.body)
        except _FAULTS as error:
            self.unanswered(exchange, error)
        else:
            self.answered(exchange, raw)


def _let_be_cancelled() -> None:
    """Raise the cancellation that the client library has swallowed, if it has.

    It looks whether a connection is still good within a time limit of zero, and takes a
    cancellation that is under way at that moment for the end of that time (8.1, Python 3.11).
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
