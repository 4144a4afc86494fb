"""Bucket events become orders, once; what may not become one becomes a compensation."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from contract.ledger.kit import ID_KEY, NOW_MS, HandClock, assert_sound, dump, open_shop, rows
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.events import Admitted
from seckill.domain.ids import AttemptId, ReservationId, SaleId, UserId, check_user_id
from seckill.domain.order import OrderState
from seckill.domain.reservation import Place
from seckill.ledger import Database, SQLLedger
from seckill.ledger.batch import OVER_LIMIT, OVER_STOCK, STALE_EPOCH
from seckill.ledger.errors import UnknownSale, UnwritableEvents
from seckill.ledger.tables import bucket_events, collisions, order_events, orders, releases
from seckill.pipeline.ports import WriteReport

IDS = ReservationIds(ID_KEY)


async def test_an_admission_becomes_an_order_that_awaits_payment(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=10, limit=2)
    event = shop.admitted(1, "ann", 2)
    assert await ledger.write([event]) == WriteReport(ordered=1)
    reservation_id = IDS.encode(event.place)
    order = (await ledger.reading.orders_by_ids([reservation_id]))[reservation_id]
    assert order.state is OrderState.AWAITING_PAYMENT
    assert (order.user_id, order.quantity, order.price_fen) == ("ann", 2, 4900)
    assert order.goods_id == shop.sale.goods_id
    assert order.pay_by_ms == event.at_ms + shop.sale.pay_window_ms
    assert await shop.sold() == 2
    await assert_sound(ledger, shop.sale.sale_id)


async def test_nothing_to_write_is_no_transaction(ledger: SQLLedger) -> None:
    assert await ledger.write([]) == WriteReport()


async def test_a_batch_that_comes_again_changes_nothing(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, stock=3, limit=1)
    first = shop.admitted(1, "ann")
    refused = shop.admitted(2, "ann")
    events = [
        first,
        refused,
        shop.admitted(3, "bob"),
        shop.stock(4, "c-1", 5),
        shop.released(5, refused),
    ]
    await ledger.sales.request_stock_change("c-1", shop.sale.sale_id, 5, actor="op")
    report = await ledger.write(events)
    assert (report.ordered, report.known, len(report.compensated)) == (2, 0, 1)
    before = await dump(database)
    assert await ledger.write(events) == WriteReport(known=5)
    assert await ledger.write(list(reversed(events)) * 2) == WriteReport(known=10)
    assert await dump(database) == before


async def test_an_event_twice_in_one_batch_counts_once(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=10, limit=5)
    event = shop.admitted(1, "ann", 2)
    assert await ledger.write([event, event, event]) == WriteReport(ordered=1, known=2)
    assert await shop.sold() == 2


async def test_a_batch_larger_than_one_statement_is_written_whole(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=20_000)
    events = [shop.admitted(seq) for seq in range(1, 11_001)]
    assert (await ledger.write(events)).ordered == 11_000
    assert (await ledger.write([*events, shop.admitted(11_001)])) == WriteReport(
        ordered=1, known=11_000
    )
    await assert_sound(ledger, shop.sale.sale_id)


async def test_a_buyer_over_the_limit_is_compensated_and_the_unit_goes_back(
    ledger: SQLLedger,
) -> None:
    shop = await open_shop(ledger, stock=10, limit=2)
    await ledger.write([shop.admitted(1, "ann", 1)])
    whole, fits = shop.admitted(2, "ann", 2), shop.admitted(3, "ann", 1)
    report = await ledger.write([whole, fits])
    assert report.compensated == (IDS.encode(whole.place),)
    order = (await ledger.reading.orders_by_ids([IDS.encode(whole.place)]))[IDS.encode(whole.place)]
    assert (order.state, order.reason) == (OrderState.COMPENSATED, OVER_LIMIT)
    (release,) = await ledger.pending_releases(10)
    assert (release.reservation, release.epoch, release.quantity) == (whole.place, 1, 2)
    assert await shop.sold() == 2
    await assert_sound(ledger, shop.sale.sale_id)


async def test_the_unit_after_the_last_one_is_compensated(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=2)
    events = [shop.admitted(seq) for seq in (1, 2, 3)]
    report = await ledger.write(events)
    assert (report.ordered, report.compensated) == (2, (IDS.encode(events[2].place),))
    order = await ledger.reading.order_of(IDS.encode(events[2].place), events[2].user_id)
    assert order is not None
    assert (order.state, order.reason) == (OrderState.COMPENSATED, OVER_STOCK)
    assert [release.reservation for release in await ledger.pending_releases(9)] == [
        events[2].place
    ]
    await assert_sound(ledger, shop.sale.sale_id)


async def test_an_epoch_that_the_ledger_never_opened_gets_no_order_and_no_release(
    ledger: SQLLedger,
) -> None:
    shop = await open_shop(ledger)
    event = shop.admitted(1, epoch=2)
    report = await ledger.write([event])
    assert report.compensated == (IDS.encode(event.place),)
    order = await ledger.reading.order_of(IDS.encode(event.place), event.user_id)
    assert order is not None
    assert order.reason == STALE_EPOCH
    assert await ledger.pending_releases(10) == []
    assert await shop.sold() == 0


async def test_places_of_a_carried_on_epoch_are_accepted_up_to_its_last_seq(
    ledger: SQLLedger,
) -> None:
    shop = await open_shop(ledger, stock=2)
    await ledger.epochs.carry_on(shop.bucket_id, 1, 3, "restart")
    late, beyond = shop.admitted(3), shop.admitted(4)
    new = shop.admitted(1, "new", epoch=2)
    report = await ledger.write([late, beyond, new])
    assert (report.ordered, report.compensated) == (2, (IDS.encode(beyond.place),))
    assert await ledger.pending_releases(10) == []
    # Redis still counts what was admitted before it was carried on: its release is valid there.
    over = shop.admitted(2, "over")
    await ledger.write([over])
    (release,) = await ledger.pending_releases(10)
    assert (release.reservation, release.epoch) == (over.place, 2)


async def test_nothing_of_a_rebuilt_epoch_becomes_an_order_not_even_in_a_gap(
    ledger: SQLLedger,
) -> None:
    shop = await open_shop(ledger)
    await ledger.write([shop.admitted(1), shop.admitted(5)])
    await ledger.epochs.plan_rebuild(shop.bucket_id, "lost data")
    report = await ledger.write([shop.admitted(3), shop.admitted(6), shop.admitted(1)])
    assert (report.ordered, report.known, len(report.compensated)) == (0, 1, 2)
    assert await ledger.pending_releases(10) == []
    assert await shop.sold() == 2
    await assert_sound(ledger, shop.sale.sale_id)


async def test_events_of_unknown_sales_are_named_and_the_rest_can_be_written(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger)
    strange = [replace(shop.admitted(seq), place=Place(SaleId(999), 1, 0, seq)) for seq in (1, 2)]
    before = await dump(database)
    with pytest.raises(UnknownSale) as caught:
        await ledger.write([shop.admitted(1), *strange])
    assert caught.value.events == tuple(strange)
    assert await dump(database) == before
    assert (await ledger.write([shop.admitted(1)])).ordered == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"user_id": "a\x00b"},
        {"user_id": "\ud800"},
        {"user_id": ""},
        {"user_id": "x" * 65},
        {"attempt_id": "a\x00"},
        {"quantity": 0},
        {"quantity": -1},
        {"quantity": 2**40},
        {"at_ms": -1},
        {"at_ms": 2**63},
        {"place": Place(SaleId(1), 1, 0, 0)},
        {"place": Place(SaleId(1), 1, 0, 2**63)},
        {"place": Place(SaleId(1), 2**16, 0, 1)},
        {"place": Place(SaleId(1), 1, -1, 1)},
        {"place": Place(SaleId(2**32), 1, 0, 1)},
    ],
    ids=str,
)
async def test_one_bad_event_is_named_and_does_not_take_the_good_ones_along(
    ledger: SQLLedger, fault: dict[str, object]
) -> None:
    shop = await open_shop(ledger)
    bad = replace(shop.admitted(7), **fault)  # type: ignore[arg-type]
    with pytest.raises(UnwritableEvents) as caught:
        await ledger.write([shop.admitted(1), bad, shop.admitted(2)])
    assert caught.value.events == (bad,)
    assert (await ledger.write([shop.admitted(1), shop.admitted(2)])).ordered == 2


EXOTIC_IDS = [
    "٣", "é", "e\u0301", "😀", "../../x", "%00", "a:b", "{a}", "{}", "x}y{z", "商品-1", "a'b", 'a"b',
    "a;--", "Ünïcödé", "ß", "ẞ", "𝔘𝔰𝔢𝔯", "؟", "user@example.com", "a\\b", "\u0301", "*" * 64, "界" * 64,
]  # fmt: skip


async def test_every_allowed_id_comes_back_byte_for_byte(ledger: SQLLedger) -> None:
    shop = await open_shop(ledger, stock=100)
    ids = [check_user_id(text) for text in EXOTIC_IDS]
    events = [
        Admitted(shop.place(seq), user_id, 1, AttemptId(user_id), NOW_MS)
        for seq, user_id in enumerate(ids, start=1)
    ]
    assert (await ledger.write(events)).ordered == len(ids)
    # The two forms of é are two buyers, and so are ß and ẞ.
    assert await ledger.write(events) == WriteReport(known=len(ids))
    for event in events:
        order = await ledger.reading.order_of(IDS.encode(event.place), event.user_id)
        assert order is not None
        assert order.user_id.encode() == event.user_id.encode()
        page = await ledger.reading.orders_of_user(event.user_id, 10)
        assert [found.reservation_id for found in page.orders] == [IDS.encode(event.place)]
    plan = await ledger.epochs.plan_rebuild(shop.bucket_id, "test")
    assert sorted(user for user, _ in plan.buyers) == [user for user, _ in plan.buyers]
    assert {user.encode() for user, _ in plan.buyers} == {user.encode() for user in ids}


class OneIdForAll(ReservationIds):
    """A broken codec: every place has the same reservation id."""

    def encode_many(self, places: Sequence[Place]) -> list[ReservationId]:
        return [ReservationId("0" * 32) for _ in places]


@pytest.mark.parametrize("together", [True, False])
async def test_a_reservation_id_of_another_place_is_never_taken_for_the_same(
    database: Database, clock: HandClock, together: bool
) -> None:
    ledger = SQLLedger(database, OneIdForAll(ID_KEY), clock)
    shop = await open_shop(ledger)
    ann, bob = shop.admitted(1, "ann"), shop.admitted(2, "bob")
    with capture_logs() as logs:
        if together:
            report = await ledger.write([ann, bob])
            assert report == WriteReport(ordered=1, collided=(bob,))
        else:
            assert await ledger.write([ann]) == WriteReport(ordered=1)
            assert await ledger.write([bob]) == WriteReport(collided=(bob,))
    assert [
        log["log_level"] for log in logs if log["event"] == "two purchases claim one place"
    ] == ["error"]
    assert await ledger.write([bob, ann]) == WriteReport(known=2)
    shared = ReservationId("0" * 32)
    of_ann = await ledger.reading.order_of(shared, UserId("ann"))
    of_bob = await ledger.reading.order_of(shared, UserId("bob"))
    assert of_ann is not None
    assert of_ann.state is OrderState.AWAITING_PAYMENT
    assert of_bob is not None
    assert (of_bob.state, of_bob.user_id) == (OrderState.COMPENSATED, "bob")
    assert await ledger.reading.order_of(shared, UserId("cat")) is None
    assert await shop.sold() == 1


async def test_a_forked_bucket_never_gives_one_buyers_order_to_another(
    ledger: SQLLedger, database: Database
) -> None:
    """Redis forgot, and gave place 1 to somebody else."""
    shop = await open_shop(ledger, limit=5)
    ann, bob = shop.admitted(1, "ann"), shop.admitted(1, "bob")
    more = shop.admitted(1, "ann", 2)
    await ledger.write([ann])
    assert await ledger.write([bob, ann, more]) == WriteReport(known=1, collided=(bob, more))
    assert await ledger.write([bob, more, ann]) == WriteReport(known=3)
    assert (await shop.states()) == {"ann": "awaiting_payment"}
    kept = await rows(database, collisions)
    assert {(row["kind"], row["user_id"], row["units"]) for row in kept} == {
        ("admission", "bob", 1),
        ("admission", "ann", 2),
    }
    await assert_sound(ledger, shop.sale.sale_id)


async def test_a_place_is_either_an_admission_or_something_else(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger)
    await ledger.sales.request_stock_change("c-1", shop.sale.sale_id, -1, actor="op")
    ann = shop.admitted(1)
    await ledger.write([ann, shop.stock(2, "c-1", -1), shop.released(3, ann)])
    stock_units = (await shop.now()).stock_units
    forked = [
        shop.stock(1, "c-9", 4),
        shop.admitted(2),
        shop.stock(3, "c-9", 4),
        shop.released(2, ann),
    ]
    report = await ledger.write(forked)
    assert set(report.collided) == set(forked)
    assert report == WriteReport(collided=report.collided)
    assert len(await rows(database, collisions)) == 4
    assert await ledger.write(forked) == WriteReport(known=4)
    assert (await shop.now()).stock_units == stock_units
    assert len(await rows(database, orders)) == 1
    assert len(await rows(database, bucket_events)) == 2


async def test_a_release_event_settles_the_release_that_it_made(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, stock=1)
    ann, bob = shop.admitted(1), shop.admitted(2)
    await ledger.write([ann, bob])
    assert len(await ledger.pending_releases(10)) == 1
    await ledger.write([shop.released(3, bob)])
    assert await ledger.pending_releases(10) == []
    (release,) = await rows(database, releases)
    assert (release["state"], release["release_seq"]) == ("done", 3)
    # One that the ledger never decided still has its place, so that no seq is missing.
    await ledger.write([shop.released(4, ann)])
    assert [row["seq"] for row in await rows(database, bucket_events)] == [3, 4]


async def test_every_move_of_an_order_is_on_record(ledger: SQLLedger, database: Database) -> None:
    shop = await open_shop(ledger, stock=1)
    await ledger.write(
        [shop.admitted(1, "ann"), shop.admitted(2, "bob"), shop.admitted(1, epoch=9)]
    )
    await ledger.orders.cancel(
        IDS.encode(shop.place(1)), UserId("ann"), actor="buyer", reason="changed my mind"
    )
    moves = [
        (row["from_state"], row["to_state"], row["actor"], row["reason"])
        for row in await rows(database, order_events)
    ]
    assert len(moves) == 4
    assert set(moves[:3]) == {
        ("queued", "awaiting_payment", "worker", None),
        ("queued", "compensated", "worker", OVER_STOCK),
        ("queued", "compensated", "worker", STALE_EPOCH),
    }
    assert moves[3] == ("awaiting_payment", "cancelled", "buyer", "changed my mind")
