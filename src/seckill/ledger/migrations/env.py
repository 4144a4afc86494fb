"""Runs the migrations on the connection, and in the transaction, that `schema.py` hands over."""

from alembic import context

from seckill.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter most of a table in place: Alembic makes a new one and copies.
    render_as_batch=True,
)
context.run_migrations()
