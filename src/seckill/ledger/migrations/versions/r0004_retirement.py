"""When the books of a sale were closed for ever, and when its keys left Redis."""

import sqlalchemy as sa
from alembic import op

revision = "0004_retirement"
down_revision = "0003_payments"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two columns to the sales."""
    op.add_column("sales", sa.Column("retired_at_ms", sa.BigInteger()))
    op.add_column("sales", sa.Column("cleaned_at_ms", sa.BigInteger()))


def downgrade() -> None:
    """Forget what was retired: the keeper will miss the buckets of those sales."""
    op.drop_column("sales", "cleaned_at_ms")
    op.drop_column("sales", "retired_at_ms")
