"""The way of an order through a real Kafka: outbox, relay, topic, channel, worker."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from seckill.admission.bucket import Buckets
from seckill.admission.keys import Keys
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Scripts
from seckill.domain.sale import Sale
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.kafka.channel import KafkaChannel
from seckill.pipeline.kafka.dead_topic import DeadTopic
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.producer import KafkaProducer
from seckill.pipeline.relay import Relay, SaleBook
from seckill.pipeline.worker import OrderWorker
from services.stage import BUCKET, ID_KEY, MemoryOrderLedger, make_sale, until


class Counts:
    """What relay and worker say they did."""

    def __init__(self) -> None:
        self.entries = self.messages = self.refused = self.away = 0

    def relayed(self, entries: int, messages: int) -> None:
        self.entries += entries
        self.messages += messages

    def not_taken(self, messages: int) -> None:
        self.refused += messages

    def written(self, _report: Any) -> None:
        pass

    def ledger_away(self) -> None:
        self.away += 1


def entry(*seqs: int, user: str = "") -> dict[Any, Any]:
    flat: list[Any] = []
    for seq in seqs:
        flat += [seq, user or f"user-{seq}", 1, f"attempt-{seq}"]
    return {b"e": msgspec.msgpack.encode(["a", 1, 1_700_000_000_000, flat])}


async def sales() -> Sequence[Sale]:
    return [make_sale()]


def relay_of(
    redis: Redis, keys: Keys, options: KafkaOptions, producer: KafkaProducer, counts: Counts
) -> Relay:
    return Relay(
        outbox=DirectChannel(
            redis=redis, keys=keys, consumer="relay-0", bucket_ids=lambda: [BUCKET],
            on_dead=lambda _bucket, _reason: None,
        ),
        producer=producer, topic=options.topic, sales=SaleBook(sales),
        ids=ReservationIds(ID_KEY), observer=counts, grace_ms=500,
    )  # fmt: skip


@pytest.fixture
async def channel(options: KafkaOptions, dead: DeadTopic) -> AsyncIterator[KafkaChannel]:
    made = KafkaChannel(options, "worker-0", dead=dead)
    yield made
    await made.close()


async def test_what_was_admitted_reaches_the_ledger(
    redis: Redis, keys: Keys, options: KafkaOptions, producer: KafkaProducer, channel: KafkaChannel
) -> None:
    await Buckets(redis, Scripts(redis), keys).open(make_sale(), BUCKET, 1, 10)
    outbox = keys.bucket(BUCKET).outbox
    for start in range(1, 1000, 50):
        await redis.xadd(outbox, entry(*range(start, start + 50)))
    counts, stop, ledger = Counts(), asyncio.Event(), MemoryOrderLedger()
    relay = relay_of(redis, keys, options, producer, counts)
    worker = OrderWorker(channel=channel, ledger=ledger, observer=counts, deliveries_max=200)
    running = [asyncio.create_task(relay.run(stop)), asyncio.create_task(worker.run(stop))]
    await until(lambda: len(ledger.events) == 1000, 20)
    stop.set()
    await asyncio.gather(*running)
    assert {event.place.seq for event in ledger.events} == set(range(1, 1001))
    assert await redis.xlen(outbox) == 0
    assert (counts.entries, counts.messages, counts.refused) == (20, 1000, 0)
