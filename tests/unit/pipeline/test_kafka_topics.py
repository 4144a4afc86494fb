"""Looking at the topics of a Kafka that says nothing."""

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from seckill.pipeline.errors import ChannelUnavailable
from seckill.pipeline.kafka import topics
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.topics import ensure_topics


async def test_an_answer_that_never_comes_is_a_kafka_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A double, since a real broker cannot be told to forget one request of a living connection."""

    class Brokers:
        brokers = (1,)

    def forgotten(_self: AdminClient, wanted: list[Any], **_: Any) -> dict[Any, Future[None]]:
        return {topic.topic: Future() for topic in wanted}

    monkeypatch.setattr(topics, "_MAKE_S", 0.0)
    monkeypatch.setattr(topics, "_GRACE_S", 0.01)
    monkeypatch.setattr(topics, "_exists", lambda _admin, _name: False)
    monkeypatch.setattr(AdminClient, "list_topics", lambda _self, **_: Brokers)
    monkeypatch.setattr(AdminClient, "create_topics", forgotten)
    with pytest.raises(ChannelUnavailable, match="no answer in time"):
        await ensure_topics(KafkaOptions(bootstrap="127.0.0.1:9"))
