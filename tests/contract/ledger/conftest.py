"""One suite for both databases: every test that asks for ``ledger`` runs on each of them."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from contract.ledger.kit import ID_KEY, HandClock
from seckill.admission.reservation_ids import ReservationIds
from seckill.ledger import Database, SQLLedger, ensure_schema
from services.ledger_options import patient_options

if TYPE_CHECKING:
    from services.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of the test's own."""
    if backend == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_database()


@pytest.fixture(scope="session")
def templates() -> dict[str, str]:
    """By backend, a database that has been migrated already: the tests copy it."""
    return {}


@pytest.fixture
async def ledger_url(
    backend: str,
    templates: dict[str, str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """A database of the test's own, with its tables."""
    if backend not in templates:
        if backend == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('template')}/ledger.db"
        else:
            url = request.getfixturevalue("postgres_server").create_database()
        template = Database(patient_options(url))
        await ensure_schema(template)
        await template.dispose()
        templates[backend] = url
    if backend == "sqlite":
        shutil.copy(templates[backend].removeprefix("sqlite:///"), tmp_path / "ledger.db")
        return f"sqlite:///{tmp_path}/ledger.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_database(template=templates[backend].rpartition("/")[2])


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def database(ledger_url: str) -> AsyncIterator[Database]:
    """The database with its tables; at the end no connection may be left in use."""
    # A busy machine must not turn a race into a time-out; the bounds have tests of their own.
    database = Database(patient_options(ledger_url, pool_size=4))
    yield database
    assert database.connections_in_use == 0
    await database.dispose()


@pytest.fixture
def ledger(database: Database, clock: HandClock) -> SQLLedger:
    return SQLLedger(database, ReservationIds(ID_KEY), clock)
