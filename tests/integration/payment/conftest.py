"""A shop that takes money, on each database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contract.ledger.conftest import backend, empty_url, ledger_url, templates
from integration.payment.kit import PayShop, open_pay_shop
from seckill.admission.keys import Keys
from services.redis import RedisServer

__all__ = ["backend", "empty_url", "ledger_url", "templates"]


@pytest.fixture
async def shop(
    redis_server: RedisServer, keys: Keys, ledger_url: str, marks_folder: Path
) -> AsyncIterator[PayShop]:
    async with open_pay_shop(redis_server.url, keys, ledger_url, marks_folder) as opened:
        yield opened
