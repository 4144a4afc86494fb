"""Who may run the shop, and what the background audit found last."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006_admin"
down_revision = "0005_buying_again"
branch_labels = None
depends_on = None

_ROLES = "role IN ('viewer', 'operator', 'admin')"


def _key(chars_max: int) -> sa.String:
    return sa.String(chars_max).with_variant(
        postgresql.VARCHAR(chars_max, collation="C"), "postgresql"
    )


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "admin_users",
        sa.Column("name", _key(64), nullable=False),
        sa.Column("role", _key(16), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("disabled_at_ms", sa.BigInteger()),
        sa.CheckConstraint(_ROLES, name=op.f("ck_admin_users_role")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_admin_users")),
    )
    op.create_table(
        "admin_tokens",
        sa.Column("token_id", _key(16), nullable=False),
        sa.Column("name", _key(64), nullable=False),
        sa.Column("role", _key(16), nullable=False),
        sa.Column("secret_hash", _key(64), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at_ms", sa.BigInteger()),
        sa.CheckConstraint(_ROLES, name=op.f("ck_admin_tokens_role")),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_admin_tokens")),
    )
    op.create_index("ix_admin_tokens_name", "admin_tokens", ["name"])
    op.create_table(
        "setup_links",
        sa.Column("secret_hash", _key(64), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("secret_hash", name=op.f("pk_setup_links")),
    )
    op.create_table(
        "audit_results",
        sa.Column("name", _key(16), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("ok", sa.Boolean(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_audit_results")),
    )


def downgrade() -> None:
    """Forget who may run the shop: a set-up link makes the first admin anew."""
    for table in ("audit_results", "setup_links", "admin_tokens", "admin_users"):
        op.drop_table(table)
