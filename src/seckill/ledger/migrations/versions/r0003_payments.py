"""Payments, and orders that end by themselves: expiry, late money, and the edges of an order."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003_payments"
down_revision = "0002_fence"
branch_labels = None
depends_on = None

# The guard of the edges as it was made by this migration; later ones bring their own.
_SQLITE_GUARD = (
    (
        "CREATE TRIGGER orders_first_state BEFORE INSERT ON orders FOR EACH ROW WHEN "
        "NEW.state NOT IN ('awaiting_payment', 'compensated') BEGIN SELECT RAISE(ABORT, 'an "
        "order cannot begin in this state'); END"
    ),
    (
        "CREATE TRIGGER orders_edges BEFORE UPDATE OF state ON orders FOR EACH ROW WHEN "
        "NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN "
        "('awaiting_payment>cancelled', 'awaiting_payment>expired', 'awaiting_payment>paid', "
        "'cancelled>refund_due', 'compensated>refund_due', 'expired>refund_due', "
        "'paid>refund_due', 'refund_due>refunded') AND NOT (OLD.state = 'awaiting_payment' "
        "AND NEW.state = 'compensated' AND NOT EXISTS (SELECT 1 FROM order_events WHERE "
        "reservation_id = OLD.reservation_id)) BEGIN SELECT RAISE(ABORT, 'an order cannot go "
        "from this state to that one'); END"
    ),
)
_POSTGRESQL_GUARD = (
    (
        "CREATE FUNCTION orders_refuse_state() RETURNS trigger LANGUAGE plpgsql AS $guard$\n"
        "BEGIN\n"
        "  IF TG_OP = 'INSERT' THEN\n"
        "    RAISE EXCEPTION 'order % cannot begin as %', NEW.reservation_id, NEW.state\n"
        "      USING ERRCODE = 'check_violation';\n"
        "  ELSIF NOT (OLD.state = 'awaiting_payment' AND NEW.state = 'compensated' AND NOT "
        "EXISTS (SELECT 1 FROM order_events WHERE reservation_id = OLD.reservation_id)) THEN\n"
        "    RAISE EXCEPTION 'order % cannot go from % to %', OLD.reservation_id, OLD.state,\n"
        "      NEW.state USING ERRCODE = 'check_violation';\n"
        "  END IF;\n"
        "  RETURN NEW;\n"
        "END\n"
        "$guard$"
    ),
    (
        "CREATE TRIGGER orders_first_state BEFORE INSERT ON orders FOR EACH ROW WHEN "
        "(NEW.state NOT IN ('awaiting_payment', 'compensated')) EXECUTE FUNCTION "
        "orders_refuse_state()"
    ),
    (
        "CREATE TRIGGER orders_edges BEFORE UPDATE OF state ON orders FOR EACH ROW WHEN "
        "(NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN "
        "('awaiting_payment>cancelled', 'awaiting_payment>expired', 'awaiting_payment>paid', "
        "'cancelled>refund_due', 'compensated>refund_due', 'expired>refund_due', "
        "'paid>refund_due', 'refund_due>refunded')) EXECUTE FUNCTION orders_refuse_state()"
    ),
)


def _key(chars_max: int) -> sa.String:
    return sa.String(chars_max).with_variant(
        postgresql.VARCHAR(chars_max, collation="C"), "postgresql"
    )


def upgrade() -> None:
    """Add the columns, the tables and the guard."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    _add_columns(collation="" if is_sqlite else ' COLLATE "C"')
    _create_payments()
    for statement in _SQLITE_GUARD if is_sqlite else _POSTGRESQL_GUARD:
        op.execute(statement)


def downgrade() -> None:
    """Forget every payment. The states of the orders stay."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for trigger in ("orders_edges", "orders_first_state"):
        op.execute(f"DROP TRIGGER {trigger}{'' if is_sqlite else ' ON orders'}")
    if not is_sqlite:
        op.execute("DROP FUNCTION orders_refuse_state()")
    for table in ("payment_events", "payments", "expiry_setbacks"):
        op.drop_table(table)
    op.drop_index("ix_orders_due", "orders")
    op.create_index("ix_orders_due", "orders", ["state", "pay_by_ms"])
    # In this order: a column goes only when no check of another one names it.
    for table, column in (
        ("orders", "paid_at_ms"),
        ("orders", "continued_as"),
        ("sales", "late_payment"),
    ):
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")


def _add_columns(collation: str) -> None:
    """By plain statements: Alembic would copy a whole table of SQLite to add a checked column."""
    for statement in (
        (
            f"ALTER TABLE sales ADD COLUMN late_payment VARCHAR(16){collation}"
            " DEFAULT 'take_free_unit' NOT NULL CONSTRAINT ck_sales_late_payment"
            " CHECK (late_payment IN ('take_free_unit', 'refund'))"
        ),
        (
            "ALTER TABLE orders ADD COLUMN paid_at_ms BIGINT"
            " CONSTRAINT ck_orders_paid_at CHECK (state <> 'paid' OR paid_at_ms IS NOT NULL)"
            " CONSTRAINT ck_orders_paid_state"
            " CHECK (paid_at_ms IS NULL OR state IN ('paid', 'refund_due', 'refunded'))"
        ),
        f"ALTER TABLE orders ADD COLUMN continued_as VARCHAR(32){collation}",
    ):
        op.execute(statement)
    op.drop_index("ix_orders_due", "orders")
    op.create_index(
        "ix_orders_due",
        "orders",
        ["pay_by_ms", "reservation_id"],
        sqlite_where=sa.text("state = 'awaiting_payment'"),
        postgresql_where=sa.text("state = 'awaiting_payment'"),
    )


def _create_payments() -> None:
    """What buyers pay, what providers tell, and which orders cannot be expired."""
    op.create_table(
        "expiry_setbacks",
        sa.Column("reservation_id", _key(32), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("first_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("next_try_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.CheckConstraint("tries > 0", name=op.f("ck_expiry_setbacks_tries")),
        sa.PrimaryKeyConstraint("reservation_id", name=op.f("pk_expiry_setbacks")),
    )
    op.create_table(
        "payments",
        sa.Column("payment_id", _key(32), nullable=False),
        sa.Column("reservation_id", _key(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("amount_fen", sa.BigInteger(), nullable=False),
        sa.Column("currency", _key(3), nullable=False),
        sa.Column("state", _key(16), nullable=False),
        sa.Column("page_url", sa.Text()),
        sa.Column("started_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("deadline_ms", sa.BigInteger(), nullable=False),
        sa.Column("received_fen", sa.BigInteger()),
        sa.Column("received_currency", _key(3)),
        sa.Column("received_at_ms", sa.BigInteger()),
        sa.Column("pays", _key(32)),
        sa.Column("reason", sa.Text()),
        sa.Column("refunds", sa.Integer(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_try_at_ms", sa.BigInteger()),
        sa.Column("ended_at_ms", sa.BigInteger()),
        sa.CheckConstraint("amount_fen >= 0", name=op.f("ck_payments_amount")),
        sa.CheckConstraint("attempt > 0", name=op.f("ck_payments_attempt")),
        sa.CheckConstraint(
            "(state IN ('late', 'refund_due')) = (next_try_at_ms IS NOT NULL)",
            name=op.f("ck_payments_next_try"),
        ),
        sa.CheckConstraint(
            "state <> 'paid' OR pays IS NOT NULL", name=op.f("ck_payments_paid_pays")
        ),
        sa.CheckConstraint(
            "pays IS NULL OR state IN ('paid', 'refund_due', 'refunded')",
            name=op.f("ck_payments_pays_state"),
        ),
        sa.CheckConstraint(
            "(received_at_ms IS NULL) = (state IN ('started', 'failed'))",
            name=op.f("ck_payments_received"),
        ),
        sa.CheckConstraint(
            "state IN ('started', 'failed', 'paid', 'late', 'refund_due', 'refunded')",
            name=op.f("ck_payments_state"),
        ),
        sa.PrimaryKeyConstraint("payment_id", name=op.f("pk_payments")),
        sa.UniqueConstraint("reservation_id", "attempt", name="uq_payments_attempt"),
    )
    op.create_index(
        "uq_payments_pays",
        "payments",
        ["pays"],
        unique=True,
        sqlite_where=sa.text("state = 'paid'"),
        postgresql_where=sa.text("state = 'paid'"),
    )
    op.create_index(
        "ix_payments_due",
        "payments",
        ["next_try_at_ms", "payment_id"],
        sqlite_where=sa.text("next_try_at_ms IS NOT NULL"),
        postgresql_where=sa.text("next_try_at_ms IS NOT NULL"),
    )
    op.create_table(
        "payment_events",
        sa.Column("event_id", _key(128), nullable=False),
        sa.Column("payment_id", _key(64), nullable=False),
        sa.Column("kind", _key(32), nullable=False),
        sa.Column("amount_fen", sa.BigInteger()),
        sa.Column("currency", _key(3)),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("received_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("content_hash", _key(64), nullable=False),
        sa.Column("outcome", _key(16), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.CheckConstraint(
            "outcome IN ('applied', 'ignored')", name=op.f("ck_payment_events_outcome")
        ),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_payment_events")),
    )
    op.create_index("ix_payment_events_payment_id", "payment_events", ["payment_id"])
