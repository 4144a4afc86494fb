"""Alembic's scripts. They are history: a migration is never changed once it has been released."""
