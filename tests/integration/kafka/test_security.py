"""Kafka behind TLS and a login: all clients go through, and what is set wrong is named."""

import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from redis.asyncio import Redis

from seckill.admission.keys import Keys
from seckill.pipeline.errors import ChannelUnavailable
from seckill.pipeline.kafka import topics
from seckill.pipeline.kafka.messages import OrderMessage
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.producer import KafkaProducer
from seckill.pipeline.kafka.topics import ensure_topics
from seckill.runtime.free_ports import choose_port
from seckill.runtime.kafka_parts import kafka_options
from seckill.runtime.settings import load_settings
from services.certificates import Authority
from services.kafka import KafkaBroker, SecureListeners, administer, make_topics, own_options
from services.stage import make_sale, until
from services.ways import KafkaWay, entry, open_bucket, receive_until

ANN = {"kafka_sasl_username": "ann", "kafka_sasl_password": "secret"}
PLAIN = {
    "kafka_sasl_mechanism": "PLAIN",
    "kafka_sasl_username": "seckill",
    "kafka_sasl_password": "open sesame",
}
SCRAM = {"kafka_sasl_mechanism": "SCRAM-SHA-256", **ANN}


@pytest.fixture(scope="module")
def secure(kafka_broker: KafkaBroker) -> SecureListeners:
    if kafka_broker.secure is None:
        pytest.skip("SECKILL_TEST_KAFKA is somebody else's: its listeners are not known")
    wanted = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    ann = UserScramCredentialUpsertion("ann", wanted, b"secret")
    administer(
        kafka_broker.bootstrap, lambda admin: admin.alter_user_scram_credentials([ann])["ann"]
    )
    return kafka_broker.secure


def options_of(secure: SecureListeners, listener: str, **changes: str) -> KafkaOptions:
    """What the settings of an operator come to, with names of the test's own."""
    own = own_options(secure.bootstrap[listener])
    given = {
        "channel": "kafka",
        "kafka_bootstrap": own.bootstrap,
        "kafka_topic": own.topic,
        "kafka_group": own.group,
        "kafka_partitions": "2",
        "kafka_security_protocol": "sasl_ssl" if listener == "SASL" else "ssl",
        "kafka_ssl_ca": str(secure.authority.certificate),
    }
    return kafka_options(load_settings(given | changes).settings)


def certificate_of(secure: SecureListeners) -> dict[str, str]:
    return {
        "kafka_ssl_certificate": str(secure.client.certificate),
        "kafka_ssl_key": str(secure.client.key),
    }


async def complaint(options: KafkaOptions, words: str) -> str:
    """What is said about the topics, once it has the words in it: a relay asks again and again.

    A call that is refused takes as long as it may, so it may take one second, and longer only where
    a machine does not get to the refusal in that.
    """
    for ask_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(topics, "_ASK_S", ask_s)
            with pytest.raises(ChannelUnavailable) as caught:
                await ensure_topics(options, tell=False)
        if words in str(caught.value):
            break
    assert words in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("way_in", ["tls", "own certificate", "PLAIN", "SCRAM"])
async def test_an_order_goes_all_the_way(
    redis: Redis, keys: Keys, secure: SecureListeners, way_in: str
) -> None:
    """Administrator's client, relay, order worker and reader."""
    options = {
        "tls": lambda: options_of(secure, "SSL"),
        "own certificate": lambda: options_of(secure, "MUTUAL", **certificate_of(secure)),
        "PLAIN": lambda: options_of(secure, "SASL", **PLAIN),
        "SCRAM": lambda: options_of(secure, "SASL", **SCRAM),
    }[way_in]()
    await make_topics(options)
    sale = make_sale()
    async with AsyncExitStack() as stack:
        bucket_id = await open_bucket(redis, keys, sale)
        way = KafkaWay(redis, keys, bucket_id, options, stack, sale)
        await redis.xadd(way.outbox, entry(1, 2, 3))
        await way.spoil(b"no order")
        await way.carry()
        events = await receive_until(await way.channel(), 3)
        assert sorted(event.place.seq for event in events) == [1, 2, 3]
        assert [letter.raw for letter in await way.shelves().letters()] == [b"no order"]

        async def all_is_committed() -> bool:
            return await way.under_way.pending() == 0

        await until(all_is_committed, 60)


@pytest.mark.parametrize(
    ("listener", "changes", "sentence"),
    [
        ("SSL", {"kafka_ssl_ca": "stranger"}, "not signed by an authority that kafka_ssl_ca names"),
        ("MUTUAL", {}, "refuses our kafka_ssl_certificate, or wants one where there is none"),
        ("SASL", PLAIN | {"kafka_sasl_password": "x"}, "kafka_sasl_username and kafka_sasl_pass"),
        ("SASL", SCRAM | {"kafka_sasl_username": "bob"}, "kafka_sasl_username and kafka_sasl_pass"),
        (
            "SASL",
            ANN | {"kafka_sasl_mechanism": "SCRAM-SHA-512"},
            "does not offer this kafka_sasl_mechanism",
        ),
        ("SSL", {"kafka_ssl_ca": "no certificate"}, "kafka_ssl_ca failed"),
    ],
)
async def test_what_is_wrong_is_named_in_one_sentence(
    secure: SecureListeners,
    tmp_path: Path,
    listener: str,
    changes: dict[str, str],
    sentence: str,
) -> None:
    files = {"stranger": Authority(tmp_path, "stranger").certificate, "no certificate": __file__}
    changes = {name: str(files.get(value, value)) for name, value in changes.items()}
    told = await complaint(options_of(secure, listener, **changes), sentence)
    assert "\n" not in told


async def test_tls_to_a_broker_that_speaks_none_is_named(
    kafka_broker: KafkaBroker,
) -> None:
    options = own_options(kafka_broker.bootstrap, security={"security.protocol": "ssl"})
    await complaint(options, "look at kafka_security_protocol")


async def test_a_broker_that_is_not_there_is_told_with_the_address() -> None:
    at = f"127.0.0.1:{choose_port()}"
    told = await complaint(own_options(at), "Connection refused")
    assert at in told


async def test_a_producer_whose_settings_are_of_no_use_says_so_and_ends(
    secure: SecureListeners, tmp_path: Path
) -> None:
    """Its thread used to die with the first message, and the second waited for ever."""
    empty = tmp_path / f"{os.getpid()}.pem"
    empty.touch()
    options = options_of(secure, "SSL", kafka_ssl_ca=str(empty))
    producer = KafkaProducer(options, "test")
    for _ in range(2):
        (error,) = await producer.publish(options.topic, [_message()])
        assert "ssl.ca.location" in error
    await producer.close()


def _message() -> OrderMessage:
    return OrderMessage(b"1:ann", b"{}")
