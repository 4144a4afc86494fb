"""What every Kafka client of ours is told, and the names of topics and groups."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from seckill.pipeline.kafka.complaints import Complaints

__all__ = ["DEAD_SUFFIX", "KafkaOptions", "client_settings", "consumer_settings",
           "producer_settings"]  # fmt: skip

DEAD_SUFFIX: Final = ".dlt"
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest dead letter: far above what a topic usually takes, so that what came in can go out."""

_CRITICAL: Final = 2
# What the library says by itself is one line for each try to connect; what matters of it comes to
# `Complaints`, and is told now and then.
_QUIET: Final = logging.getLogger("librdkafka")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """How to reach Kafka, and what to use there.

    Attributes:
        bootstrap: host:port, separated by commas.
        topic: the order messages; dead letters are in the topic of this name and ``.dlt``.
        group: the consumer group of the order workers.
        partitions: of a topic that is made here; one order worker can have each.
        replication: copies of it; 0 is three, or as many as there are brokers.
        retention_ms: how long a topic that is made here keeps its messages.
        security: settings of the client library for TLS and SASL.
        delivery_timeout_ms: how long the relay waits for a message to be taken.
        queue_messages_max: messages that wait in the client for the broker.
        poll_interval_ms_max: how long a worker may be silent before its partitions are given away.
        session_timeout_ms: how long one may be dead before that.
    """

    bootstrap: str
    topic: str = "seckill-order-topic"
    group: str = "seckill-orders"
    partitions: int = 12
    replication: int = 0
    retention_ms: int = 7 * 24 * 3600 * 1000
    security: Mapping[str, str] = field(default_factory=dict)
    delivery_timeout_ms: int = 30_000
    queue_messages_max: int = 100_000
    poll_interval_ms_max: int = 300_000
    session_timeout_ms: int = 10_000

    @property
    def dead_topic(self) -> str:
        """Where messages go that cannot be read or written."""
        return self.topic + DEAD_SUFFIX


def client_settings(
    options: KafkaOptions, name: str, complaints: Complaints | None = None
) -> dict[str, Any]:
    """What all clients are told.

    Args:
        name: what the client is called in the logs of the brokers.
        complaints: hears what the client has to say; None only tells it in the log.
    """
    return {
        "bootstrap.servers": options.bootstrap,
        "client.id": name,
        "log_level": _CRITICAL,
        "logger": _QUIET,
        "error_cb": (complaints or Complaints(name)).hear,
        "socket.keepalive.enable": True,
        "socket.timeout.ms": 10_000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        **options.security,
    }


def producer_settings(options: KafkaOptions, name: str) -> dict[str, Any]:
    """An idempotent producer that waits for all copies."""
    return client_settings(options, name) | {
        "acks": "all",
        "enable.idempotence": True,
        "delivery.timeout.ms": options.delivery_timeout_ms,
        "queue.buffering.max.messages": options.queue_messages_max,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        # As the Java client does it, so that producers of both kinds agree on the partition.
        "partitioner": "murmur2_random",
        "compression.type": "lz4",
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 1_000,
    }


def consumer_settings(
    options: KafkaOptions, name: str, group: str, complaints: Complaints | None = None
) -> dict[str, Any]:
    """A consumer that commits only what it is told to."""
    return client_settings(options, name, complaints) | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "max.poll.interval.ms": max(options.poll_interval_ms_max, options.session_timeout_ms),
        "session.timeout.ms": options.session_timeout_ms,
        "heartbeat.interval.ms": max(100, options.session_timeout_ms // 4),
        "partition.assignment.strategy": "cooperative-sticky",
        # Two batches ahead are plenty; the default would hold 64 MB for each partition.
        "queued.min.messages": 10_000,
        "queued.max.messages.kbytes": 16_384,
        "fetch.wait.max.ms": 100,
        "allow.auto.create.topics": False,
    }
