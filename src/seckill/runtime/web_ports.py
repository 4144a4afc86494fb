"""The web room's ports, joined to gate, Redis and ledger."""

import asyncio
import contextlib
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from redis.exceptions import RedisError

from seckill.admission.bucket import Buckets, BucketView
from seckill.admission.errors import StockUnavailable
from seckill.admission.gate import AdmissionGate
from seckill.admission.scripts import Status, unavailable
from seckill.domain.clock import Clock
from seckill.domain.ids import GoodsId, ReservationId, SaleId, UserId
from seckill.domain.order import Order
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import Sale, SaleState
from seckill.ledger.errors import LedgerError, WrongState
from seckill.ledger.reading import OrderReading, Standing
from seckill.ledger.sql_ledger import SQLLedger
from seckill.runtime.bootstrap import Stores
from seckill.web.ports import DependencyState, DependencyStatus, SaleOnShow

__all__ = ["LedgerBooks", "QueuedReservations", "SalesOnShow", "StoreWatch"]

_VIEW_AGE_MS_MAX: Final = 500
_STANDING_AGE_MS_MAX: Final = 3_000
_STANDING_WAIT_S: Final = 1.0
_WATCH_EVERY_S: Final = 1.0
_ON_SHOW_MAX: Final = 1_000
_PROBE_LIFE_MS: Final = 10_000
_BUCKETS_A_LOOK_MAX: Final = 50
_BUCKETS_NAMED_MAX: Final = 10
_CANNOT_WRITE: Final = frozenset({"readonly", "write_refused"})


class LedgerBooks:
    """Implements `web.ports.OrderBooks`."""

    def __init__(self, ledger: SQLLedger) -> None:
        self._ledger = ledger

    async def orders_by_ids(self, reservation_ids: Sequence[ReservationId]) -> Sequence[Order]:
        """See OrderBooks."""
        return list((await self._ledger.reading.orders_by_ids(reservation_ids)).values())

    async def lost_orders(self, reservation_ids: Sequence[ReservationId]) -> Sequence[Order]:
        """See OrderBooks."""
        return await self._ledger.reading.lost_orders(reservation_ids)

    async def orders_of_user(
        self, user_id: UserId, *, orders_max: int, before: ReservationId | None
    ) -> Sequence[Order]:
        """See OrderBooks."""
        mark = None
        if before is not None:
            mark = await self._ledger.reading.mark_of(before, user_id)
            if mark is None:
                return []
        page = await self._ledger.reading.orders_of_user(user_id, orders_max, mark)
        return page.orders

    async def cancel(self, reservation_id: ReservationId, user_id: UserId) -> Order | None:
        """See OrderBooks."""
        try:
            return await self._ledger.orders.cancel(
                reservation_id, user_id, actor="buyer", reason="cancelled by the buyer"
            )
        except WrongState as wrong:
            return wrong.order


class QueuedReservations:
    """Implements `web.ports.QueuedPlaces` on the buyers hash."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    async def holding(self, place: Place, user_id: UserId) -> int | None:
        """See QueuedPlaces."""
        for holding in await self._buckets.holdings(place.bucket_id, user_id):
            if holding.place == place and not holding.spent:
                return holding.quantity
        return None


@dataclass(slots=True)
class _Seen:
    view: BucketView
    at_ms: float


class SalesOnShow:
    """Implements `web.ports.Catalogue`: definitions out of memory, what is left out of Redis.

    Args:
        reading: says what is paid; many who ask for one item share one read in three seconds.
    """

    def __init__(
        self, gate: AdmissionGate, buckets: Buckets, clock: Clock, reading: OrderReading
    ) -> None:
        self._reading = reading
        self._standing: dict[SaleId, tuple[float, Standing | None]] = {}
        self._reads: dict[SaleId, asyncio.Task[Standing | None]] = {}
        self._gate = gate
        self._buckets = buckets
        self._clock = clock
        self._seen: dict[BucketId, _Seen] = {}
        self._looking: dict[BucketId, asyncio.Task[int | None]] = {}

    async def on_show(self) -> Sequence[SaleOnShow]:
        """See web.ports.Catalogue."""
        await self._refreshed()
        sales = sorted(self._gate.catalogue.sales.values(), key=lambda sale: sale.sale_id)
        return [await self._on_show(sale) for sale in sales[-_ON_SHOW_MAX:]]

    async def on_show_of(self, goods_id: GoodsId) -> SaleOnShow | None:
        """See web.ports.Catalogue."""
        await self._refreshed()
        sale = self._gate.catalogue.sales.get(goods_id)
        if sale is None:
            return None
        on_show, standing = await self._on_show(sale), await self._standing_of(sale.sale_id)
        if standing is None:
            return on_show
        return replace(on_show, paid_units=standing.paid_units, next_due_ms=standing.next_due_ms)

    async def _standing_of(self, sale_id: SaleId) -> Standing | None:
        """How a sale stands in the ledger, a few seconds old; None while it cannot say."""
        read_at_ms, standing = self._standing.get(sale_id, (float("-inf"), None))
        if self._clock.monotonic_ms() - read_at_ms < _STANDING_AGE_MS_MAX:
            return standing
        task = self._reads.get(sale_id)
        if task is None or task.done():
            task = self._reads[sale_id] = asyncio.ensure_future(self._read_standing(sale_id))
        # Shielded: a client that leaves must not take the look away from the others.
        return await asyncio.shield(task)

    async def _read_standing(self, sale_id: SaleId) -> Standing | None:
        read_at_ms = self._clock.monotonic_ms()
        standing = None
        with contextlib.suppress(LedgerError, TimeoutError):
            async with asyncio.timeout(_STANDING_WAIT_S):
                standing = await self._reading.standing(sale_id)
        if len(self._standing) >= _ON_SHOW_MAX:
            self._standing.clear()
            self._reads.clear()
        self._standing[sale_id] = (read_at_ms, standing)
        return standing

    def sale(self, sale_id: SaleId) -> Sale | None:
        """See web.ports.Catalogue."""
        return next(
            (sale for sale in self._gate.catalogue.sales.values() if sale.sale_id == sale_id), None
        )

    def goods_of(self, sale_id: SaleId) -> GoodsId | None:
        """What a sale sells, out of memory; None for one that this process does not know."""
        sale = self.sale(sale_id)
        return None if sale is None else sale.goods_id

    async def _refreshed(self) -> None:
        """A catalogue that was looked at just now; an old one while Redis is away."""
        if not self._gate.catalogue.fresh():
            try:
                await self._gate.catalogue.refresh_together()
            except StockUnavailable:
                if not self._gate.catalogue.known:
                    raise

    async def _on_show(self, sale: Sale) -> SaleOnShow:
        if sale.retired:
            return SaleOnShow(sale, None)  # its stock has left Redis
        remaining = [
            await self._remaining(BucketId(sale.sale_id, number))
            for number in range(sale.bucket_count)
        ]
        known = [units for units in remaining if units is not None]
        return SaleOnShow(sale, sum(known) if len(known) == len(remaining) else None)

    async def _remaining(self, bucket_id: BucketId) -> int | None:
        """What is left in a bucket, at most half a second old; many who ask share one look."""
        seen = self._seen.get(bucket_id)
        if seen is not None and self._clock.monotonic_ms() - seen.at_ms < _VIEW_AGE_MS_MAX:
            return _units(seen.view)
        task = self._looking.get(bucket_id)
        if task is None or task.done():
            task = self._looking[bucket_id] = asyncio.ensure_future(self._look(bucket_id))
        return await asyncio.shield(task)

    async def _look(self, bucket_id: BucketId) -> int | None:
        at_ms = self._clock.monotonic_ms()
        try:
            view = await self._buckets.look(bucket_id)
        except StockUnavailable:
            return None
        self._seen[bucket_id] = _Seen(view, at_ms)
        return _units(view)


def _units(view: BucketView) -> int | None:
    return view.stock_units if view.status is Status.OK else None


class StoreWatch:
    """Implements `web.ports.Dependencies`: asks each store once a second, answers out of memory.

    Redis is asked to write, not only to answer: a full disk, a full memory or a demoted master
    leaves it talking. Of the buckets of running sales it looks at fifty a second, in turn.
    """

    def __init__(self, stores: Stores, gate: AdmissionGate) -> None:
        self._stores = stores
        self._gate = gate
        self._fenced: dict[BucketId, GoodsId] = {}
        self._looked_at: BucketId | None = None
        now_ms = stores.clock.now_ms()
        self._states: dict[str, DependencyState] = {
            name: DependencyState(name, DependencyStatus.UNKNOWN, now_ms)
            for name in ("redis", "ledger", "sales")
        }

    def states(self) -> Sequence[DependencyState]:
        """See Dependencies."""
        return list(self._states.values())

    async def run(self) -> None:
        """Ask again and again, for ever."""
        while True:
            started = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.1, _WATCH_EVERY_S - (time.monotonic() - started)))

    async def look(self) -> None:
        """Ask every store once, within a second."""
        redis, ledger, sales = await asyncio.gather(
            self._ask_redis(), self._ask_ledger(), self._ask_sales()
        )
        for name, detail in (("redis", redis), ("ledger", ledger), ("sales", sales)):
            self._note(name, detail)

    async def _ask_redis(self) -> str:
        try:
            async with asyncio.timeout(_WATCH_EVERY_S):
                await self._stores.redis.set(self._stores.keys.probe, b"1", px=_PROBE_LIFE_MS)
        except RedisError as error:
            failed = unavailable(error)
            if failed.kind == "timeout":
                return _no_answer(self._stores.settings.redis_timeout_ms / 1000)
            says = "cannot write" if failed.kind in _CANNOT_WRITE else "does not answer"
            return f"{says}: {error}"
        except TimeoutError:
            return _no_answer(_WATCH_EVERY_S)
        except OSError as error:
            return f"does not answer: {error}"
        return ""

    async def _ask_ledger(self) -> str:
        try:
            async with asyncio.timeout(_WATCH_EVERY_S):
                await self._stores.ledger.reading.ping()
        except TimeoutError:
            return _no_answer(_WATCH_EVERY_S)
        except LedgerError as error:
            return f"does not answer: {error}"
        return ""

    async def _ask_sales(self) -> str:
        """What is wrong with the sales; an empty text where nothing is."""
        running = self._running()
        with contextlib.suppress(StockUnavailable, TimeoutError):
            async with asyncio.timeout(_WATCH_EVERY_S):
                await self._look_at_buckets(running)
        # What an admission has met counts too: it meets it before this does.
        met = {at: running[at] for at in self._gate.fenced_buckets if at in running}
        fenced = {at: goods for at, goods in self._fenced.items() if at in running} | met
        if fenced:
            return _fenced_sentence(fenced)
        return "" if self._gate.catalogue.known else "the catalogue of sales is not in Redis"

    def _running(self) -> dict[BucketId, GoodsId]:
        now_ms = self._stores.clock.now_ms()
        return {
            BucketId(sale.sale_id, number): sale.goods_id
            for sale in self._gate.catalogue.sales.values()
            if sale.state_at(now_ms) is SaleState.RUNNING
            for number in range(sale.bucket_count)
        }

    async def _look_at_buckets(self, running: Mapping[BucketId, GoodsId]) -> None:
        """Look at the next fifty of these buckets, after those of the last time."""
        buckets = sorted(running)
        if self._looked_at is not None:
            after = bisect_right(buckets, self._looked_at)
            buckets = buckets[after:] + buckets[:after]
        self._fenced = {at: goods for at, goods in self._fenced.items() if at in running}
        for bucket_id in buckets[:_BUCKETS_A_LOOK_MAX]:
            view = await self._stores.buckets.look(bucket_id)
            self._looked_at = bucket_id
            if view.status is Status.OK:
                self._fenced.pop(bucket_id, None)
            else:
                self._fenced[bucket_id] = running[bucket_id]

    def _note(self, name: str, detail: str) -> None:
        status = DependencyStatus.DOWN if detail else DependencyStatus.UP
        before = self._states[name]
        if (before.status, before.detail) != (status, detail):
            since = before.since_ms if before.status is status else self._stores.clock.now_ms()
            self._states[name] = DependencyState(name, status, since, detail)


def _no_answer(within_s: float) -> str:
    return f"no answer within {within_s:g} s"


def _fenced_sentence(fenced: Mapping[BucketId, GoodsId]) -> str:
    named = [
        f"goods {goods} (bucket {at.sale_id}.{at.bucket})"
        for at, goods in sorted(fenced.items())[:_BUCKETS_NAMED_MAX]
    ]
    more = len(fenced) - len(named)
    return f"fenced: {', '.join(named)}{f', and {more} more' if more else ''}"
