"""The tables brought to the state that this version of the software needs.

Every process may call `ensure_schema` at its start, all at once: the usual case is one small read,
without Alembic being imported, and a migration runs in one transaction under a lock.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.ledger.engine import Database
from seckill.ledger.errors import SchemaUnknown

__all__ = ["HEAD", "ensure_schema"]

HEAD: Final = "0007_places_of_changes"
"""The newest migration in ``migrations/versions``; a test compares the two."""

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_MIGRATION_MS_MAX: Final = 3_600_000
_LOCK_KEY: Final = 0x5EC_0000_0001
"""Which advisory lock on PostgreSQL means "somebody migrates these books"."""

_log = structlog.get_logger(__name__)


async def ensure_schema(database: Database) -> None:
    """Create the tables, or bring them up to date; nothing to do is the usual case.

    Raises:
        SchemaUnknown: the tables were made by another, probably newer, version.
        LedgerUnavailable: nothing was changed; call again.
    """
    version = await database.read("read the version of its tables", _version)
    if version == HEAD:
        return
    # A migration may rightly take long, and so may waiting for the process that does it.
    patient = Database(
        replace(
            database.options,
            statement_timeout_ms=_MIGRATION_MS_MAX,
            lock_timeout_ms=_MIGRATION_MS_MAX,
            pool_size=1,
        )
    )
    try:
        await patient.write("bring its tables up to date", _upgrade)
    finally:
        await patient.dispose()


async def _version(connection: AsyncConnection) -> str | None:
    if not await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
        return None
    version: str | None = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    return version


async def _upgrade(connection: AsyncConnection) -> None:
    if connection.dialect.name == "postgresql":
        # SQLite needs no lock of its own: the transaction has begun with the write lock.
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        await _warn_of_lost_commits(connection)
    version = await _version(connection)
    if version == HEAD:
        return  # another process was faster
    _log.info("the ledger is brought up to date", from_version=version, to_version=HEAD)
    await connection.run_sync(_run_migrations, version)


async def _warn_of_lost_commits(connection: AsyncConnection) -> None:
    for setting in ("fsync", "synchronous_commit"):
        value = await connection.scalar(text(f"SHOW {setting}"))
        if value == "off":
            _log.warning(
                "the ledger may lose commits",
                setting=setting,
                advice="an order that was acknowledged may be gone after a power failure",
            )


def _run_migrations(connection: Connection, version: str | None) -> None:
    # Alembic takes a fifth of a second to import, and only a migration needs it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415
    from alembic.util.exc import CommandError  # noqa: PLC0415

    config = Config()
    # Alembic reads % as the beginning of a placeholder.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    if version is not None:
        try:
            ScriptDirectory.from_config(config).get_revision(version)
        except CommandError:
            raise SchemaUnknown(
                f"the tables of the ledger are of version {version}, this software knows up to"
                f" {HEAD}: use the software that made them, or a newer one"
            ) from None
    command.upgrade(config, "head")
