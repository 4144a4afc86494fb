"""Guards that count instead of timing: what one admission costs, in commands, bytes and batches."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from seckill.admission.bounds import BATCH_ENTRIES_CAP, Bounds
from seckill.admission.bucket import Buckets, Holding
from seckill.admission.catalogue import publish
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.admission.scripts import ADMIT, Scripts, Status
from seckill.domain.ids import AttemptId, SaleId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import BucketId, Place
from services.redis import RedisServer
from services.stage import BUCKET, buy, make_sale, open_gate, open_sale

BYTES_PER_BUYER_MAX = 160
BYTES_PER_SALE_MAX = 200
NOW_MS = 1_796_000_000_000
"""Memory of the buyers hash for each buyer with one reservation and an id of ten characters."""


async def command_calls(redis: Redis) -> dict[str, int]:
    found: dict[str, Any] = await redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in found.items()}


async def test_an_admission_costs_a_small_part_of_a_command_under_load(
    own_redis: RedisServer, keys: Keys, marks_folder: Path
) -> None:
    """2,000 buyers at once: the batches are large, and Redis works once for each of them."""
    async with open_gate(own_redis.url, keys, marks_folder) as gate:
        await open_sale(gate.redis, keys, make_sale(stock_units=10_000))
        await gate.buy("first")
        gate.counts.batches.clear()
        await gate.redis.config_resetstat()
        answers = await buy([gate], [f"user-{n}" for n in range(2_000)])
        calls = await command_calls(gate.redis)
    assert {d.outcome for d in answers} == {Outcome.SUCCESS}
    batches = gate.counts.batches
    # The polls of the catalogue (hget) and the end of the measurement are not of the admissions.
    work = sum(n for name, n in calls.items() if name not in {"hget", "info", "config|resetstat"})
    print(f"2,000 admissions: {len(batches)} batches {batches}, {work} commands {calls}")  # noqa: T201  -- a measurement, shown by `-s`
    assert sum(batches) == 2_000
    assert max(batches) <= Bounds().batch_entries_max
    assert len(batches) <= 8
    assert calls["evalsha"] == len(batches)
    assert work <= len(batches) * 12
    assert work / 2_000 < 0.05


async def test_a_batch_is_capped_whatever_the_setting_says(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C76: in entries, and in bytes of names."""
    await open_sale(redis, keys, make_sale(stock_units=100_000))
    greedy = Bounds(batch_entries_max=10_000, batch_bytes_max=10**9, queue_wait_ms_max=60_000)
    assert greedy.batch_entries_max == BATCH_ENTRIES_CAP == 512
    async with open_gate(redis_server.url, keys, marks_folder, bounds=greedy) as gate:
        await buy([gate], [f"user-{n}" for n in range(5_000)])
        assert max(gate.counts.batches) == 512
    narrow = Bounds(batch_bytes_max=1_000, queue_wait_ms_max=60_000)
    async with open_gate(redis_server.url, keys, marks_folder, bounds=narrow) as gate:
        await buy([gate], [f"名{n:03}" * 10 for n in range(100)])  # 60 bytes each
        assert max(gate.counts.batches) == 1_000 // 60


async def test_a_buyer_costs_a_stated_number_of_bytes_and_a_refused_one_none(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    await open_sale(redis, keys, make_sale(stock_units=10_000))
    names = keys.bucket(BUCKET)
    all_names = (names.meta, names.buyers, names.outbox, names.released, names.changes)

    async def content() -> list[bytes]:
        found: list[bytes] = await redis.execute_command("DEBUG", "DIGEST-VALUE", *all_names)
        return found

    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        first = await buy([gate], [f"user-{n:05}" for n in range(10_000)])
        assert {d.outcome for d in first} == {Outcome.SUCCESS}
    buyers_bytes = await redis.memory_usage(names.buyers, samples=0)
    before = await content()
    # 20,000 who come too late, twice each; past the flag, so that Redis itself refuses them.
    scripts = Scripts(redis)
    for number in range(80):
        request: list[Any] = [1, 0, 1]
        for n in range(500):
            request += [f"late-{(number % 40) * 500 + n}", f"t{number}", 1]
        reply = await scripts.run(ADMIT, (names.meta, names.buyers, names.outbox), request)
        assert set(reply[5::4]) == {Outcome.SOLD_OUT}
    assert await content() == before
    assert await redis.memory_usage(names.buyers, samples=0) <= buyers_bytes
    assert set(await redis.keys(f"{keys.prefix}:*")) == {
        name.encode() for name in (names.meta, names.buyers, names.outbox, keys.sales)
    }
    print(f"buyers: {buyers_bytes / 10_000:.1f} bytes each (bound {BYTES_PER_BUYER_MAX})")  # noqa: T201  -- a measurement, shown by `-s`
    assert buyers_bytes / 10_000 <= BYTES_PER_BUYER_MAX


async def test_a_sale_in_the_catalogue_costs_a_stated_number_of_bytes(
    redis: Redis, keys: Keys
) -> None:
    """It stays there when all else of the sale is gone, see docs/operate/clean-up.md."""
    over = [
        make_sale(
            sale_id=n, goods_id=f"goods-{n}", starts_at_ms=NOW_MS, ends_at_ms=NOW_MS, retired=True
        )
        for n in range(1, 1_001)
    ]
    await publish(redis, keys, over)
    bytes_each = await redis.memory_usage(keys.sales, samples=0) / len(over)
    print(f"catalogue: {bytes_each:.1f} bytes a sale (bound {BYTES_PER_SALE_MAX})")  # noqa: T201  -- as above
    assert bytes_each <= BYTES_PER_SALE_MAX


async def test_no_script_holds_redis_up_however_large_the_sale_is(  # noqa: PLR0915  -- a list of measurements
    tmp_path: Path, keys: Keys
) -> None:
    """C76: 200,000 buyers in the hash, 100 reservations under one of them.

    Measured by the processor time of Redis' own thread, and compared with what a newcomer costs in
    a small sale: other processes share this machine, and a ratio does not mind. The longest call
    by the clock (SLOWLOG) is printed beside it. Without an append-only file: what a disk does is
    not the script's doing.
    """
    server = RedisServer(tmp_path / "redis").start()
    redis = connect(server.url, timeout_ms=60_000)
    scripts = Scripts(redis)
    buckets = Buckets(redis, scripts, keys)
    sale = make_sale(stock_units=1_000_000, limit_per_user=100)
    held = [
        (UserId(f"user-{n}"), [Holding(Place(BUCKET.sale_id, 1, 0, n + 1), 1, AttemptId("t" * 16))])
        for n in range(200_000)
    ]
    assert await buckets.open(sale, BUCKET, 2, sale.stock_units, held) is Status.OK
    await redis.config_set("slowlog-log-slower-than", 0)
    await redis.config_set("slowlog-max-len", 10_000)

    async def cpu_ms() -> float:
        info: dict[str, float] = await redis.info("cpu")
        return 1000 * (info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"])

    async def measure(work: str, calls: int, call: Callable[[int], Awaitable[object]]) -> float:
        await redis.slowlog_reset()
        used_ms = 0.0
        for number in range(calls):
            before = await cpu_ms()
            await call(number)
            used_ms += await cpu_ms() - before
        found: Any = await redis.slowlog_get(10_000)
        longest = max(e["duration"] / 1000 for e in found if e["command"].startswith(b"EVAL"))
        print(  # noqa: T201  -- a measurement, shown by `-s`
            f"C76 {work}: {used_ms / calls:.2f} ms of Redis each; by the clock <= {longest:.2f} ms"
        )
        return used_ms / calls

    def admit(
        size: int, user: str, bucket_id: BucketId = BUCKET
    ) -> Callable[[int], Awaitable[object]]:
        names = keys.bucket(bucket_id)

        async def call(number: int) -> None:
            request: list[Any] = [2, 0, 0]
            for n in range(size):
                request += [user.format(number * size + n), f"{size}-{number}-{n:04}", 1]
            reply = await scripts.run(ADMIT, (names.meta, names.buyers, names.outbox), request)
            assert len(reply) == 5 + 4 * size

        return call

    def release(size: int) -> Callable[[int], Awaitable[object]]:
        async def call(number: int) -> None:
            rows = [
                (UserId(f"user-{n}"), Place(BUCKET.sale_id, 1, 0, n + 1))
                for n in range(number * size, (number + 1) * size)
            ]
            seqs = await buckets.release(BUCKET, 2, rows)
            assert not isinstance(seqs, Status)
            assert all(seqs)

        return call

    small = BucketId(SaleId(2), 0)
    assert await buckets.open(sale, small, 2, sale.stock_units) is Status.OK
    size, cap = Bounds().batch_entries_max, BATCH_ENTRIES_CAP
    await measure("warm-up", 5, admit(size, "warm-{}", small))
    newcomer = await measure("newcomers, small sale", 20, admit(size, "new-{}", small)) / size
    large = await measure("newcomers", 20, admit(size, "new-{}")) / size
    old = await measure("old buyers", 20, admit(size, "user-{}")) / size
    capped = await measure(f"batch of {cap}", 10, admit(cap, "newer-{}")) / cap
    clicks = await measure(f"{cap} clicks of one buyer of 100", 10, admit(cap, "one")) / cap
    released = await measure("256 releases", 20, release(256)) / 256
    look = await measure("look", 50, lambda _: buckets.look(BUCKET))
    # Opened anew: 200,000 buyers are unlinked, not deleted.
    opening = await measure("open", 1, lambda _: buckets.open(sale, BUCKET, 3, 1))
    assert large < newcomer * 3, "the size of the sale must not be felt"
    assert old < newcomer * 4
    assert capped < newcomer * 3, "nor the size of the batch"
    assert clicks < newcomer * 5, "nor clicks times reservations: it was twenty times"
    assert released < newcomer * 10
    assert look < newcomer * size / 2
    assert opening < newcomer * size
    await redis.aclose()
    server.remove()


async def test_the_queue_that_operators_see_ends_empty(
    redis_server: RedisServer, keys: Keys, redis: Redis, marks_folder: Path
) -> None:
    """Told as differences, so that the buckets of several sales add up to one number."""
    await open_sale(redis, keys, make_sale(stock_units=5_000))
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        await buy([gate], [f"user-{n}" for n in range(3_000)])
    assert gate.counts.queue_max == 3_000 - Bounds().batch_entries_max
    assert gate.counts.queue_now == 0
