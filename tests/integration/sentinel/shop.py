"""Several workers of one service in one process, each with its own engine and connection."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from seckill.sentinel import ClusterConfig, Entry, FlowRule, Sentinel, Settings
from seckill.sentinel.redis import LeaseSettings, RedisTokenSource
from seckill.sentinel.words import ThresholdType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

DEADLINE_S = 60
STEP_S = 0.004
PATIENT = LeaseSettings(timeout_ms=30_000, silence_ms=60_000, forget_ms=600_000)
"""For what is about a Redis that is there: no stall of it is taken for its absence."""


def connect(url: str) -> Redis:
    return Redis.from_url(
        url, protocol=2, socket_timeout=30, socket_connect_timeout=30, retry=Retry(NoBackoff(), 0)
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass
class Worker:
    """One engine, its source, and the task that leases for it."""

    sentinel: Sentinel
    source: RedisTokenSource
    client: Redis
    running: asyncio.Task[None]


@dataclass
class Shop:
    """The workers, and when their calls passed.

    Redis and this process read the same machine's time of day, so that is Redis' clock.
    """

    workers: list[Worker]
    passed_ns: list[int] = field(default_factory=list)

    async def offer(self, rates: list[float], span_s: float) -> None:
        """Calls at so many per second to each worker. A machine that stalls offers them late."""
        begun_s = time.monotonic()
        offered = [0] * len(rates)
        while (at_s := time.monotonic() - begun_s) < span_s:
            for place, rate in enumerate(rates):
                while offered[place] < int(at_s * rate):
                    offered[place] += 1
                    self.call(place)
            await asyncio.sleep(STEP_S)

    async def offer_until(self, rates: list[float], condition: Callable[[], bool]) -> None:
        """Calls at such rates until something holds: a machine that stalls only delays it."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await self.offer(rates, 0.1)

    def call(self, place: int) -> bool:
        entry = self.workers[place].sentinel.try_entry("r")
        if not isinstance(entry, Entry):
            return False
        self.passed_ns.append(time.time_ns())
        entry.exit()
        return True

    def most(self, window_s: float = 1.0, *, since: int = 0) -> int:
        """The most that passed within any window, of what passed after the first so many."""
        times = sorted(self.passed_ns[since:])
        window_ns = round(window_s * 1e9)
        ends = (bisect.bisect_left(times, at_ns + window_ns) for at_ns in times)
        return max((end - place for place, end in enumerate(ends)), default=0)


@contextlib.asynccontextmanager
async def opened(
    url: str,
    namespace: str,
    *,
    count: float,
    workers: int,
    window_ms: int = 1_000,
    fallback: Any = "share",
    expected: int | None = None,
    settings: LeaseSettings | None = None,
) -> AsyncIterator[Shop]:
    """So many workers that all know of each other (unless Redis is away: then ``expected``)."""
    config = ClusterConfig(
        flow_id=1, threshold_type=ThresholdType.GLOBAL, window_interval_ms=window_ms
    )
    rule = FlowRule(resource="r", count=count, cluster_mode=True, cluster_config=config)
    shop = Shop([])
    try:
        for number in range(workers):
            client = connect(url)
            source = RedisTokenSource(
                client, namespace=namespace, worker_id=f"w{number}", workers_expected=expected,
                settings=settings,
            )  # fmt: skip
            sentinel = Sentinel(token_source=source, settings=Settings(cluster_fallback=fallback))
            sentinel.flow.load([replace(rule)])
            running = asyncio.create_task(source.run())
            shop.workers.append(Worker(sentinel, source, client, running))
        if expected is None:
            await until(
                lambda: all(
                    one.source.status().in_contact and one.source.status().workers == workers
                    for one in shop.workers
                )
            )
        yield shop
    finally:
        for one in shop.workers:
            one.running.cancel()
        if shop.workers:
            await asyncio.wait([one.running for one in shop.workers])
        for one in shop.workers:
            await one.client.aclose()
    assert not any(one.sentinel.alarms.internal_errors for one in shop.workers)
