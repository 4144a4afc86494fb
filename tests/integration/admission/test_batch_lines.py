"""The lines of the batches: each call reads its own replies, whatever became of the one before."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, TimeoutError as RedisTimeoutError

from seckill.admission.batch_lines import BatchLines, write_command
from seckill.admission.redis_client import connect
from services.redis import RedisServer
from services.stage import until


@pytest.fixture
async def client(own_redis: RedisServer) -> AsyncIterator[Redis]:
    async with connect(own_redis.url, timeout_ms=60_000) as client:
        yield client


def echo(text: str) -> bytes:
    return write_command("ECHO", text)


async def connections(redis: Redis) -> list[str]:
    return [str(found["id"]) for found in await redis.client_list()]


async def test_a_call_gets_the_reply_to_each_of_its_commands_and_keeps_its_line(
    own_redis: RedisServer, client: Redis
) -> None:
    lines = BatchLines(client)
    assert await lines.call(echo("a") + echo("商品"), 2) == [b"a", "商品".encode()]
    async with connect(own_redis.url, timeout_ms=60_000) as other:
        before = await connections(other)
        assert await lines.call(echo("b"), 1) == [b"b"]
        assert await connections(other) == before


async def test_an_error_reply_stands_in_its_place_and_the_next_call_is_not_shifted(
    client: Redis,
) -> None:
    lines = BatchLines(client)
    error, answer = await lines.call(write_command("EVALSHA", "0" * 40, 0) + echo("behind it"), 2)
    assert isinstance(error, NoScriptError)
    assert answer == b"behind it"
    assert await lines.call(echo("next"), 1) == [b"next"]


async def test_a_line_that_was_cut_between_two_batches_costs_neither_of_them(
    own_redis: RedisServer, client: Redis
) -> None:
    lines = BatchLines(client)
    await lines.call(echo("first"), 1)
    async with connect(own_redis.url, timeout_ms=60_000) as other:
        assert await other.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") == 1
    (line,) = lines._spare
    await until(line.can_read)  # the end of the connection has come to us
    assert await lines.call(echo("second"), 1) == [b"second"]


async def test_a_reply_that_comes_too_late_is_never_taken_for_the_next_one(
    own_redis: RedisServer, client: Redis
) -> None:
    lines = BatchLines(client)
    await lines.call(echo("first"), 1)
    own_redis.freeze()
    lines._timeout_s = 0.1
    with pytest.raises(RedisTimeoutError):
        await lines.call(echo("late"), 1)
    own_redis.thaw()
    lines._timeout_s = 60
    assert await lines.call(echo("own"), 1) == [b"own"]


async def test_a_call_that_is_cancelled_leaves_nothing_to_the_next_one(
    own_redis: RedisServer, client: Redis
) -> None:
    lines = BatchLines(client)
    await lines.call(echo("first"), 1)
    own_redis.freeze()
    call = asyncio.create_task(lines.call(echo("abandoned"), 1))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    own_redis.thaw()
    assert await lines.call(echo("own"), 1) == [b"own"]


async def test_no_more_than_eight_lines_are_kept_from_the_other_commands(
    own_redis: RedisServer,
) -> None:
    async with connect(own_redis.url, timeout_ms=60_000, connections_max=20) as client:
        lines = BatchLines(client)
        texts = [str(n) for n in range(20)]
        found = await asyncio.gather(*(lines.call(echo(text), 1) for text in texts))
        assert found == [[text.encode()] for text in texts]
        pool = client.connection_pool
        assert len(pool._in_use_connections) == 8
        assert len(pool._available_connections) == 12
