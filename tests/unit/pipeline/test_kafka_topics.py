"""Looking at the topics of a Kafka that says nothing, or nothing to one client."""

from collections.abc import Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from seckill.pipeline.errors import ChannelUnavailable
from seckill.pipeline.kafka import topics
from seckill.pipeline.kafka.options import DEAD_SUFFIX, KafkaOptions
from seckill.pipeline.kafka.topics import TopicFacts, ensure_topics

# A real broker cannot be told to forget one request of a living connection: hence the doubles.

OPTIONS = KafkaOptions(bootstrap="127.0.0.1:9")


class Clients:
    """Counts the clients that asked for each topic, and answers with what it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answers: list[BaseException | None] = []
        monkeypatch.setattr(topics, "_MAKE_S", 0.0)
        monkeypatch.setattr(topics, "_GRACE_S", 0.01)
        monkeypatch.setattr(topics, "_look", _look)
        monkeypatch.setattr(AdminClient, "list_topics", lambda _self, **_: NoTopics)
        monkeypatch.setattr(AdminClient, "create_topics", self.create)

    def create(self, wanted: list[Any], **_: Any) -> dict[Any, Future[None]]:
        (topic,) = wanted
        self.asked.append(topic.topic)
        future: Future[None] = Future()
        if self.answers:
            match self.answers.pop(0):
                case None:
                    future.set_result(None)
                case error:
                    future.set_exception(error)
        return {topic.topic: future}


class NoTopics:
    brokers = (1,)
    topics: Mapping[str, Any] = MappingProxyType({})


def _look(_admin: AdminClient, name: str, *, made: bool) -> TopicFacts:
    bytes_max = 2_000_000 if name.endswith(DEAD_SUFFIX) else 1_000_000
    return TopicFacts(name, 1, 3, 2, -1, bytes_max, made)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    return Clients(monkeypatch)


async def test_an_answer_that_never_comes_is_a_kafka_that_is_away(clients: Clients) -> None:
    with pytest.raises(ChannelUnavailable, match="no answer in time"):
        await ensure_topics(OPTIONS, tell=False)
    assert clients.asked == [OPTIONS.topic] * 3


async def test_a_client_that_waits_in_vain_is_replaced_by_another(clients: Clients) -> None:
    waited = KafkaException(KafkaError(KafkaError._TIMED_OUT, "Failed while waiting"))
    clients.answers = [waited, None, waited, None, None]
    orders, dead = await ensure_topics(OPTIONS, tell=False)
    topic, dead_topic = OPTIONS.topic, OPTIONS.dead_topic
    assert clients.asked == [topic, topic, dead_topic, topic, dead_topic]
    assert (orders.made, dead.made) == (True, True)


async def test_a_refusal_is_said_at_once(clients: Clients) -> None:
    clients.answers = [KafkaException(KafkaError(KafkaError.POLICY_VIOLATION, "not like this"))]
    with pytest.raises(ChannelUnavailable, match="not like this"):
        await ensure_topics(OPTIONS, tell=False)
    assert clients.asked == [OPTIONS.topic]
