"""lua/lease.lua on a real Redis: equal to its model, and it refuses what breaks its contract."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from contract.sentinel.lease_model import LeaseModel
from seckill.sentinel.redis.token_source import LEASE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from services.redis import RedisServer

RULE = {
    "count": 10, "each": 0, "window_ms": 1_000, "keep": 0, "drop": 0, "dated": 0, "owed": 0,
    "want": 1, "need": 1, "had": 0, "shared": [],
}  # fmt: skip
NEVER_SILENT = {"silence_ms": 600_000, "forget_ms": 600_000}


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Redis]:
    with redis_server.client() as client:
        client.script_flush()
        yield client


def request(worker: str = "a", rules: Any = (RULE,), **more: Any) -> str:
    return json.dumps(
        {
            "worker": worker, "state": "leasing", "workers": 1, "listed": 0,
            "silence_ms": 1_000,
            "forget_ms": 10_000, "rules": list(rules), **more,
        }
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_it_answers_as_its_model_does(client: Redis, seed: int) -> None:
    """The model is given the time that the script says it was."""
    random_ = random.Random(seed)
    keys = [f"{{lease-{seed}}}:{name}" for name in ("workers", "one", "two")]
    client.delete(*keys)
    model = LeaseModel()
    held: dict[tuple[str, int], tuple[int, int]] = {}
    for _ in range(120):
        worker = random_.choice("abcde")
        rules = []
        for place, (count, window_ms) in enumerate(((23.5, 250), (4, 60))):
            dated, hold = held.get((worker, place), (0, 0))
            keep = random_.randint(0, hold)
            rules.append(
                {
                    "count": count, "each": place, "window_ms": window_ms, "keep": keep,
                    "drop": random_.randint(0, hold - keep), "dated": dated,
                    "owed": random_.choice((0, 0, 0, 1)), "want": random_.choice((0, 1, 5, 50)),
                    "need": random_.choice((0, 1, 3)), "had": random_.choice((0, 0, 0, 1)),
                    "shared": [random_.randint(0, 300), 2] if random_.random() < 0.1 else [],
                }
            )  # fmt: skip
        state = random_.choices(("leasing", "sharing", "leaving"), (8, 1, 1))[0]
        body = request(
            worker, rules, state=state, silence_ms=40, forget_ms=120,
            workers=random_.choice((1, 2, 5)), listed=random_.choice((0, 1)),
        )  # fmt: skip
        raw = LEASE.run(client, keys, body)
        now_ms = json.loads(raw)[0]
        assert json.loads(raw) == json.loads(model.run(keys, body, now_ms))
        for place, rule in enumerate(rules):
            granted, dated = json.loads(raw)[3 + 5 * place :][:2]
            held[worker, place] = (dated, rule["keep"] + granted)
        if random_.random() < 0.05:
            client.delete(*keys)
            model.forget()


def test_a_threshold_is_granted_once_in_a_window(client: Redis) -> None:
    keys = ["{lease-once}:workers", "{lease-once}:r"]
    client.delete(*keys)
    wanting = {**RULE, "count": 1_000, "want": 700, "need": 700, "window_ms": 60_000}
    granted = [
        json.loads(LEASE.run(client, keys, request(name, [wanting], **NEVER_SILENT)))[3]
        for name in ("a", "b", "c")
    ]
    assert granted == [700, 300, 0]


def test_what_redis_forgot_within_a_window_is_not_granted_again(client: Redis) -> None:
    keys = ["{lease-lost}:workers", "{lease-lost}:r"]
    client.delete(*keys)
    had = {**RULE, "had": 1, "window_ms": 60_000}
    granted, _, _, retry_ms, room = json.loads(LEASE.run(client, keys, request("a", [had])))[3:]
    assert (granted, room) == (0, 0)
    assert 58_000 < retry_ms <= 62_000
    later = {**RULE, "window_ms": 60_000}
    assert json.loads(LEASE.run(client, keys, request("b", [later])))[3] == 0


def test_a_worker_that_finds_itself_forgotten_closes_the_windows_of_all(client: Redis) -> None:
    """The others had granted what Redis no longer knows of; they need not have spoken yet."""
    keys = ["{lease-all}:workers", "{lease-all}:r"]
    client.delete(*keys)
    LEASE.run(client, keys[:1], request("a", [], workers=2, listed=1, **NEVER_SILENT))
    long = {**RULE, "window_ms": 60_000}
    for name, listed in (("a", 1), ("b", 0)):
        asked = request(name, [long], listed=listed, **NEVER_SILENT)
        assert json.loads(LEASE.run(client, keys, asked))[3] == 0


def test_keys_of_another_kind_or_of_rubbish_are_taken_for_nothing_and_do_not_stay(
    client: Redis,
) -> None:
    keys = ["{lease-odd}:workers", "{lease-odd}:r", "{lease-odd}:s"]
    client.delete(*keys)
    client.rpush(keys[1], "a list")
    client.set(keys[2], b"\xc1 no msgpack")
    client.hset(keys[0], mapping={"z": "rubbish", "y": "1:1:1"})
    reply = json.loads(LEASE.run(client, keys, request("a", [RULE, RULE])))
    assert reply[1:4] == [1, 0, 1], "only this worker is known, and it got its token"
    assert reply[8] == 1
    assert client.hkeys(keys[0]) == [b"a"]


def test_everything_it_writes_goes_away_by_itself(client: Redis) -> None:
    keys = ["{lease-gone}:workers", "{lease-gone}:r"]
    client.delete(*keys)
    LEASE.run(client, keys, request("a", [{**RULE, "window_ms": 60_000}], forget_ms=60_000))
    assert 0 < client.pttl(keys[0]) <= 120_000
    assert 0 < client.pttl(keys[1]) <= 121_000


@pytest.mark.parametrize(
    ("keys", "body"),
    [
        (["{l}:w"], request()),
        (["{l}:w", *["{l}:r"] * 65], request(rules=[RULE] * 65)),
        (["{l}:w", "{l}:r"], request("")),
        (["{l}:w", "{l}:r"], request("x" * 129)),
        (["{l}:w", "{l}:r"], request(rules=[{**RULE, "want": -1}])),
        (["{l}:w", "{l}:r"], request(rules=[{**RULE, "owed": 0.5}])),
        (["{l}:w", "{l}:r"], request(rules=[{**RULE, "keep": "1"}])),
    ],
)
def test_what_breaks_the_contract_is_refused_and_writes_nothing(
    client: Redis, keys: list[str], body: str
) -> None:
    with pytest.raises(ResponseError, match="LEASE"):
        LEASE.run(client, keys, body)
    assert client.exists("{l}:w", "{l}:r") == 0


def test_more_workers_than_its_bound_are_refused(client: Redis) -> None:
    key = "{lease-full}:workers"
    now_s, micros = client.time()
    now_ms = now_s * 1_000 + math.floor(micros / 1_000)
    client.delete(key)
    client.hset(key, mapping={f"w{number}": f"{now_ms}:1:512" for number in range(512)})
    with pytest.raises(ResponseError, match="512 workers"):
        LEASE.run(client, [key], request("new", [], **NEVER_SILENT))
    assert json.loads(LEASE.run(client, [key], request("w3", [], **NEVER_SILENT)))[1] == 512


def test_a_server_that_forgot_the_script_is_sent_it_again(client: Redis) -> None:
    client.script_flush()
    assert json.loads(LEASE.run(client, ["{lease-sent}:workers"], request(rules=[])))[1] == 1
    assert client.script_exists(LEASE.sha) == [True]
