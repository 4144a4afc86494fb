"""The direct channel on a real Redis: nothing is lost, nothing stands in the way of its neighbours."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from seckill.admission.bucket import OUTBOX_GROUP, Buckets
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.admission.scripts import Scripts
from seckill.domain.events import BucketEvent
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId, Place
from seckill.pipeline import direct
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.errors import ChannelUnavailable
from seckill.pipeline.ports import Delivery
from services.stage import BUCKET, make_sale

OTHER = BucketId(SaleId(2), 0)


class Dead:
    """What the channel says it has put aside."""

    def __init__(self) -> None:
        self.entries: list[tuple[BucketId, str]] = []

    def __call__(self, bucket_id: BucketId, reason: str) -> None:
        self.entries.append((bucket_id, reason))


def channel_of(
    redis: Redis,
    keys: Keys,
    consumer: str = "worker-0",
    buckets: Callable[[], Iterable[BucketId]] = lambda: [BUCKET],
    dead: Dead | None = None,
) -> DirectChannel:
    return DirectChannel(
        redis=redis, keys=keys, consumer=consumer, bucket_ids=buckets, on_dead=dead or Dead()
    )


async def make_outbox(redis: Redis, keys: Keys, bucket_id: BucketId = BUCKET) -> str:
    sale = make_sale(sale_id=bucket_id.sale_id, goods_id=f"g{bucket_id.sale_id}")
    await Buckets(redis, Scripts(redis), keys).open(sale, bucket_id, 1, 10)
    return keys.bucket(bucket_id).outbox


def entry(*seqs: int, epoch: int = 1) -> dict[Any, Any]:
    flat: list[Any] = []
    for seq in seqs:
        flat += [seq, f"user-{seq}", 1, f"attempt-{seq}"]
    return {b"e": msgspec.msgpack.encode(["a", epoch, 1_700_000_000_000, flat])}


def seqs(deliveries: Iterable[Delivery]) -> list[int]:
    return [event.place.seq for delivery in deliveries for event in delivery.events]


async def receive_all(channel: DirectChannel, rounds: int = 20) -> list[BucketEvent]:
    """Receive and acknowledge until nothing has come for a whole round."""
    found: list[BucketEvent] = []
    for _ in range(rounds):
        deliveries = await channel.receive(64, 20)
        if not deliveries:
            return found
        found += [event for delivery in deliveries for event in delivery.events]
        await channel.acknowledge(deliveries)
    raise AssertionError("it never came to an end")


async def test_a_new_worker_without_a_past_reads_what_is_new(redis: Redis, keys: Keys) -> None:
    outbox = await make_outbox(redis, keys)
    channel = channel_of(redis, keys)
    assert await channel.receive(64, 10) == []
    await redis.xadd(outbox, entry(1, 2))
    await redis.xadd(outbox, entry(3))
    deliveries = await channel.receive(64, 200)
    assert seqs(deliveries) == [1, 2, 3]
    assert deliveries[0].events[0].place == Place(BUCKET.sale_id, 1, 0, 1)
    await channel.acknowledge(deliveries)
    assert await redis.xlen(outbox) == 0
    assert (await redis.xpending(outbox, OUTBOX_GROUP))["pending"] == 0


async def test_what_a_dead_worker_held_comes_to_its_successor_at_once(
    redis: Redis, keys: Keys
) -> None:
    outbox = await make_outbox(redis, keys)
    await redis.xadd(outbox, entry(1))
    assert seqs(await channel_of(redis, keys).receive(64, 10)) == [1]
    await redis.xadd(outbox, entry(2))
    assert seqs(await channel_of(redis, keys).receive(64, 10)) == [1]  # first what was held
    assert [e.place.seq for e in await receive_all(channel_of(redis, keys))] == [1, 2]


async def test_what_a_dead_worker_held_comes_to_another_one_after_a_while_and_not_before(
    redis: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_ms = 600_000
    monkeypatch.setattr(direct, "CLAIM_IDLE_MS", while_ms)
    monkeypatch.setattr(direct, "_CLAIM_EVERY_MS", 0)
    outbox = await make_outbox(redis, keys)
    held = await redis.xadd(outbox, entry(1))
    await channel_of(redis, keys, "worker-0").receive(64, 10)
    other = channel_of(redis, keys, "worker-1")
    for idle_ms in (0, while_ms - 300_000):
        await redis.xclaim(outbox, OUTBOX_GROUP, "worker-0", 0, [held], idle=idle_ms)
        assert await other.receive(64, 10) == []
    await redis.xclaim(outbox, OUTBOX_GROUP, "worker-0", 0, [held], idle=while_ms)
    assert seqs(await other.receive(64, 10)) == [1]


async def test_what_could_not_be_written_comes_again_at_once_and_in_order(
    redis: Redis, keys: Keys
) -> None:
    """A ledger that was away for a moment must not cost the buyers seconds of waiting."""
    outbox = await make_outbox(redis, keys)
    channel = channel_of(redis, keys)
    await redis.xadd(outbox, entry(1))
    assert seqs(await channel.receive(64, 200)) == [1]
    await redis.xadd(outbox, entry(2))  # and nobody acknowledged the first
    again = await channel.receive(64, 200)
    assert seqs(again) == [1]
    await channel.acknowledge(again)
    assert seqs(await channel.receive(64, 200)) == [2]


async def test_a_failed_acknowledgement_means_that_it_comes_again(
    redis: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = await make_outbox(redis, keys)
    channel = channel_of(redis, keys)
    await redis.xadd(outbox, entry(1))
    deliveries = await channel.receive(64, 200)

    async def fail(*_: object, **__: object) -> None:
        raise RedisConnectionError("cut")

    with monkeypatch.context() as patch:
        patch.setattr("redis.asyncio.client.Pipeline.execute", fail)
        with pytest.raises(ChannelUnavailable):
            await channel.acknowledge(deliveries)
    assert seqs(await channel.receive(64, 200)) == [1]


async def test_what_came_with_a_reply_that_was_lost_comes_again_at_once(
    redis: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis has put it into this worker's hands, and the worker does not know."""
    outbox = await make_outbox(redis, keys)
    channel = channel_of(redis, keys)
    assert await channel.receive(64, 10) == []
    await redis.xadd(outbox, entry(1))
    real = redis.xreadgroup

    async def lose_the_reply(*arguments: Any, **options: Any) -> None:
        await real(*arguments, **options)
        raise RedisConnectionError("cut")

    with monkeypatch.context() as patch:
        patch.setattr(redis, "xreadgroup", lose_the_reply)
        with pytest.raises(ChannelUnavailable):
            await channel.receive(64, 10)
    assert seqs(await channel.receive(64, 10)) == [1]


async def test_an_acknowledgement_is_whole_or_not_at_all(redis: Redis, keys: Keys) -> None:
    """Acknowledged but not deleted would stand in the outbox for ever, and a rebuild waits for it.

    Everything that one acknowledgement sends must travel as one transaction.
    """
    outbox = await make_outbox(redis, keys)
    await redis.xadd(outbox, entry(1))
    channel = channel_of(redis, keys)
    deliveries = await channel.receive(64, 200)
    async with redis.monitor() as monitor:
        await channel.acknowledge(deliveries)
        commands: list[str] = []
        while not commands or not commands[-1].startswith("EXEC"):
            commands.append((await monitor.next_command())["command"])
    mine = [c.split()[0] for c in commands if outbox in c or c.split()[0] in {"MULTI", "EXEC"}]
    assert mine == ["MULTI", "XACK", "XDEL", "EXEC"]


async def test_at_most_as_many_as_were_asked_for_are_delivered_over_all_buckets(
    redis: Redis, keys: Keys
) -> None:
    """XREADGROUP counts for each stream by itself; a transaction of the ledger does not."""
    many = [BucketId(SaleId(n), 0) for n in range(1, 6)]
    for bucket_id in many:
        outbox = await make_outbox(redis, keys, bucket_id)
        for seq in range(1, 8):
            await redis.xadd(outbox, entry(seq))
    channel = channel_of(redis, keys, buckets=lambda: many)
    found = 0
    while deliveries := await channel.receive(4, 20):
        assert len(deliveries) <= 4
        found += len(deliveries)
        await channel.acknowledge(deliveries)
    assert found == 5 * 7


async def test_a_bucket_without_its_group_does_not_keep_the_others_waiting(
    redis: Redis, keys: Keys
) -> None:
    await make_outbox(redis, keys, BUCKET)
    other = await make_outbox(redis, keys, OTHER)
    channel = channel_of(redis, keys, buckets=lambda: [BUCKET, OTHER])
    assert await channel.receive(64, 10) == []
    await redis.delete(keys.bucket(BUCKET).outbox)
    await redis.xadd(other, entry(1))
    assert seqs(await channel.receive(64, 200)) == [1]


async def test_a_key_of_another_type_does_not_keep_the_others_waiting(
    redis: Redis, keys: Keys
) -> None:
    await make_outbox(redis, keys, BUCKET)
    other = await make_outbox(redis, keys, OTHER)
    await redis.delete(keys.bucket(BUCKET).outbox)
    await redis.set(keys.bucket(BUCKET).outbox, "by hand")
    channel = channel_of(redis, keys, buckets=lambda: [BUCKET, OTHER])
    await redis.xadd(other, entry(1))
    deliveries = await channel.receive(64, 200)
    assert seqs(deliveries) == [1]
    await channel.acknowledge(deliveries)
    assert await redis.xlen(other) == 0


async def test_waiting_beside_a_lost_bucket_does_not_spin(redis: Redis, keys: Keys) -> None:
    """One bucket that waits for its rebuild must not turn the worker into a heater."""
    await make_outbox(redis, keys, OTHER)
    channel = channel_of(redis, keys, buckets=lambda: [BUCKET, OTHER])
    await channel.receive(64, 50)
    began = time.monotonic()
    await channel.receive(64, 200)
    assert time.monotonic() - began > 0.15


POISON: dict[str, dict[bytes, bytes]] = {
    "no field e": {b"f": b"1"},
    "empty": {b"e": b""},
    "garbage": {b"e": b"\xff\x00garbage"},
    "json": {b"e": b'{"userId": "1"}'},
    "text that is not UTF-8": {b"e": b"\x94\xa2\xff\xfe\x01\x02\x90"},
    "unknown kind": {b"e": msgspec.msgpack.encode(["z", 1, 1, [1, "u", 1, "t"]])},
    "no events": {b"e": msgspec.msgpack.encode(["a", 1, 1, []])},
    "half an event": {b"e": msgspec.msgpack.encode(["a", 1, 1, [1, "u", 1]])},
    "epoch 0": {b"e": msgspec.msgpack.encode(["a", 0, 1, [1, "u", 1, "t"]])},
    "instant 0": {b"e": msgspec.msgpack.encode(["a", 1, 0, [1, "u", 1, "t"]])},
    "seq 0": {b"e": msgspec.msgpack.encode(["a", 1, 1, [0, "u", 1, "t"]])},
    "seq too high": {b"e": msgspec.msgpack.encode(["a", 1, 1, [2**41, "u", 1, "t"]])},
    "user with a space": {b"e": msgspec.msgpack.encode(["a", 1, 1, [1, "u u", 1, "t"]])},
    "user with NUL": {b"e": msgspec.msgpack.encode(["a", 1, 1, [1, "u\0", 1, "t"]])},
    "user is a number": {b"e": msgspec.msgpack.encode(["a", 1, 1, [1, 7, 1, "t"]])},
    "attempt is a number": {b"e": msgspec.msgpack.encode(["a", 1, 1, [1, "u", 1, 7]])},
    "change id is a number": {b"e": msgspec.msgpack.encode(["s", 1, 1, [1, 7, 1]])},
    "difference 0": {b"e": msgspec.msgpack.encode(["s", 1, 1, [1, "c", 0]])},
    "difference is text": {b"e": msgspec.msgpack.encode(["s", 1, 1, [1, "c", "5"]])},
    "released epoch is text": {b"e": msgspec.msgpack.encode(["r", 1, 1, [1, "u", 1, "1", 1]])},
    "2 MB": {b"e": b"\xc6" + (2_000_000).to_bytes(4, "big") + bytes(2_000_000)},
    "fields that mimic a dead letter": {b"reason": b"none", b"entry": b"0-1", b"e": b"x"},
    # C56: what a hand could write for a quantity.
    **{
        f"quantity {quantity!r}": {
            b"e": msgspec.msgpack.encode(["a", 1, 1, [1, "u", quantity, "t"]])
        }
        for quantity in (
            -1,
            0,
            1.5,
            "1",
            "1e3",
            True,
            None,
            [],
            101,
            2147483648,
            9007199254740993,
            float("inf"),
            float("nan"),
        )
    },
}


async def test_each_unreadable_entry_is_put_aside_whole_while_its_neighbours_go_on(
    redis: Redis, keys: Keys
) -> None:
    """C16 and C56, in the outbox by hand."""
    outbox = await make_outbox(redis, keys)
    dead = Dead()
    channel = channel_of(redis, keys, dead=dead)
    written: list[tuple[bytes, dict[bytes, bytes]]] = []
    for number, fields in enumerate(POISON.values(), start=1):
        await redis.xadd(outbox, entry(number))
        written.append((await redis.xadd(outbox, fields), fields))  # type: ignore[arg-type]
    good = await receive_all(channel)
    assert [event.place.seq for event in good] == list(range(1, len(POISON) + 1))
    letters: Any = await redis.xrange(keys.bucket(BUCKET).dead)
    assert len(letters) == len(POISON) == len(dead.entries)
    for (entry_id, fields), (_, letter) in zip(written, letters, strict=True):
        assert letter[b"entry"] == entry_id
        assert len(letter[b"reason"]) > 10, "a reason that an operator can read"
        for name, value in fields.items():
            if name not in {b"entry", b"reason"}:
                assert letter[name] == value
    assert await redis.xlen(outbox) == 0


async def test_an_entry_that_the_ledger_refuses_is_put_aside_with_its_bytes(
    redis: Redis, keys: Keys
) -> None:
    outbox = await make_outbox(redis, keys)
    await redis.xadd(outbox, entry(1))
    channel = channel_of(redis, keys)
    (delivery,) = await channel.receive(64, 200)
    await channel.set_aside(delivery, "no such sale")
    ((_, letter),) = await redis.xrange(keys.bucket(BUCKET).dead)
    assert letter[b"reason"] == b"no such sale"
    assert letter[b"e"] == entry(1)[b"e"]
    assert await redis.xlen(outbox) == 0
    assert (await redis.xpending(outbox, OUTBOX_GROUP))["pending"] == 0
    assert await channel.receive(64, 10) == []


async def test_an_entry_deleted_while_it_was_pending_is_an_alarm_and_no_stop(
    redis: Redis, keys: Keys
) -> None:
    outbox = await make_outbox(redis, keys)
    lost = await redis.xadd(outbox, entry(1))
    await redis.xadd(outbox, entry(2))
    await channel_of(redis, keys).receive(64, 10)
    await redis.xdel(outbox, lost)
    dead = Dead()
    assert [e.place.seq for e in await receive_all(channel_of(redis, keys, dead=dead))] == [2]
    assert len(dead.entries) == 1
    assert "deleted" in dead.entries[0][1]


async def test_redis_6_2_names_no_id_for_an_entry_deleted_while_pending(
    redis: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 7.0 XAUTOCLAIM hands out nil for such an entry, which the client gives as (None, None)."""
    outbox = await make_outbox(redis, keys)
    dead = Dead()
    channel = channel_of(redis, keys, "worker-1", dead=dead)
    assert await channel.receive(64, 10) == []
    lost = await redis.xadd(outbox, entry(1))
    await redis.xadd(outbox, entry(2))
    # As after the claim of 6.2: both are this worker's now, and one has no content any more.
    await redis.xreadgroup(OUTBOX_GROUP, "worker-1", {outbox: ">"})
    await redis.xdel(outbox, lost)
    real = redis.xrange

    async def as_in_6_2(*_: object, **__: object) -> list[Any]:
        return [b"0-0", [(None, None), *await real(outbox)]]

    with monkeypatch.context() as patch:
        patch.setattr(direct, "_CLAIM_EVERY_MS", 0)
        patch.setattr(redis, "xautoclaim", as_in_6_2)
        deliveries = await channel.receive(64, 10)
    assert seqs(deliveries) == [2]
    await channel.acknowledge(deliveries)
    assert await channel.receive(64, 10) == []
    assert [(at, "deleted" in reason) for at, reason in dead.entries] == [(BUCKET, True)]
    assert (await redis.xpending(outbox, OUTBOX_GROUP))["pending"] == 0


async def test_a_redis_that_is_away_is_said_as_such(keys: Keys, redis: Redis) -> None:
    nobody = connect("redis://127.0.0.1:1/0", timeout_ms=200)
    channel = channel_of(nobody, keys)
    with pytest.raises(ChannelUnavailable):
        await channel.receive(64, 10)
    with pytest.raises(ChannelUnavailable):
        await channel.lag()
    await nobody.aclose()


async def test_the_lag_counts_what_waits_and_how_long(redis: Redis, keys: Keys) -> None:
    outbox = await make_outbox(redis, keys)
    channel = channel_of(redis, keys)
    assert await channel.lag() == direct.OutboxLag(0, 0)
    seconds, _ = await redis.time()
    await redis.xadd(outbox, entry(1), id=f"{(seconds - 60) * 1000}-1")
    await redis.xadd(outbox, entry(2))
    lag = await channel.lag()
    assert lag.entries == 2
    assert 59_000 < lag.oldest_ms < 180_000
