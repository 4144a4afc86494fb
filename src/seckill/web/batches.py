"""Single look-ups gathered into few big ones, and calls that a leaving client cannot cut.

Both run in tasks of their own, owned by whoever runs them; a request only waits for its own
future. So a client that leaves, or a request that has waited long enough, stops nothing and
disturbs nobody who waits for the same read.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import structlog

from seckill.domain.errors import SeckillError

__all__ = ["Lanes", "MicroBatches", "TooManyWaiting"]

_LOG: Final = structlog.get_logger(__name__)

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class TooManyWaiting(SeckillError):  # noqa: N818  -- names the state
    """The queue is full: refused at once, nothing was started."""


class MicroBatches(Generic[K, V]):
    """Looks keys up together: what arrives while one look-up is in flight goes into the next.

    Args:
        look_up: answers distinct keys, at most ``batch_max``; keys without a value are left out.
        batch_max: keys in one look-up.
        waiting_max: requests that may wait.
    """

    def __init__(
        self,
        look_up: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]],
        *,
        batch_max: int,
        waiting_max: int,
    ) -> None:
        self._look_up = look_up
        self._batch_max = batch_max
        self._waiting_max = waiting_max
        self._waiting: dict[K, list[asyncio.Future[V | None]]] = {}
        self._waiting_count = 0
        self._arrived = asyncio.Event()

    def get(self, key: K) -> asyncio.Future[V | None]:
        """A future of the value of one key, None where there is none. The caller may cancel it.

        Raises:
            TooManyWaiting: at once, when ``waiting_max`` requests wait already.
        """
        if self._waiting_count >= self._waiting_max:
            raise TooManyWaiting(f"{self._waiting_max} look-ups are waiting")
        future: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        self._waiting_count += 1
        self._arrived.set()
        return future

    async def run(self) -> None:
        """Look up what arrives, one batch after the other, until cancelled."""
        while True:
            await self._arrived.wait()
            batch = self._take()
            if batch:
                await self._answer(batch)

    def _take(self) -> dict[K, list[asyncio.Future[V | None]]]:
        """The next batch; those whose requests have given up are left out of it."""
        batch: dict[K, list[asyncio.Future[V | None]]] = {}
        while self._waiting and len(batch) < self._batch_max:
            key = next(iter(self._waiting))
            futures = self._waiting.pop(key)
            self._waiting_count -= len(futures)
            if not all(future.done() for future in futures):
                batch[key] = futures
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _answer(self, batch: Mapping[K, list[asyncio.Future[V | None]]]) -> None:
        values: Mapping[K, V] = {}
        error: Exception | None = None
        try:
            values = await self._look_up(list(batch))
        except SeckillError as away:
            error = away
        except Exception as fault:  # noqa: BLE001  -- one bad batch must not end all later ones
            _LOG.error(
                "looking up orders met an error of this program", keys=len(batch), exc_info=fault
            )
            error = fault
        for key, futures in batch.items():
            for future in futures:
                if future.done():
                    continue
                if error is None:
                    future.set_result(values.get(key))
                else:
                    future.set_exception(error)


class Lanes:
    """Runs calls in tasks of its own, ``lanes`` at a time.

    Args:
        lanes: calls under way at once.
        waiting_max: calls that may wait for a lane.
    """

    def __init__(self, *, lanes: int, waiting_max: int) -> None:
        self._lanes = lanes
        self._waiting_max = waiting_max
        self._calls: deque[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._arrived = asyncio.Semaphore(0)

    def call(self, function: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """A future of what ``function`` returns.

        Cancelling the future before its call has begun means that it never begins; after that the
        call goes on to its end.

        Raises:
            TooManyWaiting: at once, when ``waiting_max`` calls wait already.
        """
        if len(self._calls) >= self._waiting_max:
            raise TooManyWaiting(f"{self._waiting_max} calls are waiting")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.append((function, future))
        self._arrived.release()
        return future

    async def run(self) -> None:
        """Make the calls until cancelled."""
        async with asyncio.TaskGroup() as lanes:
            for _ in range(self._lanes):
                lanes.create_task(self._lane())

    async def _lane(self) -> None:
        while True:
            await self._arrived.acquire()
            function, future = self._calls.popleft()
            if future.done():
                continue
            try:
                result = await function()
            except SeckillError as error:
                if not future.done():
                    future.set_exception(error)
            except Exception as fault:  # noqa: BLE001  -- one bad call must not end the lane
                _LOG.error("a call for a buyer met an error of this program", exc_info=fault)
                if not future.done():
                    future.set_exception(fault)
            else:
                if not future.done():
                    future.set_result(result)
