"""SQLite: a transaction is one way to a thread and back, and nothing that goes wrong there stays."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.ledger import Database
from seckill.ledger.errors import LedgerUnavailable
from services.ledger_options import patient_options

SLOW = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000)"
    " SELECT count(*) FROM n"
)


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(patient_options(f"sqlite:///{tmp_path}/books.db", pool_size=2))
    await database.write("make it", lambda c: c.execute(text("CREATE TABLE t (n INTEGER)")))
    yield database
    await database.dispose()
    assert database.connections_in_use == 0


async def count(books: Database) -> int:
    return int(await books.read("count", lambda c: c.scalar(text("SELECT count(*) FROM t"))))


async def test_a_transaction_is_one_way_to_a_thread_and_back(
    books: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    ways: list[object] = []
    go = loop.run_in_executor
    monkeypatch.setattr(loop, "run_in_executor", lambda *args: (ways.append(args), go(*args))[1])
    said: ContextVar[str] = ContextVar("said")
    said.set("by the caller")
    threads: set[int] = set()

    @event.listens_for(books._engine.sync_engine, "before_cursor_execute")
    def note(*_args: object) -> None:
        threads.add(threading.get_ident())
        assert said.get() == "by the caller"

    async def add_two(connection: AsyncConnection) -> int:
        await connection.execute(text("INSERT INTO t VALUES (1)"))
        await connection.execute(text("INSERT INTO t VALUES (2)"))
        found = await connection.execute(text("SELECT n FROM t ORDER BY n"))
        assert found.scalars().all() == [1, 2]
        return int(await connection.scalar(text("SELECT sum(n) FROM t")))

    assert await books.write("add two", add_two) == 3
    assert len(ways) == 1
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert await count(books) == 2
    assert len(ways) == 2


async def test_a_work_that_waits_for_something_else_is_refused_and_undone(books: Database) -> None:
    async def dawdle(connection: AsyncConnection) -> None:
        await connection.execute(text("INSERT INTO t VALUES (1)"))
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="not its database"):
        await books.write("dawdle", dawdle)
    assert await count(books) == 0


async def test_a_work_that_fails_is_undone(books: Database) -> None:
    async def fail(connection: AsyncConnection) -> None:
        await connection.execute(text("INSERT INTO t VALUES (1)"))
        raise LookupError("of the work itself")

    with pytest.raises(LookupError, match="of the work itself"):
        await books.write("fail", fail)
    assert await count(books) == 0


async def test_a_snapshot_sees_one_instant_while_others_write(books: Database) -> None:
    insert = text("INSERT INTO t VALUES (1)")
    async with books.snapshot("look") as connection:
        assert await connection.scalar(text("SELECT count(*) FROM t")) == 0
        await books.write("add", lambda c: c.execute(insert))
        rows = await connection.execute(text("SELECT n FROM t"))
        assert rows.all() == []
        assert (await connection.scalars(text("SELECT 7 UNION SELECT 8"))).all() == [7, 8]
    assert await count(books) == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 50])
async def test_who_stops_waiting_for_a_snapshot_leaves_no_connection_behind(
    books: Database, turns: int
) -> None:
    async def look() -> None:
        async with books.snapshot("look") as connection:
            await connection.scalar(text(SLOW))

    looking = asyncio.create_task(look())
    for _ in range(turns):
        await asyncio.sleep(0.001 if turns > 10 else 0)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert books.connections_in_use == 0
    async with books.snapshot("look again") as connection:
        assert await connection.scalar(text("SELECT count(*) FROM t")) == 0


@pytest.mark.parametrize("lets_go", [True, False])
async def test_a_new_file_that_another_process_is_just_making_is_waited_for(
    tmp_path: Path, lets_go: bool
) -> None:
    """SQLite does not wait by itself: who asks for the WAL mode then is refused at once."""
    file = tmp_path / "new.db"
    maker = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    maker.execute("BEGIN IMMEDIATE")
    hasty = sqlite3.connect(file, timeout=60)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        hasty.execute("PRAGMA journal_mode=WAL")
    hasty.close()
    patience_ms = 60_000 if lets_go else 100
    database = Database(patient_options(f"sqlite:///{file}", lock_timeout_ms=patience_ms))
    if lets_go:
        asyncio.get_running_loop().call_later(0.1, maker.execute, "COMMIT")
        assert await database.read("look", lambda c: c.scalar(text("SELECT 1"))) == 1
    else:
        with pytest.raises(LedgerUnavailable, match="locked"):
            await database.read("look", lambda c: c.scalar(text("SELECT 1")))
    await database.dispose()
    maker.close()
