"""The first admin: no default password, one link, once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contract.ledger.kit import ID_KEY, HandClock, rows
from integration.admin.kit import AdminService
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.errors import InvalidValue
from seckill.ledger import Database, SQLLedger
from seckill.ledger.admins import SETUP_LINK_MS
from seckill.ledger.errors import SetupLinkDead
from seckill.ledger.tables import admin_users, setup_links
from seckill.runtime.setup_link import leave_setup_link, take_setup_link
from services.ledger_options import patient_options


@pytest.fixture
async def database(ledger_url: str) -> AsyncIterator[Database]:
    database = Database(patient_options(ledger_url))
    yield database
    await database.dispose()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(database: Database, clock: HandClock) -> SQLLedger:
    return SQLLedger(database, ReservationIds(ID_KEY), clock)


async def test_a_link_makes_one_admin_and_then_nobody(
    ledger: SQLLedger, database: Database
) -> None:
    links = [await ledger.admins.make_setup_link() for _ in range(3)]
    for name in ("", "a b"):
        with pytest.raises(InvalidValue):
            await ledger.admins.set_up(str(links[0]), name)
    with pytest.raises(SetupLinkDead):
        await ledger.admins.set_up("x" * 43, "mallory")
    # A wrong one has not used up the good ones. All who have one come at once: one wins.
    came = await asyncio.gather(
        *(ledger.admins.set_up(str(link), f"ann{n}") for n, link in enumerate(links)),
        return_exceptions=True,
    )
    won = [one for one in came if not isinstance(one, BaseException)]
    assert len(won) == 1
    assert sum(isinstance(one, SetupLinkDead) for one in came) == 2
    assert len(await rows(database, admin_users)) == 1
    assert await rows(database, setup_links) == []
    assert await ledger.admins.make_setup_link() is None


async def test_a_link_is_good_for_an_hour(ledger: SQLLedger, clock: HandClock) -> None:
    link = str(await ledger.admins.make_setup_link())
    clock.at_ms += SETUP_LINK_MS
    with pytest.raises(SetupLinkDead):
        await ledger.admins.set_up(link, "ann")
    fresh = str(await ledger.admins.make_setup_link())
    clock.at_ms += SETUP_LINK_MS - 1
    token, text = await ledger.admins.set_up(fresh, "ann")
    assert text.startswith(f"sk_admin_{token.token_id}_")


async def test_where_there_is_a_user_no_link_is_left_and_none_works(
    shop: AdminService, tmp_path: Path
) -> None:
    await leave_setup_link(shop.stores)
    assert take_setup_link(shop.stores.settings.data) is None
    body = {"secret": "x" * 43, "name": "mallory"}
    statuses = [(await shop.ask("POST", "/setup", body, token="")).status for _ in range(12)]
    assert statuses == [403] * 10 + [429] * 2


async def test_the_page_of_the_link_changes_nothing_by_being_looked_at(shop: AdminService) -> None:
    page = await shop.service.ask("GET", "/admin/setup")
    assert page.status == 200
    assert "unsafe-inline" not in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert len(await shop.stores.ledger.admins.users()) == 3
