"""Migrations lead to the very tables that the code describes, whoever calls them and how often."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from contract.ledger.kit import ID_KEY, HandClock, dump, open_shop
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.errors import InvalidValue
from seckill.ledger import Database, LedgerOptions, SQLLedger, ensure_schema, read_installation
from seckill.ledger.errors import LedgerBroken, SchemaUnknown
from seckill.ledger.schema import HEAD
from seckill.ledger.tables import metadata
from services.ledger_options import patient_options

TESTS = Path(__file__).parents[2]
MIGRATIONS = Path(sys.modules["seckill.ledger.schema"].__file__ or "").parent / "migrations"


def describe(connection: Connection) -> dict[str, object]:
    """Tables, columns, keys, checks and indexes, as the database itself tells them."""
    inspector = inspect(connection)
    found: dict[str, object] = {}
    for table in inspector.get_table_names():
        if table == "alembic_version":
            continue
        found[table] = {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"], column["default"])
                for column in inspector.get_columns(table)
            ],
            "primary": inspector.get_pk_constraint(table),
            "uniques": sorted(map(str, inspector.get_unique_constraints(table))),
            "checks": sorted(
                (check["name"], check["sqltext"])
                for check in inspector.get_check_constraints(table)
            ),
            "indexes": sorted(
                (
                    index["name"],
                    index["column_names"],
                    index["unique"],
                    {key: str(value) for key, value in index["dialect_options"].items()},
                )
                for index in inspector.get_indexes(table)
            ),
        }
    if connection.dialect.name == "sqlite":
        # Options that no inspector tells: AUTOINCREMENT, WITHOUT ROWID.
        found["options"] = {
            name: (sql.count("AUTOINCREMENT"), sql.count("WITHOUT ROWID"))
            for name, sql in connection.execute(
                text("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
            )
            if name in found
        }
        guards = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name"
    else:
        guards = (
            "SELECT tgname, pg_get_triggerdef(t.oid) || pg_get_functiondef(tgfoid)"
            " FROM pg_trigger t WHERE NOT tgisinternal ORDER BY tgname"
        )
    found["guards"] = [tuple(row) for row in connection.execute(text(guards))]
    return found


async def read(database: Database, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return await database.read("look at the tables", lambda c: c.run_sync(work))


def another_url(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> str:
    if url.startswith("sqlite"):
        return f"sqlite:///{tmp_path}/other.db"
    made: str = request.getfixturevalue("postgres_server").create_database()
    return made


async def test_the_migrations_lead_to_the_tables_that_the_code_describes(
    database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    fresh = Database(patient_options(another_url(request, database.options.url, tmp_path)))
    await fresh.write("create the tables", lambda c: c.run_sync(metadata.create_all))
    migrated, created = await read(database, describe), await read(fresh, describe)
    await fresh.dispose()
    assert len(migrated) >= 11
    assert migrated == created

    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))

    assert await read(database, differences) == []


async def test_the_comparison_sees_a_missing_check(database: Database) -> None:
    before = await read(database, describe)
    if database.is_sqlite:
        drop = (
            "CREATE TABLE other AS SELECT * FROM holdings;DROP TABLE holdings;"
            "ALTER TABLE other RENAME TO holdings"
        )
    else:
        drop = "ALTER TABLE holdings DROP CONSTRAINT ck_holdings_within_limit"
    for statement in drop.split(";"):
        await database.write("drop it", lambda c, s=statement: c.execute(text(s)))
    assert await read(database, describe) != before


async def test_every_constraint_has_a_name(database: Database) -> None:
    for table, what in (await read(database, describe)).items():
        if table in {"options", "guards"}:
            continue
        # SQLite counts up only a key that stands at its column, where it can have no name.
        assert what["primary"]["name"] or (database.is_sqlite and table == "sales"), table
        assert all(name for name, _ in what["checks"]), table


def test_the_head_in_the_code_is_that_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


async def test_downgrade_and_upgrade_lead_back_to_the_same(database: Database) -> None:
    before = await read(database, describe)

    def down_and_up(connection: Connection) -> None:
        from alembic import command  # noqa: PLC0415

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}
        command.upgrade(config, "head")

    await database.write("go down and up", lambda c: c.run_sync(down_and_up))
    assert await read(database, describe) == before


# Imported once and forked before anything connects: five processes begin in the same moment. What
# they found goes to stderr, a line a write: on stdout the lines of their logs would run into it.
START = """
import asyncio, os, sys
from seckill.ledger import Database, ensure_schema, read_installation
from services.ledger_options import patient_options
async def main():
    database = Database(patient_options(sys.argv[1]))
    try:
        await ensure_schema(database)
        found = await read_installation(database)
        key = found.reservation_id_key.hex()
        os.write(2, f"{found.installation_id} {key} {'alembic' in sys.modules}\\n".encode())
    finally:
        await database.dispose()
def start(count):
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            asyncio.run(main())
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
start(5)
os.write(2, b"again\\n")
start(1)
"""


def test_many_processes_that_start_at_once_agree(empty_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START, empty_url],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stderr.splitlines()]
    assert lines[5] == ["again"]
    assert len({(drawn, key) for drawn, key, _ in lines[:5]}) == 1
    assert lines[6][:2] == lines[0][:2]
    assert lines[6][2] == "False", "Alembic was imported for nothing"


async def test_the_installation_is_drawn_once(database: Database) -> None:
    first = await read_installation(database)
    assert await read_installation(database, lambda size: b"\x00" * size) == first
    assert len(first.reservation_id_key) == 16
    assert "key" not in repr(first)


async def test_books_of_a_newer_version_are_left_alone(database: Database) -> None:
    await database.write(
        "pretend", lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    )
    with pytest.raises(SchemaUnknown, match="9999"):
        await ensure_schema(database)


async def test_the_tables_are_brought_up_to_date_once(database: Database, clock: HandClock) -> None:
    ledger = SQLLedger(database, ReservationIds(ID_KEY), clock)
    await open_shop(ledger)
    before = await dump(database)
    for _ in range(2):
        await ensure_schema(database)
    assert await dump(database) == before


CHECKS = [
    "UPDATE sales SET sold_units = stock_units + 1",
    "UPDATE sales SET sold_units = -1",
    "UPDATE sales SET ends_at_ms = starts_at_ms",
    "UPDATE holdings SET units = limit_units + 1",
    "UPDATE holdings SET units = -1",
    "UPDATE orders SET quantity = 0",
    "UPDATE orders SET state = 'queued'",
    "UPDATE orders SET reservation_id = 'same'",
    "UPDATE orders SET seq = 1",
    "UPDATE epochs SET valid_to_seq = 5",
    "UPDATE epochs SET state = 'closed'",
    "UPDATE epochs SET state = 'ajar', valid_to_seq = 5",
]  # fmt: skip


@pytest.mark.parametrize("statement", CHECKS)
async def test_the_database_itself_refuses_unsound_books(
    database: Database, clock: HandClock, statement: str
) -> None:
    ledger = SQLLedger(database, ReservationIds(ID_KEY), clock)
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(1), shop.admitted(2)])
    before = await dump(database)
    with pytest.raises(LedgerBroken):
        await database.write("break the books", lambda c: c.execute(text(statement)))
    assert await dump(database) == before


async def test_a_sale_id_is_never_given_out_twice(database: Database, clock: HandClock) -> None:
    ledger = SQLLedger(database, ReservationIds(ID_KEY), clock)
    first = await open_shop(ledger)
    await database.write("forget it", lambda c: c.execute(text("DELETE FROM sales")))
    second = await open_shop(ledger)
    assert second.sale.sale_id > first.sale.sale_id


@pytest.mark.parametrize(
    "url",
    ["", "mysql://x", "sqlite://", "sqlite:///:memory:", "postgresql+psycopg2://x", "nonsense"],
)
def test_a_url_that_is_no_ledger_is_refused_with_its_rule(url: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Database(LedgerOptions(url=url))
    assert caught.value.field == "ledger_url"
