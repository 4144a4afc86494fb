"""Rules in Redis with a folder behind it: what becomes of them when Redis is lost, or away."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis as redis_sync
from redis.backoff import NoBackoff
from redis.retry import Retry

from seckill.sentinel import Change, RuleConflict, Sentinel
from seckill.sentinel.redis import RedisRuleStore
from seckill.sentinel.stores import (
    FileRuleStore,
    LayeredRuleStore,
    RuleFollower,
    RuleStoreAway,
)
from services.names import own_name
from unit.sentinel.engines import make_bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.redis import RedisServer

FIFTY = '[{"resource":"seckill-jk","count":50.0}]'
OBEYING = Path(__file__).with_name("obeying.py")


@pytest.fixture
def namespace() -> str:
    return own_name()


@pytest.fixture
def client(own_redis: RedisServer) -> Iterator[redis_sync.Redis]:
    with connect(own_redis.url) as client:
        yield client


def connect(url: str) -> redis_sync.Redis:
    return redis_sync.Redis.from_url(
        url, protocol=2, socket_timeout=30, socket_connect_timeout=30, retry=Retry(NoBackoff(), 0)
    )


def layered(client: redis_sync.Redis, namespace: str, folder: Path) -> LayeredRuleStore:
    return LayeredRuleStore(RedisRuleStore(client, namespace=namespace), FileRuleStore(folder))


def lose_data(server: RedisServer) -> None:
    server.kill()
    shutil.rmtree(server.folder / "appendonlydir")
    server.start()


async def first_calls(url: str, namespace: str, folder: Path) -> dict[str, object]:
    """What a new process does with its first 80 calls, and the rules that it has in force."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(OBEYING), url, namespace, str(folder), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, object] = json.loads(said)
    return found


async def test_c43_rules_outlive_every_process_and_a_redis_that_lost_its_data(
    own_redis: RedisServer, client: redis_sync.Redis, namespace: str, tmp_path: Path
) -> None:
    sentinel = Sentinel(rule_store=layered(client, namespace, tmp_path / "a"))
    sentinel.load_rules("flow", FIFTY.replace("50", "70"), Change("bob", "to begin with"))
    sentinel.load_rules("flow", FIFTY, Change("ann", "the sale"))
    # A new process on this host, and one on another host, which has no file of them.
    for folder in ("a", "b"):
        said = await first_calls(own_redis.url, namespace, tmp_path / folder)
        assert said == {"passed": 50, "rules": sentinel.dump_rules("flow"), "who": ["bob", "ann"]}
    lose_data(own_redis)
    # The other host has a copy by now, though nobody there has ever changed a rule.
    said = await first_calls(own_redis.url, namespace, tmp_path / "b")
    assert said == {"passed": 50, "rules": sentinel.dump_rules("flow"), "who": ["bob", "ann"]}
    # Redis has them again, with their history, so that other hosts see them too.
    again = RedisRuleStore(client, namespace=namespace)
    assert [version.change.who for version in again.history("flow")] == ["bob", "ann"]
    assert json.loads(again.undo("flow").document)[0]["count"] == 70


async def test_c43_a_process_that_starts_while_redis_is_away_obeys_its_own_copy(
    own_redis: RedisServer, client: redis_sync.Redis, namespace: str, tmp_path: Path
) -> None:
    Sentinel(rule_store=layered(client, namespace, tmp_path)).load_rules("flow", FIFTY)
    own_redis.kill()
    assert (await first_calls(own_redis.url, namespace, tmp_path))["passed"] == 50
    # Without a copy it does not start: it would let everything in.
    with pytest.raises(RuleStoreAway):
        Sentinel(rule_store=RedisRuleStore(client, namespace=namespace))
    with pytest.raises(RuleStoreAway):
        Sentinel(rule_store=layered(client, namespace, tmp_path / "nothing"))
    own_redis.start()
    assert Sentinel(rule_store=layered(client, namespace, tmp_path)).flow.rules[0].count == 50


def test_a_change_while_redis_is_away_is_in_force_here_and_said_to_be_kept_nowhere(
    own_redis: RedisServer, client: redis_sync.Redis, namespace: str, tmp_path: Path
) -> None:
    store = layered(client, namespace, tmp_path)
    sentinel = Sentinel(rule_store=store)
    sentinel.load_rules("flow", FIFTY)
    own_redis.kill()
    report = sentinel.load_rules("flow", FIFTY.replace("50", "60"))
    assert (report.applied, report.saved) == (True, False)
    assert "could not be stored" in str(report)
    own_redis.start()
    assert make_bench(rule_store=store).passes(80, "seckill-jk") == 50


def test_a_follower_waits_for_redis_and_then_takes_up_what_was_saved_meanwhile(
    own_redis: RedisServer, client: redis_sync.Redis, namespace: str, tmp_path: Path
) -> None:
    ours = layered(client, namespace, tmp_path / "ours")
    sentinel = Sentinel(rule_store=ours)
    follower = RuleFollower(sentinel, ours)
    theirs = Sentinel(rule_store=layered(client, namespace, tmp_path / "theirs"))
    theirs.load_rules("flow", FIFTY)
    assert follower.look("flow")
    own_redis.kill()
    assert not follower.look("flow")
    assert sentinel.flow.rules[0].count == 50
    own_redis.start()
    theirs.load_rules("flow", FIFTY.replace("50", "60"))
    assert follower.look("flow")
    assert sentinel.flow.rules[0].count == 60


def test_a_follower_goes_on_when_versions_are_counted_anew(
    own_redis: RedisServer, client: redis_sync.Redis, namespace: str
) -> None:
    """Nobody had a copy, so the first version after the loss is number 1 again."""
    store = RedisRuleStore(client, namespace=namespace)
    sentinel = Sentinel(rule_store=store)
    follower = RuleFollower(sentinel, store)
    for count in (10, 20, 50):
        store.save("flow", FIFTY.replace("50", str(count)))
    assert follower.look("flow")
    lose_data(own_redis)
    assert not follower.look("flow")
    assert sentinel.flow.rules[0].count == 50, "what is lost is not what was taken out"
    RedisRuleStore(client, namespace=namespace).save("flow", FIFTY.replace("50", "60"))
    assert follower.look("flow")
    assert sentinel.flow.rules[0].count == 60
    assert not follower.look("flow")


def test_a_copy_that_could_not_be_written_is_caught_up_with_the_next_change(
    client: redis_sync.Redis, namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FileRuleStore(tmp_path)
    store = LayeredRuleStore(RedisRuleStore(client, namespace=namespace), files)
    store.save("flow", FIFTY)
    (tmp_path / "flow").rename(tmp_path / "elsewhere")
    store.save("flow", FIFTY.replace("50", "60"))
    assert "FileRuleStore has no copy of the flow rules" in caplog.text
    (tmp_path / "elsewhere").rename(tmp_path / "flow")
    assert files.head_number("flow") == 1
    store.save("flow", FIFTY.replace("50", "70"))
    assert files.history("flow") == store.history("flow")
    assert [version.number for version in files.history("flow")] == [1, 2, 3]


def test_the_first_store_decides_even_if_a_copy_counts_further_on(
    own_redis: RedisServer, client: redis_sync.Redis, namespace: str, tmp_path: Path
) -> None:
    store = layered(client, namespace, tmp_path)
    for count in (10, 20, 30):
        store.save("flow", FIFTY.replace("50", str(count)))
    lose_data(own_redis)
    # Somebody without a copy was first to save.
    RedisRuleStore(client, namespace=namespace).save("flow", FIFTY)
    assert json.loads(store.load("flow") or "")[0]["count"] == 50
    store.save("flow", FIFTY.replace("50", "60"))
    own_redis.kill()
    assert json.loads(store.load("flow") or "")[0]["count"] == 60, "the copy follows it"


def test_a_change_after_redis_lost_its_data_goes_on_from_the_copy(
    own_redis: RedisServer, client: redis_sync.Redis, namespace: str, tmp_path: Path
) -> None:
    store = layered(client, namespace, tmp_path)
    for count in (10, 20):
        store.save("flow", FIFTY.replace("50", str(count)))
    lose_data(own_redis)
    store.save("flow", FIFTY)
    shared = RedisRuleStore(client, namespace=namespace)
    assert [version.number for version in shared.history("flow")] == [1, 2, 3]
    lose_data(own_redis)
    assert json.loads(store.undo("flow").document)[0]["count"] == 20, "not the empty list"


def test_a_change_from_an_old_version_is_refused_by_the_layers_too(
    client: redis_sync.Redis, namespace: str, tmp_path: Path
) -> None:
    store = layered(client, namespace, tmp_path)
    store.save("flow", FIFTY, Change("ann", made_from=0))
    with pytest.raises(RuleConflict):
        store.save("flow", FIFTY, Change("bob", made_from=0))
    assert FileRuleStore(tmp_path).head_number("flow") == 1


def test_a_redis_that_may_not_write_says_so(
    own_redis: RedisServer, client: redis_sync.Redis, namespace: str
) -> None:
    store = RedisRuleStore(client, namespace=namespace)
    store.save("flow", FIFTY)
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(RuleStoreAway, match=r"OOM|maxmemory"):
            store.save("flow", FIFTY)
        assert store.load("flow") is not None
    finally:
        client.config_set("maxmemory", "0")
    client.delete(f"sentinel:{{{namespace}}}:rules:flow")
    client.set(f"sentinel:{{{namespace}}}:rules:flow", "somebody else's")
    with pytest.raises(RuleStoreAway, match="WRONGTYPE"):
        store.load("flow")
