"""What the audit reads: the books at one instant, and a few places as they are now.

The snapshot (`AuditReading`) is what the audit counts on. The looks below each are a read of their
own and see what is committed at that moment, which is what a suspect must be compared with.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Table, select, union
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.clock import Clock
from seckill.domain.ids import ReservationId, SaleId, UserId
from seckill.domain.order import HOLDING_STATES, OrderState
from seckill.domain.reservation import BucketId, Place
from seckill.ledger import statements
from seckill.ledger.auditing import AuditReading, Books
from seckill.ledger.engine import Database
from seckill.ledger.epochs import places_by_word
from seckill.ledger.fences import FenceBook, FenceStatement
from seckill.ledger.tables import bucket_events, collisions, orders, releases

__all__ = ["PLACES_MAX", "SQLAuditLedger", "WrittenOrder", "WrittenPlace"]

PLACES_MAX: Final = 1_000
_ROWS_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class WrittenOrder:
    """An order as it is now, with what was decided about its units.

    Attributes:
        release_epoch: the epoch in which the pending release of its units is valid; None when no
            release is pending.
    """

    reservation_id: ReservationId
    user_id: UserId
    quantity: int
    state: OrderState
    release_epoch: int | None

    @property
    def live(self) -> bool:
        """Whether it holds its units."""
        return self.state in HOLDING_STATES


@dataclass(frozen=True, slots=True)
class WrittenPlace:
    """What the ledger has at a place now.

    Attributes:
        kind: ``admission``, ``release`` or ``stock``.
        order: with an admission, the order; None when only a collision is recorded there.
    """

    kind: str
    order: WrittenOrder | None


class SQLAuditLedger:
    """Implements `audit.ports.AuditLedger` on a ledger in SQLite or PostgreSQL."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._reading = AuditReading(database)
        self._fences = FenceBook(database, clock)

    def books(self) -> AbstractAsyncContextManager[Books]:
        """See `AuditLedger.books`."""
        return self._reading.books()

    async def marks(self, sale_id: SaleId) -> dict[int, dict[int, int]]:
        """See `AuditLedger.marks`."""
        return await self._fences.marks_of_sale(sale_id)

    async def statements(self) -> list[FenceStatement]:
        """See `AuditLedger.statements`."""
        return await self._fences.statements()

    async def written(self, places: Sequence[Place]) -> dict[Place, WrittenPlace]:
        """See `AuditLedger.written`."""
        assert len(places) <= PLACES_MAX

        async def work(connection: AsyncConnection) -> dict[Place, WrittenPlace]:
            found: dict[Place, WrittenPlace] = {}
            for bucket_id, epoch, seqs in _by_epoch(places):
                await _read_orders(connection, found, bucket_id, epoch, seqs)
                # Most places are orders; what is not among them is looked for elsewhere.
                for table in (bucket_events, collisions):
                    rest = [
                        seq
                        for seq in seqs
                        if Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq) not in found
                    ]
                    if rest:
                        await _read_others(connection, found, table, bucket_id, epoch, rest)
            return found

        return await self._database.read(f"read {len(places)} places", work)

    async def written_seqs(
        self, bucket_id: BucketId, epoch: int, first: int, last: int
    ) -> Sequence[int]:
        """See `AuditLedger.written_seqs`."""
        query = union(
            *(
                select(table.c.seq).where(
                    _in_epoch(table, bucket_id, epoch), table.c.seq.between(first, last)
                )
                for table in (orders, bucket_events, collisions)
            )
        )

        async def work(connection: AsyncConnection) -> Sequence[int]:
            found = await connection.execute(query.order_by("seq").limit(_ROWS_MAX))
            return found.scalars().all()

        return await self._database.read("read which places are written", work)

    async def known_by_word(
        self, bucket_id: BucketId, epoch: int, first: int, last: int
    ) -> dict[int, str]:
        """See `AuditLedger.known_by_word`."""
        said = places_by_word(bucket_id, epoch).subquery("said")
        query = (
            select(said)
            .where(said.c.seq.between(first, last))
            .order_by(said.c.seq)
            .limit(_ROWS_MAX)
        )

        async def work(connection: AsyncConnection) -> dict[int, str]:
            return {
                row.seq: f"release of {row.reservation_id}"
                if row.reservation_id is not None
                else f"stock change {row.change_id}"
                for row in await connection.execute(query)
            }

        return await self._database.read("read what Redis confirmed by word", work)


def _in_epoch(table: Table, bucket_id: BucketId, epoch: int) -> ColumnElement[bool]:
    return statements.in_bucket(table, bucket_id) & (table.c.epoch == epoch)


def _by_epoch(places: Iterable[Place]) -> Iterable[tuple[BucketId, int, list[int]]]:
    groups: dict[tuple[BucketId, int], list[int]] = defaultdict(list)
    for place in places:
        groups[place.bucket_id, place.epoch].append(place.seq)
    return [(bucket_id, epoch, seqs) for (bucket_id, epoch), seqs in groups.items()]


async def _read_orders(
    connection: AsyncConnection,
    found: dict[Place, WrittenPlace],
    bucket_id: BucketId,
    epoch: int,
    seqs: Sequence[int],
) -> None:
    query = (
        select(
            orders.c.seq,
            orders.c.reservation_id,
            orders.c.user_id,
            orders.c.quantity,
            orders.c.state,
            releases.c.epoch,
        )
        .select_from(
            orders.outerjoin(
                releases,
                (releases.c.reservation_id == orders.c.reservation_id)
                & (releases.c.state == "pending"),
            )
        )
        .where(_in_epoch(orders, bucket_id, epoch), orders.c.seq.in_(seqs))
    )
    for seq, reservation_id, user_id, quantity, state, release_epoch in await connection.execute(
        query
    ):
        found[Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)] = WrittenPlace(
            "admission",
            WrittenOrder(reservation_id, user_id, quantity, OrderState(state), release_epoch),
        )


async def _read_others(
    connection: AsyncConnection,
    found: dict[Place, WrittenPlace],
    table: Table,
    bucket_id: BucketId,
    epoch: int,
    seqs: Sequence[int],
) -> None:
    rows = await connection.execute(
        select(table.c.seq, table.c.kind).where(
            _in_epoch(table, bucket_id, epoch), table.c.seq.in_(seqs)
        )
    )
    for seq, kind in rows:
        place = Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)
        found.setdefault(place, WrittenPlace(kind, None))
