"""The gate: decides purchase requests of all sales in one web process."""

import asyncio
import zlib
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import structlog
from redis.asyncio import Redis

from seckill.admission.batcher import Batcher, Request, Waiting
from seckill.admission.bounds import Bounds
from seckill.admission.bucket import Buckets
from seckill.admission.catalogue import Catalogue
from seckill.admission.circuit import AlwaysClosed, Circuit
from seckill.admission.decision import Decision
from seckill.admission.errors import StockUnavailable
from seckill.admission.judging import why_fenced
from seckill.admission.keys import Keys
from seckill.admission.marks import MarkWriter
from seckill.admission.observer import AdmissionObserver
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Scripts
from seckill.admission.sold_out import SoldOutFlag
from seckill.admission.tasks import end_tasks
from seckill.domain.clock import Clock
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import AttemptId, GoodsId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import BucketId
from seckill.domain.sale import LIMIT_PER_USER_MAX, Sale

__all__ = ["AdmissionGate", "bucket_of"]

_log = structlog.get_logger()

_NO_SUCH_GOODS = Decision(Outcome.NO_SUCH_GOODS)
_SOLD_OUT = Decision(Outcome.SOLD_OUT)
_ENDED = Decision(Outcome.ENDED)


def bucket_of(sale: Sale, user_id: UserId) -> BucketId:
    """The bucket of a user: always the same, so duplicate check and deduct are one step."""
    number = zlib.crc32(user_id.encode()) % sale.bucket_count if sale.bucket_count > 1 else 0
    return BucketId(sale.sale_id, number)


@dataclass(slots=True)
class _Lane:
    batcher: Batcher
    flag: SoldOutFlag

    @property
    def idle(self) -> bool:
        return self.batcher.idle and not self.flag.watching


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    """Run one lane's work: an error in it must not take the other lanes down."""
    try:
        await work
    except Exception:  # noqa: BLE001  -- see the docstring
        _log.exception("admission work failed")


class AdmissionGate:
    """Decides purchase requests. Used as an async context manager, which owns its tasks.

    Args:
        redis: client of the server that holds the stock.
        marks: the acknowledged marks of this process.
        circuit: says whether Redis may be asked; by default always.
    """

    def __init__(
        self,
        *,
        redis: Redis,
        scripts: Scripts,
        keys: Keys,
        ids: ReservationIds,
        marks: MarkWriter,
        clock: Clock,
        bounds: Bounds,
        observer: AdmissionObserver,
        circuit: Circuit | None = None,
    ) -> None:
        self._redis = redis
        self._scripts = scripts
        self._keys = keys
        self._ids = ids
        self._marks = marks
        self._clock = clock
        self._bounds = bounds
        self._observer = observer
        self._circuit: Circuit = AlwaysClosed() if circuit is None else circuit
        self._buckets = Buckets(redis, scripts, keys)
        self._catalogue = Catalogue(redis, keys, clock)
        self._lanes: dict[BucketId, _Lane] = {}
        # The lane of goods whose stock is one bucket, as of one state of the catalogue.
        self._only_lanes: dict[GoodsId, _Lane] = {}
        self._lanes_of: Mapping[GoodsId, Sale] = self._catalogue.sales
        # Who asked for goods that the catalogue lacks, while it is looked at again.
        self._unknown: list[tuple[GoodsId, Waiting]] = []
        self._looking_again = False
        self._closed = False
        self._tasks = asyncio.TaskGroup()
        self._poll: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def catalogue(self) -> Catalogue:
        """The sales that this process knows."""
        return self._catalogue

    @property
    def buckets(self) -> Buckets:
        """Reads buckets."""
        return self._buckets

    @property
    def fenced_buckets(self) -> list[BucketId]:
        """Buckets that this process does not trust at present."""
        return [at for at, lane in self._lanes.items() if lane.batcher.fenced is not None]

    @property
    def fenced_epochs(self) -> list[tuple[BucketId, int, str]]:
        """The same, each with its epoch and why: for whoever tells the ledger."""
        return [
            (at, lane.batcher.epoch, why_fenced(lane.batcher.fenced))
            for at, lane in self._lanes.items()
            if lane.batcher.fenced is not None
        ]

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._poll = self._tasks.create_task(self._catalogue.poll())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop. Requests that still wait are answered as undecided."""
        if self._poll is not None:
            await end_tasks([self._poll])
        # Work that ends may begin other work, which nobody else would end: a batch whose reply came
        # all the same begins the watch of an empty stock.
        while self._running:
            await end_tasks(self._running)
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            self._closed = True
            for lane in self._lanes.values():
                lane.batcher.close()
            asked, self._unknown = self._unknown, []
            for _, waiting in asked:
                waiting.decided(self._undecided("redis"))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(_guarded(work))
        self._running.add(task)
        # A task that is cancelled before its first step never awaits its work.
        task.add_done_callback(lambda _: work.close())
        task.add_done_callback(self._running.discard)

    def admit_now(self, goods_id: GoodsId, waiting: Waiting) -> Decision | None:
        """Decide at once where Redis need not be asked; otherwise queue the request.

        Args:
            waiting: the request: its user, attempt and quantity (1..100 units). An attempt id
                names this POST, and the same attempt gets the same answer; it is made of ASCII
                letters, digits, ``_`` and ``-``.

        Returns:
            The decision; or None, and `Waiting.decided` will be called, whatever happens. What
            was won is followed to its end by the outbox even when nobody listens any more.

        Raises:
            InvalidValue: the quantity is none. A batch is refused whole, so it stops here.
        """
        quantity = waiting.quantity
        if type(quantity) is not int or not 1 <= quantity <= LIMIT_PER_USER_MAX:
            raise InvalidValue("quantity", f"must be an integer from 1 to {LIMIT_PER_USER_MAX}")
        assert "," not in waiting.attempt_id, "a comma parts two reservations in a record of Redis"
        sales = self._catalogue.sales
        if sales is not self._lanes_of:
            # Another catalogue: sales may have come, gone or changed their buckets.
            self._lanes_of, self._only_lanes = sales, {}
        lane = self._only_lanes.get(goods_id)
        if lane is None:
            sale = sales.get(goods_id)
            if sale is None:
                return self._not_in_catalogue(goods_id, waiting)
            if sale.retired:
                return _ENDED  # its books are closed, and its keys leave Redis
            lane = self._lane(bucket_of(sale, waiting.user_id))
            if sale.bucket_count == 1:
                self._only_lanes[goods_id] = lane
        flag = lane.flag
        if flag.watching and flag.answers(waiting.user_id):
            self._observer.answered_by_flag()
            return _SOLD_OUT
        return lane.batcher.submit(waiting)

    def _not_in_catalogue(self, goods_id: GoodsId, waiting: Waiting) -> Decision | None:
        """Goods that the catalogue lacks: look again, together with all who ask for such."""
        if self._catalogue.known and self._catalogue.fresh():
            return _NO_SUCH_GOODS
        if self._closed:
            return self._undecided("redis")
        if len(self._unknown) >= self._bounds.queue_entries_max:
            return self._undecided("queue_full")
        self._unknown.append((goods_id, waiting))
        if not self._looking_again:
            self._looking_again = True
            self._start(self._look_again())
        return None

    async def _look_again(self) -> None:
        try:
            while self._unknown:
                # Whoever comes while this look is under way is answered by the next one.
                asked = len(self._unknown)
                away = False
                try:
                    await self._catalogue.refresh_together()
                except StockUnavailable as error:
                    self._observer.redis_failed(error.kind)
                    away = True
                except Exception:  # noqa: BLE001  -- whoever asked must be answered all the same
                    _log.exception("the catalogue could not be looked at")
                    away = True
                answered, self._unknown = self._unknown[:asked], self._unknown[asked:]
                for goods_id, waiting in answered:
                    decision = self._undecided("redis") if away else self._known(goods_id, waiting)
                    if decision is not None:
                        waiting.decided(decision)
        finally:
            self._looking_again = False

    def _known(self, goods_id: GoodsId, waiting: Waiting) -> Decision | None:
        """Decide right behind a look at the catalogue."""
        if goods_id in self._catalogue.sales:
            return self.admit_now(goods_id, waiting)
        return _NO_SUCH_GOODS if self._catalogue.known else self._undecided("unknown_sales")

    async def admit(
        self, goods_id: GoodsId, user_id: UserId, quantity: int, attempt_id: AttemptId
    ) -> Decision:
        """Decide a request, as `admit_now`; every way ends in a decision.

        Cancelling this gives up the answer and nothing else.
        """
        request = Request(user_id, attempt_id, quantity)
        decision = self.admit_now(goods_id, request)
        return await request.decision if decision is None else decision

    def _undecided(self, cause: str) -> Decision:
        self._observer.undecided(cause)
        return Decision(Outcome.UNDECIDED, retry_after_ms=self._bounds.retry_after_ms, cause=cause)

    def _lane(self, bucket_id: BucketId) -> _Lane:
        lane = self._lanes.get(bucket_id)
        if lane is None:
            self._forget_closed_sales()
            flag = SoldOutFlag(
                bucket_id,
                redis=self._redis,
                buckets=self._buckets,
                keys=self._keys,
                clock=self._clock,
                staleness_ms=self._bounds.sold_out_staleness_ms,
                on_raised=self._observer.flag_raised,
            )
            batcher = Batcher(
                bucket_id,
                keys=self._keys.bucket(bucket_id),
                scripts=self._scripts,
                buckets=self._buckets,
                ids=self._ids,
                marks=self._marks,
                clock=self._clock,
                bounds=self._bounds,
                observer=self._observer,
                circuit=self._circuit,
                start=self._start,
                changed=lambda epoch, seq, stock_units: flag.observe(
                    epoch, seq, stock_units, lambda: self._start(flag.watch())
                ),
            )
            lane = self._lanes[bucket_id] = _Lane(batcher, flag)
        return lane

    def _forget_closed_sales(self) -> None:
        """Drop the lanes of sales that nobody can ask for any more, and their buyers' filters."""
        known = {sale.sale_id for sale in self._catalogue.sales.values() if not sale.retired}
        for bucket_id, lane in list(self._lanes.items()):
            if bucket_id.sale_id not in known and lane.idle:
                del self._lanes[bucket_id]
