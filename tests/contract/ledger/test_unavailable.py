"""A database that is away, busy, full or slow: a retryable error in bounded time, nothing leaks."""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from contract.ledger.kit import ID_KEY, HandClock, dump, open_shop
from seckill.admission.reservation_ids import ReservationIds
from seckill.ledger import Database, LedgerOptions, SQLLedger, ensure_schema
from seckill.ledger.errors import LedgerBroken, LedgerUnavailable
from seckill.ledger.tables import sales
from seckill.pipeline.errors import LedgerAway
from seckill.pipeline.ports import WriteReport
from services.ledger_options import patient_options
from services.postgres import PostgresServer, find_postgres
from services.standstill import Standstill

IDS = ReservationIds(ID_KEY)


@pytest.fixture
async def hasty(ledger_url: str) -> AsyncIterator[Database]:
    """A database that waits neither long for a connection nor for a lock."""
    database = Database(
        patient_options(ledger_url, pool_size=2, pool_timeout_s=0.3, lock_timeout_ms=200)
    )
    yield database
    await database.dispose()


async def hold(database: Database, held: Standstill) -> None:
    """Keep the row of every sale (SQLite: the write lock) until told to go on."""

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(select(sales).with_for_update())
        await held.stop_here(connection)

    await database.write("hold a lock", work)


async def test_a_lock_that_somebody_holds_is_waited_for_and_then_reported(
    hasty: Database, clock: HandClock
) -> None:
    ledger = SQLLedger(hasty, IDS, clock)
    shop = await open_shop(ledger)
    held = Standstill()
    holder = asyncio.create_task(hold(hasty, held))
    await held.reached()
    started = time.monotonic()
    with pytest.raises(LedgerUnavailable) as caught:
        await ledger.write([shop.admitted(1)])
    assert isinstance(caught.value, LedgerAway)
    assert time.monotonic() - started > 0.15
    assert not holder.done()
    held.go_on()
    await holder
    assert await ledger.write([shop.admitted(1)]) == WriteReport(ordered=1)
    assert hasty.connections_in_use == 0


async def test_waiting_for_a_connection_is_bounded(hasty: Database, clock: HandClock) -> None:
    ledger = SQLLedger(hasty, IDS, clock)
    sat = Standstill()
    sitters = [asyncio.create_task(hasty.read("sit", sat.stop_here)) for _ in range(2)]
    await sat.reached(2)
    assert hasty.connections_in_use == 2
    with pytest.raises(LedgerUnavailable):
        await ledger.reading.ping()
    sat.go_on()
    await asyncio.gather(*sitters)
    await ledger.reading.ping()
    assert hasty.connections_in_use == 0


async def test_a_caller_that_leaves_breaks_no_connection_and_its_write_is_whole(
    database: Database, ledger: SQLLedger
) -> None:
    shop = await open_shop(ledger, stock=10_000)
    base = 0
    for cancel_after_turns in (0, 1, 2, 5, 10, 20, 40, 80, 160):
        events = [shop.admitted(base + n) for n in range(1, 51)]
        base += 50
        task = asyncio.create_task(ledger.write(events))
        for _ in range(cancel_after_turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        # Whatever became of it, writing it again ends with all of it, once.
        report = await ledger.write(events)
        assert report.ordered + report.known == 50
        assert report.ordered in (0, 50)
    assert await shop.sold() == base
    while database.connections_in_use:
        await asyncio.sleep(0.01)


async def test_dispose_lets_what_is_under_way_finish(ledger_url: str, clock: HandClock) -> None:
    database = Database(patient_options(ledger_url))
    ledger = SQLLedger(database, IDS, clock)
    shop = await open_shop(ledger, stock=1000)
    writing = asyncio.create_task(ledger.write([shop.admitted(n) for n in range(1, 501)]))
    await asyncio.sleep(0)
    await ledger.dispose()
    await ledger.dispose()
    assert (await writing).ordered == 500
    with pytest.raises(LedgerUnavailable, match="closed"):
        await ledger.reading.ping()


async def test_work_that_outlasts_dispose_is_cut(ledger_url: str) -> None:
    database = Database(patient_options(ledger_url, dispose_timeout_s=0.1))
    begun = Standstill()
    task = asyncio.create_task(database.write("wait for ever", begun.stop_here))
    await begun.reached()
    await database.dispose()
    with pytest.raises(asyncio.CancelledError):
        await task
    begun.go_on()


async def test_a_statement_that_is_wrong_is_not_worth_repeating(database: Database) -> None:
    with pytest.raises(LedgerBroken):
        await database.read(
            "ask nonsense", lambda c: c.execute(text("SELECT nothing FROM nowhere"))
        )


async def test_a_full_disk_is_retryable_and_leaves_the_books_whole(tmp_path: Path) -> None:
    database = Database(patient_options(f"sqlite:///{tmp_path}/full.db", pool_size=1))
    await ensure_schema(database)
    ledger = SQLLedger(database, IDS, HandClock())
    shop = await open_shop(ledger, stock=100_000)
    before = await dump(database)

    async def limit(connection: AsyncConnection) -> None:
        pages = await connection.scalar(text("PRAGMA page_count"))
        await connection.execute(text(f"PRAGMA max_page_count = {pages}"))

    await database.read("fill the disk", limit)
    events = [shop.admitted(n) for n in range(1, 2001)]
    with pytest.raises(LedgerUnavailable, match="full"):
        await ledger.write(events)
    assert await dump(database) == before
    await database.read("make room", lambda c: c.execute(text("PRAGMA max_page_count = 1000000")))
    assert (await ledger.write(events)).ordered == 2000
    await database.dispose()


async def test_a_folder_that_is_not_there_is_retryable(tmp_path: Path) -> None:
    database = Database(LedgerOptions(url=f"sqlite:///{tmp_path}/missing/ledger.db"))
    with pytest.raises(LedgerUnavailable, match="unable to open"):
        await ensure_schema(database)
    await database.dispose()


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        database = Database(
            LedgerOptions(url=f"postgresql://u:secret@127.0.0.1:{taken.getsockname()[1]}/x")
        )
        with pytest.raises(LedgerUnavailable) as caught:
            await ensure_schema(database)
        assert "secret" not in str(caught.value) + database.location
        await database.dispose()


async def test_a_server_that_takes_and_says_nothing_is_given_up_on() -> None:
    writers = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    database = Database(
        LedgerOptions(url=f"postgresql://u@127.0.0.1:{port}/x", connect_timeout_s=0.3)
    )
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(LedgerUnavailable):
        await ensure_schema(database)
    assert loop.time() - started < 10
    await database.dispose()
    server.close()
    for writer in writers:
        writer.close()
        await writer.wait_closed()


async def test_postgresql_crashes_and_comes_back(clock: HandClock) -> None:
    programs = find_postgres()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (no initdb)")
    server = PostgresServer(programs).start()
    try:
        database = Database(patient_options(server.create_database()))
        await ensure_schema(database)
        ledger = SQLLedger(database, IDS, clock)
        shop = await open_shop(ledger, stock=10_000)
        base, written = 0, 0
        server.stop(signal.SIGQUIT)
        with pytest.raises(LedgerUnavailable):
            await ledger.write([shop.admitted(1)])
        server.start()
        crash = asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.5)
        async with asyncio.timeout(60):
            while not crash.done() or written < 10:
                events = [shop.admitted(base + n) for n in range(1, 101)]
                try:
                    report = await ledger.write(events)
                except LedgerUnavailable:
                    continue
                assert report.ordered in (0, 100)
                base, written = base + 100, written + 1
                if written == 5:
                    server.stop(signal.SIGQUIT)
                    server.start()
        assert await shop.sold() == base
        await database.dispose()
    finally:
        server.remove()


@pytest.mark.parametrize("backend", ["postgresql"])  # on SQLite whoever stops so holds the file
async def test_a_worker_that_freezes_in_the_middle_does_not_hold_the_sale_for_ever(
    ledger_url: str, clock: HandClock
) -> None:
    frozen = Database(patient_options(ledger_url, statement_timeout_ms=500))
    living = Database(patient_options(ledger_url))
    ledger = SQLLedger(living, IDS, clock)
    shop = await open_shop(ledger)
    held = Standstill()
    holding = asyncio.create_task(held.reached())
    while not holding.done():  # a server that stands still may take longer than its limit
        holder = asyncio.create_task(hold(frozen, held))
        await asyncio.wait({holder, holding}, return_when=asyncio.FIRST_COMPLETED)
    # Waits behind the frozen one, which never moves again, and gets through all the same.
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(LedgerUnavailable):
                assert await ledger.write([shop.admitted(1)]) == WriteReport(ordered=1)
                break
    assert not held.is_over
    held.go_on()
    with pytest.raises(LedgerUnavailable):  # what it held was taken from it: it begins anew
        await holder
    await frozen.dispose()
    await living.dispose()
