"""The Kafka of our own, before it is started: what it needs, and what is said when it is not there."""

import re
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest

from seckill.runtime import embedded_kafka
from seckill.runtime.embedded_kafka import KAFKA_VERSION, EmbeddedKafka, choose_nodes, find_jars
from seckill.runtime.errors import KafkaMissing


def test_the_version_is_that_of_the_pom() -> None:
    pom = Path(embedded_kafka.__file__).with_name("embedded_kafka_pom.xml").read_text()
    assert re.search(r"<kafka\.version>(.*)</kafka\.version>", pom)[1] == KAFKA_VERSION  # type: ignore[index]


def test_a_named_folder_without_jars_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KafkaMissing, match="holds no jars of Apache Kafka"):
        find_jars(str(tmp_path))
    (tmp_path / "kafka_2.13-4.4.0.jar").touch()
    assert find_jars(str(tmp_path)) == tmp_path


def test_without_maven_the_ways_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(KafkaMissing, match=r"Maven.*SECKILL_KAFKA_JARS.*SECKILL_KAFKA_BOOTSTRAP"):
        find_jars()
    assert list(tmp_path.iterdir()) == []


def test_a_fetch_that_fails_leaves_nothing_that_looks_like_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho no network\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(KafkaMissing, match="could not fetch the jars of Apache Kafka: no network"):
        find_jars()
    assert list((tmp_path / "cache" / "seckill").iterdir()) == []


@pytest.mark.parametrize(
    ("said", "told"),
    [('openjdk version "11.0.2"', "is 11"), ("what?", "of an unknown version")],
)
def test_a_java_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(KafkaMissing, match=told):
        EmbeddedKafka(tmp_path, jars=tmp_path).prepare()


def _configuration(tmp_path: Path, **more: Any) -> dict[str, str]:
    kafka = EmbeddedKafka(tmp_path, jars=tmp_path, nodes=choose_nodes(more.pop("count", 1)), **more)
    lines = kafka._configuration().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_a_broker_that_is_alone_writes_through_to_its_disk(tmp_path: Path) -> None:
    """What Kafka has acknowledged leaves the outbox, so it must survive the machine."""
    assert _configuration(tmp_path)["log.flush.interval.messages"] == "1"


def test_three_brokers_copy_from_each_other(tmp_path: Path) -> None:
    found = _configuration(tmp_path, count=3, number=2)
    assert found["default.replication.factor"] == "3"
    assert found["min.insync.replicas"] == "2"
    assert len(found["controller.quorum.voters"].split(",")) == 3
    assert "log.flush.interval.messages" not in found


def test_it_listens_on_this_machine_only(tmp_path: Path) -> None:
    found = _configuration(tmp_path)
    for name in ("listeners", "advertised.listeners"):
        for listener in found[name].split(","):
            assert "://127.0.0.1:" in listener


def test_a_new_cluster_has_no_name_that_kafkas_own_tool_takes_for_an_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One new folder in 64 could not be formatted: "argument --cluster-id/-t: expected one"."""
    drawn = iter([b"\xf8" + bytes(15), b"\xfb" * 16, bytes(16)])
    monkeypatch.setattr(secrets, "token_bytes", lambda _count: next(drawn))
    assert embedded_kafka._new_cluster_id() == "A" * 22
