"""A Kafka for the session, and topics of each test's own."""

import itertools
import os
from collections.abc import AsyncIterator

import pytest

from seckill.pipeline.kafka.dead_topic import DeadTopic
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.producer import KafkaProducer
from seckill.pipeline.kafka.topics import ensure_topics
from services.kafka import KafkaBroker, kafka_broker

__all__ = ["kafka_broker"]

_numbers = itertools.count(1)


@pytest.fixture
async def options(kafka_broker: KafkaBroker) -> KafkaOptions:
    """Topics that no other test has, made; a dead member is noticed within seconds."""
    name = f"t{os.getpid()}-{next(_numbers)}"
    options = KafkaOptions(
        bootstrap=kafka_broker.bootstrap,
        topic=f"{name}-orders",
        group=f"{name}-workers",
        partitions=3,
        session_timeout_ms=2_000,
        poll_interval_ms_max=6_000,
        delivery_timeout_ms=10_000,
    )
    await ensure_topics(options)
    return options


@pytest.fixture
async def producer(options: KafkaOptions) -> AsyncIterator[KafkaProducer]:
    made = KafkaProducer(options, "test")
    yield made
    await made.close()


@pytest.fixture
def dead(options: KafkaOptions, producer: KafkaProducer) -> DeadTopic:
    return DeadTopic(options, producer)
