"""A keeper that cannot see every mark must not judge.

The fault: a command typed in another folder, or on another machine, found no marks there, took a
bucket that had gone back in time for a whole one, and let it go on. Three buyers who had been told
yes were gone without a word.
"""

import shutil
from pathlib import Path

from redis.asyncio import Redis

from seckill.admission.bucket import Buckets
from seckill.admission.fence import Verdict
from seckill.admission.judging import Patience
from seckill.admission.keys import Keys
from seckill.admission.marks import make_folder_id
from seckill.admission.redis_client import connect
from seckill.admission.scripts import Scripts, Status
from seckill.domain.outcomes import Outcome
from services.redis import RedisServer
from services.stage import BUCKET, MemoryFenceLedger, buy, make_sale, open_gate


async def _status(redis: Redis, keys: Keys) -> Status:
    return (await Buckets(redis, Scripts(redis), keys).look(BUCKET)).status


async def test_a_command_without_the_hosts_marks_never_lets_a_bucket_go_on(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    keys, here, elsewhere = Keys("t"), tmp_path / "marks", tmp_path / "elsewhere"
    ledger = MemoryFenceLedger([make_sale(stock_units=10)])
    ledger.folders.append(make_folder_id(here))
    redis = connect(server.start().url, timeout_ms=60_000)
    try:
        assert (await ledger.keeper(redis, keys, here).keep())[BUCKET] is Verdict.REOPENED
        async with open_gate(server.url, keys, here) as gate:
            assert (await gate.buy("before")).outcome is Outcome.SUCCESS
            await redis.connection_pool.disconnect()
            server.stop()
            shutil.copytree(server.folder, tmp_path / "older")
            server.start()
            keeper = ledger.keeper(redis, keys, here)
            while (await keeper.keep())[BUCKET] is not Verdict.REOPENED:
                pass
            told = []
            while len(told) < 3:
                told += [d for d in await buy([gate], [f"u{len(told)}"]) if d.reservation_id]
        await redis.connection_pool.disconnect()
        server.stop()
        shutil.rmtree(server.folder)
        shutil.copytree(tmp_path / "older", server.folder)
        server.start()

        foreign = ledger.keeper(redis, keys, elsewhere)
        verdict = (await foreign.keep())[BUCKET]
        assert verdict in {Verdict.MARKS_ELSEWHERE, Verdict.NEEDS_REBUILD}
        assert await _status(redis, keys) is not Status.OK
        assert (await ledger.keeper(redis, keys, here).keep())[BUCKET] is Verdict.NEEDS_REBUILD
        assert await _status(redis, keys) is not Status.OK
    finally:
        await redis.aclose()
        server.remove()


async def test_a_command_without_the_hosts_marks_leaves_a_whole_bucket_to_the_host(
    tmp_path: Path,
) -> None:
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    keys, here, elsewhere = Keys("t"), tmp_path / "marks", tmp_path / "elsewhere"
    ledger = MemoryFenceLedger([make_sale(stock_units=10)])
    ledger.folders.append(make_folder_id(here))
    redis = connect(server.start().url, timeout_ms=60_000)
    try:
        # A new sale may be opened from anywhere: nobody can have a mark of it.
        assert (await ledger.keeper(redis, keys, elsewhere).keep())[BUCKET] is Verdict.REOPENED
        await redis.connection_pool.disconnect()
        server.stop()
        server.start()
        # It waits for the host's report for as long as it takes, so that no stall ends the waiting.
        foreign = ledger.keeper(redis, keys, elsewhere, patience=Patience(reports_ms=600_000))
        assert (await foreign.keep())[BUCKET] is Verdict.MARKS_ELSEWHERE
        assert await _status(redis, keys) is Status.SERVER
        assert (await ledger.keeper(redis, keys, here).keep())[BUCKET] is Verdict.REOPENED
        assert await _status(redis, keys) is Status.OK
    finally:
        await redis.aclose()
        server.remove()
