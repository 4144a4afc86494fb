"""What the web processes of all hosts have acknowledged, as far as it is known here.

The marks of this host are read from its folder; those of the others are what they have reported
into the ledger (mark_reports.py).
Source: rule 5 of the fence, docs/concepts.md.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from seckill.admission.fence_ports import FenceLedger
from seckill.admission.judging import HostMarks, Patience, host_marks
from seckill.admission.marks import Mark, folder_id, read_marks
from seckill.domain.reservation import BucketId

__all__ = ["HostEvidence"]


class HostEvidence:
    """Gathers the marks of every host.

    Args:
        folder: where the web processes of this host keep theirs.
        patience: how long a host that says nothing may still be alive.
    """

    def __init__(self, ledger: FenceLedger, folder: Path, patience: Patience) -> None:
        self._ledger = ledger
        self._folder = folder
        self.patience = patience

    async def _marks(self, bucket_id: BucketId) -> list[Mark]:
        """The marks of this host: of living and of dead processes."""
        # A file of each process is read from the disk: not in the loop.
        marks = await asyncio.to_thread(lambda: list(read_marks(self._folder)))
        return [mark for mark in marks if mark.bucket_id == bucket_id]

    async def of_epoch(self, bucket_id: BucketId, epoch: int) -> list[HostMarks]:
        """What is known of each folder of marks that may hold one of this epoch."""
        here = folder_id(self._folder)
        marks = [mark for mark in await self._marks(bucket_id) if mark.epoch == epoch]
        hosts = [
            HostMarks(
                "here",
                max((mark.seq for mark in marks), default=0),
                in_flight=any(mark.in_flight for mark in marks),
            )
        ]
        folders = await self._ledger.mark_folders(bucket_id, epoch)
        hosts += [host_marks(one, self.patience) for one in folders if one.folder_id != here]
        return hosts

    async def by_epoch(self, bucket_id: BucketId) -> Mapping[int, int]:
        """The highest acknowledged seq of every epoch of a bucket, over all hosts."""
        highest = dict(await self._ledger.marked_epochs(bucket_id))
        for mark in await self._marks(bucket_id):
            highest[mark.epoch] = max(mark.seq, highest.get(mark.epoch, 0))
        return highest
