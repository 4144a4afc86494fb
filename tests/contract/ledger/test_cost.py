"""What a batch costs, counted instead of timed: statements, and rows looked at by their key."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from contract.ledger.kit import copies_seen, open_shop
from seckill.domain.events import Admitted
from seckill.ledger import Database, SQLLedger
from seckill.pipeline.ports import WriteReport

Statements = list[tuple[str, object, bool]]


@contextmanager
def statements_seen(database: Database) -> Iterator[Statements]:
    """What is sent to the database within the block, but for the beginnings of transactions."""
    seen: Statements = []

    def note(
        _c: Connection, _k: object, statement: str, parameters: object, _x: object, many: bool
    ) -> None:
        if not statement.startswith("BEGIN"):
            seen.append((statement, parameters, many))

    event.listen(database._engine.sync_engine, "before_cursor_execute", note)
    forget_copies = copies_seen(lambda table: seen.append((f"COPY {table}", None, False)))
    try:
        yield seen
    finally:
        forget_copies()
        event.remove(database._engine.sync_engine, "before_cursor_execute", note)


async def statements_of_one_batch(
    ledger: SQLLedger, database: Database, already: int, size: int
) -> Statements:
    shop = await open_shop(ledger, stock=1_000_000)
    for first in range(1, already + 1, 5_000):
        last = min(first + 4_999, already)
        await ledger.write([shop.admitted(seq) for seq in range(first, last + 1)])
    with statements_seen(database) as seen:
        report = await ledger.write(
            [shop.admitted(seq) for seq in range(already + 1, already + size + 1)]
        )
    assert report.ordered == size
    return seen


async def test_a_batch_costs_a_handful_of_statements_whatever_its_size(
    ledger: SQLLedger, database: Database
) -> None:
    small = await statements_of_one_batch(ledger, database, 0, 2)
    large = await statements_of_one_batch(ledger, database, 0, 900)
    assert len(small) == len(large) == 8


async def test_orders_are_looked_for_only_where_some_have_come_again(
    ledger: SQLLedger, database: Database
) -> None:
    """Looking for every order before it is written costs half as much again as writing it."""
    shop = await open_shop(ledger, stock=1_000)
    one, two, three, four = ([shop.admitted(n + 10 * b) for n in range(1, 10)] for b in range(4))

    async def inserts(events: list[Admitted]) -> tuple[WriteReport, list[bool]]:
        """The report, and of each insert of orders whether it looked."""
        with statements_seen(database) as seen:
            report = await ledger.write(events)
        return report, [
            "ON CONFLICT" in s
            for s, _, _ in seen
            if s.startswith("INSERT INTO orders") or s == "COPY orders"
        ]

    assert await inserts(one) == (WriteReport(ordered=9), [False])
    assert await inserts(two) == (WriteReport(ordered=9), [False])
    # The topic is read again from its start: the first batch finds out, the second knows.
    assert await inserts(one) == (WriteReport(known=9), [False, True])
    assert await inserts([*two[:5], *three]) == (WriteReport(ordered=9, known=5), [True])
    # And when everything is new again, one batch later it is quick again.
    assert await inserts([shop.admitted(99)]) == (WriteReport(ordered=1), [True])
    assert await inserts(four) == (WriteReport(ordered=9), [False])
    assert await shop.sold() == 37


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
        for statement, parameters, many in seen:
            if statement.startswith("COPY"):
                continue  # looks nothing up
            first = parameters[0] if many else parameters  # type: ignore[index]
            rows = await connection.exec_driver_sql(explain + statement, first)
            plans[statement] = "\n".join(str(row[-1]) for row in rows)

    await database.read("explain", work)
    assert any("holdings" in plan for plan in plans.values())
    for statement, plan in plans.items():
        for table in ("orders", "holdings", "bucket_events"):
            assert f"SCAN {table}" not in plan, (statement, plan)
            assert f"Seq Scan on {table}" not in plan, (statement, plan)
        # Reading all holdings of the sale and throwing most of them away is no look by key either.
        assert "Filter: ((user_id" not in plan, (statement, plan)
        assert "Filter: (user_id" not in plan, (statement, plan)
