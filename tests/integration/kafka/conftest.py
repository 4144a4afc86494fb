"""A Kafka for the session, and topics of each test's own."""

from collections.abc import AsyncIterator

import pytest

from seckill.pipeline.kafka.dead_topic import DeadTopic
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.producer import KafkaProducer
from services.kafka import KafkaBroker, make_topics, own_options


@pytest.fixture
async def options(kafka_broker: KafkaBroker) -> KafkaOptions:
    options = own_options(kafka_broker.bootstrap)
    await make_topics(options)
    return options


@pytest.fixture
async def producer(options: KafkaOptions) -> AsyncIterator[KafkaProducer]:
    made = KafkaProducer(options, "test")
    yield made
    await made.close()


@pytest.fixture
def dead(options: KafkaOptions, producer: KafkaProducer) -> DeadTopic:
    return DeadTopic(options, producer)
