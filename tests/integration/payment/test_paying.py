"""Paying, not paying, and paying too late, over HTTP and on both databases."""

import asyncio
import itertools
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text

from contract.ledger.kit import rows
from integration.payment.kit import PRICE_FEN, PayShop, running_works
from seckill.admission.bounds import Bounds
from seckill.admission.keys import Keys
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import AttemptId, ReservationId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.payment import NewsKind
from seckill.domain.reservation import BucketId
from seckill.domain.sale import Sale
from seckill.ledger.tables import actions, payments, stock_changes
from seckill.payment.errors import ProviderAway, ProviderRefused
from services.redis import RedisServer
from services.stage import Gate, open_gate, until


async def expired_and_released(shop: PayShop, orders: list[ReservationId]) -> None:
    await shop.make_due(orders)
    assert await shop.reaper().expire_due() >= len(orders)
    await shop.settle()


async def finish(shop: PayShop) -> None:
    """Let the reaper finish its payments, with the worker beside it."""

    async def due() -> bool:
        return any(row["next_try_at_ms"] is not None for row in await rows(shop.database, payments))

    async with running_works(shop.reaper().finish_payments, shop.worker.step, every_s=0.01):
        await until(lambda: _not(due()), 60)
    await shop.settle()


async def _not(truth: "asyncio.Future[bool]") -> bool:
    return not await truth


async def test_a_buyer_pays_and_reads_it(shop: PayShop) -> None:
    sale = await shop.sale(stock=2)
    order = (await shop.buy(sale, ["ann"]))["ann"]
    first = await shop.ask("POST", f"/orders/{order}/pay", "ann")
    again = await shop.ask("POST", f"/orders/{order}/pay", "ann")
    assert first.json == again.json
    assert len(shop.provider.started) == 1
    assert first.json["page_url"] == f"https://pay.example/{first.json['payment_id']}"
    assert (first.json["amount_fen"], first.json["currency"]) == (PRICE_FEN, "CNY")
    read = (await shop.ask("GET", f"/orders/{order}", "ann")).json
    assert (read["state"], read["pay_by"]) == ("awaiting_payment", first.json["pay_by"])
    for _ in range(2):
        assert (await shop.tell(NewsKind.PAID, first.json["payment_id"])).status == 204
    read = (await shop.ask("GET", f"/orders/{order}", "ann")).json
    assert read["state"] == "paid"
    assert read["paid_at"] is not None
    paid = await shop.ask("POST", f"/orders/{order}/pay", "ann")
    assert (paid.status, paid.json["state"], paid.json["page_url"]) == (200, "paid", None)
    assert (await shop.ask("POST", f"/orders/{order}/cancel", "ann")).status == 409
    await shop.make_due([order])
    assert await shop.reaper().expire_due() == 0
    await shop.assert_sound(sale)


async def test_a_provider_that_is_away_costs_a_second_click_and_no_second_payment(
    shop: PayShop,
) -> None:
    sale = await shop.sale(stock=1)
    order = (await shop.buy(sale, ["ann"]))["ann"]
    shop.provider.error = ProviderAway("busy")
    reply = await shop.ask("POST", f"/orders/{order}/pay", "ann")
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    shop.provider.error = ProviderRefused("not in this currency")
    assert (await shop.ask("POST", f"/orders/{order}/pay", "ann")).status == 409
    shop.provider.error = None
    assert (await shop.ask("POST", f"/orders/{order}/pay", "ann")).status == 200
    assert len(await rows(shop.database, payments)) == 1


async def test_nobody_pays_for_what_is_not_theirs_nor_held_any_more(shop: PayShop) -> None:
    """C71, C82."""
    sale = await shop.sale(stock=1)
    order = (await shop.buy(sale, ["ann"]))["ann"]
    for path in (f"/orders/{order}/pay", f"/orders/{order}/cancel"):
        assert (await shop.ask("POST", path, "bob")).status == 404
        assert (await shop.ask("POST", path)).status == 401
    await expired_and_released(shop, [order])
    reply = await shop.ask("POST", f"/orders/{order}/pay", "ann")
    assert reply.status == 409
    assert "expired" in reply.json["detail"]
    assert await rows(shop.database, payments) == []


async def test_what_is_refused_or_forged_changes_nothing(shop: PayShop) -> None:
    sale = await shop.sale(stock=1)
    order = (await shop.buy(sale, ["ann"]))["ann"]
    payment = await shop.pay(order, "ann")
    body = b'{"type":"payment.paid","data":{"payment_id":"%s"}}' % payment.encode()
    signature = {"webhook-id": "m", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"}
    for given, status in (({}, 401), (signature, 401)):
        reply = await shop.ask("POST", "/payments/webhook", "", body, **given)
        assert reply.status == status
    assert (await shop.order(order)).state == "awaiting_payment"
    assert (await shop.tell(NewsKind.PAID, payment, amount_fen=1)).status == 204
    assert (await shop.order(order)).state == "awaiting_payment"
    # The same event under another content is no news either.
    assert (await shop.tell(NewsKind.PAID, payment)).status == 422
    await finish(shop)
    (refund,) = shop.provider.refunds
    assert refund.money.amount_fen == 1
    await shop.assert_sound(sale)


async def test_cancelled_units_are_sold_again_and_no_more_than_those(shop: PayShop) -> None:
    """C1: 10 units, 100 buyers, 3 cancel, 10 more come."""
    sale = await shop.sale(stock=10)
    first = await shop.buy(sale, [f"a{n}" for n in range(100)])
    assert len(first) == 10
    assert await shop.remaining(sale) == 0
    for user in list(first)[:3]:
        assert (await shop.ask("POST", f"/orders/{first[user]}/cancel", user)).status == 200
    await shop.settle()
    assert await shop.remaining(sale) == 3
    # The flag of this process falls within its bound.
    second: dict[str, ReservationId] = {}

    async def sold() -> bool:
        second.update(await shop.buy(sale, [f"b{n}" for n in range(10)]))
        return len(second) >= 3

    await until(sold, 60)
    assert len(second) == 3
    assert await shop.remaining(sale) == 0
    await shop.assert_sound(sale)


async def test_what_walked_away_is_shown_and_sold_again(shop: PayShop) -> None:
    """C71: 3 units are reserved and not paid, 5 more come, then the window ends."""
    sale = await shop.sale(stock=3)
    walked = await shop.buy(sale, ["a", "b", "c"])
    item = (await shop.ask("GET", f"/goods/{sale.goods_id}")).json
    assert (item["remaining"], item["held"], item["paid"], item["stock"]) == (0, 3, 0, 3)
    pay_by = (await shop.ask("GET", f"/orders/{walked['a']}", "a")).json["pay_by"]
    assert item["next_release_at"] == pay_by
    assert await shop.buy(sale, [f"d{n}" for n in range(5)]) == {}
    await expired_and_released(shop, list(walked.values()))
    got: dict[str, ReservationId] = {}

    async def sold() -> bool:
        got.update(await shop.buy(sale, [f"d{n}" for n in range(5)]))
        return len(got) >= 3

    await until(sold, 60)
    assert len(got) == 3
    # And who let theirs go may buy again, once there is something.
    (user, order), *_ = got.items()
    await shop.ask("POST", f"/orders/{order}/cancel", user)
    await shop.settle()

    async def again() -> bool:
        return "a" in await shop.buy(sale, ["a"])

    await until(again, 60)
    await shop.assert_sound(sale)


async def test_what_was_bought_in_the_last_moment_can_still_be_paid(shop: PayShop) -> None:
    """C53."""
    sale = await shop.sale(stock=1)
    order = (await shop.buy(sale, ["ann"]))["ann"]
    await shop.ledger.sales.change_sale(sale.sale_id, ends_at_ms=2, actor="eve")
    await shop.keeper.keep()
    assert (await shop.buckets.look(BucketId(sale.sale_id, 0))).ends_at_ms == 2
    payment = await shop.pay(order, "ann")
    await shop.tell(NewsKind.PAID, payment)
    assert (await shop.order(order)).state == "paid"
    await shop.assert_sound(sale)


async def late(shop: PayShop, sale: Sale, user: str = "ann") -> ReservationId:
    """An order that has expired, whose money comes now."""
    order = (await shop.buy(sale, [user]))[user]
    payment = await shop.pay(order, user)
    await expired_and_released(shop, [order])
    assert (await shop.tell(NewsKind.PAID, payment)).status == 204
    return order


async def test_late_money_takes_a_free_unit(shop: PayShop) -> None:
    sale = await shop.sale(stock=1)
    order = await late(shop, sale)
    await finish(shop)
    read = (await shop.ask("GET", f"/orders/{order}", "ann")).json
    assert read["state"] == "expired"
    new = (await shop.ask("GET", f"/orders/{read['continued_as']}", "ann")).json
    assert new["state"] == "paid"
    assert await shop.remaining(sale) == 0
    assert shop.provider.refunds == []
    await shop.assert_sound(sale)


@pytest.mark.parametrize("how", ["not paid", "cancelled", "cancelled by us", "may buy again"])
async def test_who_gave_up_is_told_so_when_the_sale_lets_nobody_buy_again(
    shop: PayShop, how: str
) -> None:
    sale = await shop.sale(stock=1, may_buy_again=how == "may buy again")
    order = (await shop.buy(sale, ["ann"]))["ann"]
    match how:
        case "not paid" | "may buy again":
            await expired_and_released(shop, [order])
        case "cancelled":
            assert (await shop.ask("POST", f"/orders/{order}/cancel", "ann")).status == 200
        case "cancelled by us":
            await shop.ledger.orders.cancel_for(order, actor="eve", reason="a mistake of ours")
    await shop.settle()
    assert await shop.remaining(sale) == 1
    shown = (await shop.ask("GET", f"/goods/{sale.goods_id}")).json
    assert shown["may_buy_again"] == sale.may_buy_again
    # A process that says "sold out" looks again at Redis before long.
    await until(lambda: _decided(shop, sale), 60)
    reply = await shop.ask("POST", f"/seckill/{sale.goods_id}", "ann")
    if how in {"not paid", "cancelled"}:
        assert (reply.json["code"], reply.json["reservation_id"]) == (2, order)
        # Also by a bucket that was lost and made anew from the books.
        await shop.redis.delete(shop.keys.bucket(BucketId(sale.sale_id, 0)).meta)
        await shop.keeper.keep()
        await shop.keeper.rebuild(BucketId(sale.sale_id, 0), deadline_ms=30_000)
        await until(lambda: _decided(shop, sale), 60)
        reply = await shop.ask("POST", f"/seckill/{sale.goods_id}", "ann")
        assert (reply.json["code"], reply.json["reservation_id"]) == (2, order)
        assert await shop.remaining(sale) == 1
        assert list(await shop.buy(sale, ["bob"])) == ["bob"]
    else:
        assert reply.json["code"] == 1
        await shop.write()
        assert reply.json["reservation_id"] != order
    assert await shop.remaining(sale) == 0
    report = await shop.audit()
    assert report.ok, report.findings


async def _decided(shop: PayShop, sale: Sale) -> bool:
    """Whether a buyer whose answer does not matter is answered by Redis: over the limit."""
    decision = await shop.gate.admit(
        sale.goods_id, UserId("cat"), 2, AttemptId(f"t{next(shop.attempts)}")
    )
    return decision.outcome is Outcome.OVER_LIMIT


@pytest.mark.parametrize("why", ["sold out", "bought again", "ended", "by rule", "only once"])
async def test_late_money_that_finds_no_free_unit_goes_back(shop: PayShop, why: str) -> None:
    sale = await shop.sale(
        stock=1,
        late_payment="refund" if why == "by rule" else "take_free_unit",
        may_buy_again=why != "only once",
    )
    order = (await shop.buy(sale, ["ann"]))["ann"]
    payment = await shop.pay(order, "ann")
    await expired_and_released(shop, [order])
    match why:
        case "sold out":
            await until(lambda: _bought(shop, sale, "bob"), 60)
        case "bought again":
            await shop.ledger.sales.request_stock_change("c1", sale.sale_id, 5, actor="eve")
            await until(lambda: _bought(shop, sale, "ann"), 60)
        case "ended":
            await shop.ledger.sales.change_sale(sale.sale_id, ends_at_ms=2, actor="eve")
            await shop.keeper.keep()
    await shop.settle()
    left = await shop.remaining(sale)
    await shop.tell(NewsKind.PAID, payment)
    await finish(shop)
    read = (await shop.ask("GET", f"/orders/{order}", "ann")).json
    assert (read["state"], read["reason"]) == ("refunded", "The money has gone back to you.")
    (refund,) = shop.provider.refunds
    assert refund.money.amount_fen == PRICE_FEN
    assert await shop.remaining(sale) == left
    await shop.assert_sound(sale)


async def _bought(shop: PayShop, sale: Sale, user: str) -> bool:
    return user in await shop.buy(sale, [user])


async def test_late_money_waits_while_the_sale_is_paused(shop: PayShop) -> None:
    sale = await shop.sale(stock=1)
    order = await late(shop, sale)
    await shop.ledger.sales.change_sale(sale.sale_id, paused=True, actor="eve")
    await shop.keeper.keep()
    await shop.reaper().finish_payments()
    await shop.write()
    assert (await shop.order(order)).state == "expired"
    await shop.ledger.sales.change_sale(sale.sale_id, paused=False, actor="eve")
    await shop.keeper.keep()
    await finish(shop)
    assert (await shop.order(order)).continued_as is not None
    await shop.assert_sound(sale)


async def test_two_reapers_take_one_unit_for_one_late_payment(shop: PayShop) -> None:
    """Also when one of them died between the admission and its note of it."""
    sale = await shop.sale(stock=5)
    order = await late(shop, sale)
    for _ in range(3):  # a reaper that died after each: its claim runs out
        await shop.database.write(
            "let the claim run out",
            lambda c: c.execute(text("UPDATE payments SET next_try_at_ms = 1")),
        )
        await asyncio.gather(*(shop.reaper().finish_payments() for _ in range(3)))
    await finish(shop)
    assert await shop.remaining(sale) == 4
    assert (await shop.order(order)).continued_as is not None
    await shop.assert_sound(sale)


async def test_a_refund_by_an_operator_goes_through_to_the_buyer(shop: PayShop) -> None:
    sale = await shop.sale(stock=1)
    order = (await shop.buy(sale, ["ann"]))["ann"]
    payment = await shop.pay(order, "ann")
    await shop.tell(NewsKind.PAID, payment)
    await shop.ledger.payments.refund(order, actor="cli:eve", reason="It broke.")
    read = (await shop.ask("GET", f"/orders/{order}", "ann")).json
    assert (read["state"], read["reason"]) == ("refund_due", "It broke.")
    shop.provider.done = False
    await shop.reaper().finish_payments()
    assert (await shop.order(order)).state == "refund_due"
    await shop.tell(NewsKind.REFUNDED, payment)
    assert (await shop.order(order)).state == "refunded"
    await shop.assert_sound(sale)
    assert await shop.remaining(sale) == 1


async def test_fifty_operators_and_thirty_buyers_change_one_stock(shop: PayShop) -> None:
    """C49: each +1 is sent twice under its name; put on sale rises by exactly fifty."""
    sale = await shop.sale(stock=6)

    async def add(number: int) -> None:
        for _ in range(2):
            await shop.ledger.sales.request_stock_change(
                f"more-{number}", sale.sale_id, 1, actor=f"operator-{number}", reason="found one"
            )

    bought, *_ = await asyncio.gather(
        shop.buy(sale, [f"u{n}" for n in range(30)]), *(add(n) for n in range(50))
    )
    await shop.settle()
    now = await shop.ledger.sales.sale(sale.sale_id)
    assert now is not None
    assert now.stock_units == 56
    assert await shop.remaining(sale) == 56 - len(bought)
    lines = [r for r in await rows(shop.database, actions) if r["action"] == "request_stock_change"]
    assert len(lines) == 50
    steps = sorted(
        (json.loads(str(line["detail"])) for line in lines),
        key=lambda detail: detail["before"]["stock_units"],
    )
    assert [d["before"]["stock_units"] for d in steps] == list(range(6, 56))
    assert [d["after"]["stock_units"] for d in steps] == list(range(7, 57))
    assert {line["actor"] for line in lines} == {f"operator-{n}" for n in range(50)}
    assert all(row["state"] == "applied" for row in await rows(shop.database, stock_changes))
    # Never below what is sold.
    with pytest.raises(InvalidValue, match="at most"):
        await shop.ledger.sales.request_stock_change(
            "less", sale.sale_id, -(56 - len(bought)) - 1, actor="eve"
        )
    await shop.assert_sound(sale)


class Crowd:
    """Newcomers who ask three processes, none of which is told any news."""

    def __init__(self, shop: PayShop, sale: Sale, gates: list[Gate]) -> None:
        self.shop, self.sale, self.gates = shop, sale, gates
        self.sold = 0
        self.names = (f"new-{n}" for n in itertools.count())

    async def gets_one(self, gate: Gate, user: str = "") -> bool:
        decision = await gate.buy(user or next(self.names), goods=self.sale.goods_id)
        return decision.outcome is Outcome.SUCCESS

    async def until_flags_are_up(self) -> None:
        for gate in self.gates:

            async def by_itself(gate: Gate = gate) -> bool:
                before = gate.counts.by_flag
                assert not await self.gets_one(gate)
                return gate.counts.by_flag > before

            await until(by_itself, 60)

    async def buys(self, exactly: int) -> None:
        """Each process sells again, all that is there is sold, and no more."""
        for number in range(exactly):
            gate = self.gates[number % len(self.gates)]
            await until(partial(self.gets_one, gate), 60)
            self.sold += 1
        await self.shop.write()
        assert await self.shop.remaining(self.sale) == 0
        for gate in self.gates:
            assert not await self.gets_one(gate)


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_every_process_sells_again_what_came_back(
    shop: PayShop, redis_server: RedisServer, keys: Keys, marks_folder: Path
) -> None:
    """C50: 2 units expire, 5 are added, 1 is refused by the ledger: exactly those are sold, by
    three processes whose flags were up.
    """
    sale = await shop.sale(stock=10)
    bounds = Bounds(queue_wait_ms_max=60_000, sold_out_staleness_ms=250)
    async with AsyncExitStack() as stack:
        gates = [
            await stack.enter_async_context(
                open_gate(redis_server.url, keys, marks_folder, slot=f"web-{n}", bounds=bounds)
            )
            for n in (1, 2, 3)
        ]
        for gate in gates:
            await gate.gate.catalogue.refresh()
        crowd = Crowd(shop, sale, gates)
        orders = list((await shop.buy(sale, [f"u{n}" for n in range(10)])).values())
        await crowd.until_flags_are_up()
        await expired_and_released(shop, orders[:2])
        await crowd.buys(2)
        await crowd.until_flags_are_up()
        await shop.ledger.sales.request_stock_change("five", sale.sale_id, 5, actor="eve")
        await shop.settle()
        await crowd.buys(5)
        await crowd.until_flags_are_up()
        # One more comes back, is taken by somebody whom the ledger then refuses, and comes back.
        await expired_and_released(shop, orders[2:3])
        held = "INSERT INTO holdings VALUES (:sale_id, 'ghost', 1, 1)"
        await shop.database.write(
            "hold", lambda c: c.execute(text(held), {"sale_id": sale.sale_id})
        )
        await until(partial(crowd.gets_one, gates[1], "ghost"), 60)
        await shop.write()
        assert "compensated" in (await shop.states()).values()
        await shop.settle()
        forget = "DELETE FROM holdings WHERE user_id = 'ghost'"
        await shop.database.write("forget", lambda c: c.execute(text(forget)))
        await crowd.buys(1)
    assert crowd.sold == 8
    await shop.assert_sound(sale)
