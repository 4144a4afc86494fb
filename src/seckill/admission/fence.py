"""The fence: notices that Redis is not the one it was, judges each bucket, lets it go on or not.

The keeper runs beside the order worker, since it speaks for the ledger, which owns the epochs.
Every web process fences a bucket by itself, in the script, before anybody can be admitted on it
(lua/bucket.lua); the keeper decides when it may open again. It is written so that several keepers
at once do no harm: the ledger hands out each epoch once, and the scripts refuse a second opening.
Source: rules 3 to 8 of the fence, docs/concepts.md.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from seckill.admission.bucket import Buckets, BucketView, Holding
from seckill.admission.catalogue import publish
from seckill.admission.errors import BucketFenced
from seckill.admission.keys import Keys
from seckill.admission.marks import folder_id, read_marks
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Status, unavailable
from seckill.domain.clock import Clock
from seckill.domain.ids import GoodsId, ReservationId, UserId
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import Sale, SaleState

__all__ = [
    "CurrentEpoch",
    "EpochState",
    "FenceKeeper",
    "FenceLedger",
    "Rebuild",
    "RebuildPlan",
    "Verdict",
]

_log = structlog.get_logger()

_ENDED_EVERY_MS: Final = 5_000
_QUIET_WAIT_MS: Final = 1_500
"""How long a web process that still waits for a reply may hold up a reopening. One that is frozen
for longer discards nothing wrongly: what it acknowledges late is named by the audit."""


class EpochState(StrEnum):
    """Where the newest epoch of a bucket stands."""

    OPENING = "opening"
    """The ledger has decided it; Redis may not know it yet."""

    OPEN = "open"


@dataclass(frozen=True, slots=True)
class CurrentEpoch:
    """The newest epoch of a bucket, as the ledger has it.

    Attributes:
        put_units: units put into the bucket when this epoch opened it.
        by_rebuild: it was made by a rebuild, whose staged buyers only that rebuild knows.
        begun: opening it in Redis was begun before, so a bucket that is missing may be a lost one.
    """

    bucket_id: BucketId
    epoch: int
    state: EpochState
    put_units: int
    by_rebuild: bool
    begun: bool = False


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """A bucket as the ledger would have it.

    Attributes:
        put_units: all units put on sale; what buyers hold is part of it.
        buyers: each user with the reservations of live orders.
    """

    epoch: int
    put_units: int
    buyers: Sequence[tuple[UserId, Sequence[Holding]]]


class FenceLedger(Protocol):
    """What the fence needs of the ledger. Every method raises LedgerUnavailable when it is away."""

    async def sales(self) -> Sequence[Sale]:
        """Every sale, closed ones too."""
        ...

    async def current_epochs(self) -> Sequence[CurrentEpoch]:
        """The newest epoch of each bucket."""
        ...

    async def begin_opening(self, bucket_id: BucketId, epoch: int) -> bool:
        """Redis is about to open the bucket under this epoch; False when that was begun before."""
        ...

    async def mark_open(self, bucket_id: BucketId, epoch: int) -> None:
        """Redis has opened the bucket under this epoch. Raises BucketFenced as `carry_on`."""
        ...

    async def mark_folders(self, bucket_id: BucketId, epoch: int) -> Collection[str]:
        """The folders of marks whose web processes may have acknowledged something of an epoch."""
        ...

    async def known_seq(self, bucket_id: BucketId, epoch: int) -> int:
        """The highest seq of an epoch that is written, 0 for none."""
        ...

    async def carry_on(self, bucket_id: BucketId, from_epoch: int, valid_to_seq: int) -> int:
        """Close an epoch at a seq and make its successor; its pending releases move along.

        Raises:
            BucketFenced: the ledger has gone on meanwhile, by the hand of another keeper.
        """
        ...

    async def plan_rebuild(self, bucket_id: BucketId) -> RebuildPlan:
        """Accept nothing more from earlier epochs and make a new one out of what is written."""
        ...

    async def unwritten(self, bucket_id: BucketId, epoch: int, seq_max: int) -> Sequence[int]:
        """The seqs from 1 to ``seq_max`` of an epoch that are not written."""
        ...


class Verdict(StrEnum):
    """What the keeper found out about one bucket."""

    FINE = "fine"
    REOPENED = "reopened"
    WAITING = "waiting"
    """A web process may still get a reply from before: judged at the next look."""

    MARKS_ELSEWHERE = "marks_elsewhere"
    """Web processes of another host have marks that cannot be read here: left alone here."""

    NEEDS_REBUILD = "needs_rebuild"


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What a rebuild did: one statement for the operator.

    Attributes:
        lost: reservations that were acknowledged to a buyer and are in no log any more.
        marks_complete: False when other hosts have marks that could not be read here, so that more
            may be lost than is named.
        fenced_ms: from the start of the rebuild to the opening.
    """

    goods_id: GoodsId
    bucket_id: BucketId
    epoch: int
    put_units: int
    held_units: int
    buyers: int
    lost: Sequence[ReservationId]
    marks_complete: bool
    fenced_ms: int


class FenceKeeper:
    """Keeps the buckets in Redis and their epochs in the ledger in step.

    Args:
        marks_folder: where the web processes of this host keep their marks.
    """

    def __init__(
        self,
        *,
        redis: Redis,
        buckets: Buckets,
        keys: Keys,
        ledger: FenceLedger,
        marks_folder: Path,
        ids: ReservationIds,
        clock: Clock,
    ) -> None:
        self._redis = redis
        self._buckets = buckets
        self._keys = keys
        self._ledger = ledger
        self._marks_folder = marks_folder
        self._ids = ids
        self._clock = clock
        self._waiting_since_ms: dict[tuple[BucketId, int], float] = {}
        self._reported: dict[BucketId, Verdict] = {}
        self._epochs: dict[BucketId, int] = {}
        self._quiet_looked_at_ms: dict[BucketId, float] = {}

    @property
    def known_epochs(self) -> Mapping[BucketId, int]:
        """Every bucket that there is, with its newest epoch, as of the last look."""
        return self._epochs

    async def keep(self) -> dict[BucketId, Verdict]:
        """Look at every bucket once: open what is to be opened, carry on what lost nothing.

        Raises:
            StockUnavailable, LedgerUnavailable: nothing half done; call again.
        """
        epochs = await self._ledger.current_epochs()
        # Read after the epochs: every epoch has its sale then.
        sales = {sale.sale_id: sale for sale in await self._ledger.sales()}
        self._epochs = {current.bucket_id: current.epoch for current in epochs}
        verdicts: dict[BucketId, Verdict] = {}
        for current in epochs:
            sale = sales[current.bucket_id.sale_id]
            if self._due(sale, current.bucket_id):
                try:
                    verdict = await self._keep_bucket(sale, current)
                except BucketFenced:
                    verdict = Verdict.WAITING  # another keeper moved it: the next look sees where
                verdicts[current.bucket_id] = verdict
                self._report(current.bucket_id, verdict)
        # Last: who reads of a sale there finds its bucket open.
        await publish(self._redis, self._keys, [s for s in sales.values() if not s.closed])
        return verdicts

    def _due(self, sale: Sale, bucket_id: BucketId) -> bool:
        """Whether to look now: at a sale that is over only now and then, for there may be many."""
        if sale.state_at(self._clock.now_ms()) is not SaleState.ENDED:
            return True
        now = self._clock.monotonic_ms()
        if now - self._quiet_looked_at_ms.get(bucket_id, float("-inf")) < _ENDED_EVERY_MS:
            return False
        self._quiet_looked_at_ms[bucket_id] = now
        return True

    def _report(self, bucket_id: BucketId, verdict: Verdict) -> None:
        """Log a change of verdict, once."""
        if self._reported.get(bucket_id, Verdict.FINE) != verdict:
            if verdict is Verdict.NEEDS_REBUILD:
                _log.error(
                    "bucket lost data and stays closed: run `seckill rebuild`", bucket=bucket_id
                )
            elif verdict is Verdict.MARKS_ELSEWHERE:
                _log.warning(
                    "bucket is left alone: another host has marks of it that cannot be read here",
                    bucket=bucket_id,
                )
            else:
                _log.info("bucket", bucket=bucket_id, verdict=verdict)
        self._reported[bucket_id] = verdict

    async def _keep_bucket(self, sale: Sale, current: CurrentEpoch) -> Verdict:
        view = await self._buckets.look(current.bucket_id)
        if current.state is EpochState.OPENING:
            return await self._finish_opening(sale, current, view)
        if view.epoch != current.epoch:
            return Verdict.NEEDS_REBUILD  # missing, or older than the ledger knows it
        if view.status is Status.OK:
            if view.version < sale.version:
                await self._buckets.define(sale, current.bucket_id)
            return Verdict.FINE
        if view.status is Status.SERVER:
            return await self._go_on(sale, view, current.bucket_id, to_epoch=None)
        return Verdict.NEEDS_REBUILD

    async def _finish_opening(self, sale: Sale, current: CurrentEpoch, view: BucketView) -> Verdict:
        """Do what the ledger has decided and Redis may not know yet: a crash came between."""
        bucket_id, epoch = current.bucket_id, current.epoch
        if view.epoch == epoch:
            await self._ledger.mark_open(bucket_id, epoch)
            return Verdict.REOPENED
        if current.by_rebuild:
            return Verdict.NEEDS_REBUILD
        if view.epoch == epoch - 1 and epoch > 1 and view.status in {Status.OK, Status.SERVER}:
            # Judged again: since the ledger closed that epoch Redis may have gone back once more.
            return await self._go_on(sale, view, bucket_id, to_epoch=epoch)
        if view.status is Status.MISSING and epoch == 1:
            return await self._open_first(sale, current)
        return Verdict.NEEDS_REBUILD

    async def _open_first(self, sale: Sale, current: CurrentEpoch) -> Verdict:
        """Open a bucket that is not there: because it never was, or because it is lost?"""
        bucket_id, epoch = current.bucket_id, current.epoch
        if current.begun or not await self._ledger.begin_opening(bucket_id, epoch):
            # Somebody opens it just now, or it was open for a moment and is lost.
            if not await self._all_marks_here(bucket_id, epoch):
                return Verdict.MARKS_ELSEWHERE
            if not await self._untouched(bucket_id):
                return Verdict.NEEDS_REBUILD
        if await self._buckets.open(sale, bucket_id, epoch, current.put_units) is not Status.OK:
            # Another keeper was faster; or only a rest of the bucket is there, which has the epoch.
            view = await self._buckets.look(bucket_id)
            if view.status is not Status.OK:
                return Verdict.NEEDS_REBUILD
        await self._ledger.mark_open(bucket_id, epoch)
        return Verdict.REOPENED

    async def _untouched(self, bucket_id: BucketId) -> bool:
        """Whether nobody was ever admitted from a bucket: then it was not lost, but never there."""
        return self._mark(bucket_id, 1) == 0 and await self._ledger.known_seq(bucket_id, 1) == 0

    def _mark(self, bucket_id: BucketId, epoch: int) -> int:
        """The highest seq that any process of this host, living or dead, has acknowledged."""
        return max(
            (
                mark.seq
                for mark in read_marks(self._marks_folder)
                if mark.bucket_id == bucket_id and mark.epoch == epoch
            ),
            default=0,
        )

    async def _all_marks_here(self, bucket_id: BucketId, epoch: int) -> bool:
        """Whether the marks of every web process that may have acknowledged can be read here.

        A keeper that cannot see them all must not judge: what it does not know of would be lost
        without a word. That is so for a command that is typed on another machine, or in a folder
        that is not the service's.
        """
        folders = await self._ledger.mark_folders(bucket_id, epoch)
        return set(folders) <= {folder_id(self._marks_folder)}

    async def _behind(self, bucket_id: BucketId, epoch: int, seq: int) -> bool:
        """Whether a buyer who was told, or the ledger, knows of a later change than Redis does."""
        known = await self._ledger.known_seq(bucket_id, epoch)
        return seq < max(known, self._mark(bucket_id, epoch))

    def _quiet(self, bucket_id: BucketId, epoch: int) -> bool:
        """Whether no living process waits for a reply of this epoch, or has had its time."""
        key = (bucket_id, epoch)
        if not any(
            mark.in_flight and mark.bucket_id == bucket_id and mark.epoch == epoch
            for mark in read_marks(self._marks_folder)
        ):
            self._waiting_since_ms.pop(key, None)
            return True
        now = self._clock.monotonic_ms()
        return now - self._waiting_since_ms.setdefault(key, now) > _QUIET_WAIT_MS

    async def _go_on(
        self, sale: Sale, view: BucketView, bucket_id: BucketId, *, to_epoch: int | None
    ) -> Verdict:
        """Let a bucket that is on another server go on, if nothing is behind.

        Args:
            view: the bucket as it was judged.
            to_epoch: the epoch that the ledger has made for it; None: it has to make one.
        """
        if not await self._all_marks_here(bucket_id, view.epoch):
            return Verdict.MARKS_ELSEWHERE
        if not self._quiet(bucket_id, view.epoch):
            return Verdict.WAITING
        if await self._behind(bucket_id, view.epoch, view.seq):
            return Verdict.NEEDS_REBUILD
        if to_epoch is None:
            to_epoch = await self._ledger.carry_on(bucket_id, view.epoch, view.seq)
        if not await self._buckets.carry_on(bucket_id, view.epoch, view.seq, to_epoch):
            return Verdict.WAITING  # it is not as it was judged: the next look sees what it is now
        await self._ledger.mark_open(bucket_id, to_epoch)
        await self._buckets.define(sale, bucket_id)
        return Verdict.REOPENED

    async def rebuild(self, bucket_id: BucketId, *, deadline_ms: int) -> Rebuild:
        """Close a bucket, let its outbox run dry into the ledger, and make it anew from there.

        Args:
            deadline_ms: longest wait for the outbox and for web processes with calls under way.

        Raises:
            BucketFenced: the outbox did not run dry in time; the bucket stays closed, and the
                rebuild can be started again.
            StockUnavailable, LedgerUnavailable: the same.
        """
        started_ms = self._clock.monotonic_ms()
        await self._buckets.fence_off(bucket_id)
        before = await self._buckets.look(bucket_id)
        newest = self._epochs.get(bucket_id, before.epoch)
        marks_complete = await self._all_marks_here(bucket_id, newest)
        epochs = {
            mark.epoch for mark in read_marks(self._marks_folder) if mark.bucket_id == bucket_id
        }
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                while not all(self._quiet(bucket_id, epoch) for epoch in epochs):
                    await asyncio.sleep(0.05)
                while await self._outbox_entries(bucket_id):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise BucketFenced(
                bucket_id,
                f"its outbox did not run dry within {deadline_ms} ms (does an order worker run?);"
                " it stays closed: start the rebuild again",
            ) from None
        plan = await self._ledger.plan_rebuild(bucket_id)
        sale = next(s for s in await self._ledger.sales() if s.sale_id == bucket_id.sale_id)
        status = await self._buckets.open(sale, bucket_id, plan.epoch, plan.put_units, plan.buyers)
        assert status is Status.OK, (
            f"a rebuild makes a new epoch, yet the bucket said {status.name}"
        )
        await self._ledger.mark_open(bucket_id, plan.epoch)
        lost = [
            Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)
            for epoch in sorted(epochs)
            for seq in await self._ledger.unwritten(bucket_id, epoch, self._mark(bucket_id, epoch))
        ]
        statement = Rebuild(
            sale.goods_id,
            bucket_id,
            plan.epoch,
            plan.put_units,
            sum(h.quantity for _, holdings in plan.buyers for h in holdings),
            len(plan.buyers),
            self._ids.encode_many(lost) if lost else [],
            marks_complete,
            int(self._clock.monotonic_ms() - started_ms),
        )
        _log.warning("bucket rebuilt", before=before.status.name.lower(), statement=statement)
        return statement

    async def _outbox_entries(self, bucket_id: BucketId) -> int:
        try:
            return int(await self._redis.xlen(self._keys.bucket(bucket_id).outbox))
        except RedisError as error:
            raise unavailable(error) from error
