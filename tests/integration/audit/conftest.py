"""A whole service without its web processes: real Redis, the real ledger, worker, sweep, keeper."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from integration.audit.kit import Service, open_service
from seckill.admission.keys import Keys


@pytest.fixture
async def service(
    redis: Redis, keys: Keys, tmp_path: Path, marks_folder: Path
) -> AsyncIterator[Service]:
    async with open_service(redis, keys, tmp_path, marks_folder) as service:
        yield service
