"""Controls: the same race, and the same kill, with the guard taken out. They must show the fault."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from redis.asyncio import Redis

from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.admission.scripts import ADMIT, Scripts
from services.redis import RedisServer
from services.stage import BUCKET, events_of, make_sale, open_sale

STOCK, BUYERS, CONNECTIONS = 20, 200, 16


async def race(url: str, buy: Callable[[Redis, str], Awaitable[bool]]) -> int:
    """200 buyers over 16 connections, all at once. Returns how many were told yes."""
    clients = [connect(url, timeout_ms=60_000) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(client.ping() for client in clients))
    answers = await asyncio.gather(
        *(buy(clients[n % CONNECTIONS], f"user-{n}") for n in range(BUYERS))
    )
    await asyncio.gather(*(client.aclose() for client in clients))
    return sum(answers)


async def test_reading_before_writing_oversells_in_the_race_in_which_the_script_does_not(
    redis_server: RedisServer, redis: Redis, keys: Keys
) -> None:
    stock_key = f"{keys.prefix}:naive"
    await redis.set(stock_key, STOCK)

    async def read_then_write(client: Redis, _: str) -> bool:
        if int(await client.get(stock_key) or 0) <= 0:
            return False
        await client.decr(stock_key)
        return True

    naive = await race(redis_server.url, read_then_write)
    assert naive > STOCK, "the control does not race: then the next lines prove nothing"
    assert int(await redis.get(stock_key) or 0) < 0

    buckets = await open_sale(redis, keys, make_sale(stock_units=STOCK))
    names = keys.bucket(BUCKET)

    async def by_script(client: Redis, user: str) -> bool:
        reply = await Scripts(client).run(
            ADMIT, (names.meta, names.buyers, names.outbox), [1, 0, 0, user, "t", 1]
        )
        return bool(reply[5] == 1)

    assert await race(redis_server.url, by_script) == STOCK
    view = await buckets.look(BUCKET)
    assert (view.stock_units, view.held_units, view.seq) == (0, STOCK, STOCK)
    print(f"control: reading before writing sold {naive} of {STOCK}, the script {STOCK}")  # noqa: T201  -- a measurement, shown by `-s`


# Both children decide one purchase, say so, and are killed before anything else can happen.
DEDUCT_THEN_SEND = """
import sys, redis
client = redis.Redis.from_url(sys.argv[1], protocol=2)
client.eval("return redis.call('DECR', KEYS[1])", 1, sys.argv[2] + ":naive")
print("deducted", flush=True)
sys.stdin.readline()
client.xadd(sys.argv[2] + ":naive:orders", {"userId": "A"})
"""
ADMIT_BY_SCRIPT = """
import asyncio, sys
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.admission.scripts import ADMIT, Scripts
from seckill.domain.reservation import BucketId
async def main():
    names = Keys(prefix=sys.argv[2]).bucket(BucketId(1, 0))
    scripts = Scripts(connect(sys.argv[1], timeout_ms=60000))
    await scripts.run(ADMIT, (names.meta, names.buyers, names.outbox), [1, 0, 0, "A", "t", 1])
    print("deducted", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""


def run_and_kill(program: str, url: str, prefix: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program, url, prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"deducted\n"
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL


async def test_deduct_then_send_loses_the_item_of_a_killed_process_and_the_outbox_does_not(
    redis_server: RedisServer, redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    """The article's order of steps, and ours, killed at the same point."""
    await redis.set(f"{keys.prefix}:naive", STOCK)
    await asyncio.to_thread(run_and_kill, DEDUCT_THEN_SEND, redis_server.url, keys.prefix)
    assert int(await redis.get(f"{keys.prefix}:naive") or 0) == STOCK - 1
    assert await redis.exists(f"{keys.prefix}:naive:orders") == 0, "one unit gone, and no order"

    buckets = await open_sale(redis, keys, make_sale(stock_units=STOCK))
    await asyncio.to_thread(run_and_kill, ADMIT_BY_SCRIPT, redis_server.url, keys.prefix)
    assert (await buckets.look(BUCKET)).stock_units == STOCK - 1
    (event,) = await events_of(redis, keys)
    assert event.place.seq == 1
