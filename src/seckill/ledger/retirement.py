"""Sales whose books are closed for ever: which may be, and that they are.

A sale is retired when it is over since a while, no order of it can move any more, and nothing is
pending between the ledger and Redis. The books keep its story; only its keys leave Redis.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.clock import Clock
from seckill.domain.ids import SaleId
from seckill.domain.order import OrderState
from seckill.domain.reservation import BucketId
from seckill.ledger import statements
from seckill.ledger.engine import Database
from seckill.ledger.epochs import last_written
from seckill.ledger.tables import (
    epochs,
    fences,
    orders,
    payments,
    releases,
    sales,
    stock_changes,
)

__all__ = ["RETIRED_AT_ONCE_MAX", "RetirementBook"]

RETIRED_AT_ONCE_MAX: Final = 20

_MONEY_UNDER_WAY: Final = ("late", "refund_due")
_MOVING: Final = (OrderState.AWAITING_PAYMENT.value, OrderState.REFUND_DUE.value)
"""States that an order leaves without anybody asking."""


def _may_retire(before_ms: int) -> ColumnElement[bool]:
    """Over since before an instant, every order final, nothing pending."""
    of_sale = sales.c.sale_id
    return (
        sales.c.retired_at_ms.is_(None)
        & (func.coalesce(sales.c.closed_at_ms, sales.c.ends_at_ms) < before_ms)
        & (func.coalesce(sales.c.ends_at_ms, sales.c.closed_at_ms) < before_ms)
        & ~exists().where(orders.c.sale_id == of_sale, orders.c.state.in_(_MOVING))
        & ~exists().where(releases.c.sale_id == of_sale, releases.c.state == "pending")
        & ~exists().where(stock_changes.c.sale_id == of_sale, stock_changes.c.state == "pending")
        & ~exists().where(
            orders.c.sale_id == of_sale,
            payments.c.reservation_id == orders.c.reservation_id,
            payments.c.state.in_(_MONEY_UNDER_WAY),
        )
        & ~exists().where(fences.c.sale_id == of_sale, fences.c.outcome.is_(None))
    )


class RetirementBook:
    """Retires sales. Every method raises LedgerUnavailable when the ledger is away."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def ready(self, grace_ms: int) -> list[SaleId]:
        """Sales that may be retired, as far as the books say; at most 20, the oldest first.

        Args:
            grace_ms: how long a sale must have been over.
        """
        query = (
            select(sales.c.sale_id)
            .where(_may_retire(self._clock.now_ms() - grace_ms))
            .order_by(sales.c.sale_id)
            .limit(RETIRED_AT_ONCE_MAX)
        )
        return await self._ids("read which sales may be retired", query)

    async def retire(self, sale_id: SaleId, grace_ms: int) -> bool:
        """Close the books of a sale for ever, if they may be; True when they are closed now.

        What an epoch of it brings afterwards is compensated, never an order.
        """
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> bool:
            await connection.execute(statements.LOCK_SALES, {"sale_ids": [sale_id]})
            retired = await connection.execute(
                update(sales)
                .where(sales.c.sale_id == sale_id, _may_retire(now_ms - grace_ms))
                .values(retired_at_ms=now_ms, version=sales.c.version + 1)
                .returning(sales.c.sale_id)
            )
            if retired.one_or_none() is None:
                return False
            going_on = await connection.execute(
                select(epochs.c.bucket, epochs.c.epoch).where(
                    epochs.c.sale_id == sale_id, epochs.c.valid_to_seq.is_(None)
                )
            )
            for bucket, epoch in going_on.all():
                bucket_id = BucketId(sale_id, bucket)
                await connection.execute(
                    update(epochs)
                    .where(statements.in_bucket(epochs, bucket_id), epochs.c.epoch == epoch)
                    .values(
                        state="closed",
                        valid_to_seq=await last_written(connection, bucket_id, epoch),
                    )
                )
            return True

        return await self._database.write(f"retire sale {sale_id}", work)

    async def is_retired(self, sale_id: SaleId) -> bool:
        """Whether the books of a sale are closed for ever."""
        query = select(sales.c.sale_id).where(
            sales.c.sale_id == sale_id, sales.c.retired_at_ms.is_not(None)
        )
        return bool(await self._ids(f"read whether sale {sale_id} is retired", query))

    async def to_clean(self, settle_ms: int) -> list[tuple[BucketId, int]]:
        """Buckets of retired sales whose keys may leave Redis now, each with its last epoch.

        Args:
            settle_ms: how long every process has had to learn that the sale is retired.
        """
        query = (
            select(epochs.c.sale_id, epochs.c.bucket, func.max(epochs.c.epoch))
            .join(sales, sales.c.sale_id == epochs.c.sale_id)
            .where(
                sales.c.retired_at_ms < self._clock.now_ms() - settle_ms,
                sales.c.cleaned_at_ms.is_(None),
            )
            .group_by(epochs.c.sale_id, epochs.c.bucket)
            .order_by(epochs.c.sale_id, epochs.c.bucket)
            .limit(RETIRED_AT_ONCE_MAX)
        )

        async def work(connection: AsyncConnection) -> list[tuple[BucketId, int]]:
            rows = await connection.execute(query)
            return [(BucketId(sale_id, bucket), epoch) for sale_id, bucket, epoch in rows]

        return await self._database.read("read which keys may leave Redis", work)

    async def cleaned(self, sale_ids: Sequence[SaleId]) -> None:
        """The keys of these sales have left Redis."""
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(
                update(sales)
                .where(sales.c.sale_id.in_(sale_ids), sales.c.cleaned_at_ms.is_(None))
                .values(cleaned_at_ms=now_ms)
            )

        await self._database.write("note that keys have left Redis", work)

    async def _ids(self, doing: str, query: Select[Any]) -> list[SaleId]:
        async def work(connection: AsyncConnection) -> list[SaleId]:
            return [SaleId(sale_id) for sale_id in await connection.scalars(query)]

        return await self._database.read(doing, work)
