"""What is promised is compared with what Redis is set up to do, and each batch waits for its copies."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from seckill.admission.bounds import Bounds
from seckill.admission.durability import Barrier, Durability, check_durability
from seckill.admission.errors import DurabilityRefused, StockUnavailable
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.admission.scripts import LOOK, Scripts
from seckill.domain.outcomes import Outcome
from services.redis import RedisServer
from services.stage import BUCKET, events_of, make_sale, open_gate, open_sale, until


@pytest.fixture
async def direct(own_redis: RedisServer) -> AsyncIterator[Redis]:
    client = connect(own_redis.url, timeout_ms=60_000)
    yield client
    await client.aclose()


async def check(redis: Redis, wanted: Durability, replicas: int = 1) -> tuple[Barrier | None, str]:
    report = await check_durability(redis, wanted, replicas_min=replicas, timeout_ms=300)
    return report.barrier, " ".join(report.warnings)


async def test_fsync_is_kept_by_a_redis_that_syncs_before_it_answers(direct: Redis) -> None:
    assert await check(direct, Durability.FSYNC) == (None, "")
    assert await check(direct, Durability.MEMORY) == (None, "")


async def test_fsync_is_refused_where_redis_would_not_keep_it(direct: Redis) -> None:
    info = await direct.info("server")
    can_be_asked = tuple(map(int, info["redis_version"].split(".")[:2])) >= (7, 2)

    async def is_asked_for_or_refused(why: str) -> None:
        if can_be_asked:
            barrier, _ = await check(direct, Durability.FSYNC)
            assert barrier is not None
            assert barrier.command[0] == "WAITAOF"
        else:
            with pytest.raises(DurabilityRefused, match=why):
                await check(direct, Durability.FSYNC)

    await direct.config_set("no-appendfsync-on-rewrite", "yes")
    await is_asked_for_or_refused("appendfsync always")
    await direct.config_set("no-appendfsync-on-rewrite", "no")
    await direct.config_set("appendfsync", "everysec")
    await is_asked_for_or_refused("everysec")
    await direct.config_set("appendonly", "no")
    with pytest.raises(DurabilityRefused, match="appendonly no"):
        await check(direct, Durability.FSYNC)
    barrier, warnings = await check(direct, Durability.MEMORY)
    assert barrier is None
    assert "no append-only file" in warnings


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_redis_that_may_evict_is_refused_at_every_level(direct: Redis, policy: str) -> None:
    await direct.config_set("maxmemory-policy", policy)
    for wanted in Durability:
        with pytest.raises(DurabilityRefused, match=policy):
            await check(direct, wanted)


async def test_replicated_needs_its_replicas_when_it_starts(direct: Redis) -> None:
    with pytest.raises(DurabilityRefused, match=r"needs 1 replica\(s\), Redis has 0"):
        await check(direct, Durability.REPLICATED)


async def test_a_redis_that_is_away_is_not_called_misconfigured() -> None:
    nobody = connect("redis://127.0.0.1:1/0", timeout_ms=200)
    with pytest.raises(StockUnavailable):
        await check(nobody, Durability.FSYNC)
    await nobody.aclose()


async def test_nobody_is_told_yes_before_a_replica_has_it(
    own_redis: RedisServer, direct: Redis, keys: Keys, marks_folder: Path, tmp_path: Path
) -> None:
    """C11, first half: without the replica a batch is undecided, and the same buyer gets his answer later."""
    await direct.config_set("repl-diskless-sync-delay", 0)
    replica = RedisServer(
        tmp_path / "replica", "--replicaof", "127.0.0.1", str(own_redis.port)
    ).start()
    try:

        async def in_step() -> bool:
            # WAIT is about the writes of its own connection: without one it answers at once.
            async with direct.pipeline(transaction=False) as pipeline:
                pipeline.set(keys.probe, "1")
                pipeline.execute_command("WAIT", 1, 200)
                return int((await pipeline.execute())[1]) == 1

        await until(in_step)
        barrier, _ = await check(direct, Durability.REPLICATED)
        assert barrier == Barrier(("WAIT", 1, 300), 1)
        await open_sale(direct, keys, make_sale(stock_units=10))
        bounds = Bounds(queue_wait_ms_max=500)
        async with open_gate(
            own_redis.url, keys, marks_folder, bounds=bounds, barrier=barrier
        ) as gate:
            # A busy machine may miss the 300 ms of a WAIT: asked again, the attempt gets its answer.
            async def has(user: str, attempt: str, wanted: Outcome) -> bool:
                return (await gate.buy(user, 1, attempt)).outcome is wanted

            await until(lambda: has("A", "first", Outcome.SUCCESS))
            copy = connect(replica.url, timeout_ms=60_000)
            assert len(await events_of(copy, keys)) == 1, "told yes, so the replica has it"
            replica.freeze()
            answer = await gate.buy("B", 1, "mine")
            assert (answer.outcome, answer.cause) == (Outcome.UNDECIDED, "not_durable")
            assert answer.reservation_id is None
            (mark,) = (gate.marks.acknowledged(b, e) for b, e in gate.marks._offsets)
            assert mark == 1, "nobody was told of seq 2"
            duplicate = await gate.buy("A")
            assert duplicate.outcome is Outcome.UNDECIDED, "an id is told only when it is safe"
            replica.thaw()
            await until(in_step)

            async def decides_again() -> bool:
                return (await gate.buy("C")).outcome is not Outcome.UNDECIDED

            await until(decides_again)

            async def replayed() -> bool:
                return (await gate.buy("B", 1, "mine")).replayed

            await until(replayed)
            await until(lambda: has("A", "second", Outcome.DUPLICATE))
            await copy.aclose()
        assert len(await events_of(direct, keys)) == 3
    finally:
        replica.remove()


async def test_a_barrier_also_covers_a_reservation_that_is_only_reported(
    own_redis: RedisServer, direct: Redis, keys: Keys, marks_folder: Path
) -> None:
    """Without a write behind it, WAIT would wait for something older. So the script writes."""
    barrier = Barrier(("WAIT", 0, 50), 0)
    await open_sale(direct, keys, make_sale(stock_units=10, limit_per_user=2))
    async with open_gate(own_redis.url, keys, marks_folder, barrier=barrier) as gate:
        await gate.buy("A", 1, "mine")
        for name, buying in (
            ("replay", ("A", 1, "mine")),
            ("key reused", ("A", 2, "mine")),
            ("over the limit", ("A", 2, "other")),
        ):
            before = (
                (await direct.info("replication"))["master_repl_offset"],
                (await direct.info("persistence"))["aof_current_size"],
            )
            await gate.buy(*buying)
            after = (
                (await direct.info("replication"))["master_repl_offset"],
                (await direct.info("persistence"))["aof_current_size"],
            )
            assert after > before, name
        before_size = (await direct.info("persistence"))["aof_current_size"]
        await gate.buy("B", 3)
        assert (await direct.info("persistence"))["aof_current_size"] == before_size


async def test_a_forgotten_script_is_sent_again_behind_a_barrier_too(
    direct: Redis, keys: Keys
) -> None:
    await open_sale(direct, keys, make_sale())
    await direct.script_flush()
    scripts = Scripts(direct, Barrier(("WAIT", 0, 50), 0))
    names = keys.bucket(BUCKET)
    reply = await scripts.run(
        LOOK, (names.meta, names.buyers, names.outbox, names.released, names.changes), durable=True
    )
    assert reply[0] == 0
