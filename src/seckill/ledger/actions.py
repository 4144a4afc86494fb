"""The action log: who changed what, when and why, the newest first."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.clock import Clock
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import SaleId
from seckill.ledger.engine import Database
from seckill.ledger.records import check_actor, check_reason, record_action
from seckill.ledger.tables import actions

__all__ = ["ACTIONS_PER_PAGE_MAX", "Action", "ActionLog"]

ACTIONS_PER_PAGE_MAX: Final = 201
"""One more than a page tells whether there is another."""


@dataclass(frozen=True, slots=True)
class Action:
    """One change that somebody made.

    Attributes:
        detail: the reason, and the changed values before and after.
    """

    action_id: int
    at_ms: int
    actor: str
    action: str
    sale_id: SaleId | None
    detail: dict[str, Any]


class ActionLog:
    """Reads the action log, and writes what no other book does."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def page(
        self,
        actions_max: int,
        *,
        before: int | None = None,
        actor: str | None = None,
        sale_id: SaleId | None = None,
    ) -> list[Action]:
        """Actions, the newest first.

        Args:
            actions_max: 1 to 201.
            before: the action id that the page before ended with.
            actor: of this one only.
            sale_id: on this sale only.

        Raises:
            InvalidValue: naming ``limit``.
        """
        if not 1 <= actions_max <= ACTIONS_PER_PAGE_MAX:
            raise InvalidValue("limit", f"must be from 1 to {ACTIONS_PER_PAGE_MAX - 1}")
        query = select(actions).order_by(actions.c.action_id.desc()).limit(actions_max)
        for column, value in ((actions.c.actor, actor), (actions.c.sale_id, sale_id)):
            if value is not None:
                query = query.where(column == value)
        if before is not None:
            query = query.where(actions.c.action_id < before)

        async def work(connection: AsyncConnection) -> list[Action]:
            return [
                Action(
                    row.action_id,
                    row.at_ms,
                    row.actor,
                    row.action,
                    row.sale_id,
                    msgspec.json.decode(row.detail),
                )
                for row in await connection.execute(query)
            ]

        return await self._database.read("read the action log", work)

    async def note(self, action: str, *, actor: str, reason: str, **detail: object) -> None:
        """Write down what is changed somewhere else than in these books.

        Raises:
            InvalidValue: naming ``actor`` or ``reason``.
        """
        check_actor(actor)
        check_reason(reason)
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            await record_action(
                connection,
                at_ms=now_ms,
                actor=actor,
                action=action,
                sale_id=None,
                detail={"reason": reason, **detail},
            )

        await self._database.write(f"note {action} in the action log", work)
