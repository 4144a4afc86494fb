"""One limit for the whole service, on a real Redis. Bounds are measured by Redis' own clock."""

from __future__ import annotations

import asyncio
import bisect
import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.sentinel.shop import PATIENT, Shop, connect, opened, until
from seckill.sentinel import ClusterConfig, Entry, FlowRule, ParamFlowRule, Sentinel, TokenStatus
from seckill.sentinel.redis import (
    LeaseSettings,
    RedisTokenSource,
    ThreadedRedisTokenSource,
    token_source,
)
from seckill.sentinel.redis.keys import SentinelKeys
from seckill.sentinel.words import ThresholdType
from services.child import end_child
from services.names import own_name
from services.proxy import TCPProxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.redis import RedisServer

WORKER = Path(__file__).with_name("leasing_worker.py")
GLOBAL = ClusterConfig(flow_id=1, threshold_type=ThresholdType.GLOBAL)
ONE_MORE = FlowRule(
    resource="other", count=0, cluster_mode=True,
    cluster_config=ClusterConfig(flow_id=99, threshold_type=ThresholdType.GLOBAL),
)  # fmt: skip
AWAY = TokenStatus.UNAVAILABLE


@pytest.fixture
def namespace() -> str:
    return own_name()


@pytest.fixture(autouse=True)
def leaving_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that only stands still for a while is told of those who sign off."""
    monkeypatch.setattr(token_source, "LEAVE_TIMEOUT_S", 60.0)


def blocks(count: int, workers: int) -> int:
    """What may be in hand over an edge, as docs/sentinel.md states it."""
    credit = max(1, count // (10 * workers)) if count >= 4 * workers else 0
    return max(count // 10, workers) + credit * workers


@pytest.mark.parametrize(
    "rates", [[150.0] * 8, [1_200.0] + [0.0] * 7], ids=["evenly", "all on one worker"]
)
async def test_c31_a_threshold_holds_for_all_workers_together(
    redis_server: RedisServer, namespace: str, rates: list[float]
) -> None:
    async with opened(redis_server.url, namespace, count=400, workers=8) as shop:
        await shop.offer(rates, 2.5)
        await shop.offer_until(rates, lambda: shop.most() >= 0.9 * 400)
    assert shop.most() <= 400 + blocks(400, 8)


async def test_c31_and_for_real_processes_one_of_which_is_killed(
    redis_server: RedisServer, namespace: str
) -> None:
    processes = []
    try:
        for number in range(3):
            order = {
                "url": redis_server.url, "namespace": namespace, "worker": f"w{number}",
                "workers": 3, "count": 300, "rate": 300, "seconds": 2,
            }  # fmt: skip
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(WORKER), json.dumps(order), limit=1 << 24,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            processes.append(process)
        async with asyncio.timeout(60):
            for process in processes:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
            begins_s = time.time() + 0.2
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(f"{begins_s}\n".encode())
                await process.stdin.drain()
            await asyncio.sleep(1.0)
            processes[2].kill()
            told = []
            for process in processes[:2]:
                assert process.stdout is not None
                told.append(json.loads(await process.stdout.readline()))
                await process.communicate()
    finally:
        for process in processes:
            await end_child(process)
    assert [one["faults"] for one in told] == [0, 0]
    times = sorted(at_us for one in told for at_us in one["passed_us"])
    ends = (bisect.bisect_left(times, at_us + 1_000_000) for at_us in times)
    assert max(end - place for place, end in enumerate(ends)) <= 300 + blocks(300, 3)
    assert times, "and something passed"
    with redis_server.client() as client:
        left = client.hkeys(SentinelKeys(namespace).workers)
    # The dead one is forgotten in time, which may be now.
    assert set(left) <= {b"w2"}, "those that could, have signed off"


async def test_c44_cut_slow_and_refusing_never_multiplies_the_limit(
    redis_server: RedisServer, namespace: str
) -> None:
    """Longer than most, because a worker that is cut off waits before it lives on its share."""
    rates = [100.0] * 4
    async with (
        TCPProxy(redis_server.port) as proxy,
        opened(proxy.url, namespace, count=200, workers=4) as shop,
    ):
        workers = [one.source for one in shop.workers]
        await shop.offer_until(rates, lambda: len(shop.passed_ns) > 50)
        proxy.refuse()
        while any(one.status().in_contact for one in workers):
            await shop.offer(rates, 0.05)
        await until(lambda: all(worker.acquire(ONE_MORE, 1) is AWAY for worker in workers))
        before = len(shop.passed_ns)
        # Each lives on its share.
        await shop.offer_until(rates, lambda: len(shop.passed_ns) - before > 50)
        assert [one.status().workers for one in workers] == [4] * 4
        proxy.serve_again()
        await until(lambda: all(one.status().in_contact for one in workers))
        proxy.delay_ms = 200
        await shop.offer(rates, 1.0)
        proxy.delay_ms = 0
        proxy.freeze()
        await shop.offer(rates, 0.7)
        proxy.thaw()
        await until(lambda: not any(one.status().last_error for one in workers))
        await until(lambda: any(shop.call(place) for place in range(4)))
        recovering = len(shop.passed_ns)
        await shop.offer_until(rates, lambda: shop.most(since=recovering) >= 0.9 * 200)
    assert shop.most() <= 200 + blocks(200, 4)


async def test_c44_closed_by_setting_and_back(redis_server: RedisServer, namespace: str) -> None:
    async with (
        TCPProxy(redis_server.port) as proxy,
        opened(
            proxy.url, namespace, count=100, workers=2, window_ms=250, fallback="closed"
        ) as shop,
    ):
        await shop.offer([100.0] * 2, 0.3)
        proxy.refuse()
        await until(lambda: not any(one.source.status().in_contact for one in shop.workers))
        before = len(shop.passed_ns)
        await shop.offer([100.0] * 2, 0.3)
        assert len(shop.passed_ns) == before
        proxy.serve_again()
        await until(lambda: shop.call(0))


async def test_c44_started_without_redis_each_has_its_part_of_those_expected(
    redis_server: RedisServer, namespace: str
) -> None:
    async with TCPProxy(redis_server.port) as proxy:
        proxy.refuse()
        async with opened(
            proxy.url, namespace, count=100, workers=2, window_ms=1_000, expected=2
        ) as shop:
            assert sum(shop.call(0) for _ in range(200)) == 50
            assert sum(shop.call(1) for _ in range(200)) == 50
            proxy.serve_again()
            await until(lambda: all(one.source.status().in_contact for one in shop.workers))
            await shop.offer([100.0] * 2, 0.5)
        assert shop.most() <= 100 + blocks(100, 2)


async def test_the_first_calls_do_not_wait_for_redis(
    redis_server: RedisServer, namespace: str
) -> None:
    async with opened(redis_server.url, namespace, count=100, workers=2, settings=PATIENT) as shop:
        assert [shop.call(0) for _ in range(6)] == [True] * 5 + [False], "no await in between"
        await until(lambda: shop.call(0))


async def test_a_worker_that_ends_signs_off_and_gives_its_tokens_back(
    redis_server: RedisServer, namespace: str
) -> None:
    # 100 in a window that does not end while this is looked at.
    window_ms = 20_000
    async with opened(
        redis_server.url, namespace, count=5, workers=1, window_ms=window_ms, settings=PATIENT
    ) as shop:
        await shop.offer_until([100.0], lambda: len(shop.passed_ns) >= 5)
    keys = SentinelKeys(namespace)
    with redis_server.client() as client:
        assert client.exists(keys.workers) == 0
    async with opened(
        redis_server.url, namespace, count=5, workers=1, window_ms=window_ms, settings=PATIENT
    ) as again:
        # What is left of the window is all that the first did not use.
        rest = 100 - len(shop.passed_ns)
        calls = await until_refused(again)
        assert calls <= rest + 10


async def test_a_worker_ends_whenever_it_is_told_to(
    redis_server: RedisServer, namespace: str
) -> None:
    """The client library swallows a cancellation now and then; a stop that hangs is a kill -9."""
    for number in range(100):
        client = connect(redis_server.url)
        source = RedisTokenSource(client, namespace=namespace, worker_id=f"w{number}")
        running = asyncio.create_task(source.run())
        await asyncio.sleep(number * 0.000_15)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=60)
        assert done, number
        assert running.cancelled()
        await client.aclose()


async def until_refused(shop: Shop) -> int:
    """Call until the window is full: how many passed."""
    passed = 0
    refused = 0
    while refused < 10:
        if shop.call(0):
            passed, refused = passed + 1, 0
        else:
            refused += 1
            await asyncio.sleep(0.01)
    return passed


async def test_values_of_a_hot_parameter_have_one_limit_each(
    redis_server: RedisServer, namespace: str
) -> None:
    config = ClusterConfig(flow_id=7, threshold_type=ThresholdType.GLOBAL)
    rule = ParamFlowRule(
        resource="r", param_idx=0, count=20, duration_in_sec=300, cluster_mode=True,
        cluster_config=config,
    )  # fmt: skip
    async with opened(
        redis_server.url, namespace, count=10_000, workers=2, settings=PATIENT
    ) as shop:
        for one in shop.workers:
            one.sentinel.param_flow.load([rule])

        async def passes(goods_id: str) -> int:
            passed = rounds = 0
            async with asyncio.timeout(60):
                while passed < 20 or rounds < 60:
                    for one in shop.workers:
                        entry = one.sentinel.try_entry("r", goods_id)
                        if isinstance(entry, Entry):
                            passed += 1
                            entry.exit()
                    rounds += 1
                    await asyncio.sleep(0.005)
            return passed

        for goods_id in ("1001", "1002"):
            # 20 in five minutes, a block of 1 in each of two hands, and one on credit for each.
            assert await passes(goods_id) <= 20 + blocks(20, 2)


async def test_redis_that_forgot_the_script_is_told_again(
    redis_server: RedisServer, namespace: str
) -> None:
    async with opened(
        redis_server.url, namespace, count=1_000, workers=1, settings=PATIENT
    ) as shop:
        with redis_server.client() as client:
            client.script_flush()
        before = shop.workers[0].source.status().exchanges
        await until(lambda: shop.workers[0].source.status().exchanges > before + 2)
        assert shop.workers[0].source.status().failures == 0


async def test_keys_that_are_not_ours_are_a_fault_that_is_told_and_not_a_crash(
    redis_server: RedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.set(SentinelKeys(namespace).workers, "somebody else's")
    async with opened(redis_server.url, namespace, count=100, workers=1, expected=1) as shop:
        source = shop.workers[0].source
        await until(lambda: source.status().failures > 1)
        assert "WRONGTYPE" in source.status().last_error
        assert not source.status().in_contact
        assert caplog.text.count("no tokens from Redis") == 1
        with redis_server.client() as client:
            client.delete(SentinelKeys(namespace).workers)
        await until(lambda: source.status().in_contact)
        assert source.status().last_error == ""


def test_a_thread_leases_as_well(redis_server: RedisServer, namespace: str) -> None:
    with (
        redis_server.client() as client,
        ThreadedRedisTokenSource(client, namespace=namespace, worker_id="w") as source,
    ):
        sentinel = Sentinel(token_source=source)
        sentinel.flow.load(
            [FlowRule(resource="r", count=50, cluster_mode=True, cluster_config=GLOBAL)]
        )
        with pytest.raises(RuntimeError, match="once"):
            source.start()
        wait_until(lambda: source.status().in_contact)
        passed: list[int] = []
        enough = threading.Event()

        def call() -> None:
            while not enough.is_set():
                if isinstance(sentinel.try_entry("r"), Entry):
                    passed.append(time.time_ns())
                time.sleep(0.005)

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: most_within_a_second(passed[:]) >= 40)
        finally:
            enough.set()
            for thread in threads:
                thread.join()
    assert most_within_a_second(passed) <= 50 + blocks(50, 1)
    with redis_server.client() as client:
        assert client.exists(SentinelKeys(namespace).workers) == 0
    assert sentinel.alarms.internal_errors == 0


def most_within_a_second(times_ns: list[int]) -> int:
    times = sorted(times_ns)
    ends = (bisect.bisect_left(times, at_ns + 1_000_000_000) for at_ns in times)
    return max((end - place for place, end in enumerate(ends)), default=0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


async def test_what_cannot_be_right_is_refused_when_it_is_made(redis_server: RedisServer) -> None:
    client = connect(redis_server.url)
    with pytest.raises(ValueError, match="namespace"):
        RedisTokenSource(client, namespace="a{b}", worker_id="w")
    for worker_id in ("", "é" * 65):
        with pytest.raises(ValueError, match="worker id"):
            RedisTokenSource(client, namespace="a", worker_id=worker_id)
    with pytest.raises(ValueError, match="at least 1 worker"):
        RedisTokenSource(client, namespace="a", worker_id="w", workers_expected=0)
    for wrong in (
        {"timeout_ms": 0},
        {"timeout_ms": 500},
        {"forget_ms": 1_000},
        {"value_count_max": 0},
    ):
        with pytest.raises(ValueError, match=r"at least|above"):
            LeaseSettings(**wrong)
    source = RedisTokenSource(client, namespace="a", worker_id="w")
    rule = FlowRule(resource="r", count=5, cluster_mode=True, cluster_config=GLOBAL)
    assert source.acquire(rule, 1) is TokenStatus.BLOCKED, (
        "nothing is known yet, so nothing is given"
    )
    await client.aclose()
