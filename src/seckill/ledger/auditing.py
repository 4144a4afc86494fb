"""What the audit reads: the books as they were at one instant, in slices of bounded size."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Select, Table, func, literal, select, tuple_, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.ids import ReservationId, SaleId, UserId
from seckill.domain.order import HOLDING_STATES, OrderState
from seckill.domain.reservation import Place
from seckill.domain.sale import Sale
from seckill.ledger.engine import Database
from seckill.ledger.epochs import EpochRow
from seckill.ledger.sales import sale_from_row, select_sales
from seckill.ledger.tables import (
    bucket_events,
    collisions,
    epochs,
    fences,
    holdings,
    losses,
    orders,
    releases,
    sales,
    stock_changes,
)

__all__ = [
    "ROWS_PER_SLICE_MAX",
    "AuditReading",
    "AuditedCollision",
    "AuditedEvent",
    "AuditedOrder",
    "AuditedRelease",
    "AuditedStockChange",
    "Books",
    "HoldingFault",
    "SaleSums",
]

ROWS_PER_SLICE_MAX: Final = 5_000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AuditedOrder:
    """One order as the audit counts it."""

    place: Place
    reservation_id: ReservationId
    user_id: UserId
    quantity: int
    state: OrderState


@dataclass(frozen=True, slots=True)
class AuditedEvent:
    """One place of a bucket that is no admission. ``kind`` is ``release`` or ``stock``."""

    place: Place
    kind: str
    units: int
    reservation_id: ReservationId | None
    change_id: str | None


@dataclass(frozen=True, slots=True)
class AuditedRelease:
    """One release; ``state`` is ``pending``, ``done`` or ``counted`` (by a rebuild)."""

    reservation_id: ReservationId
    reservation: Place
    epoch: int
    user_id: UserId
    units: int
    state: str
    release_seq: int | None
    decided_at_ms: int


@dataclass(frozen=True, slots=True)
class AuditedStockChange:
    """One stock change; ``counted`` when ``sales.stock_units`` has taken it in."""

    change_id: str
    delta_units: int
    state: str
    counted: bool
    requested_at_ms: int


@dataclass(frozen=True, slots=True)
class AuditedCollision:
    """One event whose place or reservation id belongs to something else: always an alarm."""

    place: Place
    kind: str
    reservation_id: ReservationId | None
    user_id: UserId | None
    units: int
    reason: str


@dataclass(frozen=True, slots=True)
class HoldingFault:
    """A user whose recorded units differ from those of their rows, or pass the limit.

    Attributes:
        live_units: of live orders, and of those given up where nobody may buy again.
    """

    user_id: UserId
    live_units: int
    held_units: int
    limit_units: int


@dataclass(frozen=True, slots=True)
class SaleSums:
    """The sums of one sale; in sound books the first three are equal.

    Attributes:
        sold_units: as the sale's own row says.
        live_units: summed over the live orders.
        held_units: summed over what users hold; what they have spent is left out.
        orders_by_state: number of orders and their units, for each state that occurs.
        pending_release_units: given back by the ledger, not yet known to Redis.
        stock_units: put on sale.
    """

    stock_units: int
    sold_units: int
    live_units: int
    held_units: int
    orders_by_state: dict[OrderState, tuple[int, int]]
    pending_releases: int
    pending_release_units: int
    collisions: int


class AuditReading:
    """Opens the books for reading."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def books(self) -> AsyncIterator["Books"]:
        """The books as they are at this instant; they stay so while the block runs.

        It occupies one connection, on PostgreSQL a REPEATABLE READ transaction and on SQLite a
        read transaction, which keeps the WAL file from shrinking: do not leave it open.

        Raises:
            LedgerUnavailable: call again.
        """
        async with self._database.snapshot("read its books for the audit") as connection:
            yield Books(connection)


class Books:
    """The books at one instant. Slices hold at most 5,000 rows and come in the order of a key."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def sales(self, *, closed: bool = True) -> list[Sale]:
        """Every sale by id; with ``closed`` False only those that are not closed."""
        query = select_sales().order_by(sales.c.sale_id)
        if not closed:
            query = query.where(sales.c.closed_at_ms.is_(None))
        return [sale_from_row(row) for row in await self._connection.execute(query)]

    async def sums(self, sale_id: SaleId) -> SaleSums | None:
        """The sums of a sale; None when there is none."""
        sale = (
            await self._connection.execute(
                select(sales.c.stock_units, sales.c.sold_units).where(sales.c.sale_id == sale_id)
            )
        ).one_or_none()
        if sale is None:
            return None
        by_state = {
            OrderState(state): (count, int(units))
            for state, count, units in await self._connection.execute(
                select(orders.c.state, func.count(), func.sum(orders.c.quantity))
                .where(orders.c.sale_id == sale_id)
                .group_by(orders.c.state)
            )
        }
        counting_units = await self._connection.scalar(
            select(func.sum(holdings.c.units)).where(holdings.c.sale_id == sale_id)
        )
        spent_units = await self._connection.scalar(
            select(func.sum(releases.c.units)).where(
                releases.c.sale_id == sale_id, releases.c.spent
            )
        )
        pending, pending_units = (
            await self._connection.execute(
                select(func.count(), func.sum(releases.c.units)).where(
                    releases.c.sale_id == sale_id, releases.c.state == "pending"
                )
            )
        ).one()
        collided = await self._connection.scalar(
            select(func.count()).select_from(collisions).where(collisions.c.sale_id == sale_id)
        )
        return SaleSums(
            stock_units=sale.stock_units,
            sold_units=sale.sold_units,
            live_units=sum(
                units for state, (_, units) in by_state.items() if state in HOLDING_STATES
            ),
            held_units=int(counting_units or 0) - int(spent_units or 0),
            orders_by_state=by_state,
            pending_releases=pending,
            pending_release_units=int(pending_units or 0),
            collisions=int(collided or 0),
        )

    async def epochs(self, sale_id: SaleId) -> list[EpochRow]:
        """Every opening of the buckets of a sale, by bucket and epoch."""
        result = await self._connection.execute(
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
            .where(epochs.c.sale_id == sale_id)
            .order_by(epochs.c.bucket, epochs.c.epoch)
        )
        return [EpochRow(*row) for row in result]

    def orders(self, sale_id: SaleId) -> AsyncIterator[list[AuditedOrder]]:
        """The orders of a sale by bucket, epoch and seq."""
        return self._slices(
            select(
                orders.c.sale_id,
                orders.c.epoch,
                orders.c.bucket,
                orders.c.seq,
                orders.c.reservation_id,
                orders.c.user_id,
                orders.c.quantity,
                orders.c.state,
            ).where(orders.c.sale_id == sale_id),
            _place_key(orders),
            lambda row: AuditedOrder(Place(*row[:4]), row[4], row[5], row[6], OrderState(row[7])),
        )

    def bucket_events(self, sale_id: SaleId) -> AsyncIterator[list[AuditedEvent]]:
        """The places of a sale that are no admissions, by bucket, epoch and seq."""
        return self._slices(
            select(
                bucket_events.c.sale_id,
                bucket_events.c.epoch,
                bucket_events.c.bucket,
                bucket_events.c.seq,
                bucket_events.c.kind,
                bucket_events.c.units,
                bucket_events.c.reservation_id,
                bucket_events.c.change_id,
            ).where(bucket_events.c.sale_id == sale_id),
            _place_key(bucket_events),
            lambda row: AuditedEvent(Place(*row[:4]), *row[4:]),
        )

    def releases(self, sale_id: SaleId) -> AsyncIterator[list[AuditedRelease]]:
        """The releases of a sale by reservation id."""
        return self._slices(
            select(
                releases.c.sale_id,
                releases.c.r_epoch,
                releases.c.bucket,
                releases.c.r_seq,
                releases.c.reservation_id,
                releases.c.epoch,
                releases.c.user_id,
                releases.c.units,
                releases.c.state,
                releases.c.release_seq,
                releases.c.decided_at_ms,
            ).where(releases.c.sale_id == sale_id),
            (releases.c.reservation_id,),
            lambda row: AuditedRelease(row[4], Place(*row[:4]), *row[5:]),
        )

    def collisions(self, sale_id: SaleId) -> AsyncIterator[list[AuditedCollision]]:
        """The collisions of a sale by bucket, epoch and seq."""
        return self._slices(
            select(
                collisions.c.sale_id,
                collisions.c.epoch,
                collisions.c.bucket,
                collisions.c.seq,
                collisions.c.kind,
                collisions.c.reservation_id,
                collisions.c.user_id,
                collisions.c.units,
                collisions.c.reason,
                collisions.c.content_hash,
            ).where(collisions.c.sale_id == sale_id),
            (*_place_key(collisions), collisions.c.content_hash),
            lambda row: AuditedCollision(Place(*row[:4]), *row[4:9]),
        )

    async def losses(self, sale_id: SaleId) -> list[Place]:
        """The places of a sale that are named as lost: accounted for, and lost for ever."""
        result = await self._connection.execute(
            select(losses.c.sale_id, losses.c.epoch, losses.c.bucket, losses.c.seq)
            .where(losses.c.sale_id == sale_id)
            .order_by(losses.c.bucket, losses.c.epoch, losses.c.seq)
        )
        return [Place(*row) for row in result]

    async def fence_causes(self, sale_id: SaleId) -> dict[int, str]:
        """By bucket, why it is not trusted now."""
        result = await self._connection.execute(
            select(fences.c.bucket, fences.c.cause).where(
                fences.c.sale_id == sale_id, fences.c.outcome.is_(None)
            )
        )
        return {row.bucket: row.cause for row in result}

    async def stock_changes(self, sale_id: SaleId) -> list[AuditedStockChange]:
        """The stock changes of a sale, oldest first."""
        result = await self._connection.execute(
            select(
                stock_changes.c.change_id,
                stock_changes.c.delta_units,
                stock_changes.c.state,
                stock_changes.c.counted_at_ms.is_not(None),
                stock_changes.c.requested_at_ms,
            )
            .where(stock_changes.c.sale_id == sale_id)
            .order_by(stock_changes.c.requested_at_ms, stock_changes.c.change_id)
        )
        return [AuditedStockChange(*row) for row in result]

    async def holding_faults(self, sale_id: SaleId, faults_max: int = 100) -> list[HoldingFault]:
        """Users whose recorded units are not those of their rows, or pass the limit.

        Those are live orders, and, where a sale lets nobody buy again, what they gave up.

        Args:
            sale_id: the sale.
            faults_max: how many to name.

        Returns:
            Nothing, when the books are sound.

        Complexity: O(buyers of the sale) in the database, O(faults_max) here.
        """
        rows = union_all(
            select(orders.c.user_id, orders.c.quantity.label("units")).where(
                orders.c.sale_id == sale_id,
                orders.c.state.in_(sorted(state.value for state in HOLDING_STATES)),
            ),
            select(releases.c.user_id, releases.c.units).where(
                releases.c.sale_id == sale_id, releases.c.spent
            ),
        ).subquery("rows")
        live = (
            select(rows.c.user_id, func.sum(rows.c.units).label("units"))
            .group_by(rows.c.user_id)
            .subquery("live")
        )
        limit_units = (
            select(sales.c.limit_per_user).where(sales.c.sale_id == sale_id).scalar_subquery()
        )
        of_user = (holdings.c.sale_id == sale_id) & (holdings.c.user_id == live.c.user_id)
        held_units = func.coalesce(holdings.c.units, 0)
        buyers = (
            select(live.c.user_id, live.c.units, held_units, limit_units)
            .select_from(live.outerjoin(holdings, of_user))
            .where((held_units != live.c.units) | (live.c.units > limit_units))
            .order_by(live.c.user_id)
            .limit(faults_max)
        )
        # Units held by users without any live order.
        idle = (
            select(holdings.c.user_id, literal(0), holdings.c.units, limit_units)
            .select_from(holdings.outerjoin(live, of_user))
            .where(holdings.c.sale_id == sale_id, holdings.c.units > 0, live.c.user_id.is_(None))
            .order_by(holdings.c.user_id)
            .limit(faults_max)
        )
        found = [
            HoldingFault(user_id, int(live_units), int(held), limit)
            for query in (buyers, idle)
            for user_id, live_units, held, limit in await self._connection.execute(query)
        ]
        return found[:faults_max]

    async def _slices(
        self,
        query: Select[Any],
        key: tuple[ColumnElement[Any], ...],
        make: Callable[[Any], _T],
    ) -> AsyncIterator[list[_T]]:
        """Rows in the order of a unique key, a slice at a time, each begun after the last."""
        names = [column.key for column in key]
        ordered = query.order_by(*key).limit(ROWS_PER_SLICE_MAX)
        page = ordered
        while True:
            rows = (await self._connection.execute(page)).all()
            if rows:
                yield [make(row) for row in rows]
            if len(rows) < ROWS_PER_SLICE_MAX:
                return
            last = [rows[-1]._mapping[name] for name in names]  # noqa: SLF001  -- public in spite of its name
            page = ordered.where(tuple_(*key) > tuple_(*last))


def _place_key(table: Table) -> tuple[ColumnElement[Any], ...]:
    return (table.c.bucket, table.c.epoch, table.c.seq)
