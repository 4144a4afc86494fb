"""A web process with operators, on each database where that matters."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contract.ledger.conftest import backend, empty_url, ledger_url, templates
from integration.admin.kit import AdminService, open_admin
from seckill.admission.keys import Keys
from seckill.ledger import Database, ensure_schema
from services.ledger_options import patient_options
from services.redis import RedisServer

__all__ = ["backend", "empty_url", "ledger_url", "templates"]


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with its tables, to be copied."""
    path = tmp_path_factory.mktemp("template") / "ledger.db"

    async def make() -> None:
        template = Database(patient_options(f"sqlite:///{path}"))
        await ensure_schema(template)
        await template.dispose()

    asyncio.run(make())
    return path


@pytest.fixture
async def shop(
    redis_server: RedisServer, keys: Keys, migrated: Path, tmp_path: Path
) -> AsyncIterator[AdminService]:
    url = f"sqlite:///{shutil.copy(migrated, tmp_path / 'ledger.db')}"
    async with open_admin(redis_server.url, keys, url, tmp_path) as opened:
        yield opened


@pytest.fixture
async def shop_on_each(
    redis_server: RedisServer, keys: Keys, ledger_url: str, tmp_path: Path
) -> AsyncIterator[AdminService]:
    async with open_admin(redis_server.url, keys, ledger_url, tmp_path) as opened:
        yield opened
