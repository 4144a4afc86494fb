"""The first books: sales, openings of buckets, orders, holdings, releases, stock changes."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql, sqlite

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _key(chars_max: int) -> sa.String:
    return sa.String(chars_max).with_variant(
        postgresql.VARCHAR(chars_max, collation="C"), "postgresql"
    )


_COUNTED = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def upgrade() -> None:
    """Create every table."""
    _create_sales()
    _create_orders()
    _create_bucket_history()
    _create_decisions()
    _create_logs()


def downgrade() -> None:
    """Back to an empty database: every order is lost."""
    for table in (
        "actions",
        "order_events",
        "stock_changes",
        "releases",
        "collisions",
        "bucket_events",
        "holdings",
        "orders",
        "mark_folders",
        "epochs",
        "sales",
        "installation",
    ):
        op.drop_table(table)


def _create_sales() -> None:
    """Sales, the openings of their buckets, and who these books are."""
    op.create_table(
        "installation",
        sa.Column("name", _key(64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_installation")),
    )
    op.create_table(
        "sales",
        sa.Column("sale_id", _COUNTED, autoincrement=True, nullable=False),
        sa.Column("goods_id", _key(64), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("price_fen", sa.BigInteger(), nullable=False),
        sa.Column("limit_per_user", sa.Integer(), nullable=False),
        sa.Column("stock_units", sa.BigInteger(), nullable=False),
        sa.Column("sold_units", sa.BigInteger(), nullable=False),
        sa.Column("starts_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("ends_at_ms", sa.BigInteger()),
        sa.Column("pay_window_ms", sa.BigInteger(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("bucket_count", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("closed_at_ms", sa.BigInteger()),
        sa.CheckConstraint("bucket_count > 0", name=op.f("ck_sales_bucket_count")),
        sa.CheckConstraint(
            "ends_at_ms IS NULL OR ends_at_ms > starts_at_ms", name=op.f("ck_sales_window")
        ),
        sa.CheckConstraint("limit_per_user > 0", name=op.f("ck_sales_limit_per_user")),
        sa.CheckConstraint("pay_window_ms > 0", name=op.f("ck_sales_pay_window")),
        sa.CheckConstraint("price_fen >= 0", name=op.f("ck_sales_price")),
        sa.CheckConstraint(
            "sold_units >= 0 AND sold_units <= stock_units", name=op.f("ck_sales_sold_within_stock")
        ),
        sa.PrimaryKeyConstraint("sale_id", name=op.f("pk_sales")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_sales_goods_id_open",
        "sales",
        ["goods_id"],
        unique=True,
        sqlite_where=sa.text("closed_at_ms IS NULL"),
        postgresql_where=sa.text("closed_at_ms IS NULL"),
    )
    op.create_table(
        "epochs",
        sa.Column("sale_id", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("state", _key(16), nullable=False),
        sa.Column("origin", _key(16), nullable=False),
        sa.Column("valid_to_seq", sa.BigInteger()),
        sa.Column("opening_units", sa.BigInteger(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("opened_at_ms", sa.BigInteger()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "(valid_to_seq IS NULL) = (state IN ('opening', 'open'))",
            name=op.f("ck_epochs_ended_has_last_seq"),
        ),
        sa.CheckConstraint(
            "state IN ('opening', 'open', 'closed', 'counted')", name=op.f("ck_epochs_state")
        ),
        sa.CheckConstraint(
            "origin IN ('created', 'carried_on', 'rebuilt')", name=op.f("ck_epochs_origin")
        ),
        sa.CheckConstraint("epoch > 0", name=op.f("ck_epochs_epoch")),
        sa.CheckConstraint("opening_units >= 0", name=op.f("ck_epochs_opening_units")),
        sa.CheckConstraint(
            "valid_to_seq IS NULL OR valid_to_seq >= 0", name=op.f("ck_epochs_valid_to_seq")
        ),
        sa.PrimaryKeyConstraint("sale_id", "bucket", "epoch", name=op.f("pk_epochs")),
    )
    op.create_table(
        "mark_folders",
        sa.Column("folder_id", _key(32), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("first_seen_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("folder_id", name=op.f("pk_mark_folders")),
    )


def _create_orders() -> None:
    """Orders, and what their users hold."""
    op.create_table(
        "orders",
        sa.Column("reservation_id", _key(32), nullable=False),
        sa.Column("sale_id", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("user_id", _key(64), nullable=False),
        sa.Column("quantity", sa.Integer(), nullable=False),
        sa.Column("price_fen", sa.BigInteger(), nullable=False),
        sa.Column("state", _key(20), nullable=False),
        sa.Column("attempt_id", _key(64), nullable=False),
        sa.Column("admitted_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("pay_by_ms", sa.BigInteger(), nullable=False),
        sa.Column("state_changed_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.CheckConstraint(
            "state IN ('awaiting_payment', 'paid', 'expired', 'cancelled', 'compensated',"
            " 'refund_due', 'refunded')",
            name=op.f("ck_orders_state"),
        ),
        sa.CheckConstraint("price_fen >= 0", name=op.f("ck_orders_price")),
        sa.CheckConstraint("quantity > 0", name=op.f("ck_orders_quantity")),
        sa.CheckConstraint("seq > 0", name=op.f("ck_orders_seq")),
        sa.PrimaryKeyConstraint("reservation_id", name=op.f("pk_orders")),
        sa.UniqueConstraint("sale_id", "bucket", "epoch", "seq", name="uq_orders_place"),
    )
    op.create_index("ix_orders_due", "orders", ["state", "pay_by_ms"])
    op.create_index("ix_orders_sale_state", "orders", ["sale_id", "state"])
    op.create_index("ix_orders_user", "orders", ["user_id", "created_at_ms"])
    op.create_table(
        "holdings",
        sa.Column("sale_id", sa.BigInteger(), nullable=False),
        sa.Column("user_id", _key(64), nullable=False),
        sa.Column("units", sa.BigInteger(), nullable=False),
        sa.Column("limit_units", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("units <= limit_units", name=op.f("ck_holdings_within_limit")),
        sa.CheckConstraint("units >= 0", name=op.f("ck_holdings_not_negative")),
        sa.PrimaryKeyConstraint("sale_id", "user_id", name=op.f("pk_holdings")),
        sqlite_with_rowid=False,
    )


def _create_bucket_history() -> None:
    """The places of buckets that are no admissions, and colliding ones."""
    op.create_table(
        "bucket_events",
        sa.Column("sale_id", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("kind", _key(16), nullable=False),
        sa.Column("units", sa.BigInteger(), nullable=False),
        sa.Column("reservation_id", _key(32)),
        sa.Column("change_id", _key(64)),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "(kind = 'release' AND reservation_id IS NOT NULL AND change_id IS NULL AND units > 0)"
            " OR (kind = 'stock' AND change_id IS NOT NULL AND reservation_id IS NULL"
            " AND units <> 0)",
            name=op.f("ck_bucket_events_kind"),
        ),
        sa.CheckConstraint("seq > 0", name=op.f("ck_bucket_events_seq")),
        sa.PrimaryKeyConstraint("sale_id", "bucket", "epoch", "seq", name=op.f("pk_bucket_events")),
    )
    op.create_table(
        "collisions",
        sa.Column("sale_id", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("content_hash", _key(64), nullable=False),
        sa.Column("kind", _key(16), nullable=False),
        sa.Column("reservation_id", _key(32)),
        sa.Column("user_id", _key(64)),
        sa.Column("units", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('admission', 'release', 'stock')", name=op.f("ck_collisions_kind")
        ),
        sa.PrimaryKeyConstraint(
            "sale_id", "bucket", "epoch", "seq", "content_hash", name=op.f("pk_collisions")
        ),
    )
    op.create_index("ix_collisions_reservation_id", "collisions", ["reservation_id"])


def _create_decisions() -> None:
    """What the ledger decides and Redis must follow."""
    op.create_table(
        "releases",
        sa.Column("reservation_id", _key(32), nullable=False),
        sa.Column("sale_id", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("r_epoch", sa.Integer(), nullable=False),
        sa.Column("r_seq", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("user_id", _key(64), nullable=False),
        sa.Column("units", sa.BigInteger(), nullable=False),
        sa.Column("state", _key(16), nullable=False),
        sa.Column("release_seq", sa.BigInteger()),
        sa.Column("decided_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("done_at_ms", sa.BigInteger()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "(state = 'pending') = (done_at_ms IS NULL)", name=op.f("ck_releases_done_at")
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'done', 'counted')", name=op.f("ck_releases_state")
        ),
        sa.CheckConstraint("units > 0", name=op.f("ck_releases_units")),
        sa.PrimaryKeyConstraint("reservation_id", name=op.f("pk_releases")),
    )
    op.create_index(
        "ix_releases_pending",
        "releases",
        ["decided_at_ms", "reservation_id"],
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index("ix_releases_sale", "releases", ["sale_id", "reservation_id"])
    op.create_table(
        "stock_changes",
        sa.Column("change_id", _key(64), nullable=False),
        sa.Column("sale_id", sa.BigInteger(), nullable=False),
        sa.Column("delta_units", sa.BigInteger(), nullable=False),
        sa.Column("state", _key(16), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("requested_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("decided_at_ms", sa.BigInteger()),
        sa.Column("counted_at_ms", sa.BigInteger()),
        sa.CheckConstraint(
            "(state = 'pending') = (decided_at_ms IS NULL)",
            name=op.f("ck_stock_changes_decided_at"),
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'applied', 'refused')", name=op.f("ck_stock_changes_state")
        ),
        sa.CheckConstraint("delta_units <> 0", name=op.f("ck_stock_changes_delta_units")),
        sa.PrimaryKeyConstraint("change_id", name=op.f("pk_stock_changes")),
    )
    op.create_index("ix_stock_changes_sale", "stock_changes", ["sale_id", "requested_at_ms"])


def _create_logs() -> None:
    """What happened to orders, and who changed what."""
    op.create_table(
        "order_events",
        sa.Column("event_id", _COUNTED, autoincrement=True, nullable=False),
        sa.Column("reservation_id", _key(32), nullable=False),
        sa.Column("from_state", _key(20), nullable=False),
        sa.Column("to_state", _key(20), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_order_events")),
    )
    op.create_index("ix_order_events_reservation_id", "order_events", ["reservation_id"])
    op.create_table(
        "actions",
        sa.Column("action_id", _COUNTED, autoincrement=True, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("sale_id", sa.BigInteger()),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("action_id", name=op.f("pk_actions")),
    )
    op.create_index("ix_actions_sale_id", "actions", ["sale_id", "action_id"])
