"""The statements of the ledger that keep a promise, each with its contract.

Built once and reused, so that SQLAlchemy compiles each of them once per process. The vocabulary is
the same for SQLite and PostgreSQL; only "insert unless it is there" is spelled by the dialect, and
the inserts of a whole batch travel as each database takes them best (`ManyRows`).

Locking. Every transaction that writes to the books of a sale first takes the row of that sale
(`LOCK_SALES`), several in the order of their ids; on SQLite it holds the write lock of the file
anyway. So what it reads afterwards cannot change under it, and two of them cannot wait for each
other in a circle. The WHERE clauses and CHECKs below are the second line: they hold without it.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Insert,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    func,
    insert,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.ids import SaleId, UserId
from seckill.domain.order import OrderState
from seckill.domain.reservation import BucketId
from seckill.ledger.many_rows import ManyRows, arrays
from seckill.ledger.tables import (
    bucket_events,
    collisions,
    epochs,
    expiry_setbacks,
    holdings,
    installation,
    mark_folders,
    order_events,
    orders,
    payment_events,
    releases,
    sales,
    stock_changes,
)

__all__ = [
    "ADD_ORDER_EVENT",
    "BUCKET_EVENTS_AT",
    "CHANGE_SALE_TOTALS",
    "CONFIRM_RELEASE",
    "EPOCHS_SINCE",
    "INSERTS",
    "KEYS_PER_STATEMENT_MAX",
    "LOCK_SALES",
    "LOWER_HOLDING",
    "MARK_CHANGE_APPLIED",
    "MARK_COMPENSATED",
    "MARK_RELEASED",
    "MOVE_ORDERS",
    "MOVING_ORDERS",
    "NEWEST_EPOCHS",
    "NEW_HOLDINGS",
    "NEW_ORDERS",
    "NEW_ORDER_EVENTS",
    "ORDERS_BY_ID",
    "PLACES_OF_BUCKET_EVENTS",
    "PLACES_OF_ORDERS",
    "Inserts",
    "chunks",
    "in_bucket",
    "in_epoch",
    "units_held",
]

_T = TypeVar("_T")

KEYS_PER_STATEMENT_MAX: Final = 5_000
"""Values in one IN list. SQLite takes 32,766 parameters in a statement, PostgreSQL 32,767."""

LOCK_SALES: Final = (
    select(
        sales.c.sale_id,
        sales.c.price_fen,
        sales.c.limit_per_user,
        sales.c.stock_units,
        sales.c.sold_units,
        sales.c.pay_window_ms,
    )
    .where(sales.c.sale_id.in_(bindparam("sale_ids", expanding=True)))
    .order_by(sales.c.sale_id)
    .with_for_update()
)
"""Take the rows of some sales, in the order of their ids, and read their totals.

Args: sale_ids. Returns the rows that exist; a missing id is the caller's to notice.
Guards: nobody else writes to the books of these sales until the transaction ends (PostgreSQL: row
locks; SQLite: the transaction already has the file's write lock and FOR UPDATE is left out).
Fails: lock timeout or deadlock, both retryable.
"""

EPOCHS_SINCE: Final = select(
    epochs.c.sale_id, epochs.c.bucket, epochs.c.epoch, epochs.c.state, epochs.c.valid_to_seq
).where(
    epochs.c.sale_id.in_(bindparam("sale_ids", expanding=True)),
    epochs.c.epoch >= bindparam("epoch_min"),
)
"""The openings of the buckets of some sales, from an epoch on; the newest is always among them.

Read after `LOCK_SALES`, because carrying on and rebuilding take the same lock: whether an epoch
still accepts a place cannot change until the transaction ends.
"""


def in_epoch(table: Table) -> ColumnElement[bool]:
    """The rows of one epoch of a bucket. Args: sale_id, bucket, epoch."""
    return and_(
        table.c.sale_id == bindparam("sale_id"),
        table.c.bucket == bindparam("bucket"),
        table.c.epoch == bindparam("epoch"),
    )


PLACES_OF_BUCKET_EVENTS: Final = select(bucket_events.c.seq).where(
    in_epoch(bucket_events),
    bucket_events.c.seq.between(bindparam("seq_min"), bindparam("seq_max")),
)
"""Which places of a range are no admissions. An admission that claims one is a collision."""

PLACES_OF_ORDERS: Final = select(orders.c.seq).where(
    in_epoch(orders),
    orders.c.seq.in_(bindparam("seqs", expanding=True)),
)
"""Which of some places are admissions. A release or stock change that claims one collides."""

BUCKET_EVENTS_AT: Final = select(
    bucket_events.c.seq,
    bucket_events.c.kind,
    bucket_events.c.units,
    bucket_events.c.reservation_id,
    bucket_events.c.change_id,
).where(
    in_epoch(bucket_events),
    bucket_events.c.seq.in_(bindparam("seqs", expanding=True)),
)
"""What is already written at some places, to tell a repetition from a collision."""

ORDERS_BY_ID: Final = select(
    orders.c.reservation_id,
    orders.c.sale_id,
    orders.c.epoch,
    orders.c.bucket,
    orders.c.seq,
    orders.c.user_id,
    orders.c.quantity,
    orders.c.attempt_id,
).where(orders.c.reservation_id.in_(bindparam("reservation_ids", expanding=True)))
"""What is already written under some reservation ids, to tell a repetition from a collision."""

MARK_COMPENSATED: Final = (
    update(orders)
    .where(
        orders.c.reservation_id == bindparam("of_reservation_id"),
        orders.c.state == OrderState.AWAITING_PAYMENT.value,
    )
    .values(state=OrderState.COMPENSATED.value, reason=bindparam("because"))
)
"""Refuse an admission whose row was inserted earlier in the same transaction."""

CHANGE_SALE_TOTALS: Final = (
    update(sales)
    .where(sales.c.sale_id == bindparam("of_sale_id"))
    .values(
        sold_units=sales.c.sold_units + bindparam("more_sold"),
        stock_units=sales.c.stock_units + bindparam("more_stock"),
        version=sales.c.version + bindparam("more_version"),
    )
)
"""Move the totals of a sale by differences.

Guards: CHECK sold_within_stock. A wrong decision above it ends in an error, not in an oversell.
"""

LOWER_HOLDING: Final = (
    update(holdings)
    .where(
        holdings.c.sale_id == bindparam("of_sale_id"), holdings.c.user_id == bindparam("of_user_id")
    )
    .values(units=holdings.c.units - bindparam("fewer"))
)
"""Take units from what a user holds. Guards: CHECK not_negative."""

MOVE_ORDERS: Final = (
    update(orders)
    .where(
        orders.c.reservation_id.in_(bindparam("reservation_ids", expanding=True)),
        orders.c.state == bindparam("from_state"),
    )
    .values(
        state=bindparam("to_state"),
        state_changed_at_ms=bindparam("now_ms"),
        reason=bindparam("because", type_=Text),
        paid_at_ms=func.coalesce(bindparam("paid_ms", type_=BigInteger), orders.c.paid_at_ms),
    )
    .returning(orders.c.reservation_id)
)
"""Move orders along one edge.

Returns those that this call moved; the others had been moved by somebody else before.
Guards: paying, cancelling, expiring and refunding race on the row, and only the one that finds it
in the state that it comes from wins; the winner alone writes the release. Behind it stand the
trigger of `ledger.edges` and the key of the table of releases.
"""

MOVING_ORDERS: Final[Select[Any]] = select(
    orders.c.reservation_id,
    orders.c.sale_id,
    orders.c.bucket,
    orders.c.epoch,
    orders.c.seq,
    orders.c.user_id,
    orders.c.quantity,
    orders.c.price_fen,
    orders.c.state,
    orders.c.pay_by_ms,
)
"""What `ledger.moves` must know of an order that is to move."""

NEWEST_EPOCHS: Final = (
    select(epochs.c.sale_id, epochs.c.bucket, func.max(epochs.c.epoch))
    .where(epochs.c.sale_id.in_(bindparam("sale_ids", expanding=True)))
    .group_by(epochs.c.sale_id, epochs.c.bucket)
)
"""The current epoch of each bucket of some sales. Read under `LOCK_SALES`: it stays current."""

MARK_RELEASED: Final = (
    update(releases)
    .where(
        releases.c.reservation_id == bindparam("of_reservation_id"), releases.c.state == "pending"
    )
    .values(
        state="done",
        epoch=bindparam("in_epoch"),
        release_seq=bindparam("at_seq"),
        done_at_ms=bindparam("now_ms"),
    )
)
"""Redis has made a release, at a place of its own. A release that a rebuild counted stays so."""

CONFIRM_RELEASE: Final = (
    update(releases)
    .where(
        releases.c.reservation_id == bindparam("of_reservation_id"),
        releases.c.state == "pending",
        releases.c.epoch == bindparam("in_epoch"),
    )
    .values(
        state="done",
        release_seq=func.nullif(bindparam("at_seq"), 0),
        done_at_ms=bindparam("now_ms"),
    )
)
"""As `MARK_RELEASED`, by the releaser's own word; seq 0 means that Redis had nothing to release.

Guards: a word of an epoch in which the release is not valid any more counts for nothing.
"""

MARK_CHANGE_APPLIED: Final = (
    update(stock_changes)
    .where(stock_changes.c.change_id == bindparam("of_change_id"))
    .values(
        state="applied",
        decided_at_ms=func.coalesce(stock_changes.c.decided_at_ms, bindparam("now_ms")),
        counted_at_ms=func.coalesce(stock_changes.c.counted_at_ms, bindparam("now_ms")),
    )
)
"""Redis has applied a stock change: its event is the proof, whatever was confirmed before.

Guards: counted_at_ms is set once; who finds it empty under `LOCK_SALES` moves sales.stock_units.
"""

ADD_ORDER_EVENT: Final = insert(order_events)
"""Record a move of an order, in the transaction that makes it."""

_ORDER_COLUMNS_OF_NOW: Final = ("created_at_ms", "state_changed_at_ms")

# What only later moves write.
_ORDER_COLUMNS_OF_LATER: Final = ("paid_at_ms", "continued_as")

NEW_ORDERS: Final = ManyRows(
    orders,
    [
        column.name
        for column in orders.c
        if column.name not in {*_ORDER_COLUMNS_OF_NOW, *_ORDER_COLUMNS_OF_LATER}
    ],
    same=_ORDER_COLUMNS_OF_NOW,
)
"""Write the orders of a batch.

Guards: the reservation id (primary key) and the place (uq_orders_place) are unique, so an admission
becomes one order however often it comes. `insert` fails whole when one of them is taken; the caller
then asks with `insert_unless_there` which are new and finds out as what the others are there.
"""

NEW_ORDER_EVENTS: Final = ManyRows(
    order_events,
    ["reservation_id", "to_state", "reason"],
    same=["from_state", "at_ms", "actor"],
)
"""Record how the orders of a batch came to be."""

NEW_HOLDINGS: Final = ManyRows(
    holdings,
    ["sale_id", "user_id", "units", "limit_units"],
    key=["sale_id", "user_id"],
    added="units",
)
"""Add the units of new orders to what their buyers hold.

Guards: CHECK within_limit, on the row as it will be. Read `units_held` under `LOCK_SALES` before:
who holds nothing yet is inserted, which is cheap; only who does is added to.
"""


@dataclass(frozen=True, slots=True)
class Inserts:
    """The inserts that say "unless it is there", as one dialect spells them.

    Those with RETURNING return only what was inserted now: what is missing was there before, and
    the caller must find out as what.

    Attributes:
        bucket_event: unless the place is taken. Returns the place.
        collision: unless this very event was recorded. Returns place and content_hash.
        release: unless one is recorded for the reservation: a unit comes back once.
        sale: unless a sale of the goods is open (partial unique index). Returns sale_id.
        stock_change: unless the change id is taken. Returns change_id.
        installation: unless the name has a value: the first process that starts decides.
        mark_folder: unless it is registered.
        setback: unless the order is set aside already. Returns reservation_id.
        payment_event: unless the event was taken before. Returns event_id.
    """

    bucket_event: Insert
    collision: Insert
    release: Insert
    sale: Insert
    stock_change: Insert
    installation: Insert
    mark_folder: Insert
    setback: Insert
    payment_event: Insert


def _inserts(fresh: Callable[[Table], Any]) -> Inserts:
    return Inserts(
        bucket_event=fresh(bucket_events).returning(
            bucket_events.c.sale_id,
            bucket_events.c.epoch,
            bucket_events.c.bucket,
            bucket_events.c.seq,
        ),
        collision=fresh(collisions).returning(
            collisions.c.sale_id,
            collisions.c.epoch,
            collisions.c.bucket,
            collisions.c.seq,
            collisions.c.content_hash,
        ),
        release=fresh(releases),
        sale=fresh(sales).returning(sales.c.sale_id),
        stock_change=fresh(stock_changes).returning(stock_changes.c.change_id),
        installation=fresh(installation),
        mark_folder=fresh(mark_folders),
        setback=fresh(expiry_setbacks).returning(expiry_setbacks.c.reservation_id),
        payment_event=fresh(payment_events).returning(payment_events.c.event_id),
    )


INSERTS: Final = {
    "sqlite": _inserts(lambda table: sqlite.insert(table).on_conflict_do_nothing()),
    "postgresql": _inserts(lambda table: postgresql.insert(table).on_conflict_do_nothing()),
}
"""By the name of the dialect of a connection."""


def _units_by_key() -> Select[Any]:
    """Look the holdings of many buyers up one by one, on PostgreSQL.

    By key for each buyer, on purpose (OFFSET 0 keeps the planner from making a join of it): joined
    to the holdings of the sale, PostgreSQL would read all of them for every batch as long as the
    table has no statistics, which is the whole first minute of a sale.
    """
    given = arrays(holdings.c.sale_id, holdings.c.user_id)
    held = (
        select(holdings.c.units)
        .where(holdings.c.sale_id == given.c.sale_id, holdings.c.user_id == given.c.user_id)
        .offset(0)
        .lateral("held")
    )
    return select(given.c.sale_id, given.c.user_id, held.c.units).select_from(
        given.join(held, true())
    )


def in_bucket(table: Table, bucket_id: BucketId) -> ColumnElement[bool]:
    """The rows of one bucket, in a table that has sale_id and bucket."""
    return (table.c.sale_id == bucket_id.sale_id) & (table.c.bucket == bucket_id.bucket)


_HELD_BY_KEY: Final = _units_by_key()

_HELD_IN_SALE: Final = select(holdings.c.sale_id, holdings.c.user_id, holdings.c.units).where(
    holdings.c.sale_id == bindparam("sale_id"),
    holdings.c.user_id.in_(bindparam("user_ids", expanding=True)),
)


async def units_held(
    connection: AsyncConnection, buyers: Collection[tuple[SaleId, UserId]]
) -> dict[tuple[SaleId, UserId], int]:
    """What some buyers hold, those who have a row in the books of holdings.

    Read under `LOCK_SALES`: it stays true to the end of the transaction.
    """
    held: dict[tuple[SaleId, UserId], int] = {}
    if connection.dialect.name == "postgresql":
        rows = await connection.execute(
            _HELD_BY_KEY,
            {"sale_id": [buyer[0] for buyer in buyers], "user_id": [buyer[1] for buyer in buyers]},
        )
        held.update(((sale_id, user_id), units) for sale_id, user_id, units in rows)
        return held
    users: dict[SaleId, list[UserId]] = {}
    for sale_id, user_id in buyers:
        users.setdefault(sale_id, []).append(user_id)
    for sale_id, user_ids in users.items():
        for some in chunks(user_ids):
            rows = await connection.execute(_HELD_IN_SALE, {"sale_id": sale_id, "user_ids": some})
            held.update(((sale_id, user_id), units) for _, user_id, units in rows)
    return held


def chunks(values: Sequence[_T]) -> list[Sequence[_T]]:
    """The values in pieces that fit into one statement."""
    return [
        values[at : at + KEYS_PER_STATEMENT_MAX]
        for at in range(0, len(values), KEYS_PER_STATEMENT_MAX)
    ]
