"""The sweep on a real Redis: what the ledger decided reaches the bucket once, whatever happens."""

import asyncio
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from seckill.admission.bounds import BATCH_ENTRIES_CAP
from seckill.admission.bucket import Buckets
from seckill.admission.errors import StockUnavailable
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.admission.scripts import ADMIT, Scripts, Status
from seckill.domain.events import Released, StockChanged
from seckill.domain.ids import ReservationId, SaleId, UserId
from seckill.domain.reservation import BucketId, Place
from seckill.pipeline.errors import LedgerAway
from seckill.pipeline.ports import PendingRelease, PendingStockChange
from seckill.pipeline.sweep import Sweep
from services.redis import RedisServer
from services.stage import BUCKET, MemoryOrderLedger, events_of, make_sale

OTHER = BucketId(SaleId(2), 0)


class Shop:
    """Buckets, a ledger and the sweep between them."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis, self.keys = redis, keys
        self.scripts = Scripts(redis)
        self.buckets = Buckets(redis, self.scripts, keys)
        self.ledger = MemoryOrderLedger()
        self.released: list[int] = []
        self.epochs: dict[BucketId, int] = {}
        self.sweep = self.make_sweep()

    def make_sweep(self, on_stuck: Callable[[int], object] = lambda _: None) -> Sweep:
        return Sweep(
            ledger=self.ledger,
            buckets=self.buckets,
            epochs=lambda: self.epochs,
            on_released=self.released.append,
            on_stuck=on_stuck,
        )

    async def open(self, bucket_id: BucketId, stock: int, limit: int = 3) -> None:
        sale = make_sale(
            sale_id=bucket_id.sale_id,
            goods_id=f"g{bucket_id.sale_id}",
            stock_units=stock,
            limit_per_user=limit,
        )
        assert await self.buckets.open(sale, bucket_id, 1, stock) is Status.OK
        self.epochs[bucket_id] = 1

    async def sell(self, bucket_id: BucketId, buyers: int, quantity: int = 1) -> None:
        """Buyer n gets the place with seq n."""
        names = self.keys.bucket(bucket_id)
        for first in range(1, buyers + 1, BATCH_ENTRIES_CAP):
            request: list[object] = [1, 0, 0]
            for n in range(first, min(first + BATCH_ENTRIES_CAP, buyers + 1)):
                request += [f"user-{n}", "t", quantity]
            await self.scripts.run(ADMIT, (names.meta, names.buyers, names.outbox), request)

    def decide(self, bucket_id: BucketId, number: int, quantity: int = 1) -> PendingRelease:
        place = Place(bucket_id.sale_id, 1, bucket_id.bucket, number)
        name = ReservationId(f"{bucket_id.sale_id}-{number}")
        pending = PendingRelease(name, place, 1, UserId(f"user-{number}"), quantity)
        self.ledger.releases.append(pending)
        return pending


@pytest.fixture
def shop(redis: Redis, keys: Keys) -> Shop:
    return Shop(redis, keys)


async def test_a_release_gives_its_units_back_once_however_often_it_is_swept(shop: Shop) -> None:
    await shop.open(BUCKET, 10)
    await shop.sell(BUCKET, 3, quantity=2)
    pending = [shop.decide(BUCKET, n, 2) for n in (1, 3)]
    assert await shop.sweep.sweep() == 2
    assert shop.ledger.confirmed == {pending[0].reservation_id: 4, pending[1].reservation_id: 5}
    shop.ledger.confirmed.clear()  # as if the worker had died before it was written down
    assert await shop.sweep.sweep() == 2
    assert shop.ledger.confirmed == {pending[0].reservation_id: 4, pending[1].reservation_id: 5}
    view = await shop.buckets.look(BUCKET)
    assert (view.stock_units, view.held_units, view.buyers, view.seq) == (8, 2, 1, 5)
    events = await events_of(shop.redis, shop.keys)
    assert [e.reservation.seq for e in events if isinstance(e, Released)] == [1, 3]
    assert await shop.sweep.sweep() == 0


async def test_units_that_redis_does_not_hold_are_not_counted_as_given_back(shop: Shop) -> None:
    await shop.open(BUCKET, 10)
    await shop.sell(BUCKET, 1)
    shop.decide(BUCKET, 1)
    shop.decide(BUCKET, 7)
    assert await shop.sweep.sweep() == 2
    assert sum(shop.released) == 1
    assert (await shop.buckets.look(BUCKET)).stock_units == 10


async def test_a_fenced_sale_with_many_releases_does_not_keep_the_others_waiting(
    shop: Shop,
) -> None:
    """Its 600 releases are the oldest, and stay so until its rebuild."""
    await shop.open(BUCKET, 1_000)
    await shop.open(OTHER, 10)
    await shop.sell(BUCKET, 600)
    await shop.sell(OTHER, 3)
    for n in range(1, 601):
        shop.decide(BUCKET, n)
    await shop.buckets.fence_off(BUCKET, 1)
    mine = [shop.decide(OTHER, n) for n in (1, 2, 3)]
    for _ in range(4):
        await shop.sweep.sweep()
    assert set(shop.ledger.confirmed) == {p.reservation_id for p in mine}
    assert (await shop.buckets.look(OTHER)).stock_units == 10


async def test_a_release_that_redis_refuses_each_time_does_not_keep_the_others_waiting(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C80: it is found by halving, shown, and tried again after a pause of its own."""
    await shop.open(BUCKET, 1_000)
    await shop.open(OTHER, 10)
    await shop.sell(BUCKET, 300)
    await shop.sell(OTHER, 1)
    pending = [shop.decide(BUCKET, n) for n in range(1, 301)]
    other = shop.decide(OTHER, 1)
    bad = pending[7]
    release = shop.buckets.release
    asked = 0

    async def refusing(
        bucket_id: BucketId, epoch: int, some: list[tuple[UserId, Place]], spent: set[Place]
    ) -> object:
        nonlocal asked
        asked += 1
        if (bad.user_id, bad.reservation) in some:
            raise StockUnavailable("other", "WRONGTYPE by order of the test", outcome_known=True)
        return await release(bucket_id, epoch, some, spent)

    monkeypatch.setattr(shop.buckets, "release", refusing)
    # Its pause, which no stall of the machine shall end.
    monkeypatch.setattr("seckill.pipeline.sweep._REFUSED_S_MIN", 300.0)
    stuck: list[int] = []
    sweep = shop.make_sweep(stuck.append)
    while await sweep.sweep():
        pass
    assert set(shop.ledger.confirmed) == {
        p.reservation_id for p in [*pending, other] if p is not bad
    }
    assert stuck[-1] == 1
    before = asked
    await sweep.sweep()
    assert asked == before, "it has a pause of its own"
    monkeypatch.setattr(shop.buckets, "release", release)
    monkeypatch.setattr("seckill.pipeline.sweep.time.monotonic", lambda: 1e12)
    assert await sweep.sweep() == 1
    assert await sweep.sweep() == 0
    assert stuck[-1] == 0
    assert (await shop.buckets.look(BUCKET)).stock_units == 1_000


async def test_more_releases_than_one_call_takes_are_carried_in_several(shop: Shop) -> None:
    await shop.open(BUCKET, 2_000)
    await shop.sell(BUCKET, 700)
    for n in range(1, 701):
        shop.decide(BUCKET, n)
    swept = [await shop.sweep.sweep() for _ in range(4)]
    assert sum(swept) == 700
    assert (await shop.buckets.look(BUCKET)).stock_units == 2_000


async def test_a_ledger_that_is_away_after_the_release_costs_no_second_unit(shop: Shop) -> None:
    await shop.open(BUCKET, 10)
    await shop.sell(BUCKET, 1)
    shop.decide(BUCKET, 1)
    confirm = shop.ledger.confirm_releases

    async def away(*_: object, **__: object) -> None:
        raise LedgerAway("by order of the test")

    shop.ledger.confirm_releases = away  # type: ignore[method-assign,assignment]
    with pytest.raises(LedgerAway):
        await shop.sweep.sweep()
    assert (await shop.buckets.look(BUCKET)).stock_units == 10
    shop.ledger.confirm_releases = confirm  # type: ignore[method-assign]
    assert await shop.sweep.sweep() == 1
    assert (await shop.buckets.look(BUCKET)).stock_units == 10


async def test_a_redis_that_is_away_leaves_everything_pending(
    own_redis: RedisServer, keys: Keys
) -> None:
    async with (
        connect(own_redis.url, timeout_ms=60_000) as redis,
        connect(own_redis.url, timeout_ms=300) as hasty,
    ):
        shop, other = Shop(redis, keys), Shop(hasty, keys)
        await shop.open(BUCKET, 10)
        await shop.sell(BUCKET, 1)
        shop.decide(BUCKET, 1)
        other.ledger, other.epochs = shop.ledger, shop.epochs
        own_redis.freeze()
        with pytest.raises(StockUnavailable):
            await other.make_sweep().sweep()
        own_redis.thaw()
        assert shop.ledger.confirmed == {}
        assert await shop.sweep.sweep() == 1


async def test_a_release_of_an_older_epoch_stays_pending(shop: Shop) -> None:
    """A rebuild has counted it already: sent again it would be a phantom unit."""
    await shop.open(BUCKET, 10)
    await shop.sell(BUCKET, 1)
    shop.decide(BUCKET, 1)
    assert await shop.buckets.carry_on(BUCKET, 1, 1, 2)
    assert await shop.sweep.sweep() == 0
    assert (await shop.buckets.look(BUCKET)).stock_units == 9


async def test_a_stock_change_is_applied_once_and_one_that_cannot_be_is_said_so(
    shop: Shop,
) -> None:
    await shop.open(BUCKET, 10)
    await shop.sell(BUCKET, 8)
    shop.ledger.stock_changes += [
        PendingStockChange("plus", BUCKET.sale_id, 5),
        PendingStockChange("minus", BUCKET.sale_id, -8),
        PendingStockChange("elsewhere", SaleId(99), 1),
    ]
    assert await shop.sweep.sweep() == 2
    assert shop.ledger.confirmed_changes == {"plus": 9, "minus": 0}
    shop.ledger.confirmed_changes.clear()
    assert await shop.sweep.sweep() == 2
    view = await shop.buckets.look(BUCKET)
    assert (view.stock_units, view.put_units) == (7, 15)
    events = await events_of(shop.redis, shop.keys)
    assert [e.delta_units for e in events if isinstance(e, StockChanged)] == [5]


async def test_fifty_operators_and_thirty_buyers_at_once_add_up(shop: Shop) -> None:
    """C49 at the bucket: each change is sent twice, and counts once."""
    await shop.open(BUCKET, 6, limit=1)
    names = shop.keys.bucket(BUCKET)

    calls = asyncio.Semaphore(32)  # fewer than the client has connections

    async def buyer(n: int) -> int:
        async with calls:
            reply = await shop.scripts.run(
                ADMIT, (names.meta, names.buyers, names.outbox), [1, 0, 0, f"user-{n}", "t", 1]
            )
            return int(reply[5] == 1)

    async def operator(n: int) -> int | Status:
        async with calls:
            return await shop.buckets.change_stock(BUCKET, 1, f"change-{n % 50}", 1)

    results = await asyncio.gather(
        *(operator(n) for n in range(100)), *(buyer(n) for n in range(30))
    )
    assert all(int(seq) > 0 for seq in results[:100])
    view = await shop.buckets.look(BUCKET)
    assert view.put_units == 56
    assert view.held_units == sum(results[100:])
    assert view.stock_units + view.held_units == 56
