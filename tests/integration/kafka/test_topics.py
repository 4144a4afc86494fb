"""The topics: made once, looked at afterwards, refused where they would lose messages."""

import pytest
from confluent_kafka.cimpl import NewTopic

from seckill.pipeline.errors import ChannelUnavailable, TopicUnfit
from seckill.pipeline.kafka import topics
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.topics import ensure_topics
from services.kafka import KafkaBroker, administer, own_options


@pytest.fixture(autouse=True)
def _brokers_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_ASK_S", 60.0)
    monkeypatch.setattr(topics, "_MAKE_S", 60.0)


def make(options: KafkaOptions, name: str, **config: str) -> None:
    names = {key.replace("_", "."): value for key, value in config.items()}
    topic = NewTopic(name, 2, 1, config=names)
    administer(options.bootstrap, lambda admin: admin.create_topics([topic])[name])


async def test_topics_are_made_and_found_again_and_say_what_they_are(
    kafka_broker: KafkaBroker,
) -> None:
    options = own_options(kafka_broker.bootstrap, retention_ms=3_600_000)
    for made in (True, False):
        orders, dead = await ensure_topics(options)
        assert (orders.made, dead.made) == (made, made)
        assert (orders.partitions, orders.retention_ms) == (3, 3_600_000)
        assert (dead.partitions, dead.retention_ms) == (1, -1)
        assert any("copies" in warning for warning in orders.warnings)
        assert any("less than a day" in warning for warning in orders.warnings)


async def test_a_compacted_topic_is_refused(kafka_broker: KafkaBroker) -> None:
    """It keeps one message for each key, so one purchase of each buyer."""
    options = own_options(kafka_broker.bootstrap)
    make(options, options.topic, cleanup_policy="compact")
    with pytest.raises(TopicUnfit, match=r"cleanup\.policy compact"):
        await ensure_topics(options)


async def test_a_dead_letter_topic_that_takes_less_than_what_may_come_is_refused(
    kafka_broker: KafkaBroker,
) -> None:
    options = own_options(kafka_broker.bootstrap)
    make(options, options.dead_topic, max_message_bytes="1000000")
    with pytest.raises(TopicUnfit, match=r"raise its max\.message\.bytes"):
        await ensure_topics(options)


async def test_a_broker_that_is_away_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_ASK_S", 0.5)
    options = own_options("127.0.0.1:1")
    with pytest.raises(ChannelUnavailable, match="looking at the topics"):
        await ensure_topics(options)
