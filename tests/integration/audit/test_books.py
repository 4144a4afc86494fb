"""The audit's looks into the ledger, on both databases."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from contract.ledger.kit import ID_KEY, HandClock, Shop, open_shop
from seckill.admission.reservation_ids import ReservationIds
from seckill.audit.ports import WrittenOrder, WrittenPlace
from seckill.domain.clock import SystemClock
from seckill.domain.order import OrderState
from seckill.ledger import Database, LedgerOptions, SQLLedger, ensure_schema
from seckill.ledger.looks import SQLAuditLedger
from seckill.ledger.tables import collisions

IDS = ReservationIds(ID_KEY)


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/ledger.db"
    else:
        url = request.getfixturevalue("postgres_server").create_database()
    database = Database(LedgerOptions(url=url))
    await ensure_schema(database)
    yield database
    assert database.connections_in_use == 0
    await database.dispose()


@pytest.fixture
async def shop(database: Database) -> Shop:
    """Places 1 to 3 and 8 are orders, 2 is cancelled; 5 is a change of the stock."""
    shop = await open_shop(SQLLedger(database, IDS, HandClock()), limit=2)
    first = [shop.admitted(seq) for seq in (1, 2, 3)]
    await shop.ledger.write(first)
    await shop.ledger.orders.cancel(
        IDS.encode(shop.place(2)), first[1].user_id, actor="t", reason=""
    )
    await shop.ledger.sales.request_stock_change("c1", shop.sale.sale_id, 5, actor="t")
    await shop.ledger.write([shop.stock(5, "c1", 5), shop.admitted(8)])
    return shop


async def test_what_is_written_at_places_now(database: Database, shop: Shop) -> None:
    audit = SQLAuditLedger(database, SystemClock())
    places = [shop.place(seq) for seq in range(1, 10)] + [shop.place(1, epoch=2)]
    written = await audit.written(places)
    assert {place.seq for place in written} == {1, 2, 3, 5, 8}
    assert all(place.epoch == 1 for place in written)
    assert written[shop.place(5)] == WrittenPlace("stock", None)
    order = written[shop.place(2)].order
    assert order == WrittenOrder(
        IDS.encode(shop.place(2)), order.user_id, 1, OrderState.CANCELLED, 1
    )
    assert not order.live
    kept = written[shop.place(1)].order
    assert kept is not None
    assert kept.live
    assert kept.release_epoch is None


async def test_a_release_is_pending_only_until_it_is_confirmed(
    database: Database, shop: Shop
) -> None:
    audit = SQLAuditLedger(database, SystemClock())
    assert await audit.known_by_word(shop.bucket_id, 1, 1, 9) == {}
    await shop.ledger.confirm_releases([(IDS.encode(shop.place(2)), 4)], epoch=1)
    (written,) = (await audit.written([shop.place(2)])).values()
    assert written.order is not None
    assert written.order.release_epoch is None
    found = await audit.known_by_word(shop.bucket_id, 1, 1, 9)
    assert found == {4: f"release of {IDS.encode(shop.place(2))}"}
    assert await audit.known_by_word(shop.bucket_id, 1, 5, 9) == {}
    assert await audit.known_by_word(shop.bucket_id, 2, 1, 9) == {}


async def test_which_seqs_are_written_in_a_range(database: Database, shop: Shop) -> None:
    audit = SQLAuditLedger(database, SystemClock())
    assert list(await audit.written_seqs(shop.bucket_id, 1, 1, 99)) == [1, 2, 3, 5, 8]
    assert list(await audit.written_seqs(shop.bucket_id, 1, 2, 5)) == [2, 3, 5]
    assert list(await audit.written_seqs(shop.bucket_id, 2, 1, 99)) == []


async def test_a_place_where_only_a_collision_is_recorded_is_no_gap(
    database: Database, shop: Shop
) -> None:
    audit = SQLAuditLedger(database, SystemClock())

    async def record(connection: AsyncConnection) -> None:
        await connection.execute(
            insert(collisions),
            {
                "sale_id": shop.sale.sale_id,
                "bucket": 0,
                "epoch": 1,
                "seq": 6,
                "content_hash": "h",
                "kind": "admission",
                "units": 1,
                "content": "{}",
                "at_ms": 1,
                "recorded_at_ms": 1,
                "reason": "its reservation id belongs to another order",
            },
        )

    await database.write("record a collision", record)
    assert await audit.written([shop.place(6)]) == {shop.place(6): WrittenPlace("admission", None)}
    assert 6 in await audit.written_seqs(shop.bucket_id, 1, 1, 99)
