"""The books of the ledger as tables, one vocabulary for SQLite and PostgreSQL.

Every constraint has a name, so that a migration can find it again on both databases. The CHECKs
are the last guard of the promises: what the code decides under a lock, the database checks once
more by itself. Instants are UTC epoch milliseconds, money and units are integers.

Times, units and amounts are BIGINT; text that serves as a key is compared byte for byte on both
databases (``COLLATE "C"`` on PostgreSQL, which also keeps indexes valid when its operating system
changes the rules of a language).
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite

from seckill.ledger.edges import guard_edges

__all__ = [
    "ACTOR_CHARS_MAX",
    "CHANGE_ID_CHARS_MAX",
    "REASON_CHARS_MAX",
    "actions",
    "admin_tokens",
    "admin_users",
    "audit_results",
    "bucket_events",
    "collisions",
    "epochs",
    "expiry_setbacks",
    "fences",
    "holdings",
    "installation",
    "known_marks",
    "losses",
    "mark_folders",
    "metadata",
    "order_events",
    "orders",
    "payment_events",
    "payments",
    "releases",
    "sales",
    "setup_links",
    "stock_changes",
]

CHANGE_ID_CHARS_MAX: Final = 64
ACTOR_CHARS_MAX: Final = 64
REASON_CHARS_MAX: Final = 500

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _key_text(chars_max: int) -> String:
    """Text that is compared byte for byte on both databases."""
    return String(chars_max).with_variant(
        postgresql.VARCHAR(chars_max, collation="C"), "postgresql"
    )


# SQLite counts rows up by itself only for a column that is exactly "INTEGER PRIMARY KEY".
_COUNTED: Final = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")

_ID: Final = 64
_RESERVATION_ID: Final = 32
_EVENT_ID: Final = 128

installation = Table(
    "installation",
    metadata,
    Column("name", _key_text(_ID), nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("name"),
)
"""What was drawn once for these books: who they are, and the key of reservation ids."""

sales = Table(
    "sales",
    metadata,
    Column("sale_id", _COUNTED, nullable=False, autoincrement=True),
    Column("goods_id", _key_text(_ID), nullable=False),
    Column("title", Text, nullable=False),
    Column("price_fen", BigInteger, nullable=False),
    Column("limit_per_user", Integer, nullable=False),
    Column("stock_units", BigInteger, nullable=False),
    Column("sold_units", BigInteger, nullable=False),
    Column("starts_at_ms", BigInteger, nullable=False),
    Column("ends_at_ms", BigInteger),
    Column("pay_window_ms", BigInteger, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("bucket_count", Integer, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("closed_at_ms", BigInteger),
    Column("late_payment", _key_text(16), nullable=False, server_default="take_free_unit"),
    Column("retired_at_ms", BigInteger),
    Column("cleaned_at_ms", BigInteger),
    Column("may_buy_again", Boolean, nullable=False, server_default=true()),
    PrimaryKeyConstraint("sale_id"),
    CheckConstraint("sold_units >= 0 AND sold_units <= stock_units", name="sold_within_stock"),
    CheckConstraint("price_fen >= 0", name="price"),
    CheckConstraint("limit_per_user > 0", name="limit_per_user"),
    CheckConstraint("bucket_count > 0", name="bucket_count"),
    CheckConstraint("ends_at_ms IS NULL OR ends_at_ms > starts_at_ms", name="window"),
    CheckConstraint("pay_window_ms > 0", name="pay_window"),
    CheckConstraint("late_payment IN ('take_free_unit', 'refund')", name="late_payment"),
    # A sale id names reservations for ever: SQLite must never give the highest one out again.
    sqlite_autoincrement=True,
)
"""One sale of one goods id. sold_units is the sum of the live orders. retired_at_ms: it is over and
its books are closed for ever; cleaned_at_ms: its keys have left Redis.
"""

Index(
    "uq_sales_goods_id_open",
    sales.c.goods_id,
    unique=True,
    sqlite_where=sales.c.closed_at_ms.is_(None),
    postgresql_where=sales.c.closed_at_ms.is_(None),
)

epochs = Table(
    "epochs",
    metadata,
    Column("sale_id", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("state", _key_text(16), nullable=False),
    Column("origin", _key_text(16), nullable=False),
    Column("valid_to_seq", BigInteger),
    Column("opening_units", BigInteger, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("opened_at_ms", BigInteger),
    Column("reason", Text, nullable=False),
    PrimaryKeyConstraint("sale_id", "bucket", "epoch"),
    CheckConstraint("state IN ('opening', 'open', 'closed', 'counted')", name="state"),
    CheckConstraint("origin IN ('created', 'carried_on', 'rebuilt')", name="origin"),
    CheckConstraint("epoch > 0", name="epoch"),
    CheckConstraint("opening_units >= 0", name="opening_units"),
    CheckConstraint("valid_to_seq IS NULL OR valid_to_seq >= 0", name="valid_to_seq"),
    CheckConstraint(
        "(valid_to_seq IS NULL) = (state IN ('opening', 'open'))", name="ended_has_last_seq"
    ),
)
"""The openings of each bucket. closed: carried on, places up to valid_to_seq are still accepted.
counted: a rebuild has counted what was written; nothing more is accepted.
"""

mark_folders = Table(
    "mark_folders",
    metadata,
    Column("folder_id", _key_text(32), nullable=False),
    Column("host", Text, nullable=False),
    Column("first_seen_ms", BigInteger, nullable=False),
    Column("last_seen_ms", BigInteger, nullable=False),
    Column("left_at_ms", BigInteger),
    PrimaryKeyConstraint("folder_id"),
)
"""Where web processes keep their acknowledged marks: one folder a data directory. A keeper that
has not heard of all of them must not judge a bucket. left_at_ms: the last process there ended in
good order, and its marks had been reported.
"""

fences = Table(
    "fences",
    metadata,
    Column("sale_id", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("cause", Text, nullable=False),
    Column("needs_operator", Boolean, nullable=False),
    Column("noticed_at_ms", BigInteger, nullable=False),
    Column("claimed_by", Text),
    Column("claim_beats", Integer, nullable=False),
    Column("outcome", _key_text(16)),
    Column("new_epoch", Integer),
    Column("reopened_at_ms", BigInteger),
    Column("put_units", BigInteger),
    Column("held_units", BigInteger),
    Column("buyers", BigInteger),
    Column("recovered_orders", BigInteger, nullable=False),
    Column("withheld_units", BigInteger, nullable=False),
    Column("unknown", Text, nullable=False),
    PrimaryKeyConstraint("sale_id", "bucket", "epoch"),
    CheckConstraint("outcome IN ('carried_on', 'rebuilt')", name="outcome"),
    CheckConstraint(
        "(outcome IS NULL) = (reopened_at_ms IS NULL) AND (outcome IS NULL) = (new_epoch IS NULL)",
        name="reopened",
    ),
)
"""Each time that a bucket was not trusted: the epoch that ended with it, and how it went on.

While it is open (no outcome) every host reports its marks of the epoch, and who rebuilds the bucket
holds the claim: whoever sees claim_beats stand still may take it over. Afterwards it is the
statement. unknown: what could not be known, a JSON list of sentences.
"""

Index(
    "uq_fences_open",
    fences.c.sale_id,
    fences.c.bucket,
    unique=True,
    sqlite_where=fences.c.outcome.is_(None),
    postgresql_where=fences.c.outcome.is_(None),
)

known_marks = Table(
    "known_marks",
    metadata,
    Column("folder_id", _key_text(32), nullable=False),
    Column("sale_id", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("answered", Boolean, nullable=False),
    Column("reported_at_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("sale_id", "bucket", "epoch", "folder_id"),
    CheckConstraint("seq >= 0", name="seq"),
)
"""The highest seq of an epoch that the web processes of one folder have acknowledged. answered:
said after the fence was noticed, so nothing of the epoch is acknowledged there any more.
"""

losses = Table(
    "losses",
    metadata,
    Column("reservation_id", _key_text(_RESERVATION_ID), nullable=False),
    Column("sale_id", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("named_at_ms", BigInteger, nullable=False),
    Column("fence_epoch", Integer, nullable=False),
    PrimaryKeyConstraint("reservation_id"),
    UniqueConstraint("sale_id", "bucket", "epoch", "seq", name="uq_losses_place"),
)
"""Places that were acknowledged to buyers and are in no log any more, named one by one.
fence_epoch: the fence whose statement names them.
"""

orders = Table(
    "orders",
    metadata,
    Column("reservation_id", _key_text(_RESERVATION_ID), nullable=False),
    Column("sale_id", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("user_id", _key_text(_ID), nullable=False),
    Column("quantity", Integer, nullable=False),
    Column("price_fen", BigInteger, nullable=False),
    Column("state", _key_text(20), nullable=False),
    Column("attempt_id", _key_text(_ID), nullable=False),
    Column("admitted_at_ms", BigInteger, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("pay_by_ms", BigInteger, nullable=False),
    Column("state_changed_at_ms", BigInteger, nullable=False),
    Column("reason", Text),
    Column("paid_at_ms", BigInteger),
    Column("continued_as", _key_text(_RESERVATION_ID)),
    PrimaryKeyConstraint("reservation_id"),
    UniqueConstraint("sale_id", "bucket", "epoch", "seq", name="uq_orders_place"),
    CheckConstraint("quantity > 0", name="quantity"),
    CheckConstraint("price_fen >= 0", name="price"),
    CheckConstraint("seq > 0", name="seq"),
    CheckConstraint(
        "state IN ('awaiting_payment', 'paid', 'expired', 'cancelled', 'compensated',"
        " 'refund_due', 'refunded')",
        name="state",
    ),
    # What was paid for is never in a state in which its units are back on sale.
    CheckConstraint(
        "state <> 'paid' OR paid_at_ms IS NOT NULL",
        name="paid_at",
    ),
    CheckConstraint(
        "paid_at_ms IS NULL OR state IN ('paid', 'refund_due', 'refunded')",
        name="paid_state",
    ),
    Index("ix_orders_user", "user_id", "created_at_ms"),
    Index("ix_orders_sale_state", "sale_id", "state"),
)
"""What became of each admission. QUEUED is never here: it means not yet written.

paid_at_ms stays when the money goes back. continued_as: the order that late money of this one has
paid. States move along `domain.order.EDGES` only: see `ledger.edges`.
"""

Index(
    "ix_orders_due",
    orders.c.pay_by_ms,
    orders.c.reservation_id,
    sqlite_where=orders.c.state == "awaiting_payment",
    postgresql_where=orders.c.state == "awaiting_payment",
)
guard_edges(orders)

expiry_setbacks = Table(
    "expiry_setbacks",
    metadata,
    Column("reservation_id", _key_text(_RESERVATION_ID), nullable=False),
    Column("tries", Integer, nullable=False),
    Column("first_at_ms", BigInteger, nullable=False),
    Column("next_try_at_ms", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
    PrimaryKeyConstraint("reservation_id"),
    CheckConstraint("tries > 0", name="tries"),
)
"""Orders whose expiry the books refuse: set aside, and tried again after a growing pause."""

payments = Table(
    "payments",
    metadata,
    Column("payment_id", _key_text(_RESERVATION_ID), nullable=False),
    Column("reservation_id", _key_text(_RESERVATION_ID), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("amount_fen", BigInteger, nullable=False),
    Column("currency", _key_text(3), nullable=False),
    Column("state", _key_text(16), nullable=False),
    Column("page_url", Text),
    Column("started_at_ms", BigInteger, nullable=False),
    Column("deadline_ms", BigInteger, nullable=False),
    Column("received_fen", BigInteger),
    Column("received_currency", _key_text(3)),
    Column("received_at_ms", BigInteger),
    Column("pays", _key_text(_RESERVATION_ID)),
    Column("reason", Text),
    Column("refunds", Integer, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("next_try_at_ms", BigInteger),
    Column("ended_at_ms", BigInteger),
    PrimaryKeyConstraint("payment_id"),
    UniqueConstraint("reservation_id", "attempt", name="uq_payments_attempt"),
    CheckConstraint("attempt > 0", name="attempt"),
    CheckConstraint("amount_fen >= 0", name="amount"),
    CheckConstraint(
        "state IN ('started', 'failed', 'paid', 'late', 'refund_due', 'refunded')", name="state"
    ),
    CheckConstraint("(received_at_ms IS NULL) = (state IN ('started', 'failed'))", name="received"),
    CheckConstraint("state <> 'paid' OR pays IS NOT NULL", name="paid_pays"),
    CheckConstraint(
        "pays IS NULL OR state IN ('paid', 'refund_due', 'refunded')", name="pays_state"
    ),
    CheckConstraint(
        "(state IN ('late', 'refund_due')) = (next_try_at_ms IS NOT NULL)", name="next_try"
    ),
)
"""Attempts to pay an order, and what became of their money. pays: the order that it has paid, which
is another one than reservation_id when the money came late. next_try_at_ms: when the reaper looks
at it again.
"""

Index(
    "uq_payments_pays",
    payments.c.pays,
    unique=True,
    sqlite_where=payments.c.state == "paid",
    postgresql_where=payments.c.state == "paid",
)
Index(
    "ix_payments_due",
    payments.c.next_try_at_ms,
    payments.c.payment_id,
    sqlite_where=payments.c.next_try_at_ms.is_not(None),
    postgresql_where=payments.c.next_try_at_ms.is_not(None),
)

payment_events = Table(
    "payment_events",
    metadata,
    Column("event_id", _key_text(_EVENT_ID), nullable=False),
    Column("payment_id", _key_text(_ID), nullable=False),
    Column("kind", _key_text(32), nullable=False),
    Column("amount_fen", BigInteger),
    Column("currency", _key_text(3)),
    Column("at_ms", BigInteger, nullable=False),
    Column("received_at_ms", BigInteger, nullable=False),
    Column("content_hash", _key_text(64), nullable=False),
    Column("outcome", _key_text(16), nullable=False),
    Column("reason", Text),
    PrimaryKeyConstraint("event_id"),
    CheckConstraint("outcome IN ('applied', 'ignored')", name="outcome"),
    Index("ix_payment_events_payment_id", "payment_id"),
)
"""What the provider told us, each event once, with what became of it."""

holdings = Table(
    "holdings",
    metadata,
    Column("sale_id", BigInteger, nullable=False),
    Column("user_id", _key_text(_ID), nullable=False),
    Column("units", BigInteger, nullable=False),
    Column("limit_units", BigInteger, nullable=False),
    PrimaryKeyConstraint("sale_id", "user_id"),
    CheckConstraint("units >= 0", name="not_negative"),
    CheckConstraint("units <= limit_units", name="within_limit"),
    # Read and written by its key alone: on SQLite the key is the table.
    sqlite_with_rowid=False,
)
"""Units of the live orders of one user in one sale, and those that they gave up where a sale lets
nobody buy again (releases.spent): what counts against the limit.
"""

bucket_events = Table(
    "bucket_events",
    metadata,
    Column("sale_id", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("kind", _key_text(16), nullable=False),
    Column("units", BigInteger, nullable=False),
    Column("reservation_id", _key_text(_RESERVATION_ID)),
    Column("change_id", _key_text(CHANGE_ID_CHARS_MAX)),
    Column("at_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("sale_id", "bucket", "epoch", "seq"),
    CheckConstraint("seq > 0", name="seq"),
    CheckConstraint(
        "(kind = 'release' AND reservation_id IS NOT NULL AND change_id IS NULL AND units > 0)"
        " OR (kind = 'stock' AND change_id IS NOT NULL AND reservation_id IS NULL"
        " AND units <> 0)",
        name="kind",
    ),
)
"""The places of a bucket that are no admissions, so that a gap in seq means a loss."""

collisions = Table(
    "collisions",
    metadata,
    Column("sale_id", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("content_hash", _key_text(64), nullable=False),
    Column("kind", _key_text(16), nullable=False),
    Column("reservation_id", _key_text(_RESERVATION_ID)),
    Column("user_id", _key_text(_ID)),
    Column("units", BigInteger, nullable=False),
    Column("content", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("recorded_at_ms", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    PrimaryKeyConstraint("sale_id", "bucket", "epoch", "seq", "content_hash"),
    CheckConstraint("kind IN ('admission', 'release', 'stock')", name="kind"),
    Index("ix_collisions_reservation_id", "reservation_id"),
)
"""Events that claim a place or a reservation id which is taken by something else: the second
history of a forked bucket. Each is a compensation; any row here is an alarm.
"""

releases = Table(
    "releases",
    metadata,
    Column("reservation_id", _key_text(_RESERVATION_ID), nullable=False),
    Column("sale_id", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("r_epoch", Integer, nullable=False),
    Column("r_seq", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("user_id", _key_text(_ID), nullable=False),
    Column("units", BigInteger, nullable=False),
    Column("state", _key_text(16), nullable=False),
    Column("release_seq", BigInteger),
    Column("decided_at_ms", BigInteger, nullable=False),
    Column("done_at_ms", BigInteger),
    Column("reason", Text, nullable=False),
    Column("spent", Boolean, nullable=False, server_default=false()),
    PrimaryKeyConstraint("reservation_id"),
    CheckConstraint("units > 0", name="units"),
    CheckConstraint("state IN ('pending', 'done', 'counted')", name="state"),
    CheckConstraint("(state = 'pending') = (done_at_ms IS NULL)", name="done_at"),
)
"""Units that the ledger gives back, once per reservation; (r_epoch, r_seq) is its place, epoch
the one in which the release is valid, or was made. counted: absorbed by a rebuild. spent: the units
go back on sale, and still count against the limit of the user who gave them up.
"""

Index(
    "ix_releases_pending",
    releases.c.decided_at_ms,
    releases.c.reservation_id,
    sqlite_where=releases.c.state == "pending",
    postgresql_where=releases.c.state == "pending",
)
Index("ix_releases_sale", releases.c.sale_id, releases.c.reservation_id)

stock_changes = Table(
    "stock_changes",
    metadata,
    Column("change_id", _key_text(CHANGE_ID_CHARS_MAX), nullable=False),
    Column("sale_id", BigInteger, nullable=False),
    Column("delta_units", BigInteger, nullable=False),
    Column("state", _key_text(16), nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("requested_at_ms", BigInteger, nullable=False),
    Column("decided_at_ms", BigInteger),
    Column("counted_at_ms", BigInteger),
    Column("applied_epoch", Integer),
    Column("applied_seq", BigInteger),
    PrimaryKeyConstraint("change_id"),
    CheckConstraint("delta_units <> 0", name="delta_units"),
    CheckConstraint("state IN ('pending', 'applied', 'refused')", name="state"),
    CheckConstraint("(state = 'pending') = (decided_at_ms IS NULL)", name="decided_at"),
    Index("ix_stock_changes_sale", "sale_id", "requested_at_ms"),
)
"""Units put on sale or taken off it. counted_at_ms: when sales.stock_units took it in (more
units when they are asked for, fewer when Redis has taken them away). applied_epoch, applied_seq:
where Redis says that it has applied it; empty when its event has said so first.
"""

order_events = Table(
    "order_events",
    metadata,
    Column("event_id", _COUNTED, nullable=False, autoincrement=True),
    Column("reservation_id", _key_text(_RESERVATION_ID), nullable=False),
    Column("from_state", _key_text(20), nullable=False),
    Column("to_state", _key_text(20), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text),
    PrimaryKeyConstraint("event_id"),
    Index("ix_order_events_reservation_id", "reservation_id"),
)
"""One row for each move of an order from one state to the next."""

actions = Table(
    "actions",
    metadata,
    Column("action_id", _COUNTED, nullable=False, autoincrement=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("sale_id", BigInteger),
    Column("detail", Text, nullable=False),
    PrimaryKeyConstraint("action_id"),
    Index("ix_actions_sale_id", "sale_id", "action_id"),
)
"""Who changed what, with the values before and after as JSON."""

_ROLES: Final = "role IN ('viewer', 'operator', 'admin')"

admin_users = Table(
    "admin_users",
    metadata,
    Column("name", _key_text(_ID), nullable=False),
    Column("role", _key_text(16), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("disabled_at_ms", BigInteger),
    PrimaryKeyConstraint("name"),
    CheckConstraint(_ROLES, name="role"),
)
"""Who may run the shop. Never deleted: the action log names them."""

admin_tokens = Table(
    "admin_tokens",
    metadata,
    Column("token_id", _key_text(16), nullable=False),
    Column("name", _key_text(_ID), nullable=False),
    Column("role", _key_text(16), nullable=False),
    Column("secret_hash", _key_text(64), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("revoked_at_ms", BigInteger),
    PrimaryKeyConstraint("token_id"),
    CheckConstraint(_ROLES, name="role"),
    Index("ix_admin_tokens_name", "name"),
)
"""What programs show to be let in. The secret itself is nowhere, only its SHA-256."""

setup_links = Table(
    "setup_links",
    metadata,
    Column("secret_hash", _key_text(64), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("secret_hash"),
)
"""Links that make the first admin. All are gone once one was used."""

audit_results = Table(
    "audit_results",
    metadata,
    Column("name", _key_text(16), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("ok", Boolean, nullable=False),
    Column("report", Text, nullable=False),
    PrimaryKeyConstraint("name"),
)
"""The last report of the background audit, as JSON, for every host to read."""
