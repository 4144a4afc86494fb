"""The openings of stock buckets, which the ledger owns: its side of the fence.

A bucket is opened by creating its sale (epoch 1), carried on under a new epoch after a restart of
Redis that lost nothing, or rebuilt from these books under a new epoch when something was lost.
Every method of these may be called again after a crash at any point.
Source: rules 3 to 8 of the fence, ``docs/concepts.md``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import structlog
from sqlalchemy import (
    CompoundSelect,
    Row,
    bindparam,
    false,
    func,
    insert,
    null,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.clock import Clock
from seckill.domain.ids import AttemptId, SaleId, UserId
from seckill.domain.order import HOLDING_STATES
from seckill.domain.reservation import BucketId, Place
from seckill.ledger import statements
from seckill.ledger.engine import Database
from seckill.ledger.errors import EpochMoved, NoSuchSale
from seckill.ledger.losses import FENCE_INSERTS, loss_rows
from seckill.ledger.records import record_action
from seckill.ledger.tables import (
    bucket_events,
    collisions,
    epochs,
    fences,
    orders,
    releases,
    sales,
    stock_changes,
)

__all__ = [
    "UNWRITTEN_MAX",
    "Buyer",
    "EpochBook",
    "EpochRow",
    "RebuildPlan",
    "last_written",
    "places_by_word",
]

UNWRITTEN_MAX: Final = 10_000
"""Missing seqs named at once, at most."""

_SEQS_PER_LOOK: Final = 10_000

_log = structlog.get_logger(__name__)

Buyer = tuple[UserId, list[tuple[Place, int, AttemptId, bool]]]
"""A user and the reservations that count against their limit: place, quantity, attempt, and
whether it is spent: its units are back on sale."""


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One opening of a bucket.

    Attributes:
        state: ``opening`` (Redis may not know it yet), ``open``, ``closed`` (carried on) or
            ``counted`` (absorbed by a rebuild).
        origin: how it came to be: ``created`` with its sale, ``carried_on`` or ``rebuilt``.
        opening_units: units put into the bucket when it was opened, those that buyers held
            included; 0 when it was carried on, since it kept what it had.
        valid_to_seq: last seq that belongs to the epoch; None while it goes on.
        opened_at_ms: when opening it in Redis was begun; None before that.
    """

    sale_id: SaleId
    bucket: int
    epoch: int
    state: str
    origin: str
    opening_units: int
    valid_to_seq: int | None
    opened_at_ms: int | None = None

    @property
    def bucket_id(self) -> BucketId:
        """The bucket that was opened."""
        return BucketId(self.sale_id, self.bucket)


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What a bucket must look like when it has been rebuilt.

    Attributes:
        new_epoch: the epoch to open it under.
        put_units: units put into it, those that buyers hold included.
        units_left: units that nobody holds.
        buyers: every user who holds live orders of the bucket, or has spent some, by user id.
        lost: places that were given out and are in no book, of all epochs that were asked for.
        withheld_units: units that were taken off sale for those of them that were named now.
    """

    bucket_id: BucketId
    new_epoch: int
    put_units: int
    units_left: int
    buyers: list[Buyer]
    lost: list[Place]
    withheld_units: int


class EpochBook:
    """The openings of the buckets.

    Every method raises LedgerUnavailable when the database cannot be asked now; nothing was
    changed then.
    """

    def __init__(self, database: Database, reservation_ids: ReservationIds, clock: Clock) -> None:
        self._database = database
        self._reservation_ids = reservation_ids
        self._clock = clock

    async def current_epochs(self) -> list[EpochRow]:
        """The newest opening of each bucket, of closed sales too; not of retired ones."""

        async def work(connection: AsyncConnection) -> list[EpochRow]:
            return [EpochRow(*row) for row in await connection.execute(_CURRENT_EPOCHS)]

        return await self._database.read("read the current epochs", work)

    async def begin_opening(self, bucket_id: BucketId, epoch: int) -> bool:
        """Record that Redis is about to open the bucket under this epoch; True the first time."""
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> bool:
            begun = await connection.execute(
                update(epochs)
                .where(
                    statements.in_bucket(epochs, bucket_id),
                    epochs.c.epoch == epoch,
                    epochs.c.opened_at_ms.is_(None),
                )
                .values(opened_at_ms=now_ms)
                .returning(epochs.c.epoch)
            )
            return begun.one_or_none() is not None

        return await self._database.write(f"begin to open {bucket_id} under epoch {epoch}", work)

    async def mark_open(self, bucket_id: BucketId, epoch: int) -> None:
        """Record that Redis has opened the bucket under this epoch. Twice is as good as once.

        Raises:
            EpochMoved: it is not the newest epoch of the bucket.
        """
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            newest = (await _locked_epochs(connection, bucket_id))[-1]
            if newest.epoch != epoch:
                raise EpochMoved(bucket_id, epoch, f"the newest is {newest.epoch}")
            if newest.state == "opening":
                await connection.execute(
                    update(epochs)
                    .where(statements.in_bucket(epochs, bucket_id), epochs.c.epoch == epoch)
                    .values(state="open", opened_at_ms=func.coalesce(epochs.c.opened_at_ms, now_ms))
                )

        await self._database.write(f"open {bucket_id} under epoch {epoch}", work)

    async def known_seq(self, bucket_id: BucketId, epoch: int) -> int:
        """The highest seq of the epoch that is written here; 0 when there is none.

        Complexity: three reads of the end of an index.
        """

        async def work(connection: AsyncConnection) -> int:
            return await last_written(connection, bucket_id, epoch)

        return await self._database.read(f"read how far {bucket_id} is written", work)

    async def confirmed_seq(self, bucket_id: BucketId, epoch: int) -> int:
        """The highest seq of an epoch that Redis has confirmed, written or not; 0 for none."""

        async def work(connection: AsyncConnection) -> int:
            return await _last_confirmed(connection, bucket_id, epoch)

        return await self._database.read(f"read what Redis confirmed of {bucket_id}", work)

    async def unwritten(self, bucket_id: BucketId, epoch: int, seq_max: int) -> list[int]:
        """The seqs from 1 to ``seq_max`` of an epoch that are not written here, at most 10,000.

        Complexity: O(seq_max) in the database, in slices; O(gaps) here.
        """

        async def work(connection: AsyncConnection) -> list[int]:
            missing = await _missing_seqs(connection, bucket_id, epoch, seq_max)
            return missing[:UNWRITTEN_MAX]

        return await self._database.read(f"look for gaps in {bucket_id}", work)

    async def carry_on(
        self, bucket_id: BucketId, from_epoch: int, valid_to_seq: int, reason: str
    ) -> int:
        """Let a bucket that lost nothing go on under the next epoch.

        The old epoch keeps its places up to ``valid_to_seq``: they are still accepted. Pending
        releases of the bucket move to the new epoch. After a crash in between the same call
        returns the epoch that was made then.

        Args:
            bucket_id: the bucket.
            from_epoch: the epoch under which Redis has it.
            valid_to_seq: the last seq that Redis has under that epoch.
            reason: why, for people.

        Returns:
            The new epoch, in state ``opening``: open it in Redis, then `mark_open`.

        Raises:
            EpochMoved: ``from_epoch`` is not the epoch to go on from, or the ledger knows places
                beyond ``valid_to_seq``: Redis has lost some, the bucket must be rebuilt.
        """
        now_ms = self._clock.now_ms()
        new_epoch = from_epoch + 1

        async def work(connection: AsyncConnection) -> int:
            rows = {row.epoch: row for row in await _locked_epochs(connection, bucket_id)}
            newest = rows[max(rows)]
            if newest.epoch == new_epoch and newest.state == "opening" and from_epoch in rows:
                old = rows[from_epoch]
                if (old.state, old.valid_to_seq) == ("closed", valid_to_seq):
                    return new_epoch
                raise EpochMoved(
                    bucket_id,
                    from_epoch,
                    f"it is {old.state} with last seq {old.valid_to_seq}, not {valid_to_seq}",
                )
            if newest.epoch != from_epoch:
                raise EpochMoved(
                    bucket_id, from_epoch, f"the newest is {newest.epoch}, {newest.state}"
                )
            known_seq = max(
                await last_written(connection, bucket_id, from_epoch),
                await _last_confirmed(connection, bucket_id, from_epoch),
            )
            if known_seq > valid_to_seq:
                raise EpochMoved(
                    bucket_id,
                    from_epoch,
                    f"the ledger knows seq {known_seq}, beyond {valid_to_seq}: rebuild the bucket",
                )
            await connection.execute(
                update(epochs)
                .where(statements.in_bucket(epochs, bucket_id), epochs.c.epoch == from_epoch)
                .values(state="closed", valid_to_seq=valid_to_seq)
            )
            await _add_epoch(
                connection,
                bucket_id,
                new_epoch,
                origin="carried_on",
                units=0,
                reason=reason,
                now_ms=now_ms,
            )
            await connection.execute(
                update(releases)
                .where(statements.in_bucket(releases, bucket_id), releases.c.state == "pending")
                .values(epoch=new_epoch)
            )
            return new_epoch

        return await self._database.write(f"carry {bucket_id} on from epoch {from_epoch}", work)

    async def adopt_epochs(self, bucket_id: BucketId, up_to: int, reason: str) -> None:
        """Take in the epochs of a bucket that Redis knows and the ledger does not.

        Only books that are older than they were lack any. What such an epoch holds is accepted
        until a rebuild counts it.
        """
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            newest = (await _locked_epochs(connection, bucket_id))[-1].epoch
            for epoch in range(newest + 1, up_to + 1):
                await _add_epoch(
                    connection,
                    bucket_id,
                    epoch,
                    origin="carried_on",
                    units=0,
                    reason=reason,
                    now_ms=now_ms,
                )

        await self._database.write(f"take in the epochs of {bucket_id} up to {up_to}", work)

    async def plan_rebuild(
        self,
        bucket_id: BucketId,
        reason: str,
        *,
        newest: int | None = None,
        given: Mapping[int, int] | None = None,
        withhold: bool = False,
    ) -> RebuildPlan:
        """Decide what a bucket must be rebuilt to, from what is written here and nothing else.

        One transaction: every earlier epoch accepts nothing more (what still comes from it is
        compensated without a release), pending releases are counted (their units are in
        ``units_left`` already). Stock changes that are pending stay so and are asked of the new
        bucket, whose units are counted without them. What Redis had confirmed to have taken off
        sale, and whose event never came, leaves the stock now.

        Planning again, after a crash or at will, makes yet another epoch with a plan of its own.

        Args:
            newest: the epoch that is taken for the newest; None takes whichever is.
            given: of each epoch the last seq that was surely given out. What is missing up to it,
                or up to where an epoch was carried on, is named as lost, once.
            withhold: take a unit off sale for each place that is named now: it was promised to
                somebody. Never below what is sold.

        Returns:
            The plan; its buyers are held in memory, about 0.5 kB for each live order.

        Raises:
            NoSuchSale: the bucket belongs to no sale of these books.
            EpochMoved: ``newest`` is not the newest epoch.
        """
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> RebuildPlan:
            rows = await _locked_epochs(connection, bucket_id)
            if newest is not None and rows[-1].epoch != newest:
                raise EpochMoved(bucket_id, newest, f"the newest is {rows[-1].epoch}")
            new_epoch = rows[-1].epoch + 1
            lost, withheld_units = await self._name_losses(
                connection, bucket_id, rows, given or {}, withhold=withhold, now_ms=now_ms
            )
            for row in rows:
                if row.state != "counted":
                    await _count_epoch(connection, bucket_id, row)
            await connection.execute(
                update(releases)
                .where(statements.in_bucket(releases, bucket_id), releases.c.state == "pending")
                .values(state="counted", done_at_ms=now_ms)
            )
            await _count_lost_changes(connection, bucket_id, now_ms)
            stock_units, sold_units, bucket_count = (
                await connection.execute(
                    select(sales.c.stock_units, sales.c.sold_units, sales.c.bucket_count).where(
                        sales.c.sale_id == bucket_id.sale_id
                    )
                )
            ).one()
            assert bucket_count == 1, "the units of a sale are those of its only bucket"
            # More units that are still to be asked of Redis are in stock_units already.
            coming_units = await connection.scalar(_UNITS_COMING, {"sale_id": bucket_id.sale_id})
            put_units = max(stock_units - int(coming_units or 0), sold_units)
            await _add_epoch(
                connection,
                bucket_id,
                new_epoch,
                origin="rebuilt",
                units=put_units,
                reason=reason,
                now_ms=now_ms,
            )
            counting = await connection.execute(
                _COUNTING_ORDERS, {"sale_id": bucket_id.sale_id, "bucket": bucket_id.bucket}
            )
            return RebuildPlan(
                bucket_id,
                new_epoch,
                put_units,
                put_units - sold_units,
                list(_buyers(counting)),
                lost,
                withheld_units,
            )

        return await self._database.write(f"plan the rebuild of {bucket_id}", work)

    async def _name_losses(
        self,
        connection: AsyncConnection,
        bucket_id: BucketId,
        rows: Sequence[Row[Any, Any, Any]],
        given: Mapping[int, int],
        *,
        withhold: bool,
        now_ms: int,
    ) -> tuple[list[Place], int]:
        """Write down the places that are in no book; returns them, and the units withheld."""
        last = dict(given)
        for row in rows:
            if row.state == "closed":
                last[row.epoch] = max(row.valid_to_seq, last.get(row.epoch, 0))
        lost = [
            Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)
            for epoch, seq_max in sorted(last.items())
            for seq in await _missing_seqs(connection, bucket_id, epoch, seq_max)
        ]
        if not lost:
            return [], 0
        of_fence = await connection.scalar(
            select(fences.c.epoch).where(
                statements.in_bucket(fences, bucket_id), fences.c.outcome.is_(None)
            )
        )
        ids = dict(zip(lost, self._reservation_ids.encode_many(lost), strict=True))
        named = 0
        for some in statements.chunks(lost):
            result = await connection.execute(
                FENCE_INSERTS[connection.dialect.name].loss,
                loss_rows(some, ids, fence_epoch=of_fence or rows[-1].epoch, now_ms=now_ms),
            )
            named += len(result.all())
        if not (withhold and named):
            return lost, 0
        unsold_units = await connection.scalar(
            select(sales.c.stock_units - sales.c.sold_units).where(
                sales.c.sale_id == bucket_id.sale_id
            )
        )
        withheld_units = min(named, int(unsold_units or 0))
        await _withhold(connection, bucket_id, withheld_units, now_ms)
        return lost, withheld_units


async def _withhold(
    connection: AsyncConnection, bucket_id: BucketId, units: int, now_ms: int
) -> None:
    """Take units off sale that were promised to somebody whose order is lost."""
    if units == 0:
        return
    await connection.execute(
        statements.CHANGE_SALE_TOTALS,
        {
            "of_sale_id": bucket_id.sale_id,
            "more_sold": 0,
            "more_stock": -units,
            "more_version": 1,
        },
    )
    await connection.execute(
        update(fences)
        .where(statements.in_bucket(fences, bucket_id), fences.c.outcome.is_(None))
        .values(withheld_units=fences.c.withheld_units + units)
    )
    await record_action(
        connection,
        at_ms=now_ms,
        actor="fence",
        action="withhold_units",
        sale_id=bucket_id.sale_id,
        detail={
            "reason": "promised to buyers whose orders were lost; put back on sale by hand",
            "units": units,
        },
    )


_NEWEST: Final = (
    select(epochs.c.sale_id, epochs.c.bucket, func.max(epochs.c.epoch).label("epoch"))
    .group_by(epochs.c.sale_id, epochs.c.bucket)
    .subquery("newest")
)

_CURRENT_EPOCHS: Final = (
    select(
        epochs.c.sale_id,
        epochs.c.bucket,
        epochs.c.epoch,
        epochs.c.state,
        epochs.c.origin,
        epochs.c.opening_units,
        epochs.c.valid_to_seq,
        epochs.c.opened_at_ms,
    )
    .join(
        _NEWEST,
        (epochs.c.sale_id == _NEWEST.c.sale_id)
        & (epochs.c.bucket == _NEWEST.c.bucket)
        & (epochs.c.epoch == _NEWEST.c.epoch),
    )
    .join(sales, sales.c.sale_id == epochs.c.sale_id)
    .where(sales.c.retired_at_ms.is_(None))
    .order_by(epochs.c.sale_id, epochs.c.bucket)
)
"""Of sales that are not retired: nobody opens those again."""

_UNITS_COMING: Final = select(func.sum(stock_changes.c.delta_units)).where(
    stock_changes.c.sale_id == bindparam("sale_id"),
    stock_changes.c.state == "pending",
    stock_changes.c.delta_units > 0,
)

_OF_BUCKET: Final = select(
    orders.c.user_id,
    orders.c.sale_id,
    orders.c.epoch,
    orders.c.bucket,
    orders.c.seq,
    orders.c.quantity,
    orders.c.attempt_id,
).where(orders.c.sale_id == bindparam("sale_id"), orders.c.bucket == bindparam("bucket"))

_COUNTING_ORDERS: Final = union_all(
    _OF_BUCKET.add_columns(false().label("spent")).where(
        orders.c.state.in_(sorted(state.value for state in HOLDING_STATES))
    ),
    _OF_BUCKET.add_columns(true().label("spent"))
    .join(releases, releases.c.reservation_id == orders.c.reservation_id)
    .where(releases.c.sale_id == bindparam("sale_id"), releases.c.spent),
).order_by("user_id", "epoch", "seq")
"""What counts against the limit of the buyers of a bucket: live orders, and those given up where
nobody may buy again."""


def _buyers(counting: Any) -> Iterator[Buyer]:
    for user_id, rows in groupby(counting, key=lambda row: row[0]):
        yield (
            user_id,
            [
                (Place(*place), quantity, attempt_id, bool(spent))
                for _, *place, quantity, attempt_id, spent in rows
            ],
        )


async def _locked_epochs(
    connection: AsyncConnection, bucket_id: BucketId
) -> Sequence[Row[Any, Any, Any]]:
    """The openings of a bucket, oldest first, under the lock of its sale."""
    await connection.execute(statements.LOCK_SALES, {"sale_ids": [bucket_id.sale_id]})
    rows = (
        await connection.execute(
            select(epochs.c.epoch, epochs.c.state, epochs.c.valid_to_seq)
            .where(statements.in_bucket(epochs, bucket_id))
            .order_by(epochs.c.epoch)
        )
    ).all()
    if not rows:
        raise NoSuchSale(bucket_id.sale_id)
    return rows


_LAST_WRITTEN: Final = select(
    *(
        select(func.max(table.c.seq)).where(statements.in_epoch(table)).scalar_subquery()
        for table in (orders, bucket_events, collisions)
    )
)


async def last_written(connection: AsyncConnection, bucket_id: BucketId, epoch: int) -> int:
    """The highest seq of an epoch that any book has; 0 for none."""
    of_epoch = {"sale_id": bucket_id.sale_id, "bucket": bucket_id.bucket, "epoch": epoch}
    seqs = (await connection.execute(_LAST_WRITTEN, of_epoch)).one()
    return max(seq or 0 for seq in seqs)


async def _last_confirmed(connection: AsyncConnection, bucket_id: BucketId, epoch: int) -> int:
    """The highest seq that Redis has confirmed of an epoch: when it was closed, or by word.

    The event of such a release or stock change may be lost with Redis before anybody has read it.
    """
    closed = await connection.scalar(
        select(epochs.c.valid_to_seq).where(
            statements.in_bucket(epochs, bucket_id), epochs.c.epoch == epoch
        )
    )
    by_word = await connection.scalar(
        select(func.max(places_by_word(bucket_id, epoch).subquery("by_word").c.seq))
    )
    return max(closed or 0, by_word or 0)


def places_by_word(bucket_id: BucketId, epoch: int) -> CompoundSelect[Any]:
    """The places of an epoch that Redis has confirmed by word, with what was made there.

    ``seq``, and the one of ``reservation_id`` (a release of it) and ``change_id`` that is there.
    """
    assert bucket_id.bucket == 0, "the stock of a sale changes in its only bucket"
    return union_all(
        select(
            releases.c.release_seq.label("seq"),
            releases.c.reservation_id.label("reservation_id"),
            null().label("change_id"),
        ).where(
            statements.in_bucket(releases, bucket_id),
            releases.c.epoch == epoch,
            releases.c.release_seq.is_not(None),
        ),
        select(stock_changes.c.applied_seq, null(), stock_changes.c.change_id).where(
            stock_changes.c.sale_id == bucket_id.sale_id,
            stock_changes.c.applied_epoch == epoch,
            stock_changes.c.applied_seq.is_not(None),
        ),
    )


async def _missing_seqs(
    connection: AsyncConnection, bucket_id: BucketId, epoch: int, seq_max: int
) -> list[int]:
    """The seqs from 1 to ``seq_max`` of an epoch that are in no book, nor known by word."""
    missing: list[int] = []
    for first in range(1, seq_max + 1, _SEQS_PER_LOOK):
        last = min(first + _SEQS_PER_LOOK - 1, seq_max)
        written = await _written_seqs(connection, bucket_id, epoch, first, last)
        missing.extend(seq for seq in range(first, last + 1) if seq not in written)
    if not missing:
        return []
    # What was made and whose event was lost is known by the word of whoever asked for it.
    by_word = await connection.execute(places_by_word(bucket_id, epoch))
    known = {row.seq for row in by_word}
    return [seq for seq in missing if seq not in known]


async def _written_seqs(
    connection: AsyncConnection, bucket_id: BucketId, epoch: int, first: int, last: int
) -> set[int]:
    written: set[int] = set()
    for table in (orders, bucket_events, collisions):
        result = await connection.execute(
            select(table.c.seq).where(
                statements.in_bucket(table, bucket_id),
                table.c.epoch == epoch,
                table.c.seq.between(first, last),
            )
        )
        written.update(result.scalars())
    return written


async def _add_epoch(
    connection: AsyncConnection,
    bucket_id: BucketId,
    epoch: int,
    *,
    origin: str,
    units: int,
    reason: str,
    now_ms: int,
) -> None:
    await connection.execute(
        insert(epochs),
        {
            "sale_id": bucket_id.sale_id,
            "bucket": bucket_id.bucket,
            "epoch": epoch,
            "state": "opening",
            "origin": origin,
            "opening_units": units,
            "created_at_ms": now_ms,
            "reason": reason,
        },
    )


async def _count_epoch(
    connection: AsyncConnection, bucket_id: BucketId, row: Row[Any, Any, Any]
) -> None:
    """Let an epoch accept nothing more.

    One that goes on ends at what is written. One that was carried on keeps the last seq that was
    promised then: a gap below it is a loss, and the audit must see it.
    """
    valid_to_seq = row.valid_to_seq
    if valid_to_seq is None:
        valid_to_seq = await last_written(connection, bucket_id, row.epoch)
    await connection.execute(
        update(epochs)
        .where(statements.in_bucket(epochs, bucket_id), epochs.c.epoch == row.epoch)
        .values(state="counted", valid_to_seq=valid_to_seq)
    )


async def _count_lost_changes(
    connection: AsyncConnection, bucket_id: BucketId, now_ms: int
) -> None:
    """Lower the stock by changes that Redis confirmed and whose events were lost with it."""
    of_sale = stock_changes.c.sale_id == bucket_id.sale_id
    lost = await connection.execute(
        update(stock_changes)
        .where(of_sale, stock_changes.c.state == "applied", stock_changes.c.counted_at_ms.is_(None))
        .values(counted_at_ms=now_ms)
        .returning(stock_changes.c.change_id, stock_changes.c.delta_units)
    )
    changes = lost.all()
    if not changes:
        return
    stock_units, sold_units = (
        await connection.execute(
            select(sales.c.stock_units, sales.c.sold_units).where(
                sales.c.sale_id == bucket_id.sale_id
            )
        )
    ).one()
    wanted = stock_units + sum(change.delta_units for change in changes)
    _log.warning(
        "the news of a stock change was lost with Redis",
        sale_id=bucket_id.sale_id,
        change_ids=[change.change_id for change in changes],
        stock_units=max(wanted, sold_units),
    )
    await connection.execute(
        statements.CHANGE_SALE_TOTALS,
        {
            "of_sale_id": bucket_id.sale_id,
            "more_sold": 0,
            "more_stock": max(wanted, sold_units) - stock_units,
            "more_version": 1,
        },
    )
