"""At which place Redis says that it has applied a stock change."""

import sqlalchemy as sa
from alembic import op

revision = "0007_places_of_changes"
down_revision = "0006_admin"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two columns to the stock changes."""
    op.add_column("stock_changes", sa.Column("applied_epoch", sa.Integer()))
    op.add_column("stock_changes", sa.Column("applied_seq", sa.BigInteger()))


def downgrade() -> None:
    """Forget the places."""
    op.drop_column("stock_changes", "applied_seq")
    op.drop_column("stock_changes", "applied_epoch")
