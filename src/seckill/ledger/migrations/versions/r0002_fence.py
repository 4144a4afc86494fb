"""The fence: what was noticed and how it went on, the marks of every host, the losses by name."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002_fence"
down_revision = "0001"
branch_labels = None
depends_on = None


def _key(chars_max: int) -> sa.String:
    return sa.String(chars_max).with_variant(
        postgresql.VARCHAR(chars_max, collation="C"), "postgresql"
    )


def upgrade() -> None:
    """Add three tables, and to the folders of marks when they were left."""
    op.add_column("mark_folders", sa.Column("left_at_ms", sa.BigInteger()))
    op.create_table(
        "fences",
        sa.Column("sale_id", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("needs_operator", sa.Boolean(), nullable=False),
        sa.Column("noticed_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("claimed_by", sa.Text()),
        sa.Column("claim_beats", sa.Integer(), nullable=False),
        sa.Column("outcome", _key(16)),
        sa.Column("new_epoch", sa.Integer()),
        sa.Column("reopened_at_ms", sa.BigInteger()),
        sa.Column("put_units", sa.BigInteger()),
        sa.Column("held_units", sa.BigInteger()),
        sa.Column("buyers", sa.BigInteger()),
        sa.Column("recovered_orders", sa.BigInteger(), nullable=False),
        sa.Column("withheld_units", sa.BigInteger(), nullable=False),
        sa.Column("unknown", sa.Text(), nullable=False),
        sa.CheckConstraint("outcome IN ('carried_on', 'rebuilt')", name=op.f("ck_fences_outcome")),
        sa.CheckConstraint(
            "(outcome IS NULL) = (reopened_at_ms IS NULL)"
            " AND (outcome IS NULL) = (new_epoch IS NULL)",
            name=op.f("ck_fences_reopened"),
        ),
        sa.PrimaryKeyConstraint("sale_id", "bucket", "epoch", name=op.f("pk_fences")),
    )
    op.create_index(
        "uq_fences_open",
        "fences",
        ["sale_id", "bucket"],
        unique=True,
        sqlite_where=sa.text("outcome IS NULL"),
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.create_table(
        "known_marks",
        sa.Column("folder_id", _key(32), nullable=False),
        sa.Column("sale_id", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("answered", sa.Boolean(), nullable=False),
        sa.Column("reported_at_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("seq >= 0", name=op.f("ck_known_marks_seq")),
        sa.PrimaryKeyConstraint(
            "sale_id", "bucket", "epoch", "folder_id", name=op.f("pk_known_marks")
        ),
    )
    op.create_table(
        "losses",
        sa.Column("reservation_id", _key(32), nullable=False),
        sa.Column("sale_id", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("named_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("fence_epoch", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("reservation_id", name=op.f("pk_losses")),
        sa.UniqueConstraint("sale_id", "bucket", "epoch", "seq", name="uq_losses_place"),
    )


def downgrade() -> None:
    """Without the fence's own books."""
    for table in ("losses", "known_marks", "fences"):
        op.drop_table(table)
    with op.batch_alter_table("mark_folders") as folders:
        folders.drop_column("left_at_ms")
