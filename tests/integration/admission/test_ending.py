"""What is told to end ends, and whoever asked has an answer: whatever the client library makes of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from seckill.admission.catalogue import Catalogue
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.domain.outcomes import Outcome
from services.redis import RedisServer
from services.stage import make_sale, open_gate, open_sale


@pytest.mark.parametrize("pipelined", [False, True])
async def test_a_cancellation_that_meets_the_end_of_a_send_is_not_lost(
    redis_server: RedisServer, keys: Keys, pipelined: bool
) -> None:
    """A loop is told once to end; on Python 3.11 `asyncio.wait_for` drops that here."""
    client = connect(redis_server.url, timeout_ms=60_000)
    sends = 0

    async def ask_for_ever() -> None:
        while True:
            if pipelined:
                async with client.pipeline(transaction=False) as pipeline:
                    await pipeline.get(keys.probe).execute()
            else:
                await client.get(keys.probe)

    asking = asyncio.create_task(ask_for_ever())
    kind: Any = client.connection_pool.connection_class
    send = kind._send_packed_command

    async def is_told_to_end_while_it_sends(connection: Any, command: Any) -> None:
        nonlocal sends
        await send(connection, command)
        sends += 1
        if sends == 5:
            asking.cancel()

    kind._send_packed_command = is_told_to_end_while_it_sends
    _, left = await asyncio.wait([asking], timeout=60)
    assert not left
    assert asking.cancelled()
    assert sends == 5
    # What it had sent is not taken for an answer to somebody else.
    await client.set(keys.probe, "mine")
    assert await client.get(keys.probe) == b"mine"
    await client.aclose()


async def test_work_that_begins_while_a_gate_ends_is_ended_too(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    async def for_ever(name: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def begins_other_work_when_it_ends() -> None:
        try:
            await for_ever("first")
        finally:
            gate.gate._start(for_ever("second"))

    async with asyncio.timeout(60):
        async with open_gate(redis_server.url, keys, marks_folder) as gate:
            gate.gate._start(begins_other_work_when_it_ends())
            await begun.wait()
    assert ended == ["first", "second"]


async def test_who_asks_for_an_unknown_sale_is_answered_when_the_look_goes_wrong_in_any_way(
    redis_server: RedisServer,
    redis: Redis,
    keys: Keys,
    marks_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await open_sale(redis, keys, make_sale(stock_units=1))

    async def fails(_catalogue: Catalogue) -> None:
        raise RuntimeError("a fault of this program")

    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        with monkeypatch.context() as patched:
            patched.setattr(Catalogue, "refresh_together", fails)
            async with asyncio.timeout(60):
                answer = await gate.buy("A")
        assert (answer.outcome, answer.cause) == (Outcome.UNDECIDED, "redis")
        assert (await gate.insist("A")).outcome is Outcome.SUCCESS
