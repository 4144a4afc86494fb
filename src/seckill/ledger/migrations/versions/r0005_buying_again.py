"""Whether who gave an order up may buy again, and which units count against a limit for ever."""

import sqlalchemy as sa
from alembic import op

revision = "0005_buying_again"
down_revision = "0004_retirement"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column to the sales and one to the releases; as it was, everybody may buy again."""
    op.add_column(
        "sales", sa.Column("may_buy_again", sa.Boolean(), nullable=False, server_default=sa.true())
    )
    op.add_column(
        "releases", sa.Column("spent", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    """Let everybody buy again: what was spent stays counted in the holdings, and is found there."""
    op.drop_column("releases", "spent")
    op.drop_column("sales", "may_buy_again")
