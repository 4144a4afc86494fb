"""What a batch costs, counted instead of timed: statements, and rows looked at by their key."""

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from contract.ledger.kit import open_shop
from seckill.ledger import Database, SQLLedger

Statements = list[tuple[str, object, bool]]


async def statements_of_one_batch(
    ledger: SQLLedger, database: Database, already: int, size: int
) -> Statements:
    shop = await open_shop(ledger, stock=1_000_000)
    for first in range(1, already + 1, 5_000):
        last = min(first + 4_999, already)
        await ledger.write([shop.admitted(seq) for seq in range(first, last + 1)])
    seen: Statements = []

    def note(
        _c: Connection, _k: object, statement: str, parameters: object, _x: object, many: bool
    ) -> None:
        seen.append((statement, parameters, many))

    event.listen(database._engine.sync_engine, "before_cursor_execute", note)
    try:
        report = await ledger.write(
            [shop.admitted(seq) for seq in range(already + 1, already + size + 1)]
        )
    finally:
        event.remove(database._engine.sync_engine, "before_cursor_execute", note)
    assert report.ordered == size
    return [found for found in seen if not found[0].startswith("BEGIN")]


async def test_a_batch_costs_a_handful_of_statements_whatever_its_size(
    ledger: SQLLedger, database: Database
) -> None:
    small = await statements_of_one_batch(ledger, database, 0, 2)
    large = await statements_of_one_batch(ledger, database, 0, 900)
    assert len(small) == len(large) == 8


async def test_a_batch_looks_rows_up_by_their_key_in_tables_without_statistics(
    ledger: SQLLedger, database: Database
) -> None:
    """The first minute of a sale: 20,000 orders are there, and nobody has analysed the tables.

    A plan that reads a whole table for each batch makes the ledger slower with every order.
    """
    seen = await statements_of_one_batch(ledger, database, 20_000, 50)
    explain = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
    plans: dict[str, str] = {}

    async def work(connection: AsyncConnection) -> None:
        for statement, parameters, _ in seen:
            rows = await connection.exec_driver_sql(explain + statement, parameters)  # type: ignore[arg-type]
            plans[statement] = "\n".join(str(row[-1]) for row in rows)

    await database.read("explain", work)
    assert any("orders" in plan for plan in plans.values())
    for statement, plan in plans.items():
        for table in ("orders", "holdings", "bucket_events"):
            assert f"SCAN {table}" not in plan, (statement, plan)
            assert f"Seq Scan on {table}" not in plan, (statement, plan)
        # Reading all holdings of the sale and throwing most of them away is no look by key either.
        assert "Filter: ((user_id" not in plan, (statement, plan)
        assert "Filter: (user_id" not in plan, (statement, plan)
