"""What `/readyz` and the gauge of fenced buckets know, without any buyer having met it."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import structlog

from seckill.admission.errors import StockUnavailable
from seckill.admission.fence import Verdict
from seckill.admission.gate import AdmissionGate
from seckill.admission.marks import MarkWriter
from seckill.admission.observer import SilentObserver
from seckill.admission.redis_client import connect
from seckill.domain.ids import GoodsId, SaleId
from seckill.domain.reservation import BucketId
from seckill.domain.sale import NewSale, Sale
from seckill.pipeline.errors import LedgerAway
from seckill.runtime import web_ports
from seckill.runtime.bootstrap import Stores, open_stores
from seckill.runtime.metric_table import LAYOUT
from seckill.runtime.observers import WorkerMetrics
from seckill.runtime.rebuilding import rebuild
from seckill.runtime.rebuilds import Rebuilds
from seckill.runtime.roles import ClosedBuckets, _keep, again
from seckill.runtime.settings import LoadedSettings
from seckill.runtime.telemetry import Metrics
from seckill.runtime.web_ports import StoreWatch
from seckill.runtime.web_role import bounds
from services.redis import RedisServer
from services.stage import until

SettingsMaker = Callable[..., LoadedSettings]


@pytest.fixture(autouse=True)
def looks_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that only stands still for a while is not told to be away."""
    monkeypatch.setattr(web_ports, "_WATCH_EVERY_S", 60.0)


@dataclass
class Watched:
    stores: Stores
    gate: AdmissionGate
    watch: StoreWatch

    async def detail(self, name: str) -> str:
        """What is wrong with a dependency by a look just now."""
        await self.watch.look()
        state = next(state for state in self.watch.states() if state.name == name)
        assert (state.status == "up") == (state.detail == "")
        return state.detail

    async def put_on_sale(self, goods_id: str) -> Sale:
        new = NewSale(
            goods_id=GoodsId(goods_id), stock_units=5, starts_at_ms=self.stores.clock.now_ms()
        )
        sale = await self.stores.ledger.sales.create_sale(new, actor="test")
        await self.stores.fence.keep()
        await self.gate.catalogue.refresh()
        return sale

    async def lose_bucket(self, sale: Sale) -> None:
        bucket = self.stores.keys.bucket(BucketId(sale.sale_id, 0))
        await self.stores.redis.delete(bucket.meta)


@asynccontextmanager
async def watched(
    make_settings: SettingsMaker, server: RedisServer, **settings: object
) -> AsyncIterator[Watched]:
    loaded = make_settings(redis_url=server.url, durability="memory", **settings)
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(loaded.settings))
        gate = await stack.enter_async_context(
            AdmissionGate(
                redis=stores.redis,
                scripts=stores.scripts,
                keys=stores.keys,
                ids=stores.ids,
                marks=stack.enter_context(MarkWriter(loaded.settings.data.marks, "web-0")),
                clock=stores.clock,
                bounds=bounds(loaded.settings),
                observer=SilentObserver(),
            )
        )
        await stores.fence.keep()
        await gate.catalogue.refresh()
        yield Watched(stores, gate, StoreWatch(stores, gate))


async def test_a_redis_that_cannot_save_shows_and_is_well_again_by_itself(
    make_settings: SettingsMaker, tmp_path: Path
) -> None:
    """C10. A directory stands where the snapshot belongs, so that saving fails for root too."""
    server = RedisServer(
        tmp_path / "snapshots", "--save", "3600 1", "--stop-writes-on-bgsave-error", "yes"
    ).start()
    try:
        async with watched(make_settings, server) as process:
            redis = process.stores.redis
            assert await process.detail("redis") == ""
            in_the_way = server.folder / "dump.rdb"
            in_the_way.mkdir()

            async def save(expected: str) -> None:
                await redis.bgsave()

                async def ended() -> bool:
                    info = await redis.info("persistence")
                    in_progress = info["rdb_bgsave_in_progress"]
                    return not in_progress and info["rdb_last_bgsave_status"] == expected

                await until(ended)

            await save("err")
            assert (await process.detail("redis")).startswith("cannot write: MISCONF")
            shutil.rmtree(in_the_way)
            await save("ok")
            assert await process.detail("redis") == ""
    finally:
        server.remove()


async def test_a_redis_without_memory_and_one_that_was_demoted_cannot_write(
    make_settings: SettingsMaker, own_redis: RedisServer, tmp_path: Path
) -> None:
    async with watched(make_settings, own_redis) as process:
        redis = process.stores.redis
        await redis.config_set("maxmemory", 1)
        assert (await process.detail("redis")).startswith("cannot write: ")
        await redis.config_set("maxmemory", 0)
        assert await process.detail("redis") == ""
        other = RedisServer(tmp_path / "other").start()
        try:
            await redis.replicaof("127.0.0.1", str(other.port))
            assert (await process.detail("redis")).startswith("cannot write: ")
        finally:
            await redis.replicaof("NO", "ONE")
            other.remove()


@pytest.mark.parametrize(("timeout_ms", "told"), [(300, "0.3 s"), (5_000, "1 s")])
async def test_a_frozen_redis_is_told_with_the_time_that_it_was_given(
    make_settings: SettingsMaker,
    own_redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: int,
    told: str,
) -> None:
    settings = make_settings(redis_url=own_redis.url, redis_timeout_ms=timeout_ms).settings
    async with (
        watched(make_settings, own_redis) as process,
        connect(own_redis.url, timeout_ms=timeout_ms) as redis,
    ):
        assert await process.detail("redis") == ""
        own_redis.freeze()
        monkeypatch.setattr(web_ports, "_WATCH_EVERY_S", 1.0)
        hasty = replace(process.stores, settings=settings, redis=redis)
        process.watch = StoreWatch(hasty, process.gate)
        try:
            assert await process.detail("redis") == f"no answer within {told}"
        finally:
            own_redis.thaw()


async def test_the_probe_is_one_key_that_ends_by_itself(
    make_settings: SettingsMaker, own_redis: RedisServer
) -> None:
    async with watched(make_settings, own_redis, key_prefix="shop") as process:

        async def is_there_and_ends() -> bool:
            await process.detail("redis")
            left_ms = int(await process.stores.redis.pttl("shop:probe"))
            assert left_ms <= 10_000
            return left_ms > 0

        await until(is_there_and_ends)


async def test_a_fenced_bucket_that_nobody_asks_for_is_named_until_it_is_openagain(
    make_settings: SettingsMaker, own_redis: RedisServer
) -> None:
    async with watched(make_settings, own_redis) as process:
        await process.put_on_sale("1")
        tea = await process.put_on_sale("tea")
        assert await process.detail("sales") == ""
        await process.lose_bucket(tea)
        assert await process.detail("sales") == f"fenced: goods tea (bucket {tea.sale_id}.0)"
        (done,) = await rebuild(process.stores, None, force=False, deadline_ms=60_000)
        assert done.goods_id == "tea"
        assert await process.detail("sales") == ""


async def test_of_more_than_fifty_running_sales_each_is_looked_at_in_its_turn(
    make_settings: SettingsMaker, own_redis: RedisServer
) -> None:
    async with watched(make_settings, own_redis) as process:
        sales = [await process.put_on_sale(f"g{n}") for n in range(60)]
        assert await process.detail("sales") == ""
        for sale in (sales[3], sales[57]):
            await process.lose_bucket(sale)
        # The look before this has seen the first fifty, so this one sees the others and goes on.
        both = "fenced: goods g3 (bucket 4.0), goods g57 (bucket 58.0)"
        # What is known to be fenced stays so until it is seen to be open.
        assert [await process.detail("sales") for _ in range(4)] == [both] * 4
        await process.stores.ledger.sales.change_sale(
            sales[3].sale_id, paused=True, actor="test", reason=""
        )
        await process.stores.fence.keep()
        await process.gate.catalogue.refresh()
        assert await process.detail("sales") == "fenced: goods g57 (bucket 58.0)"


async def test_the_order_worker_counts_the_closed_buckets_that_no_buyer_has_met(
    make_settings: SettingsMaker, own_redis: RedisServer, tmp_path: Path
) -> None:
    metrics = Metrics(tmp_path / "metrics", "worker-0", LAYOUT)
    fenced = metrics.gauge("seckill_fenced_buckets")
    openings = metrics.counter("seckill_bucket_openings_total")
    counts, closed = WorkerMetrics(metrics), ClosedBuckets()
    goods: dict[SaleId, GoodsId] = {}
    async with watched(make_settings, own_redis) as process:
        rebuilds = Rebuilds(process.stores.fence, automatic=False)
        tea = await process.put_on_sale("tea")
        await _keep(process.stores, counts, closed, goods, rebuilds)
        assert (fenced.value, openings.value) == (0, 0)
        assert goods == {tea.sale_id: "tea"}
        await process.lose_bucket(tea)
        await _keep(process.stores, counts, closed, goods, rebuilds)
        assert fenced.value == 1
        await rebuild(process.stores, "tea", force=False, deadline_ms=60_000)
        await _keep(process.stores, counts, closed, goods, rebuilds)
        assert (fenced.value, openings.value) == (0, 0)
        own_redis.restart()

        async def carried_on() -> bool:
            with contextlib.suppress(StockUnavailable):
                await _keep(process.stores, counts, closed, goods, rebuilds)
            return openings.value == 1

        await until(carried_on)
        assert fenced.value == 0
    metrics.close()


def test_a_closed_bucket_that_was_not_looked_at_again_still_counts() -> None:
    one, two = BucketId(SaleId(1), 0), BucketId(SaleId(2), 0)
    closed = ClosedBuckets()
    both = {one: Verdict.NEEDS_REBUILD, two: Verdict.WAITING}
    assert closed.count(both, {one, two}) == 2
    assert closed.count({one: Verdict.FINE}, {one, two}) == 1
    assert closed.count({}, {one, two}) == 1
    assert closed.count({two: Verdict.REOPENED}, {one, two}) == 0
    assert closed.count(both, {one}) == 1


async def test_a_wait_for_a_store_and_its_end_are_logged_once_each() -> None:
    turns: list[Exception | None] = [
        LedgerAway("gone"), LedgerAway("gone"), None, None, LedgerAway("gone again"), None,
    ]  # fmt: skip
    done = asyncio.Event()

    async def work() -> None:
        if not turns:
            done.set()
            return
        trouble = turns.pop(0)
        if trouble is not None:
            raise trouble

    with structlog.testing.capture_logs() as lines:
        task = asyncio.create_task(again("sweep releases", 0, work))
        await done.wait()
        task.cancel()
        await asyncio.wait({task})
    assert [(line["event"], line["doing"]) for line in lines] == [
        ("waiting for a store", "sweep releases"),
        ("store answers again", "sweep releases"),
    ] * 2
