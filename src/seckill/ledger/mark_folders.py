"""The folders in which web processes keep their marks, so that nobody judges without all of them.

Source: rule 5 of the fence, ``docs/concepts.md``.
"""

from typing import Final

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.clock import Clock
from seckill.domain.reservation import BucketId
from seckill.ledger import statements
from seckill.ledger.engine import Database
from seckill.ledger.tables import epochs, mark_folders

__all__ = ["SEEN_EVERY_MS", "MarkFolders", "folders_of_epoch"]

SEEN_EVERY_MS: Final = 10_000
"""How often a web process says that it is there."""

_MARGIN_MS: Final = 6 * SEEN_EVERY_MS
"""A folder that was silent for so long before an epoch began has no mark of it: its web processes
are gone, or they could not have reached the ledger which opened the epoch."""


class MarkFolders:
    """Where web processes keep their marks. Raises LedgerUnavailable when it is away."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def seen(self, folder_id: str, host: str) -> None:
        """A web process keeps its marks in this folder, now. To be said before it admits anybody.

        Args:
            folder_id: see `admission.marks.make_folder_id`.
            host: for people.
        """
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            known = await connection.execute(
                update(mark_folders)
                .where(mark_folders.c.folder_id == folder_id)
                .values(last_seen_ms=now_ms, left_at_ms=None)
            )
            if known.rowcount == 0:
                row = {
                    "folder_id": folder_id,
                    "host": host,
                    "first_seen_ms": now_ms,
                    "last_seen_ms": now_ms,
                }
                inserts = statements.INSERTS[connection.dialect.name]
                await connection.execute(inserts.mark_folder, row)

        await self._database.write("register a folder of marks", work)


def folders_of_epoch(bucket_id: BucketId, epoch: int) -> ColumnElement[bool]:
    """The folders whose web processes may have acknowledged something of an epoch."""
    began_ms = (
        select(func.coalesce(epochs.c.opened_at_ms, epochs.c.created_at_ms))
        .where(statements.in_bucket(epochs, bucket_id), epochs.c.epoch == epoch)
        .scalar_subquery()
    )
    return mark_folders.c.last_seen_ms >= began_ms - _MARGIN_MS
