"""What an audit asks of Redis: few commands, each a small slice, none that blocks or writes."""

from pathlib import Path

import pytest

from integration.audit.kit import open_service
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.audit import AuditOptions
from services.redis import RedisServer

BUYERS = 3_000
READS = {
    "evalsha", "eval", "hmget", "hlen", "hscan", "xlen", "xrange", "xrevrange", "time", "type",
    "info",
}  # fmt: skip


@pytest.mark.slow
async def test_an_audit_costs_redis_few_small_reads(
    own_redis: RedisServer, tmp_path: Path, marks_folder: Path
) -> None:
    redis = connect(own_redis.url, timeout_ms=60_000)
    async with open_service(
        redis, Keys("t"), tmp_path, marks_folder, stock_units=BUYERS
    ) as service:
        for at in range(0, BUYERS, 500):
            await service.buy([f"buyer-{n}" for n in range(at, at + 500)])
        await service.write()
        for n in range(120):
            await service.buy([f"buyer-{n}"])  # refused: the stock is used up
        await redis.config_resetstat()
        report = await service.audit(options=AuditOptions(patience_ms=0))
        stats = await redis.info("commandstats")
    await redis.aclose()
    assert report.ok, report.to_text()
    calls = {name.removeprefix("cmdstat_"): int(of["calls"]) for name, of in stats.items()}
    calls.pop("config|resetstat")
    assert set(calls) <= READS
    # By 500 buyers in each direction, and a handful that do not depend on their number.
    assert calls["hscan"] <= BUYERS // 250
    assert calls["hmget"] <= BUYERS // 500 + 4
    assert sum(calls.values()) <= BUYERS // 500 * 3 + 40


@pytest.mark.slow
async def test_a_long_outbox_is_read_in_slices(
    own_redis: RedisServer, tmp_path: Path, marks_folder: Path
) -> None:
    redis = connect(own_redis.url, timeout_ms=60_000)
    async with open_service(
        redis, Keys("t"), tmp_path, marks_folder, stock_units=BUYERS
    ) as service:
        for n in range(260):
            await service.buy([f"buyer-{n}"])
        await redis.config_resetstat()
        report = await service.audit(options=AuditOptions(patience_ms=0))
        stats = await redis.info("commandstats")
    await redis.aclose()
    assert report.ok, report.to_text()
    assert report.in_flight == 260
    assert stats["cmdstat_xrange"]["calls"] == 6  # 5 slices of 50 and one of 10
