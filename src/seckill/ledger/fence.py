"""The ledger as the fence of the admission room sees it."""

from collections.abc import Iterator
from contextlib import contextmanager

from seckill.admission.bucket import Holding
from seckill.admission.errors import BucketFenced
from seckill.admission.fence import CurrentEpoch, EpochState, RebuildPlan
from seckill.domain.reservation import BucketId
from seckill.domain.sale import Sale
from seckill.ledger.errors import EpochMoved
from seckill.ledger.sql_ledger import SQLLedger

__all__ = ["LedgerFence"]


@contextmanager
def _another_keeper(bucket_id: BucketId) -> Iterator[None]:
    """An epoch that moved meanwhile is the work of another keeper, in the fence's own words."""
    try:
        yield
    except EpochMoved as moved:
        raise BucketFenced(bucket_id, f"another keeper was faster: {moved}") from moved


class LedgerFence:
    """Implements `admission.fence.FenceLedger`. What each method raises: see `EpochBook`."""

    def __init__(self, ledger: SQLLedger) -> None:
        self._ledger = ledger

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

    async def mark_folders(self, bucket_id: BucketId, epoch: int) -> list[str]:
        """The folders of marks whose web processes may have acknowledged something of an epoch."""
        return await self._ledger.mark_folders.of_epoch(bucket_id, epoch)

    async def mark_open(self, bucket_id: BucketId, epoch: int) -> None:
        """Redis has opened the bucket under this epoch."""
        with _another_keeper(bucket_id):
            await self._ledger.epochs.mark_open(bucket_id, epoch)

    async def known_seq(self, bucket_id: BucketId, epoch: int) -> int:
        """The highest seq of an epoch that is written, 0 for none."""
        return await self._ledger.epochs.known_seq(bucket_id, epoch)

    async def carry_on(self, bucket_id: BucketId, from_epoch: int, valid_to_seq: int) -> int:
        """Close an epoch at a seq and make its successor; its pending releases move along."""
        with _another_keeper(bucket_id):
            return await self._ledger.epochs.carry_on(
                bucket_id, from_epoch, valid_to_seq, "Redis was started again and had lost nothing"
            )

    async def plan_rebuild(self, bucket_id: BucketId) -> RebuildPlan:
        """Accept nothing more from earlier epochs and make a new one out of what is written."""
        plan = await self._ledger.epochs.plan_rebuild(bucket_id, "rebuilt from the ledger")
        return RebuildPlan(
            epoch=plan.new_epoch,
            put_units=plan.put_units,
            buyers=[
                (user_id, [Holding(*reservation) for reservation in reservations])
                for user_id, reservations in plan.buyers
            ],
        )

    async def unwritten(self, bucket_id: BucketId, epoch: int, seq_max: int) -> list[int]:
        """The seqs from 1 to ``seq_max`` of an epoch that are not written."""
        return await self._ledger.epochs.unwritten(bucket_id, epoch, seq_max)
