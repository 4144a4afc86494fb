"""What the background audit found last, for every host to read."""

from typing import Any, Final

import msgspec
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.ledger.engine import Database
from seckill.ledger.errors import KeyTaken
from seckill.ledger.tables import audit_results

__all__ = ["AuditResults"]

_BACKGROUND: Final = "background"


class AuditResults:
    """One row: the newest report. Raises LedgerUnavailable when it cannot be asked now."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, report: dict[str, Any], *, ok: bool, at_ms: int) -> None:
        """Keep a report in place of the one before."""
        values = {"at_ms": at_ms, "ok": ok, "report": msgspec.json.encode(report).decode()}

        async def change(connection: AsyncConnection) -> bool:
            changed = await connection.execute(
                update(audit_results).where(audit_results.c.name == _BACKGROUND).values(**values)
            )
            return changed.rowcount > 0

        async def add(connection: AsyncConnection) -> None:
            await connection.execute(insert(audit_results).values(name=_BACKGROUND, **values))

        if not await self._database.write("keep what the audit found", change):
            try:
                await self._database.write("keep what the audit found", add)
            except KeyTaken:  # another worker was first: its report is as new as this one
                return

    async def latest(self) -> tuple[int, dict[str, Any]] | None:
        """When the newest report was made, and the report; None before the first."""
        query = select(audit_results.c.at_ms, audit_results.c.report).where(
            audit_results.c.name == _BACKGROUND
        )

        async def work(connection: AsyncConnection) -> tuple[int, dict[str, Any]] | None:
            row = (await connection.execute(query)).one_or_none()
            return None if row is None else (row.at_ms, msgspec.json.decode(row.report))

        return await self._database.read("read what the audit found", work)
