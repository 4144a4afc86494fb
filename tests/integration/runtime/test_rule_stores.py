"""Where rules are kept, and what becomes of them when Redis, a host or the service was away."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from seckill.admission.keys import Keys
from seckill.runtime.data_dir import DataDir
from seckill.runtime.errors import RulesUnusable
from seckill.runtime.flow_control import make_sentinel
from seckill.runtime.free_ports import choose_port
from seckill.runtime.rule_stores import open_rules
from seckill.runtime.settings import LoadedSettings, Settings
from seckill.sentinel import Change
from services.redis import RedisServer

SettingsMaker = Callable[..., LoadedSettings]


def rules(count: int) -> str:
    return json.dumps([{"resource": "seckill-jk", "count": count}])


def counts(settings: Settings, *, alone: bool = False) -> list[float]:
    """The limits that a process which starts now obeys."""
    return [rule.count for rule in make_sentinel(open_rules(settings, alone=alone)).flow.rules]


def save(settings: Settings, count: int, *, alone: bool = False) -> None:
    sentinel = make_sentinel(open_rules(settings, alone=alone))
    assert sentinel.load_rules("flow", rules(count), Change("ops", "a test")).saved


@pytest.fixture
def host(make_settings: SettingsMaker, redis_server: RedisServer, keys: Keys) -> Settings:
    """A host whose service keeps rules in Redis."""
    return make_settings(redis_url=redis_server.url, key_prefix=keys.prefix).settings


@pytest.fixture
def other_host(
    make_settings: SettingsMaker, redis_server: RedisServer, keys: Keys, tmp_path: Path
) -> Settings:
    data = DataDir(tmp_path / "other")
    data.create()
    return make_settings(
        data_dir=data.root, redis_url=redis_server.url, key_prefix=keys.prefix
    ).settings


def test_the_default_rules_guard_redis_until_something_is_saved(
    make_settings: SettingsMaker,
) -> None:
    settings = make_settings().settings
    assert settings.rule_store == "file"
    sentinel = make_sentinel(open_rules(settings))
    assert [rule.resource for rule in sentinel.degrade.rules] == ["seckill-redis"]
    sentinel.load_rules("degrade", "[]")
    assert make_sentinel(open_rules(settings)).degrade.rules == ()


def test_rules_of_one_host_are_those_of_the_other(host: Settings, other_host: Settings) -> None:
    assert host.rule_store == "redis"
    save(host, 7)
    assert counts(other_host) == [7]
    save(other_host, 8)
    assert counts(host) == [8]
    assert [v.change.who for v in open_rules(host).history("flow")] == ["ops", "ops"]


def test_c43_a_redis_that_lost_everything_is_told_the_rules_again(
    host: Settings, other_host: Settings, redis_server: RedisServer, keys: Keys
) -> None:
    save(host, 7)
    save(host, 50)
    assert counts(other_host) == [50], "and keeps a copy"
    with Redis.from_url(redis_server.url) as client:
        lost = list(client.scan_iter(match=f"sentinel:{{{keys.prefix}}}*"))
        assert lost
        client.delete(*lost)
    assert counts(other_host) == [50]
    assert len(open_rules(host).history("flow")) == 2, "with their history"


def test_a_start_without_redis_obeys_the_copy_of_the_host(
    host: Settings, other_host: Settings
) -> None:
    away = other_host.model_copy(
        update={"redis_url": f"redis://127.0.0.1:{choose_port()}", "redis_timeout_ms": 200}
    )
    with pytest.raises(RulesUnusable):  # without any copy nobody can say that there are no rules
        make_sentinel(open_rules(away))
    save(host, 50)
    assert counts(other_host) == [50]
    sentinel = make_sentinel(open_rules(away))
    assert [rule.count for rule in sentinel.flow.rules] == [50]


def test_what_was_changed_while_nothing_ran_counts_at_the_next_start(
    host: Settings, other_host: Settings
) -> None:
    save(host, 50)
    save(host, 60, alone=True)
    assert counts(host, alone=True) == [60]
    assert counts(host) == [60]
    assert counts(other_host) == [60]


def test_a_folder_that_cannot_be_used_is_one_sentence(make_settings: SettingsMaker) -> None:
    settings = make_settings().settings
    settings.data.rules.write_text("not a folder")
    with pytest.raises(RulesUnusable, match="rules of flow control"):
        open_rules(settings)


def test_rules_that_none_can_read_stop_the_start(make_settings: SettingsMaker) -> None:
    settings = make_settings().settings
    save(settings, 50)
    for path in (settings.data.rules / "flow").glob("*.json"):
        path.write_bytes(b"{")
    with pytest.raises(RulesUnusable, match="move these files away"):
        make_sentinel(open_rules(settings))
