"""What the ledger's tests share: a clock that is moved by hand, and a sale with its bucket."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.events import Admitted, Released, StockChanged
from seckill.domain.ids import AttemptId, GoodsId, SaleId, UserId
from seckill.domain.order import HOLDING_STATES
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import LatePayment, NewSale, Sale
from seckill.ledger import Database, SQLLedger
from seckill.ledger.tables import (
    actions,
    bucket_events,
    collisions,
    epochs,
    holdings,
    order_events,
    orders,
    releases,
    sales,
    stock_changes,
)

__all__ = [
    "ID_KEY",
    "NOW_MS",
    "HandClock",
    "Shop",
    "assert_sound",
    "copies_seen",
    "dump",
    "open_shop",
    "rows",
]

ID_KEY = bytes(range(16))
NOW_MS = 1_800_000_000_000
_goods = itertools.count(1)


def copies_seen(note: Callable[[str], object]) -> Callable[[], None]:
    """Tell of every COPY to PostgreSQL before it begins: SQLAlchemy does not see it.

    Returns:
        What ends it.
    """
    real = asyncpg.Connection.copy_records_to_table

    async def copy(connection: Any, table: str, **what: Any) -> Any:
        note(table)
        return await real(connection, table, **what)

    def end() -> None:
        asyncpg.Connection.copy_records_to_table = real

    asyncpg.Connection.copy_records_to_table = copy
    return end


class HandClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.at_ms = NOW_MS

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> float:
        return float(self.at_ms)


@dataclass
class Shop:
    """One sale and what its bucket says."""

    ledger: SQLLedger
    sale: Sale

    @property
    def bucket_id(self) -> BucketId:
        return BucketId(self.sale.sale_id, 0)

    def place(self, seq: int, epoch: int = 1) -> Place:
        return Place(self.sale.sale_id, epoch, 0, seq)

    def admitted(
        self, seq: int, user: str | None = None, quantity: int = 1, *, epoch: int = 1
    ) -> Admitted:
        name = user or f"user-{seq}"
        return Admitted(
            self.place(seq, epoch),
            UserId(name),
            quantity,
            AttemptId(f"a-{epoch}-{seq}-{name}"),
            NOW_MS - 10,
        )

    def released(self, seq: int, of: Admitted, *, epoch: int = 1) -> Released:
        return Released(self.place(seq, epoch), of.place, of.user_id, of.quantity, NOW_MS)

    def stock(self, seq: int, change_id: str, delta_units: int, *, epoch: int = 1) -> StockChanged:
        return StockChanged(self.place(seq, epoch), change_id, delta_units, NOW_MS)

    async def now(self) -> Sale:
        sale = await self.ledger.sales.sale(self.sale.sale_id)
        assert sale is not None
        return sale

    async def sold(self) -> int:
        async with self.ledger.audit.books() as books:
            sums = await books.sums(self.sale.sale_id)
        assert sums is not None
        return sums.sold_units

    async def states(self) -> dict[str, str]:
        """User id to the state of their order (the last one by seq)."""
        async with self.ledger.audit.books() as books:
            return {
                order.user_id: order.state.value
                async for some in books.orders(self.sale.sale_id)
                for order in some
            }


async def open_shop(
    ledger: SQLLedger,
    *,
    stock: int = 100,
    limit: int = 1,
    goods: str | None = None,
    late_payment: str = "take_free_unit",
    may_buy_again: bool = True,
) -> Shop:
    sale = await ledger.sales.create_sale(
        NewSale(
            goods_id=GoodsId(goods or f"goods-{next(_goods)}"),
            stock_units=stock,
            limit_per_user=limit,
            price_fen=4900,
            starts_at_ms=NOW_MS - 1000,
            late_payment=LatePayment(late_payment),
            may_buy_again=may_buy_again,
        ),
        actor="tester",
    )
    return Shop(ledger, sale)


async def assert_sound(ledger: SQLLedger, sale_id: SaleId) -> None:
    """The promises, read from the books: sums agree, limits hold, every place is there once."""
    async with ledger.audit.books() as books:
        sums = await books.sums(sale_id)
        assert sums is not None
        assert sums.sold_units == sums.live_units == sums.held_units <= sums.stock_units
        assert await books.holding_faults(sale_id) == []
        places: Counter[Place] = Counter()
        async for some in books.orders(sale_id):
            places.update(order.place for order in some)
        async for events in books.bucket_events(sale_id):
            places.update(event.place for event in events)
        assert all(count == 1 for count in places.values())
        live = [
            order
            async for some in books.orders(sale_id)
            for order in some
            if order.state in HOLDING_STATES
        ]
        assert sum(order.quantity for order in live) == sums.sold_units


async def rows(database: Database, table: Table) -> list[dict[str, object]]:
    """Every row of a table, in the order of its key."""

    async def work(connection: AsyncConnection) -> list[dict[str, object]]:
        result = await connection.execute(select(table).order_by(*table.primary_key.columns))
        return [dict(row._mapping) for row in result]

    return await database.read("read a table", work)


async def dump(database: Database) -> dict[str, list[dict[str, object]]]:
    """Everything that is written, to compare."""
    tables = (
        sales, epochs, orders, holdings, bucket_events, collisions, releases, stock_changes,
        order_events, actions,
    )  # fmt: skip
    return {table.name: await rows(database, table) for table in tables}
