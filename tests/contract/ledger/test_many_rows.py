"""Rows that travel as arrays arrive as they are, or not at all."""

import asyncpg
import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.ledger import Database
from seckill.ledger.many_rows import ManyRows
from seckill.ledger.tables import holdings

HELD = ManyRows(
    holdings,
    ["user_id", "sale_id", "units"],
    same=["limit_units"],
    key=["sale_id", "user_id"],
    added="units",
)


async def held(connection: AsyncConnection) -> list[tuple[object, ...]]:
    return [
        tuple(row)
        for row in await connection.execute(select(holdings).order_by(holdings.c.user_id))
    ]


async def test_each_value_arrives_in_its_own_column(database: Database) -> None:
    users = ["a", "e\u0301", "\u00e9", "\U0001f600", "{1,2}", "NULL", '"', "\\\\"]

    async def work(connection: AsyncConnection) -> list[tuple[object, ...]]:
        rows = {"user_id": users, "sale_id": range(1, 9), "units": [2**40] * 8}
        await HELD.insert(connection, {**rows, "limit_units": 2**41})
        return await held(connection)

    assert set(await database.write("insert", work)) == {
        (sale_id, user, 2**40, 2**41) for sale_id, user in enumerate(users, 1)
    }


async def test_what_is_there_is_left_or_added_to(database: Database) -> None:
    async def work(connection: AsyncConnection) -> None:
        def rows(*users: str) -> dict[str, object]:
            count = len(users)
            return {
                "user_id": users,
                "sale_id": [7] * count,
                "units": [2] * count,
                "limit_units": 5,
            }

        await HELD.insert(connection, rows("ann", "bob"))
        assert await HELD.insert_unless_there(connection, rows("ann", "cyd", "dan")) == {
            "cyd",
            "dan",
        }
        await HELD.insert_or_add(connection, rows("bob", "eve"))
        assert await held(connection) == [
            (7, "ann", 2, 5), (7, "bob", 4, 5), (7, "cyd", 2, 5), (7, "dan", 2, 5), (7, "eve", 2, 5)
        ]  # fmt: skip

    await database.write("insert", work)


@pytest.mark.parametrize("backend", ["postgresql"])  # SQLite keeps text of any length
async def test_text_that_is_too_long_is_refused_and_not_cut_off(database: Database) -> None:
    async def work(connection: AsyncConnection) -> None:
        row = {"user_id": ["u" * 65], "sale_id": [1], "units": [1], "limit_units": 1}
        with pytest.raises((DBAPIError, asyncpg.DataError), match="too long"):
            await HELD.insert(connection, row)
        await connection.rollback()

    await database.read("insert", work)
