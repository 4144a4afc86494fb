"""Sales are put on, changed and restocked; each change is on record and counts once."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from contract.ledger.kit import NOW_MS, HandClock, assert_sound, open_shop, rows
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import GoodsId, SaleId
from seckill.domain.sale import STOCK_UNITS_MAX, NewSale, SaleState
from seckill.ledger import Database, SQLLedger
from seckill.ledger.errors import ChangeIdReused, NoSuchSale, SaleClosed, SaleExists
from seckill.ledger.tables import actions, sales
from seckill.pipeline.ports import PendingStockChange

NEW = NewSale(
    goods_id=GoodsId("商品-1"),
    stock_units=10,
    limit_per_user=2,
    title="T恤 é",
    price_fen=9900,
    starts_at_ms=NOW_MS,
    ends_at_ms=NOW_MS + 1000,
    pay_window_ms=60_000,
)


async def test_a_sale_is_read_back_as_it_was_made(ledger: SQLLedger) -> None:
    sale = await ledger.sales.create_sale(NEW, actor="op")
    for field in NewSale.__dataclass_fields__:
        assert getattr(sale, field) == getattr(NEW, field)
    assert (sale.version, sale.paused, sale.closed, sale.bucket_count) == (1, False, False, 1)
    assert await ledger.sales.sale(sale.sale_id) == sale
    assert await ledger.sales.sale_of_goods(NEW.goods_id) == sale
    assert await ledger.sales.sales() == [sale]
    (epoch,) = await ledger.epochs.current_epochs()
    assert (epoch.epoch, epoch.state, epoch.origin, epoch.opening_units) == (
        1,
        "opening",
        "created",
        10,
    )
    assert await ledger.sales.sale(SaleId(99)) is None
    assert await ledger.sales.sale_of_goods(GoodsId("other")) is None


async def test_goods_are_on_sale_once_at_a_time(ledger: SQLLedger, clock: HandClock) -> None:
    first = await ledger.sales.create_sale(NEW, actor="op")
    with pytest.raises(SaleExists) as caught:
        await ledger.sales.create_sale(NEW, actor="op")
    assert caught.value.sale_id == first.sale_id
    clock.at_ms = NOW_MS + 999
    with pytest.raises(SaleExists):
        await ledger.sales.create_sale(NEW, actor="op")
    clock.at_ms = NOW_MS + 1000  # the window is [start, end): now it has ended
    second = await ledger.sales.create_sale(
        replace(NEW, starts_at_ms=NOW_MS + 2000, ends_at_ms=None), actor="op"
    )
    closed = await ledger.sales.sale(first.sale_id)
    assert closed is not None
    assert (closed.closed, closed.version) == (True, 2)
    assert closed.state_at(0) is SaleState.ENDED
    assert await ledger.sales.sales() == [second]
    assert await ledger.sales.sale_of_goods(NEW.goods_id) == second
    assert await ledger.sales.sales(closed=True) == [closed, second]
    # The bucket of a closed sale may still have units to take back.
    assert [row.sale_id for row in await ledger.epochs.current_epochs()] == [
        first.sale_id,
        second.sale_id,
    ]


async def test_of_many_who_put_the_same_goods_on_sale_one_succeeds(
    ledger: SQLLedger, database: Database
) -> None:
    made = await asyncio.gather(
        *(ledger.sales.create_sale(NEW, actor="op") for _ in range(4)), return_exceptions=True
    )
    assert sum(isinstance(result, SaleExists) for result in made) == 3
    assert len(await rows(database, sales)) == 1


async def test_a_sale_is_paused_resumed_moved_and_ended(
    ledger: SQLLedger, database: Database
) -> None:
    sale = await ledger.sales.create_sale(NEW, actor="op")
    change = ledger.sales.change_sale
    paused = await change(sale.sale_id, paused=True, actor="op", reason="too hot")
    assert (paused.paused, paused.version) == (True, 2)
    same = await change(sale.sale_id, paused=True, actor="op", reason="again")
    assert same == paused
    moved = await change(
        sale.sale_id, paused=False, starts_at_ms=NOW_MS + 5, ends_at_ms=NOW_MS + 50, actor="op"
    )
    assert (moved.paused, moved.starts_at_ms, moved.ends_at_ms) == (False, NOW_MS + 5, NOW_MS + 50)
    assert moved.version == 3
    last = (await rows(database, actions))[-1]
    assert (last["actor"], last["action"], last["sale_id"]) == ("op", "change_sale", sale.sale_id)
    assert msgspec.json.decode(str(last["detail"])) == {
        "reason": "",
        "before": {"paused": True, "starts_at_ms": NOW_MS, "ends_at_ms": NOW_MS + 1000},
        "after": {"paused": False, "starts_at_ms": NOW_MS + 5, "ends_at_ms": NOW_MS + 50},
    }
    assert len(await rows(database, actions)) == 3  # create and two changes; "again" was none


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"ends_at_ms": NOW_MS}, "ends_at"),
        ({"starts_at_ms": NOW_MS + 1000}, "ends_at"),
        ({"starts_at_ms": -1}, "starts_at"),
        ({"ends_at_ms": 2**60}, "ends_at"),
        ({"paused": True, "actor": ""}, "actor"),
        ({"paused": True, "actor": "a\x00"}, "actor"),
        ({"paused": True, "reason": "a\nb"}, "reason"),
        ({"paused": True, "reason": "x" * 501}, "reason"),
    ],
    ids=str,
)
async def test_a_change_that_breaks_a_rule_changes_nothing(
    ledger: SQLLedger, wrong: dict[str, object], field: str
) -> None:
    sale = await ledger.sales.create_sale(NEW, actor="op")
    with pytest.raises(InvalidValue) as caught:
        await ledger.sales.change_sale(sale.sale_id, **({"actor": "op"} | wrong))  # type: ignore[arg-type]
    assert caught.value.field == field
    assert await ledger.sales.sale(sale.sale_id) == sale


async def test_a_sale_that_is_not_there_or_closed_is_not_changed(
    ledger: SQLLedger, clock: HandClock
) -> None:
    sale = await ledger.sales.create_sale(NEW, actor="op")
    clock.at_ms += 2000
    await ledger.sales.create_sale(replace(NEW, ends_at_ms=None), actor="op")
    for sale_id, error in ((SaleId(99), NoSuchSale), (sale.sale_id, SaleClosed)):
        with pytest.raises(error):
            await ledger.sales.change_sale(sale_id, paused=True, actor="op")
        with pytest.raises(error):
            await ledger.sales.request_stock_change("c", sale_id, 1, actor="op")
    assert await ledger.sales.pending_stock_changes() == []


async def test_more_units_are_on_sale_at_once_and_once(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, stock=6)
    sale_id = shop.sale.sale_id
    request = ledger.sales.request_stock_change
    first = await request("c-1", sale_id, 5, actor="op", reason="found a box")
    assert (first.stock_units, first.version) == (11, 2)
    assert await request("c-1", sale_id, 5, actor="op", reason="retried") == first
    with pytest.raises(ChangeIdReused):
        await request("c-1", sale_id, 6, actor="op")
    other = await open_shop(ledger)
    with pytest.raises(ChangeIdReused):
        await request("c-1", other.sale.sale_id, 5, actor="op")
    assert (await other.now()).stock_units == 100
    assert await ledger.pending_stock_changes() == [PendingStockChange("c-1", sale_id, 5)]
    await ledger.write([shop.stock(1, "c-1", 5)])
    await ledger.confirm_stock_change("c-1", epoch=1, seq=1)
    assert await ledger.pending_stock_changes() == []
    assert (await shop.now()).stock_units == 11
    (action,) = [
        row for row in await rows(database, actions) if row["action"] == "request_stock_change"
    ]
    detail = msgspec.json.decode(str(action["detail"]))
    assert (detail["before"], detail["after"]) == ({"stock_units": 6}, {"stock_units": 11})


async def test_fifty_operators_at_once_raise_the_stock_by_exactly_fifty(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=6)
    await asyncio.gather(
        *(
            ledger.sales.request_stock_change(f"c-{n % 50}", shop.sale.sale_id, 1, actor="op")
            for n in range(100)
        )
    )
    assert (await shop.now()).stock_units == 56
    assert len(await ledger.pending_stock_changes()) == 50


@pytest.mark.parametrize("confirm_first", [True, False])
async def test_fewer_units_leave_when_redis_has_taken_them(
    ledger: SQLLedger, confirm_first: bool
) -> None:
    shop = await open_shop(ledger, stock=10)
    requested = await ledger.sales.request_stock_change("c-1", shop.sale.sale_id, -4, actor="op")
    assert requested.stock_units == 10
    event = shop.stock(1, "c-1", -4)
    if confirm_first:
        await ledger.confirm_stock_change("c-1", epoch=1, seq=1)
        assert (await shop.now()).stock_units == 10
    await ledger.write([event])
    changed = await shop.now()
    assert (changed.stock_units, changed.version) == (6, 3)
    for _ in range(2):
        await ledger.confirm_stock_change("c-1", epoch=1, seq=1)
        await ledger.confirm_stock_change("c-1", epoch=1, seq=0)
        await ledger.write([event])
    assert await shop.now() == changed
    assert await ledger.pending_stock_changes() == []


async def test_a_refused_change_changes_nothing(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=10)
    for change_id, delta_units in (("less", -4), ("more", 4)):
        await ledger.sales.request_stock_change(
            change_id, shop.sale.sale_id, delta_units, actor="op"
        )
        for _ in range(2):
            await ledger.confirm_stock_change(change_id, epoch=1, seq=0)
        assert (await shop.now()).stock_units == 10
    assert await ledger.pending_stock_changes() == []
    # Redis had the last word after all: what it did is what counts.
    await ledger.write([shop.stock(1, "less", -4), shop.stock(2, "more", 4)])
    assert (await shop.now()).stock_units == 10
    async with ledger.audit.books() as books:
        changes = await books.stock_changes(shop.sale.sale_id)
    assert {(change.state, change.counted) for change in changes} == {("applied", True)}


async def test_sold_units_cannot_be_taken_off_sale(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=10)
    await ledger.write([shop.admitted(seq) for seq in (1, 2, 3)])
    request = ledger.sales.request_stock_change
    await request("c-1", shop.sale.sale_id, -5, actor="op")
    with pytest.raises(InvalidValue) as caught:
        await request("c-2", shop.sale.sale_id, -3, actor="op")
    assert caught.value.field == "by"
    assert "at most 2" in caught.value.rule
    await request("c-2", shop.sale.sale_id, -2, actor="op")
    await ledger.write([shop.stock(4, "c-1", -5), shop.stock(5, "c-2", -2)])
    assert (await shop.now()).stock_units == 3
    await assert_sound(ledger, shop.sale.sale_id)


@pytest.mark.parametrize("delta_units", [0, STOCK_UNITS_MAX, STOCK_UNITS_MAX + 1, -11, 2**70])
async def test_a_difference_out_of_bounds_is_refused_and_leaves_no_trace(
    ledger: SQLLedger, delta_units: int
) -> None:
    shop = await open_shop(ledger, stock=10)
    with pytest.raises(InvalidValue, match="by"):
        await ledger.sales.request_stock_change("c", shop.sale.sale_id, delta_units, actor="op")
    assert await ledger.pending_stock_changes() == []
    assert await shop.now() == shop.sale


async def test_units_taken_off_below_what_is_sold_never_make_the_books_unsound(
    ledger: SQLLedger,
) -> None:
    """Redis had lost sales and gave away what it did not have: the stock ends at what is sold."""
    shop = await open_shop(ledger, stock=3)
    await ledger.sales.request_stock_change("c", shop.sale.sale_id, -2, actor="op")
    await ledger.write([*(shop.admitted(seq) for seq in (1, 2, 3)), shop.stock(4, "c", -2)])
    assert (await shop.now()).stock_units == 3
    await assert_sound(ledger, shop.sale.sale_id)


async def test_a_change_that_nobody_asked_for_keeps_its_place_and_moves_nothing(
    ledger: SQLLedger,
) -> None:
    shop = await open_shop(ledger, stock=3)
    other = await open_shop(ledger, stock=3)
    await ledger.sales.request_stock_change("of-other", other.sale.sale_id, 1, actor="op")
    await ledger.sales.request_stock_change("mine", shop.sale.sale_id, 1, actor="op")
    await ledger.write(
        [shop.stock(1, "nobody", 5), shop.stock(2, "of-other", 1), shop.stock(3, "mine", 2)]
    )
    await ledger.confirm_stock_change("nobody", epoch=1, seq=1)
    assert (await shop.now()).stock_units == 4
    assert len(await ledger.pending_stock_changes()) == 2
    assert await ledger.epochs.known_seq(shop.bucket_id, 1) == 3
