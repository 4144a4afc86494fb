"""Payments in the books: every order of news, both databases. Case numbers stand in the comments."""

import itertools
from dataclasses import replace

import pytest

from contract.ledger.kit import ID_KEY, HandClock, Shop, assert_sound, open_shop, rows
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.ids import ReservationId, UserId
from seckill.domain.order import EDGES, Order, OrderState
from seckill.domain.payment import (
    Money,
    NewsKind,
    NewsOutcome,
    Payment,
    PaymentId,
    PaymentNews,
    PaymentState,
)
from seckill.ledger import Database, SQLLedger
from seckill.ledger.errors import DeadlinePassed, EventIdReused, TooManyPayments, WrongState
from seckill.ledger.payments import PAYMENTS_PER_ORDER_MAX, late_attempt
from seckill.ledger.tables import actions, order_events, orders, payment_events, payments, releases
from seckill.pipeline.ports import LateVerdict

IDS = ReservationIds(ID_KEY)
PRICE = Money(4900)
WINDOW_MS = 900_000


async def ordered(shop: Shop, seq: int = 1, user: str = "ann") -> ReservationId:
    await shop.ledger.write([shop.admitted(seq, user)])
    return IDS.encode(shop.place(seq))


async def started(ledger: SQLLedger, order: ReservationId, name: str, user: str = "ann") -> Payment:
    found = await ledger.payments.start(order, UserId(user), new_id=PaymentId(name))
    assert found is not None
    assert found[1] is not None
    return found[1]


def news(
    kind: NewsKind, payment: str, event: str | None = None, money: Money | None = PRICE
) -> PaymentNews:
    name = event or f"{kind.value}-{payment}"
    return PaymentNews(
        event_id=name,
        kind=kind,
        payment_id=PaymentId(payment),
        money=money if kind is NewsKind.PAID else None,
        at_ms=1,
        content_hash=f"{kind}{payment}{money}",
    )


async def order_of(ledger: SQLLedger, order: ReservationId, user: str = "ann") -> Order:
    found = await ledger.reading.order_of(order, UserId(user))
    assert found is not None
    return found


async def payment_states(ledger: SQLLedger, order: ReservationId) -> dict[str, str]:
    return {p.payment_id: p.state.value for p in await ledger.payments.of_order(order)}


async def along_edges(database: Database) -> None:
    for row in await rows(database, order_events):
        assert OrderState(row["to_state"]) in EDGES[OrderState(row["from_state"])], row


async def test_starting_to_pay_twice_is_one_payment(ledger: SQLLedger, clock: HandClock) -> None:
    shop = await open_shop(ledger)
    order = await ordered(shop)
    first = await started(ledger, order, "p1")
    assert (first.money, first.attempt, first.page_url) == (PRICE, 1, None)
    assert first.deadline_ms == (await order_of(ledger, order)).pay_by_ms
    assert await ledger.payments.page_made(PaymentId("p1"), "http://a") == "http://a"
    assert await ledger.payments.page_made(PaymentId("p1"), "http://b") == "http://a"
    again = await started(ledger, order, "p2")
    assert (again.payment_id, again.page_url) == ("p1", "http://a")
    await ledger.payments.take(news(NewsKind.FAILED, "p1"))
    assert (await started(ledger, order, "p3")).attempt == 2
    assert await ledger.payments.start(order, UserId("bob"), new_id=PaymentId("p9")) is None
    assert (
        await ledger.payments.start(
            IDS.encode(shop.place(9)), UserId("ann"), new_id=PaymentId("p9")
        )
        is None
    )
    clock.at_ms += WINDOW_MS
    with pytest.raises(DeadlinePassed):
        await started(ledger, order, "p4")


async def test_an_order_is_tried_to_be_paid_twenty_times_at_most(ledger: SQLLedger) -> None:
    order = await ordered(await open_shop(ledger))
    for number in range(PAYMENTS_PER_ORDER_MAX):
        await started(ledger, order, f"p{number}")
        await ledger.payments.take(news(NewsKind.FAILED, f"p{number}"))
    with pytest.raises(TooManyPayments):
        await started(ledger, order, "one-more")


# C20: news of two attempts, in every order, each also twice.
_NEWS = [(NewsKind.PAID, "p2"), (NewsKind.EXPIRED, "p1"), (NewsKind.EXPIRED, "p2")]


@pytest.mark.parametrize("sequence", list(itertools.permutations(_NEWS)))
async def test_money_before_the_deadline_pays_whatever_other_news_comes_when(
    ledger: SQLLedger, database: Database, sequence: tuple[tuple[NewsKind, str], ...]
) -> None:
    shop = await open_shop(ledger)
    order = await ordered(shop)
    await started(ledger, order, "p1")
    await ledger.payments.take(news(NewsKind.FAILED, "p1", "abandoned"))
    await started(ledger, order, "p2")
    for kind, payment in sequence:
        for time in (1, 2):
            outcome, why = await ledger.payments.take(news(kind, payment))
            assert time == 1 or outcome is NewsOutcome.KNOWN
            assert (outcome is NewsOutcome.IGNORED) == (why is not None)
    found = await order_of(ledger, order)
    assert (found.state, found.paid_at_ms is not None) == (OrderState.PAID, True)
    assert await rows(database, releases) == []
    states = await payment_states(ledger, order)
    assert states == {"p1": "failed", "p2": "paid"}
    recorded = {row["event_id"]: row for row in await rows(database, payment_events)}
    late = recorded["payment.expired-p1"]
    assert (late["outcome"], late["reason"]) == ("ignored", "the payment is failed already")
    after = sequence.index((NewsKind.PAID, "p2")) < sequence.index((NewsKind.EXPIRED, "p2"))
    if after:
        assert recorded["payment.expired-p2"]["reason"] == "the payment is paid already"
    await along_edges(database)
    await assert_sound(ledger, shop.sale.sale_id)


async def test_money_of_a_second_attempt_goes_back_and_the_order_stays_paid(
    ledger: SQLLedger,
) -> None:
    shop = await open_shop(ledger)
    order = await ordered(shop)
    await started(ledger, order, "p1")
    await ledger.payments.take(news(NewsKind.FAILED, "p1"))
    await started(ledger, order, "p2")
    await ledger.payments.take(news(NewsKind.PAID, "p2"))
    # The provider had said that it failed, and then it came through after all.
    assert (await ledger.payments.take(news(NewsKind.PAID, "p1")))[0] is NewsOutcome.APPLIED
    assert await payment_states(ledger, order) == {"p1": "refund_due", "p2": "paid"}
    await ledger.payments.refunded(PaymentId("p1"))
    assert await payment_states(ledger, order) == {"p1": "refunded", "p2": "paid"}
    assert (await order_of(ledger, order)).state is OrderState.PAID
    await assert_sound(ledger, shop.sale.sale_id)


@pytest.mark.parametrize("money", [Money(4899), Money(4901), Money(4900, "USD"), Money(0)])
async def test_a_wrong_amount_never_pays_and_goes_back(ledger: SQLLedger, money: Money) -> None:
    shop = await open_shop(ledger)
    order = await ordered(shop)
    await started(ledger, order, "p1")
    await ledger.payments.take(news(NewsKind.PAID, "p1", money=money))
    (payment,) = await ledger.payments.of_order(order)
    assert (payment.state, payment.received) == (PaymentState.REFUND_DUE, money)
    assert "instead of 4900 CNY" in (payment.reason or "")
    assert (await order_of(ledger, order)).state is OrderState.AWAITING_PAYMENT
    # And the right one still can pay.
    await started(ledger, order, "p2")
    await ledger.payments.take(news(NewsKind.PAID, "p2"))
    assert (await order_of(ledger, order)).state is OrderState.PAID
    (due,) = await ledger.payments.claim(10)
    assert due.money == money


async def test_an_event_name_with_another_content_is_refused(ledger: SQLLedger) -> None:
    order = await ordered(await open_shop(ledger))
    await started(ledger, order, "p1")
    event = news(NewsKind.FAILED, "p1", "e1")
    await ledger.payments.take(event)
    with pytest.raises(EventIdReused):
        await ledger.payments.take(replace(event, content_hash="other"))


async def test_news_of_an_unknown_payment_is_recorded(
    ledger: SQLLedger, database: Database
) -> None:
    assert (await ledger.payments.take(news(NewsKind.PAID, "nobody's")))[0] is NewsOutcome.IGNORED
    (row,) = await rows(database, payment_events)
    assert row["reason"] == "there is no such payment"


@pytest.mark.parametrize("ended", ["expired", "cancelled"])
@pytest.mark.parametrize("rule", ["take_free_unit", "refund"])
async def test_money_after_the_end_goes_back_or_looks_for_a_free_unit(
    ledger: SQLLedger, database: Database, clock: HandClock, ended: str, rule: str
) -> None:
    shop = await open_shop(ledger, late_payment=rule)
    order = await ordered(shop)
    await started(ledger, order, "p1")
    if ended == "expired":
        clock.at_ms += WINDOW_MS
        assert await ledger.expiry.due(10) == [order]
        assert await ledger.expiry.expire([order]) == 1
    else:
        await ledger.orders.cancel(order, UserId("ann"), actor="buyer", reason="")
    await ledger.payments.take(news(NewsKind.PAID, "p1"))
    found = await order_of(ledger, order)
    if (ended, rule) == ("expired", "take_free_unit"):
        assert found.state is OrderState.EXPIRED
        assert "We look whether one is left" in (found.reason or "")
        assert await payment_states(ledger, order) == {"p1": "late"}
        (due,) = await ledger.payments.claim(10)
        assert due.state is PaymentState.LATE
        assert await ledger.payments.claim(10) == []  # left to whoever claimed it
        clock.at_ms += 10_000
        assert len(await ledger.payments.claim(10)) == 1
        assert await ledger.payments.settle_late(PaymentId("p1")) is LateVerdict.WANTING
        assert await ledger.payments.give_up_late(PaymentId("p1"), "sold out")
        assert not await ledger.payments.give_up_late(PaymentId("p1"), "sold out")
        found = await order_of(ledger, order)
    assert found.state is OrderState.REFUND_DUE
    assert "The money goes back to you" in (found.reason or "")
    assert await payment_states(ledger, order) == {"p1": "refund_due"}
    await ledger.payments.refunded(PaymentId("p1"))
    await ledger.payments.refunded(PaymentId("p1"))
    assert (await order_of(ledger, order)).state is OrderState.REFUNDED
    assert await payment_states(ledger, order) == {"p1": "refunded"}
    assert len(await rows(database, releases)) == 1
    await along_edges(database)
    await assert_sound(ledger, shop.sale.sale_id)


async def test_late_money_pays_the_order_that_it_has_bought(
    ledger: SQLLedger, database: Database, clock: HandClock
) -> None:
    shop = await open_shop(ledger, stock=1)
    order = await ordered(shop)
    await started(ledger, order, "p1")
    clock.at_ms += WINDOW_MS
    await ledger.expiry.expire([order])
    await ledger.payments.take(news(NewsKind.PAID, "p1"))
    again = replace(
        shop.admitted(3, "ann"), attempt_id=late_attempt(PaymentId("p1")), at_ms=clock.at_ms
    )
    await ledger.write([shop.released(2, shop.admitted(1, "ann")), again])
    # The reaper was away for longer than the pay window: the order has its money all the same.
    clock.at_ms += 2 * WINDOW_MS
    assert await ledger.expiry.due(10) == []
    assert await ledger.expiry.expire([IDS.encode(again.place)]) == 0
    assert not await ledger.payments.give_up_late(PaymentId("p1"), "it has one")
    for _ in range(2):
        assert await ledger.payments.settle_late(PaymentId("p1")) is LateVerdict.SETTLED
    new = IDS.encode(again.place)
    old, bought = await order_of(ledger, order), await order_of(ledger, new)
    assert (old.state, old.continued_as) == (OrderState.EXPIRED, new)
    assert bought.state is OrderState.PAID
    assert new in (old.reason or "")
    assert order in (bought.reason or "")
    assert await payment_states(ledger, new) == {"p1": "paid"}
    assert await payment_states(ledger, order) == {}
    await assert_sound(ledger, shop.sale.sale_id)
    # An operator gives it back: the unit returns, the money too.
    refund_due = await ledger.payments.refund(new, actor="cli:eve", reason="broken")
    assert refund_due is not None
    assert refund_due.state is OrderState.REFUND_DUE
    await ledger.payments.refunded(PaymentId("p1"))
    assert (await order_of(ledger, new)).state is OrderState.REFUNDED
    assert (await order_of(ledger, order)).state is OrderState.EXPIRED
    assert (await rows(database, actions))[-1]["action"] == "refund_order"
    await along_edges(database)
    await assert_sound(ledger, shop.sale.sale_id)


async def test_late_money_whose_new_order_was_refused_goes_back(
    ledger: SQLLedger, clock: HandClock
) -> None:
    shop = await open_shop(ledger, stock=1)
    order = await ordered(shop)
    await started(ledger, order, "p1")
    clock.at_ms += WINDOW_MS
    await ledger.expiry.expire([order])
    await ledger.payments.take(news(NewsKind.PAID, "p1"))
    again = replace(shop.admitted(4, "ann"), attempt_id=late_attempt(PaymentId("p1")))
    await ledger.write([shop.admitted(3, "bob"), again])
    assert await ledger.payments.settle_late(PaymentId("p1")) is LateVerdict.MISSED
    assert await ledger.payments.give_up_late(PaymentId("p1"), "refused")
    assert (await order_of(ledger, order)).state is OrderState.REFUND_DUE
    await assert_sound(ledger, shop.sale.sale_id)


async def test_a_refund_by_the_provider_itself_takes_the_order_back(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, stock=1)
    order = await ordered(shop)
    await started(ledger, order, "p1")
    await ledger.payments.take(news(NewsKind.PAID, "p1"))
    await ledger.payments.take(news(NewsKind.REFUNDED, "p1"))
    assert (await order_of(ledger, order)).state is OrderState.REFUNDED
    assert await shop.sold() == 0
    assert len(await rows(database, releases)) == 1
    await along_edges(database)
    await assert_sound(ledger, shop.sale.sale_id)


async def test_news_of_the_refund_before_news_of_the_money_does_not_pay(
    ledger: SQLLedger,
) -> None:
    shop = await open_shop(ledger)
    order = await ordered(shop)
    await started(ledger, order, "p1")
    assert (await ledger.payments.take(news(NewsKind.REFUNDED, "p1")))[0] is NewsOutcome.IGNORED
    await ledger.payments.take(news(NewsKind.PAID, "p1"))
    assert (await order_of(ledger, order)).state is OrderState.AWAITING_PAYMENT
    assert await payment_states(ledger, order) == {"p1": "refunded"}


async def test_a_refund_that_failed_is_asked_for_under_another_name(
    ledger: SQLLedger, clock: HandClock
) -> None:
    order = await ordered(await open_shop(ledger))
    await started(ledger, order, "p1")
    await ledger.payments.take(news(NewsKind.PAID, "p1", money=Money(1)))
    (first,) = await ledger.payments.claim(10)
    await ledger.payments.take(news(NewsKind.REFUND_FAILED, "p1"))
    clock.at_ms += 20_000
    (second,) = await ledger.payments.claim(10)
    assert first.refund_id != second.refund_id
    await ledger.payments.postpone(PaymentId("p1"), 60_000, "asked")
    clock.at_ms += 20_000
    assert await ledger.payments.claim(10) == []


async def test_a_refund_after_the_sale_was_retired_waits_for_no_stock(
    ledger: SQLLedger, database: Database, clock: HandClock
) -> None:
    """Its keys have left Redis: a release that waited for them would wait for ever."""
    shop = await open_shop(ledger)
    order = await ordered(shop)
    await started(ledger, order, "p1")
    await ledger.payments.take(news(NewsKind.PAID, "p1"))
    await ledger.sales.change_sale(shop.sale.sale_id, ends_at_ms=clock.at_ms, actor="eve")
    clock.at_ms += 10
    assert await ledger.retirement.retire(shop.sale.sale_id, 1)
    await ledger.payments.refund(order, actor="eve", reason="")
    (release,) = await rows(database, releases)
    assert (release["state"], release["done_at_ms"]) == ("counted", clock.at_ms)
    assert await ledger.pending_releases(10) == []
    await assert_sound(ledger, shop.sale.sale_id)


async def test_only_a_paid_order_is_refunded(ledger: SQLLedger, database: Database) -> None:
    shop = await open_shop(ledger)
    order = await ordered(shop)
    with pytest.raises(WrongState):
        await ledger.payments.refund(order, actor="eve", reason="")
    assert await ledger.payments.refund(IDS.encode(shop.place(9)), actor="e", reason="") is None
    assert {row["state"] for row in await rows(database, orders)} == {"awaiting_payment"}
    assert await rows(database, payments) == []


@pytest.mark.parametrize("state", ["paid", "expired", "cancelled"])
async def test_the_loser_of_a_race_reads_the_state(
    ledger: SQLLedger, clock: HandClock, state: str
) -> None:
    order = await ordered(await open_shop(ledger))
    await started(ledger, order, "p1")
    match state:
        case "paid":
            await ledger.payments.take(news(NewsKind.PAID, "p1"))
            found = await ledger.payments.start(order, UserId("ann"), new_id=PaymentId("p2"))
            assert found is not None
            assert (found[0].state, found[1]) == (OrderState.PAID, None)
        case "expired":
            clock.at_ms += WINDOW_MS
            await ledger.expiry.expire([order])
        case _:
            await ledger.orders.cancel(order, UserId("ann"), actor="buyer", reason="")
    if state != "paid":
        with pytest.raises(WrongState) as caught:
            await ledger.payments.start(order, UserId("ann"), new_id=PaymentId("p2"))
        assert caught.value.order.state == state
    if state != "cancelled":
        with pytest.raises(WrongState) as caught:
            await ledger.orders.cancel(order, UserId("ann"), actor="buyer", reason="")
        assert caught.value.order.state == state
    assert await ledger.expiry.expire([order]) == 0
