"""The ledger as the fence of the admission room sees it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from seckill.admission.bucket import Holding
from seckill.admission.errors import BucketFenced
from seckill.admission.fence_ports import (
    CurrentEpoch,
    EpochState,
    Fence,
    RebuildPlan,
    Recovered,
    Reopening,
    ReportedMark,
)
from seckill.admission.judging import Folder
from seckill.domain.clock import Clock
from seckill.domain.events import Admitted
from seckill.domain.reservation import BucketId
from seckill.domain.sale import Sale
from seckill.ledger.errors import EpochMoved
from seckill.ledger.sql_ledger import SQLLedger

__all__ = ["LedgerFence"]

_EVENTS_PER_WRITE: Final = 2_000


@contextmanager
def _another_keeper(bucket_id: BucketId) -> Iterator[None]:
    """An epoch that moved meanwhile is the work of another keeper, in the fence's own words."""
    try:
        yield
    except EpochMoved as moved:
        raise BucketFenced(bucket_id, f"another keeper was faster: {moved}") from moved


class LedgerFence:
    """Implements `FenceLedger` and `MarkLedger` of the admission room.

    What each method raises: see `EpochBook` and `FenceBook`.
    """

    def __init__(self, ledger: SQLLedger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    async def sales(self) -> list[Sale]:
        """Every sale, closed ones too."""
        return await self._ledger.sales.sales(closed=True)

    async def current_epochs(self) -> list[CurrentEpoch]:
        """The newest epoch of each bucket."""
        return [
            CurrentEpoch(
                bucket_id=row.bucket_id,
                epoch=row.epoch,
                state=EpochState(row.state),
                put_units=row.opening_units,
                by_rebuild=row.origin == "rebuilt",
                begun=row.opened_at_ms is not None,
            )
            for row in await self._ledger.epochs.current_epochs()
        ]

    async def begin_opening(self, bucket_id: BucketId, epoch: int) -> bool:
        """Redis is about to open the bucket under this epoch; False when that was begun before."""
        return await self._ledger.epochs.begin_opening(bucket_id, epoch)

    async def mark_folders(self, bucket_id: BucketId, epoch: int) -> list[Folder]:
        """The folders of marks whose web processes may have acknowledged something of an epoch."""
        return await self._ledger.fences.folders(bucket_id, epoch)

    async def marked_epochs(self, bucket_id: BucketId) -> dict[int, int]:
        """The highest reported seq of each epoch of a bucket, over all folders."""
        return await self._ledger.fences.marked_epochs(bucket_id)

    async def mark_open(self, bucket_id: BucketId, epoch: int) -> None:
        """Redis has opened the bucket under this epoch."""
        with _another_keeper(bucket_id):
            await self._ledger.epochs.mark_open(bucket_id, epoch)

    async def known_seq(self, bucket_id: BucketId, epoch: int) -> int:
        """The highest seq of an epoch that is written, 0 for none."""
        return await self._ledger.epochs.known_seq(bucket_id, epoch)

    async def confirmed_seq(self, bucket_id: BucketId, epoch: int) -> int:
        """The highest seq of an epoch that Redis has confirmed, written or not; 0 for none."""
        return await self._ledger.epochs.confirmed_seq(bucket_id, epoch)

    async def carry_on(self, bucket_id: BucketId, from_epoch: int, valid_to_seq: int) -> int:
        """Close an epoch at a seq and make its successor; its pending releases move along."""
        with _another_keeper(bucket_id):
            return await self._ledger.epochs.carry_on(
                bucket_id, from_epoch, valid_to_seq, "Redis was started again and had lost nothing"
            )

    async def unwritten(self, bucket_id: BucketId, epoch: int, seq_max: int) -> list[int]:
        """The seqs from 1 to ``seq_max`` of an epoch that are in no book, at most 10,000."""
        return await self._ledger.epochs.unwritten(bucket_id, epoch, seq_max)

    async def adopt_epochs(self, bucket_id: BucketId, up_to: int) -> None:
        """Take in the epochs that Redis knows and books that are older than they were do not."""
        await self._ledger.epochs.adopt_epochs(
            bucket_id, up_to, "found in Redis, since the books were older than they were"
        )

    async def recover(self, found: Sequence[Recovered]) -> int:
        """Write reservations that only Redis knows; returns how many became orders."""
        now_ms = self._clock.now_ms()
        events = [
            Admitted(one.place, one.user_id, one.quantity, one.attempt_id, now_ms) for one in found
        ]
        ordered = 0
        for at in range(0, len(events), _EVENTS_PER_WRITE):
            report = await self._ledger.write(events[at : at + _EVENTS_PER_WRITE])
            ordered += report.ordered
        return ordered

    async def plan_rebuild(
        self, bucket_id: BucketId, *, newest: int, given: Mapping[int, int], withhold: bool
    ) -> RebuildPlan:
        """Accept nothing more from earlier epochs and make a new one out of what is written."""
        with _another_keeper(bucket_id):
            plan = await self._ledger.epochs.plan_rebuild(
                bucket_id, "rebuilt from the ledger", newest=newest, given=given, withhold=withhold
            )
        return RebuildPlan(
            epoch=plan.new_epoch,
            put_units=plan.put_units,
            buyers=[
                (user_id, [Holding(*reservation) for reservation in reservations])
                for user_id, reservations in plan.buyers
            ],
            lost=plan.lost,
            withheld_units=plan.withheld_units,
        )

    async def open_fences(self) -> list[Fence]:
        """The buckets that are not trusted now."""
        return await self._ledger.fences.open_fences()

    async def notice(
        self, bucket_id: BucketId, epoch: int, cause: str, *, needs_operator: bool = False
    ) -> Fence | None:
        """A bucket is not to be trusted under this epoch."""
        return await self._ledger.fences.notice(
            bucket_id, epoch, cause, needs_operator=needs_operator
        )

    async def claim(self, fence: Fence, who: str) -> int | None:
        """Take the right to rebuild, or keep it."""
        return await self._ledger.fences.claim(fence, who)

    async def unclaim(self, bucket_id: BucketId, who: str) -> None:
        """Give the right back."""
        await self._ledger.fences.unclaim(bucket_id, who)

    async def found_out(
        self, bucket_id: BucketId, *, recovered_orders: int, unknown: Sequence[str]
    ) -> None:
        """Note what a rebuild has found out, for the statement."""
        await self._ledger.fences.found_out(
            bucket_id, recovered_orders=recovered_orders, unknown=unknown
        )

    async def reopened(self, bucket_id: BucketId, how: Reopening) -> int | None:
        """The bucket has gone on; the fence is over."""
        return await self._ledger.fences.reopened(bucket_id, how)

    async def report_marks(
        self, folder_id: str, marks: Sequence[ReportedMark], *, leaving: bool
    ) -> None:
        """Note what a folder of marks says."""
        await self._ledger.fences.report_marks(folder_id, marks, leaving=leaving)
