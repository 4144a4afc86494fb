"""The fence's own books: what is not trusted now, what every host has acknowledged, what was lost.

A fence is noticed once, by whoever sees it first, and ends when its bucket goes on; its row is the
statement then. Nothing here compares the clocks of two hosts, but for a host that has been silent
for half a minute: whether a report came after the fence was noticed is a column, not an instant.
Source: rules 5, 8 and 9 of the fence, ``docs/concepts.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Row, Select, and_, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.admission.fence_ports import Fence, Reopening, ReportedMark
from seckill.admission.judging import Folder
from seckill.domain.clock import Clock
from seckill.domain.ids import GoodsId, ReservationId, SaleId
from seckill.domain.order import OrderState
from seckill.domain.reservation import BucketId
from seckill.ledger import statements
from seckill.ledger.engine import Database
from seckill.ledger.losses import FENCE_INSERTS
from seckill.ledger.mark_folders import folders_of_epoch
from seckill.ledger.tables import (
    epochs,
    fences,
    known_marks,
    losses,
    mark_folders,
    orders,
    sales,
)

__all__ = ["LOSSES_PER_STATEMENT_MAX", "STATEMENTS_MAX", "FenceBook", "FenceStatement"]

STATEMENTS_MAX: Final = 200
LOSSES_PER_STATEMENT_MAX: Final = 1_000
"""Lost reservations that one statement names; all of them are in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceStatement:
    """One fence from beginning to end, for operators.

    Attributes:
        epoch: the epoch that ended with it.
        paused_ms: how long nobody was admitted; None while it lasts.
        outcome: ``carried_on`` or ``rebuilt``; None while it lasts.
        lost: reservations that were acknowledged and are in no log, at most 1,000 of them.
        lost_count: all of them.
        compensated: purchases of this epoch or an older one that came too late for it and were
            compensated.
        recovered_orders: orders that only Redis still knew of.
        withheld_units: units taken off sale for the lost ones.
        oversold_units: live orders beyond the stock now; the ledger keeps it at 0.
        unknown: what could not be known, in sentences.
    """

    sale_id: SaleId
    goods_id: GoodsId
    bucket: int
    epoch: int
    cause: str
    needs_operator: bool
    noticed_at_ms: int
    outcome: str | None
    new_epoch: int | None
    reopened_at_ms: int | None
    put_units: int | None
    held_units: int | None
    buyers: int | None
    recovered_orders: int
    withheld_units: int
    oversold_units: int
    compensated: int
    lost_count: int
    lost: Sequence[ReservationId]
    unknown: Sequence[str]

    @property
    def paused_ms(self) -> int | None:
        """See the class."""
        if self.reopened_at_ms is None:
            return None
        return max(0, self.reopened_at_ms - self.noticed_at_ms)

    def to_dict(self) -> dict[str, Any]:
        """As JSON shows it."""
        parts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return parts | {"paused_ms": self.paused_ms}


class FenceBook:
    """Fences, marks and losses. Every method raises LedgerUnavailable when it is away."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def open_fences(self) -> list[Fence]:
        """The buckets that are not trusted now."""

        async def work(connection: AsyncConnection) -> list[Fence]:
            return [_fence(row) for row in await connection.execute(_OPEN_FENCES)]

        return await self._database.read("read the open fences", work)

    async def notice(
        self, bucket_id: BucketId, epoch: int, cause: str, *, needs_operator: bool = False
    ) -> Fence | None:
        """Note that a bucket is not to be trusted under an epoch.

        Args:
            needs_operator: nothing may be done about it unasked; raises an open fence to that.

        Returns:
            The fence, noticed now or before; None when Redis has left the epoch already.
        """
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> Fence | None:
            await connection.execute(statements.LOCK_SALES, {"sale_ids": [bucket_id.sale_id]})
            known = await _open_fence(connection, bucket_id)
            if known is None:
                newest = (
                    await connection.execute(
                        select(epochs.c.epoch, epochs.c.state)
                        .where(statements.in_bucket(epochs, bucket_id))
                        .order_by(epochs.c.epoch.desc())
                        .limit(1)
                    )
                ).one_or_none()
                if newest is None or not _ends(epoch, newest.epoch, newest.state):
                    return None
                await connection.execute(
                    FENCE_INSERTS[connection.dialect.name].fence,
                    {
                        "sale_id": bucket_id.sale_id,
                        "bucket": bucket_id.bucket,
                        "epoch": epoch,
                        "cause": cause,
                        "needs_operator": needs_operator,
                        "noticed_at_ms": now_ms,
                        "claim_beats": 0,
                        "recovered_orders": 0,
                        "withheld_units": 0,
                        "unknown": "[]",
                    },
                )
                return await _open_fence(connection, bucket_id)
            if needs_operator and not known.needs_operator:
                await connection.execute(
                    update(fences)
                    .where(statements.in_bucket(fences, bucket_id), fences.c.outcome.is_(None))
                    .values(needs_operator=True, cause=cause)
                )
                return await _open_fence(connection, bucket_id)
            return known

        return await self._database.write(f"fence {bucket_id} under epoch {epoch}", work)

    async def claim(self, fence: Fence, who: str) -> int | None:
        """Take the right to rebuild, or keep it. See `FenceLedger.claim`."""

        async def work(connection: AsyncConnection) -> int | None:
            taken = await connection.execute(
                update(fences)
                .where(
                    statements.in_bucket(fences, fence.bucket_id),
                    fences.c.epoch == fence.epoch,
                    fences.c.outcome.is_(None),
                    fences.c.claimed_by.is_(None)
                    | (fences.c.claimed_by == who)
                    | (fences.c.claim_beats == fence.claim_beats),
                )
                .values(claimed_by=who, claim_beats=fences.c.claim_beats + 1)
                .returning(fences.c.claim_beats)
            )
            beats: int | None = taken.scalar_one_or_none()
            return beats

        return await self._database.write(f"claim the rebuild of {fence.bucket_id}", work)

    async def unclaim(self, bucket_id: BucketId, who: str) -> None:
        """Give the right back; no claim of somebody else is touched."""

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(
                update(fences)
                .where(
                    statements.in_bucket(fences, bucket_id),
                    fences.c.outcome.is_(None),
                    fences.c.claimed_by == who,
                )
                .values(claimed_by=None)
            )

        await self._database.write(f"give up the rebuild of {bucket_id}", work)

    async def found_out(
        self, bucket_id: BucketId, *, recovered_orders: int, unknown: Sequence[str]
    ) -> None:
        """Note what a rebuild has found out, for the statement. See `FenceLedger.found_out`."""

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(
                update(fences)
                .where(statements.in_bucket(fences, bucket_id), fences.c.outcome.is_(None))
                .values(
                    recovered_orders=fences.c.recovered_orders + recovered_orders,
                    unknown=msgspec.json.encode(list(unknown)).decode(),
                )
            )

        await self._database.write(f"note what the rebuild of {bucket_id} found out", work)

    async def reopened(self, bucket_id: BucketId, how: Reopening) -> int | None:
        """End the open fence of a bucket with its statement; returns when it was noticed.

        A second call finds none and changes nothing.
        """
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> int | None:
            ended = await connection.execute(
                update(fences)
                .where(
                    statements.in_bucket(fences, bucket_id),
                    fences.c.outcome.is_(None),
                    fences.c.epoch < how.new_epoch,
                )
                .values(
                    outcome="rebuilt" if how.rebuilt else "carried_on",
                    new_epoch=how.new_epoch,
                    reopened_at_ms=now_ms,
                    put_units=how.put_units,
                    held_units=how.held_units,
                    buyers=how.buyers,
                )
                .returning(fences.c.noticed_at_ms)
            )
            noticed_at_ms: int | None = ended.scalar_one_or_none()
            return noticed_at_ms

        return await self._database.write(f"end the fence of {bucket_id}", work)

    # Marks

    async def report_marks(
        self, folder_id: str, marks: Sequence[ReportedMark], *, leaving: bool
    ) -> None:
        """Note what a folder of marks says; what was said before is never lowered."""
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            if marks:
                await connection.execute(
                    FENCE_INSERTS[connection.dialect.name].known_mark,
                    [
                        {
                            "folder_id": folder_id,
                            "sale_id": mark.bucket_id.sale_id,
                            "bucket": mark.bucket_id.bucket,
                            "epoch": mark.epoch,
                            "seq": mark.seq,
                            "answered": mark.answered,
                            "reported_at_ms": now_ms,
                        }
                        for mark in marks
                    ],
                )
            if leaving:
                await connection.execute(
                    update(mark_folders)
                    .where(mark_folders.c.folder_id == folder_id)
                    .values(left_at_ms=now_ms, last_seen_ms=now_ms)
                )

        await self._database.write("report marks", work)

    async def folders(self, bucket_id: BucketId, epoch: int) -> list[Folder]:
        """The folders of marks whose web processes may have acknowledged something of an epoch."""
        now_ms = self._clock.now_ms()
        query = (
            select(
                mark_folders.c.folder_id,
                mark_folders.c.host,
                mark_folders.c.left_at_ms,
                mark_folders.c.last_seen_ms,
                known_marks.c.seq,
                known_marks.c.answered,
            )
            .select_from(
                mark_folders.outerjoin(
                    known_marks,
                    and_(
                        known_marks.c.folder_id == mark_folders.c.folder_id,
                        statements.in_bucket(known_marks, bucket_id),
                        known_marks.c.epoch == epoch,
                    ),
                )
            )
            .where(folders_of_epoch(bucket_id, epoch))
        )

        async def work(connection: AsyncConnection) -> list[Folder]:
            return [
                Folder(
                    row.folder_id,
                    row.host,
                    seq=row.seq or 0,
                    answered=bool(row.answered),
                    left=row.left_at_ms is not None,
                    silent_ms=max(0, now_ms - row.last_seen_ms),
                )
                for row in await connection.execute(query)
            ]

        return await self._database.read("read the marks of all hosts", work)

    async def marked_epochs(self, bucket_id: BucketId) -> dict[int, int]:
        """The highest reported seq of each epoch of a bucket, over all folders."""
        query = (
            select(known_marks.c.epoch, func.max(known_marks.c.seq).label("seq"))
            .where(statements.in_bucket(known_marks, bucket_id))
            .group_by(known_marks.c.epoch)
        )

        async def work(connection: AsyncConnection) -> dict[int, int]:
            return {row.epoch: row.seq for row in await connection.execute(query)}

        return await self._database.read("read the reported marks", work)

    async def marks_of_sale(self, sale_id: SaleId) -> dict[int, dict[int, int]]:
        """By bucket and epoch the highest seq that any host has reported."""
        query = (
            select(known_marks.c.bucket, known_marks.c.epoch, func.max(known_marks.c.seq))
            .where(known_marks.c.sale_id == sale_id)
            .group_by(known_marks.c.bucket, known_marks.c.epoch)
        )

        async def work(connection: AsyncConnection) -> dict[int, dict[int, int]]:
            found: dict[int, dict[int, int]] = {}
            for bucket, epoch, seq in await connection.execute(query):
                found.setdefault(bucket, {})[epoch] = seq
            return found

        return await self._database.read("read the reported marks", work)

    # Statements

    async def statements(
        self, sale_id: SaleId | None = None, statements_max: int = STATEMENTS_MAX
    ) -> list[FenceStatement]:
        """What happened to buckets that were not trusted, the newest first.

        Args:
            sale_id: of this sale alone.
            statements_max: 1 to 200.
        """
        assert 1 <= statements_max <= STATEMENTS_MAX
        query = (
            select(fences, sales.c.goods_id, sales.c.stock_units, sales.c.sold_units)
            .join(sales, sales.c.sale_id == fences.c.sale_id)
            .order_by(fences.c.noticed_at_ms.desc(), fences.c.sale_id, fences.c.epoch.desc())
            .limit(statements_max)
        )
        if sale_id is not None:
            query = query.where(fences.c.sale_id == sale_id)

        async def work(connection: AsyncConnection) -> list[FenceStatement]:
            rows = (await connection.execute(query)).all()
            return [await _statement(connection, row) for row in rows]

        return await self._database.read("read what the fence did", work)


def _ends(epoch: int, newest: int, newest_state: str) -> bool:
    """Whether a fence may end an epoch: the newest, or the one that the newest is to follow."""
    return epoch == newest or (epoch == newest - 1 and newest_state == "opening")


_FENCE_COLUMNS: Final = (
    fences.c.sale_id,
    fences.c.bucket,
    fences.c.epoch,
    fences.c.cause,
    fences.c.needs_operator,
    fences.c.noticed_at_ms,
    fences.c.claimed_by,
    fences.c.claim_beats,
)

_OPEN_FENCES: Final[Select[Any]] = (
    select(*_FENCE_COLUMNS)
    .where(fences.c.outcome.is_(None))
    .order_by(fences.c.sale_id, fences.c.bucket)
)


def _fence(row: Any) -> Fence:
    return Fence(
        BucketId(row.sale_id, row.bucket),
        row.epoch,
        row.cause,
        row.needs_operator,
        row.noticed_at_ms,
        row.claimed_by,
        row.claim_beats,
    )


async def _open_fence(connection: AsyncConnection, bucket_id: BucketId) -> Fence | None:
    row = (
        await connection.execute(
            select(*_FENCE_COLUMNS).where(
                statements.in_bucket(fences, bucket_id), fences.c.outcome.is_(None)
            )
        )
    ).one_or_none()
    return None if row is None else _fence(row)


async def _statement(connection: AsyncConnection, row: Row[Any]) -> FenceStatement:
    bucket_id = BucketId(row.sale_id, row.bucket)
    compensated = await connection.scalar(
        select(func.count())
        .select_from(orders)
        .where(
            statements.in_bucket(orders, bucket_id),
            orders.c.epoch <= row.epoch,
            orders.c.state == OrderState.COMPENSATED.value,
            orders.c.created_at_ms >= row.noticed_at_ms,
        )
    )
    # What turned up after it had been named is an order, or compensated, and not lost.
    really_lost = and_(
        statements.in_bucket(losses, bucket_id),
        losses.c.fence_epoch == row.epoch,
        ~exists().where(orders.c.reservation_id == losses.c.reservation_id),
    )
    lost_count = await connection.scalar(
        select(func.count()).select_from(losses).where(really_lost)
    )
    lost = await connection.scalars(
        select(losses.c.reservation_id)
        .where(really_lost)
        .order_by(losses.c.epoch, losses.c.seq)
        .limit(LOSSES_PER_STATEMENT_MAX)
    )
    return FenceStatement(
        sale_id=row.sale_id,
        goods_id=row.goods_id,
        bucket=row.bucket,
        epoch=row.epoch,
        cause=row.cause,
        needs_operator=row.needs_operator,
        noticed_at_ms=row.noticed_at_ms,
        outcome=row.outcome,
        new_epoch=row.new_epoch,
        reopened_at_ms=row.reopened_at_ms,
        put_units=row.put_units,
        held_units=row.held_units,
        buyers=row.buyers,
        recovered_orders=row.recovered_orders,
        withheld_units=row.withheld_units,
        oversold_units=max(0, row.sold_units - row.stock_units),
        compensated=compensated or 0,
        lost_count=lost_count or 0,
        lost=list(lost),
        unknown=msgspec.json.decode(row.unknown, type=list[str]),
    )
