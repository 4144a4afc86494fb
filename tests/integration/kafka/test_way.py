"""The way of an order through a real Kafka: outbox, relay, topic, channel, worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from seckill.admission.keys import Keys
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.worker import OrderWorker
from services.stage import MemoryOrderLedger, make_sale, until
from services.ways import Counts, KafkaWay, entry, open_bucket


@pytest.fixture
async def way(redis: Redis, keys: Keys, options: KafkaOptions) -> AsyncIterator[KafkaWay]:
    sale = make_sale(stock_units=5000, limit_per_user=5)
    bucket_id = await open_bucket(redis, keys, sale)
    async with AsyncExitStack() as stack:
        yield KafkaWay(redis, keys, bucket_id, options, stack, sale)


async def test_what_was_admitted_reaches_the_ledger(way: KafkaWay) -> None:
    for start in range(1, 1000, 50):
        await way.redis.xadd(way.outbox, entry(*range(start, start + 50)))
    stop, ledger, counts = asyncio.Event(), MemoryOrderLedger(), Counts()
    worker = OrderWorker(
        channel=await way.channel(), ledger=ledger, observer=counts, deliveries_max=200
    )
    running = [
        asyncio.create_task(way.relay().run(stop)),
        asyncio.create_task(worker.run(stop)),
    ]
    await until(lambda: len(ledger.events) == 1000, 20)
    stop.set()
    await asyncio.gather(*running)
    assert {event.place.seq for event in ledger.events} == set(range(1, 1001))
    assert await way.redis.xlen(way.outbox) == 0
    assert (way.counts.entries, way.counts.messages, way.counts.refused) == (20, 1000, 0)
