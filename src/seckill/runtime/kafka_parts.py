"""What speaks to Kafka, made from the settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from seckill.pipeline.kafka.dead_topic import DeadTopic
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.producer import KafkaProducer
from seckill.pipeline.kafka.under_way import TopicUnderWay
from seckill.runtime.errors import SettingsInvalid
from seckill.runtime.settings import Settings

__all__ = ["KafkaParts", "kafka_options"]


def kafka_options(settings: Settings) -> KafkaOptions:
    """The settings as the clients want them.

    Raises:
        SettingsInvalid: no Kafka is named, and none is started for this process.
    """
    if not settings.kafka_bootstrap:
        raise SettingsInvalid(
            "kafka_bootstrap", "channel kafka needs a Kafka: name it, or run `seckill serve` first"
        )
    return KafkaOptions(
        bootstrap=settings.kafka_bootstrap,
        topic=settings.kafka_topic,
        group=settings.kafka_group,
        partitions=settings.kafka_partitions,
        replication=settings.kafka_replication,
        retention_ms=settings.kafka_retention_ms,
        security=_security(settings),
        delivery_timeout_ms=settings.kafka_delivery_timeout_ms,
        queue_messages_max=settings.kafka_queue_messages_max,
        poll_interval_ms_max=settings.kafka_poll_interval_ms_max,
        session_timeout_ms=settings.kafka_session_timeout_ms,
    )


def _security(settings: Settings) -> dict[str, str]:
    """TLS and SASL in the words of the client library; what is not set is left to it."""
    protocol: str = settings.kafka_security_protocol
    found: dict[str, str] = {"security.protocol": protocol}
    if protocol.startswith("sasl"):
        found |= {
            "sasl.mechanism": settings.kafka_sasl_mechanism,
            "sasl.username": settings.kafka_sasl_username,
            "sasl.password": settings.kafka_sasl_password.get_secret_value(),
        }
    for name, path in (
        ("ssl.ca.location", settings.kafka_ssl_ca),
        ("ssl.certificate.location", settings.kafka_ssl_certificate),
        ("ssl.key.location", settings.kafka_ssl_key),
    ):
        if path:
            found[name] = str(Path(path).expanduser())
    if password := settings.kafka_ssl_key_password.get_secret_value():
        found["ssl.key.password"] = password
    return found


@dataclass(frozen=True, slots=True)
class KafkaParts:
    """What every role and command uses. Nothing connects before it is used."""

    options: KafkaOptions
    producer: KafkaProducer
    dead: DeadTopic
    under_way: TopicUnderWay

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Made from the settings. Raises SettingsInvalid as `kafka_options`."""
        options = kafka_options(settings)
        producer = KafkaProducer(options, "seckill-producer")
        dead = DeadTopic(options, producer)
        return cls(options, producer, dead, TopicUnderWay(options, dead))

    async def close(self) -> None:
        """Let go of what was opened."""
        await self.under_way.close()
        await self.producer.close()
