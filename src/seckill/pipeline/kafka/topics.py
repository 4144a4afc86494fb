"""The topics: made when they are missing, and looked at when they are there."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from seckill.pipeline.errors import ChannelUnavailable, TopicUnfit
from seckill.pipeline.kafka.complaints import Complaints
from seckill.pipeline.kafka.options import MESSAGE_BYTES_MAX, KafkaOptions, client_settings

__all__ = ["TopicFacts", "ensure_topics"]

_log = structlog.get_logger()

_NAME: Final = "seckill-topics"
_ASK_S: Final = 10.0
_MAKE_S: Final = 10.0
_TRIES: Final = 3
_GRACE_S: Final = 5.0
"""The client's own time-out comes first, and says more."""
_POLL_S: Final = 0.05
_COPIES_USUAL: Final = 3
_DAY_MS: Final = 24 * 3600 * 1000
_SPARE_BYTES: Final = 64 * 1024
"""What reason and origin may add to a dead letter."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the brokers have it.

    Attributes:
        copies_min: copies that must have a message before it counts as taken.
        retention_ms: -1 keeps everything.
        message_bytes_max: the largest batch that it takes.
        made: it was made just now.
        warnings: what of it is not as one expects, in words.
    """

    name: str
    partitions: int
    copies: int
    copies_min: int
    retention_ms: int
    message_bytes_max: int
    made: bool
    warnings: tuple[str, ...] = ()


async def ensure_topics(
    options: KafkaOptions, *, tell: bool = True
) -> tuple[TopicFacts, TopicFacts]:
    """Make the order topic and the dead-letter topic unless they are there; say what they are.

    Args:
        tell: log it.

    Raises:
        ChannelUnavailable: Kafka does not answer.
        TopicUnfit: a topic that is there would lose messages.
    """
    orders, dead = await asyncio.to_thread(_ensure, options)
    for facts in (orders, dead) if tell else ():
        _log.info(
            "topic made" if facts.made else "topic found",
            topic=facts.name,
            partitions=facts.partitions,
            replication=facts.copies,
            min_insync_replicas=facts.copies_min,
            retention_ms=facts.retention_ms,
        )
        for warning in facts.warnings:
            _log.warning("topic is not as one expects", topic=facts.name, what=warning)
    return orders, dead


def _ensure(options: KafkaOptions) -> tuple[TopicFacts, TopicFacts]:
    complaints = Complaints(_NAME)
    found: ClusterMetadata | None = None
    for tries_left in reversed(range(_TRIES)):
        admin = None
        try:
            admin = AdminClient(client_settings(options, _NAME, complaints))
            found = found or admin.list_topics(timeout=_ASK_S)
            orders, dead = _ensure_both(admin, options, found)
            break
        except KafkaException as error:
            # The client may wait for the controller until its time is up although the brokers are
            # there (seen now and then; confluent-kafka-dotnet issue 2104). Another one does not.
            if found and tries_left and error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001
                continue
            raise ChannelUnavailable(
                f"looking at the topics: {complaints.words(error, admin)}"
            ) from error
    if dead.message_bytes_max < orders.message_bytes_max + _SPARE_BYTES:
        raise TopicUnfit(
            dead.name,
            f"takes {dead.message_bytes_max:,} bytes, and {orders.name} up to"
            f" {orders.message_bytes_max:,}: raise its max.message.bytes to at least"
            f" {orders.message_bytes_max + _SPARE_BYTES:,}, or a large dead letter would stand in"
            " the way for ever",
        )
    return orders, dead


def _ensure_both(
    admin: AdminClient, options: KafkaOptions, found: ClusterMetadata
) -> tuple[TopicFacts, TopicFacts]:
    copies = options.replication or min(_COPIES_USUAL, max(1, len(found.brokers)))
    copies_min = "2" if copies >= _COPIES_USUAL else "1"
    kept = {"min.insync.replicas": copies_min, "cleanup.policy": "delete"}
    wanted = [
        NewTopic(options.topic, options.partitions, copies,
                 config=kept | {"retention.ms": str(options.retention_ms)}),
        # Few and precious: kept until somebody has looked at them.
        NewTopic(options.dead_topic, 1, copies,
                 config=kept | {"retention.ms": "-1",
                                "max.message.bytes": str(MESSAGE_BYTES_MAX)}),
    ]  # fmt: skip
    missing = [topic for topic in wanted if not _is_in(found, topic.topic)]
    for topic in missing:
        _make(admin, topic)
    orders, dead = [_look(admin, topic.topic, made=topic in missing) for topic in wanted]
    return orders, dead


def _make(admin: AdminClient, topic: NewTopic) -> None:
    making = admin.create_topics([topic], operation_timeout=_MAKE_S, request_timeout=_MAKE_S)
    try:
        _answer(making[topic.topic], _MAKE_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        if _is_in(admin.list_topics(timeout=_ASK_S), topic.topic):
            return  # somebody else made it, or we may not make any
        raise


def _is_in(found: ClusterMetadata, name: str) -> bool:
    topic = found.topics.get(name)
    return topic is not None and topic.error is None


def _answer(future: Any, within_s: float) -> Any:
    """What the brokers say to one request.

    Raises:
        KafkaException: they refuse, or say nothing in time.
    """
    try:
        return future.result(within_s + _GRACE_S)
    except TimeoutError:
        silent = KafkaError(KafkaError._TIMED_OUT, "no answer in time")  # noqa: SLF001
        raise KafkaException(silent) from None


def _until_known(admin: AdminClient, name: str) -> Any:
    """A topic as the brokers tell it; one that was only just made is not known to all at once."""
    until = time.monotonic() + _ASK_S
    while True:
        found = admin.list_topics(name, timeout=_ASK_S).topics[name]
        led = all(partition.leader >= 0 for partition in found.partitions.values())
        if found.error is None and found.partitions and led:
            return found
        if time.monotonic() > until:
            raise KafkaException(found.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        time.sleep(_POLL_S)


def _look(admin: AdminClient, name: str, *, made: bool) -> TopicFacts:
    found = _until_known(admin, name)
    resource = ConfigResource(ResourceType.TOPIC, name)
    asked = admin.describe_configs([resource], request_timeout=_ASK_S)
    config = _answer(asked[resource], _ASK_S)
    copies = min((len(p.replicas) for p in found.partitions.values()), default=0)
    policy = config["cleanup.policy"].value
    if "compact" in policy:
        raise TopicUnfit(
            name,
            f"has cleanup.policy {policy}: compaction keeps one message of each buyer and loses the"
            " others; set it to delete",
        )
    facts = TopicFacts(
        name,
        len(found.partitions),
        copies,
        int(config["min.insync.replicas"].value),
        int(config["retention.ms"].value),
        int(config["max.message.bytes"].value),
        made,
    )
    return _with_warnings(facts)


def _with_warnings(facts: TopicFacts) -> TopicFacts:
    warnings: list[str] = []
    if facts.copies < _COPIES_USUAL:
        warnings.append(
            f"{facts.copies} of 3 copies: the loss of a broker's disk loses what no order worker"
            " has written yet"
        )
    elif facts.copies_min < 2:  # noqa: PLR2004  -- one copy besides the leader
        warnings.append("min.insync.replicas is 1: one broker alone may take a message")
    if 0 <= facts.retention_ms < _DAY_MS:
        warnings.append("retention is less than a day: orders that wait longer are lost")
    return TopicFacts(
        facts.name, facts.partitions, facts.copies, facts.copies_min, facts.retention_ms,
        facts.message_bytes_max, facts.made, tuple(warnings),
    )  # fmt: skip
