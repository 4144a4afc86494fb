"""All that the books say of one reservation, for the story of one purchase."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.ids import ReservationId
from seckill.domain.reservation import Place
from seckill.ledger import statements
from seckill.ledger.engine import Database
from seckill.ledger.tables import (
    collisions,
    epochs,
    fences,
    losses,
    order_events,
    orders,
    releases,
    sales,
)

__all__ = ["BookedStory", "StoryReading"]

_ROWS_MAX = 200


@dataclass(frozen=True, slots=True)
class BookedStory:
    """Rows of the ledger about one reservation, each as a dictionary of its columns.

    Attributes:
        sale: None when the ledger knows no such sale.
        epochs: the opening in which it was made, and those after it.
        fences: the fences of its bucket from that opening on.
    """

    sale: dict[str, Any] | None
    order: dict[str, Any] | None
    events: list[dict[str, Any]]
    release: dict[str, Any] | None
    collisions: list[dict[str, Any]]
    loss: dict[str, Any] | None
    epochs: list[dict[str, Any]]
    fences: list[dict[str, Any]]


class StoryReading:
    """Reads stories. Raises LedgerUnavailable when the ledger is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def story(self, reservation_id: ReservationId, place: Place) -> BookedStory:
        """What the books say of a reservation and of its place; at most 200 rows of a kind."""

        async def work(connection: AsyncConnection) -> BookedStory:
            async def rows(table: Table, *where: Any, by: Any) -> list[dict[str, Any]]:
                query = select(table).where(*where).order_by(by).limit(_ROWS_MAX)
                return [dict(row) for row in (await connection.execute(query)).mappings()]

            def named(table: Table) -> Any:
                return table.c.reservation_id == reservation_id

            async def one(table: Table) -> dict[str, Any] | None:
                found = await rows(table, named(table), by=table.c.reservation_id)
                return found[0] if found else None

            sale = await rows(sales, sales.c.sale_id == place.sale_id, by=sales.c.sale_id)
            since = statements.in_bucket(epochs, place.bucket_id), epochs.c.epoch >= place.epoch
            fenced = statements.in_bucket(fences, place.bucket_id), fences.c.epoch >= place.epoch
            return BookedStory(
                sale=sale[0] if sale else None,
                order=await one(orders),
                events=await rows(order_events, named(order_events), by=order_events.c.event_id),
                release=await one(releases),
                collisions=await rows(
                    collisions, named(collisions), by=collisions.c.recorded_at_ms
                ),
                loss=await one(losses),
                epochs=await rows(epochs, *since, by=epochs.c.epoch),
                fences=await rows(fences, *fenced, by=fences.c.epoch),
            )

        return await self._database.read(f"read the story of {reservation_id}", work)
