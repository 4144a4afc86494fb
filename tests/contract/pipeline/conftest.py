"""One suite for both channels: every test that asks for ``way`` runs straight and through Kafka."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from seckill.admission.keys import Keys
from services.kafka import KafkaBroker, make_topics, own_options
from services.stage import make_sale
from services.ways import DirectWay, KafkaWay, Way, open_bucket


@pytest.fixture(params=["direct", "kafka"])
async def way(
    request: pytest.FixtureRequest, redis: Redis, keys: Keys
) -> AsyncIterator[Way]:  # fmt: skip
    sale = make_sale(stock_units=1000, limit_per_user=5)
    bucket_id = await open_bucket(redis, keys, sale)
    async with AsyncExitStack() as stack:
        if request.param == "direct":
            yield DirectWay(redis, keys, bucket_id)
            return
        broker: KafkaBroker = request.getfixturevalue("kafka_broker")
        options = own_options(broker.bootstrap)
        await make_topics(options)
        yield KafkaWay(redis, keys, bucket_id, options, stack)
