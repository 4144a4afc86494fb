"""A new process: its first 80 calls, in one instant of a virtual clock, and what it has in force."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from seckill.sentinel import Entry, Sentinel, VirtualClock
from seckill.sentinel.redis import RedisRuleStore
from seckill.sentinel.stores import FileRuleStore, LayeredRuleStore


def main() -> None:
    url, namespace, folder = sys.argv[1:]
    with redis.Redis.from_url(
        url, protocol=2, socket_timeout=30, socket_connect_timeout=30, retry=Retry(NoBackoff(), 0)
    ) as client:
        files = FileRuleStore(Path(folder))
        store = LayeredRuleStore(RedisRuleStore(client, namespace=namespace), files)
        sentinel = Sentinel(rule_store=store, clock=VirtualClock())
        passed = sum(isinstance(sentinel.try_entry("seckill-jk"), Entry) for _ in range(80))
        try:
            who = [version.change.who for version in store.history("flow")]
        except Exception:  # noqa: BLE001  Redis is away in one of the tests
            who = []
    said = {"passed": passed, "rules": sentinel.dump_rules("flow"), "who": who}
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
