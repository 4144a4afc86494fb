"""Kafka's settings: what the clients are told, what is masked, what a command finds again."""

from pathlib import Path

import pytest

from seckill.pipeline.kafka.options import consumer_settings
from seckill.runtime.data_dir import DataDir
from seckill.runtime.errors import SettingsInvalid
from seckill.runtime.kafka_parts import kafka_options
from seckill.runtime.settings import Source, load_settings
from seckill.runtime.settings_report import (
    settings_report,
    with_run_settings,
    with_started_kafka,
    write_run_settings,
)

SECRET = {
    "channel": "kafka",
    "kafka_bootstrap": "a:9093,b:9093",
    "kafka_security_protocol": "sasl_ssl",
    "kafka_sasl_username": "seckill",
    "kafka_sasl_password": "open sesame",
}


def test_tls_and_sasl_reach_the_clients_in_their_own_words(tmp_path: Path) -> None:
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "our.pem", "our.key"))
    for path in (ca, certificate, key):
        path.touch()
    settings = load_settings(
        SECRET
        | {
            "kafka_ssl_ca": str(ca), "kafka_ssl_certificate": str(certificate),
            "kafka_ssl_key": str(key), "kafka_ssl_key_password": "hush",
        }
    ).settings  # fmt: skip
    told = consumer_settings(kafka_options(settings), "w", "g")
    assert told["bootstrap.servers"] == "a:9093,b:9093"
    assert {
        name: told[name] for name in told if name.startswith(("ssl.", "sasl.", "security."))
    } == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "seckill",
        "sasl.password": "open sesame",
        "ssl.ca.location": str(ca),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "ssl.key.password": "hush",
    }


def test_a_worker_commits_nothing_by_itself() -> None:
    told = consumer_settings(kafka_options(load_settings(SECRET).settings), "w", "g")
    assert told["enable.auto.commit"] is False
    assert told["enable.auto.offset.store"] is False
    assert told["auto.offset.reset"] == "earliest"


def test_passwords_are_masked() -> None:
    report = settings_report(load_settings(SECRET))
    assert report["kafka_sasl_password"]["value"] == "***"
    assert "open sesame" not in str(report)
    assert report["kafka_ssl_key_password"]["value"] == ""


def test_a_command_in_another_terminal_finds_the_kafka_of_the_run(tmp_path: Path) -> None:
    DataDir(tmp_path).create()
    write_run_settings(load_settings({**SECRET, "data_dir": tmp_path}))
    found = with_run_settings(load_settings({"data_dir": tmp_path}))
    assert found.settings.channel == "kafka"
    assert found.settings.kafka_sasl_password.get_secret_value() == "open sesame"
    assert found.sources["kafka_bootstrap"] is Source.RUNNING_SERVICE


def test_a_kafka_that_was_started_for_the_user_is_told_as_that(tmp_path: Path) -> None:
    DataDir(tmp_path).create()
    loaded = load_settings({"channel": "kafka", "data_dir": tmp_path})
    write_run_settings(with_started_kafka(loaded, "127.0.0.1:9999"))
    found = with_run_settings(load_settings({"data_dir": tmp_path}))
    assert found.settings.kafka_bootstrap == "127.0.0.1:9999"
    assert found.sources["kafka_bootstrap"] is Source.STARTED_FOR_YOU


def test_a_part_without_a_kafka_is_told_in_a_sentence() -> None:
    with pytest.raises(SettingsInvalid, match="kafka_bootstrap: channel kafka needs a Kafka"):
        kafka_options(load_settings({"channel": "kafka"}).settings)


@pytest.mark.parametrize("brokers", ["h", "h:", ":9092", "h:0", "h:70000", "h:x", "a:1;b:2"])
def test_brokers_that_are_no_addresses_are_refused(brokers: str) -> None:
    with pytest.raises(SettingsInvalid, match="host:port"):
        load_settings({"channel": "kafka", "kafka_bootstrap": brokers})


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "x" * 201, "秒杀"])
def test_a_name_that_kafka_does_not_take_is_refused(topic: str) -> None:
    with pytest.raises(SettingsInvalid, match="letters A-Z a-z"):
        load_settings({"kafka_topic": topic})
