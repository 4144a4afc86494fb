"""The ledger closed an epoch, its keeper died, and Redis is another one when the next goes on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from seckill.admission.fence import Verdict
from seckill.admission.scripts import ADMIT, Status
from seckill.domain.ids import GoodsId
from seckill.domain.reservation import BucketId
from seckill.domain.sale import NewSale
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.worker import OrderWorker
from seckill.runtime.auditing import audit
from seckill.runtime.bootstrap import Stores, open_stores
from seckill.runtime.settings import load_settings
from services.redis import RedisServer


class _Silent:
    def written(self, report: object) -> None: ...
    def ledger_away(self) -> None: ...


class Scene:
    """Stores, one sale, and the order worker, moved by hand."""

    def __init__(self, stores: Stores, server: RedisServer, bucket_id: BucketId) -> None:
        self.stores, self.server, self.bucket_id = stores, server, bucket_id
        channel = DirectChannel(
            redis=stores.redis,
            keys=stores.keys,
            consumer="worker-0",
            bucket_ids=lambda: [bucket_id],
            on_dead=lambda *_: None,
        )
        self.worker = OrderWorker(channel=channel, ledger=stores.ledger, observer=_Silent())

    async def admit(self, user: str, epoch: int) -> None:
        """Redis decides; whoever asked it died before anybody was told."""
        keys = self.stores.keys.bucket(self.bucket_id)
        request = [epoch, 0, 0, user, f"of-{user}", 1]
        reply = await self.stores.scripts.run(ADMIT, (keys.meta, keys.buyers, keys.outbox), request)
        assert Status(reply[0]) is Status.OK

    async def write(self) -> None:
        while await self.worker.step():
            pass

    async def restart(self, data: Path | None = None) -> None:
        """Another Redis, with the data that it had or with older or newer ones."""
        await self.stores.redis.connection_pool.disconnect()
        self.server.kill()
        if data is not None:
            self.server.put_data_back(data)
        await asyncio.to_thread(self.server.start)

    async def keep(self) -> Verdict:
        return (await self.stores.fence.keep())[self.bucket_id]


@pytest.fixture
async def scene(own_redis: RedisServer, tmp_path: Path) -> AsyncIterator[Scene]:
    settings = load_settings(
        {"data_dir": tmp_path / "data", "redis_url": own_redis.url, "redis_timeout_ms": 30_000}
    ).settings
    settings.data.create()
    async with open_stores(settings) as stores:
        sale = await stores.ledger.sales.create_sale(
            NewSale(goods_id=GoodsId("tea"), stock_units=9, starts_at_ms=1), actor="test"
        )
        await stores.fence.keep()
        yield Scene(stores, own_redis, BucketId(sale.sale_id, 0))


async def test_redis_that_comes_back_newer_than_where_its_epoch_was_closed_strands_no_unit(
    scene: Scene, tmp_path: Path
) -> None:
    """A stale replica was judged, its keeper died, and then the old master took over again."""
    await scene.admit("ann", 1)
    await asyncio.to_thread(scene.server.copy_data, tmp_path / "older")
    await scene.admit("bob", 1)
    await asyncio.to_thread(scene.server.copy_data, tmp_path / "newer")
    await scene.restart(tmp_path / "older")
    assert await scene.stores.ledger.epochs.carry_on(scene.bucket_id, 1, 1, "and died") == 2
    await scene.restart(tmp_path / "newer")
    assert await scene.keep() is Verdict.NEEDS_REBUILD
    await scene.write()
    rebuilt = await scene.stores.fence.rebuild(scene.bucket_id, deadline_ms=60_000)
    assert (rebuilt.held_units, rebuilt.put_units) == (1, 9)
    # Who was beyond the end has an order that was undone, and may buy again.
    await scene.admit("bob", rebuilt.epoch)
    await scene.write()
    report = await audit(scene.stores)
    assert report.ok, report.to_text()
    assert [(line.live_units, line.left_units) for line in report.sales] == [(2, 7)]


async def test_redis_that_comes_back_older_than_where_its_epoch_was_closed_is_rebuilt(
    scene: Scene, tmp_path: Path
) -> None:
    await scene.admit("ann", 1)
    await asyncio.to_thread(scene.server.copy_data, tmp_path / "older")
    await scene.admit("bob", 1)
    assert await scene.stores.ledger.epochs.carry_on(scene.bucket_id, 1, 2, "and died") == 2
    await scene.restart(tmp_path / "older")
    assert await scene.keep() is Verdict.NEEDS_REBUILD
    await scene.write()
    rebuilt = await scene.stores.fence.rebuild(scene.bucket_id, deadline_ms=60_000)
    assert (rebuilt.held_units, len(rebuilt.lost), rebuilt.withheld_units) == (1, 1, 1)
    report = await audit(scene.stores)
    assert report.ok, report.to_text()
