"""How many orders a second the ledger writes, beside the bare driver on the same disk.

    python -m pytest tests/bench/bench_ledger.py -s -q -p no:randomly

Each figure is the median of several rounds; the two sides take turns. The peer writes the same
orders with the bare driver, one row into one table with the same keys and indexes and one counter,
a transaction per batch: what the database takes by itself, without limits, holdings or log.
"""

import sqlite3
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from contract.ledger.kit import ID_KEY, NOW_MS, HandClock, Shop, open_shop
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.events import Admitted
from seckill.ledger import Database, LedgerOptions, SQLLedger, ensure_schema
from seckill.ledger.tables import orders
from services.postgres import PostgresServer

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

IDS = ReservationIds(ID_KEY)
ORDERS = 5_000
ROUNDS = 3


def batches(shop: Shop, first: int, count: int, size: int) -> list[list[Admitted]]:
    return [
        [shop.admitted(seq) for seq in range(at, min(at + size, first + count))]
        for at in range(first, first + count, size)
    ]


class BareSqlite:
    """The peer on SQLite."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-16000"):
            self._connection.execute(f"PRAGMA {pragma}")
        dialect = sqlite.dialect()
        self._connection.execute(str(CreateTable(orders).compile(dialect=dialect)))
        for index in sorted(orders.indexes, key=lambda index: str(index.name)):
            self._connection.execute(str(CreateIndex(index).compile(dialect=dialect)))
        self._connection.execute("CREATE TABLE counter (sold INTEGER)")
        self._connection.execute("INSERT INTO counter VALUES (0)")

    def write(self, events: list[Admitted]) -> None:
        ids = IDS.encode_many([event.place for event in events])
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(
            f"INSERT INTO orders VALUES ({', '.join('?' * len(orders.columns))})"  # noqa: S608
            " ON CONFLICT DO NOTHING",
            [
                (reservation_id, event.place.sale_id, 0, 1, event.place.seq, event.user_id, 1, 0,
                 "awaiting_payment", event.attempt_id, NOW_MS, NOW_MS, NOW_MS, NOW_MS, None, None, None)
                for event, reservation_id in zip(events, ids, strict=True)
            ],
        )  # fmt: skip
        self._connection.execute("UPDATE counter SET sold = sold + ?", (len(events),))
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


async def rate(
    write: Callable[[list[Admitted]], Awaitable[object]], work: list[list[Admitted]]
) -> float:
    started = time.perf_counter()
    for events in work:
        await write(events)
    return sum(map(len, work)) / (time.perf_counter() - started)


def say(line: str) -> None:
    sys.stdout.write(f"\n{line}")


@pytest.mark.parametrize("size", [1, 100, 500, 2000])
async def test_sqlite(tmp_path: Path, size: int) -> None:
    count = ORDERS if size > 1 else ORDERS // 10
    database = Database(LedgerOptions(url=f"sqlite:///{tmp_path}/ledger.db"))
    await ensure_schema(database)
    ledger = SQLLedger(database, IDS, HandClock())
    shop = await open_shop(ledger, stock=1_000_000)
    peer = BareSqlite(tmp_path / "peer.db")

    async def write_bare(events: list[Admitted]) -> None:
        peer.write(events)

    ours, bare, again = [], [], []
    for number in range(ROUNDS):
        work = batches(shop, 1 + number * count, count, size)
        ours.append(await rate(ledger.write, work))
        bare.append(await rate(write_bare, work))
        again.append(await rate(ledger.write, work))
    assert await shop.sold() == ROUNDS * count
    peer.close()
    await database.dispose()
    one, two, three = (statistics.median(rates) for rates in (ours, bare, again))
    say(
        f"SQLite, batch {size}: {one:,.0f} orders/s, the bare driver {two:,.0f} (ratio"
        f" {one / two:.2f}); written before: {three:,.0f}/s"
    )


class BarePostgres:
    """The peer on PostgreSQL: the same rows as one array a column, one statement a transaction."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def create(self) -> None:
        await self._connection.execute("CREATE TABLE bare_orders (LIKE orders INCLUDING ALL)")

    async def write(self, events: list[Admitted]) -> None:
        count = len(events)
        await self._connection.execute(
            "INSERT INTO bare_orders (reservation_id, sale_id, bucket, epoch, seq, user_id,"
            " quantity, price_fen, state, attempt_id, admitted_at_ms, created_at_ms, pay_by_ms,"
            " state_changed_at_ms, reason) SELECT * FROM unnest($1::text[], $2::bigint[],"
            " $3::int[], $4::int[], $5::bigint[], $6::text[], $7::int[], $8::bigint[], $9::text[],"
            " $10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],"
            " $15::text[])",
            IDS.encode_many([event.place for event in events]),
            [event.place.sale_id for event in events],
            [0] * count,
            [1] * count,
            [event.place.seq for event in events],
            [event.user_id for event in events],
            [1] * count,
            [4900] * count,
            ["awaiting_payment"] * count,
            [event.attempt_id for event in events],
            *[[NOW_MS] * count] * 4,
            [None] * count,
        )


@pytest.mark.parametrize("size", [100, 500, 2000])
async def test_postgresql(postgres_server: PostgresServer, size: int) -> None:
    """The cluster of the tests does not wait for the disk (fsync off): a bound, not a promise."""
    url = postgres_server.create_database()
    database = Database(LedgerOptions(url=url))
    await ensure_schema(database)
    ledger = SQLLedger(database, IDS, HandClock())
    shop = await open_shop(ledger, stock=1_000_000)
    connection = await asyncpg.connect(url)
    peer = BarePostgres(connection)
    await peer.create()
    ours, bare, again = [], [], []
    for number in range(ROUNDS):
        work = batches(shop, 1 + number * ORDERS, ORDERS, size)
        ours.append(await rate(ledger.write, work))
        bare.append(await rate(peer.write, work))
        again.append(await rate(ledger.write, work))
    assert await shop.sold() == ROUNDS * ORDERS
    await connection.close()
    await database.dispose()
    one, two, three = (statistics.median(rates) for rates in (ours, bare, again))
    say(
        f"PostgreSQL (fsync off), batch {size}: {one:,.0f} orders/s, the bare driver {two:,.0f}"
        f" (ratio {one / two:.2f}); written before: {three:,.0f}/s"
    )
