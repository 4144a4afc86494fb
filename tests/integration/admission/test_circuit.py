"""Flow control between the buyers and Redis: what it refuses asks nothing of Redis.

The breaker on ``seckill-redis`` counts batches with all their retries, so it opens only when Redis
is away for longer than a buyer waits.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from seckill.admission.batcher import Request
from seckill.admission.bounds import Bounds
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.domain.ids import UserId
from seckill.domain.outcomes import Outcome
from seckill.runtime.flow_control import REDIS_RESOURCE, RedisCircuit
from seckill.sentinel import DegradeGrade, DegradeRule, Entry, FlowRule, Sentinel
from seckill.web.addresses import Addresses
from seckill.web.flow import PURCHASE_RESOURCE, FlowControl
from services.redis import RedisServer
from services.stage import BUCKET, GOODS, buy, events_of, make_sale, open_gate, open_sale, until

FIRST_FAILURE = DegradeRule(
    resource=REDIS_RESOURCE,
    grade=DegradeGrade.ERROR_COUNT,
    count=0,
    min_request_amount=1,
    time_window=1,
)


@pytest.fixture
async def direct(own_redis: RedisServer) -> AsyncIterator[Redis]:
    client = connect(own_redis.url, timeout_ms=60_000)
    yield client
    await client.aclose()


def guarded() -> tuple[Sentinel, RedisCircuit]:
    sentinel = Sentinel()
    sentinel.degrade.load([FIRST_FAILURE])
    return sentinel, RedisCircuit(sentinel)


async def test_a_redis_that_hangs_is_answered_503_at_once_and_a_probe_finds_it_well_again(
    own_redis: RedisServer, direct: Redis, keys: Keys, marks_folder: Path
) -> None:
    await open_sale(direct, keys, make_sale(stock_units=1_000))
    _, circuit = guarded()
    async with open_gate(
        own_redis.url,
        keys,
        marks_folder,
        timeout_ms=100,
        bounds=Bounds(queue_wait_ms_max=300),
        circuit=circuit,
    ) as gate:
        assert (await gate.insist("first")).outcome in {Outcome.SUCCESS, Outcome.DUPLICATE}
        own_redis.freeze()
        first = await buy([gate], [f"early-{n}" for n in range(20)])
        assert {d.outcome for d in first} == {Outcome.UNDECIDED}
        await until(lambda: circuit.is_open)
        began = time.monotonic()
        tries = at_once = 0
        while gate.counts.causes["circuit_open"] < 50:
            request = Request(UserId(f"u{tries}"), gate.attempt(), 1)
            decision = gate.gate.admit_now(GOODS, request)
            tries += 1
            if decision is not None:  # nobody waits for it
                at_once += 1
                assert (decision.outcome, decision.retry_after_ms > 0) == (Outcome.UNDECIDED, True)
            else:  # a probe, a second later
                assert (await request.decision).outcome is Outcome.UNDECIDED
            assert time.monotonic() - began < 60
        assert at_once >= 25
        own_redis.thaw()

        async def admits_again() -> bool:
            return (await gate.buy("last")).outcome in {Outcome.SUCCESS, Outcome.DUPLICATE}

        await until(admits_again)
        await until(lambda: not circuit.is_open)
        again = [await gate.insist(f"early-{n}") for n in range(20)]
        assert {d.outcome for d in again} <= {Outcome.SUCCESS, Outcome.DUPLICATE}
        view = await gate.gate.buckets.look(BUCKET)
        sold = {e.user_id for e in await events_of(direct, keys)}  # type: ignore[union-attr]
        assert view.stock_units == 1_000 - len(sold)


async def test_a_hiccup_that_the_batcher_rides_out_opens_nothing(
    own_redis: RedisServer, direct: Redis, keys: Keys, marks_folder: Path
) -> None:
    await open_sale(direct, keys, make_sale(stock_units=1_000))
    sentinel, circuit = guarded()
    async with open_gate(
        own_redis.url,
        keys,
        marks_folder,
        timeout_ms=100,
        bounds=Bounds(queue_wait_ms_max=60_000),
        circuit=circuit,
    ) as gate:
        await gate.buy("first")
        own_redis.freeze()
        waiting = asyncio.create_task(buy([gate], [f"u{n}" for n in range(50)]))
        await until(lambda: gate.counts.failures["timeout"] >= 2)
        own_redis.thaw()
        assert {d.outcome for d in await waiting} == {Outcome.SUCCESS}
        assert not circuit.is_open
        node = sentinel.node(REDIS_RESOURCE)
        assert node is not None
        assert node.minute(sentinel.clock.now_ns()).exceptions == 0


async def test_a_batch_that_is_refused_is_never_sold_out_and_a_cancelled_one_tells_nothing(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    await open_sale(redis, keys, make_sale())
    sentinel, circuit = guarded()
    sentinel.flow.load([FlowRule(resource=REDIS_RESOURCE, count=0)])
    async with open_gate(redis_server.url, keys, marks_folder, circuit=circuit) as gate:
        decisions = await buy([gate], ["ann", "bob"])
        assert {(d.outcome, d.cause) for d in decisions} == {(Outcome.UNDECIDED, "circuit_open")}
        assert await events_of(redis, keys) == []
        sentinel.flow.load([])
        assert (await gate.buy("ann")).outcome is Outcome.SUCCESS
        call = await circuit.begin()
        assert call is not None
        call.abandon()
        node = sentinel.node(REDIS_RESOURCE)
        assert node is not None
        assert (node.concurrency, node.window_exceptions, circuit.is_open) == (0, 0, False)


async def _commands(redis: Redis) -> int:
    """Scripts that the server has run, by whoever."""
    stats: dict[str, Any] = await redis.info("commandstats")
    return sum(
        one["calls"] for name, one in stats.items() if name in {"cmdstat_eval", "cmdstat_evalsha"}
    )


async def test_a_request_that_flow_control_refuses_never_reaches_redis(
    own_redis: RedisServer, direct: Redis, keys: Keys, marks_folder: Path
) -> None:
    await open_sale(direct, keys, make_sale(stock_units=1_000))
    sentinel = Sentinel()
    sentinel.flow.load([FlowRule(resource=PURCHASE_RESOURCE, count=1)])
    async with open_gate(own_redis.url, keys, marks_folder) as gate:
        await gate.gate.catalogue.refresh()
        flow = FlowControl(gate.gate, sentinel, Addresses(), asyncio.ensure_future)

        class Caller(Request):
            entry: Entry | None = None
            decision: Any

        async def post(user: str) -> Outcome:
            caller = Caller(UserId(user), gate.attempt(), 1)
            decision = flow.admit_now(GOODS, caller, None, [])
            if decision is None:
                decision = await caller.decision
            caller.decision = decision
            flow.end([caller])
            return decision.outcome

        assert await post("first") is Outcome.SUCCESS
        sentinel.flow.load([FlowRule(resource=PURCHASE_RESOURCE, count=0)])
        before = await _commands(direct)
        outcomes = [await post(f"user-{n}") for n in range(500)]
        assert set(outcomes) == {Outcome.BLOCKED}
        assert await _commands(direct) == before
        sentinel.flow.load([])
        assert await post("last") is Outcome.SUCCESS
        assert await _commands(direct) > before
        assert len(await events_of(direct, keys)) == 2
