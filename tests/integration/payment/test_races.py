"""Pay, cancel, expire and callback race on one order: one wins, the losers get a calm answer.

Over real HTTP, on both databases. SECKILL_RACE_ORDERS (60) sets the number of orders of the big
race, SECKILL_CHAOS_ROUNDS (3) and SECKILL_CHAOS_SEED the rest.
"""

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import bindparam, text, update

from integration.payment.kit import PayShop, running_works
from integration.web.http import Reply
from seckill.domain.ids import ReservationId
from seckill.domain.order import OrderState
from seckill.domain.payment import NewsKind
from seckill.domain.reservation import BucketId
from seckill.ledger import moves, statements
from seckill.ledger.errors import WrongState
from seckill.ledger.tables import orders

ORDERS = int(os.environ.get("SECKILL_RACE_ORDERS", "60"))
ROUNDS = int(os.environ.get("SECKILL_CHAOS_ROUNDS", "3"))
SEED = int(os.environ.get("SECKILL_CHAOS_SEED", "20261201"))

pytestmark = pytest.mark.timeout(600 + ORDERS)

CALM = {200, 204, 409}

Action = Callable[[PayShop, ReservationId, str], Awaitable[Reply | None]]


async def buyer_cancels(shop: PayShop, order: ReservationId, payment: str) -> Reply:
    user = (await shop.order(order)).user_id
    return await shop.ask("POST", f"/orders/{order}/cancel", user)


async def operator_cancels(shop: PayShop, order: ReservationId, payment: str) -> None:
    with contextlib.suppress(WrongState):
        await shop.ledger.orders.cancel_for(order, actor="cli:eve", reason="by the shop")


async def reaper_comes(shop: PayShop, order: ReservationId, payment: str) -> None:
    await shop.reaper().expire_due()


async def payment_fails(shop: PayShop, order: ReservationId, payment: str) -> Reply:
    return await shop.tell(NewsKind.FAILED, payment)


async def payment_comes(shop: PayShop, order: ReservationId, payment: str) -> Reply:
    return await shop.tell(NewsKind.PAID, payment)


ENDS: list[Action] = [buyer_cancels, operator_cancels, reaper_comes, payment_fails]


async def test_every_order_of_the_four_ends_gives_the_unit_back_once(shop: PayShop) -> None:
    """C19, one after the other: each end comes twice."""
    ways = list(itertools.permutations(ENDS))
    sale = await shop.sale(stock=len(ways))
    bought = await shop.buy(sale, [f"u{n}" for n in range(len(ways))])
    for (user, order), way in zip(bought.items(), ways, strict=True):
        payment = await shop.pay(order, user)
        await shop.make_due([order])
        for action in way:
            for _ in range(2):
                reply = await action(shop, order, payment)
                assert reply is None or reply.status in CALM, reply.body
        state = (await shop.order(order)).state
        first = next(a for a in way if a is not payment_fails)
        assert state == ("expired" if first is reaper_comes else "cancelled")
    await shop.assert_sound(sale)
    assert await shop.remaining(sale) == len(ways)


async def test_the_four_ends_at_once_give_the_unit_back_once(shop: PayShop) -> None:
    """C19, concurrently."""
    luck = random.Random(SEED)
    for _ in range(ROUNDS):
        sale = await shop.sale(stock=1)
        ((user, order),) = (await shop.buy(sale, ["u"])).items()
        payment = await shop.pay(order, user)
        await shop.make_due([order])
        actions = ENDS * 2
        luck.shuffle(actions)
        replies = await asyncio.gather(*(action(shop, order, payment) for action in actions))
        assert all(reply is None or reply.status in CALM for reply in replies)
        await shop.assert_sound(sale)
        assert await shop.remaining(sale) == 1


async def test_money_cancels_and_the_reaper_at_the_deadline_of_many_orders(shop: PayShop) -> None:
    """C22: reaper each 50 ms, two of them; every order is met by all of it around its deadline."""
    luck = random.Random(SEED)
    sale = await shop.sale(stock=ORDERS)
    bought = await shop.buy(sale, [f"u{n}" for n in range(ORDERS)])
    assert len(bought) == ORDERS
    paying = await asyncio.gather(*(shop.pay(order, user) for user, order in bought.items()))
    statuses: Counter[int] = Counter()
    now_ms = int(time.time() * 1000)
    await shop.make_due(bought.values(), lambda: now_ms + 500 + luck.randrange(ORDERS * 5))

    async def meet(order: ReservationId, payment: str) -> None:
        deadline_ms = (await shop.order(order)).pay_by_ms
        assert deadline_ms is not None

        async def at_its_time(action: Action) -> None:
            when = deadline_ms / 1000 + luck.uniform(-0.3, 0.3)
            await asyncio.sleep(max(0.0, when - time.time()))
            reply = await action(shop, order, payment)
            if reply is not None:
                statuses[reply.status] += 1

        actions: list[Action] = [payment_comes, payment_comes]
        actions += luck.choice([[], [buyer_cancels], [operator_cancels], [payment_fails]])
        await asyncio.gather(*(at_its_time(action) for action in actions))

    reapers = [shop.reaper(), shop.reaper()]
    async with running_works(
        *(reaper.expire_due for reaper in reapers),
        reapers[0].finish_payments,
        shop.sweep.sweep,
        shop.worker.step,
        every_s=0.05,
    ):
        await asyncio.gather(
            *(meet(order, payment) for order, payment in zip(bought.values(), paying, strict=True))
        )
        await rest(shop)
    assert set(statuses) <= CALM, statuses
    ended = Counter((await shop.states()).values())
    print(f"race seed {SEED}: {ended}, answers {dict(statuses)}")  # noqa: T201
    assert set(ended) <= {"paid", "expired", "cancelled", "refunded"}, ended
    await shop.assert_sound(sale)
    # Every buyer's money is where it belongs: in one paid order, or on its way back.
    for user, order in bought.items():
        mine = await shop.ledger.reading.orders_of_user(user, 10)  # type: ignore[arg-type]
        paid = [o for o in mine.orders if o.state == "paid"]
        (payment,) = [
            p for o in mine.orders for p in await shop.ledger.payments.of_order(o.reservation_id)
        ]
        if payment.received is not None:
            assert (len(paid) == 1) == (payment.state == "paid"), (user, order, mine.orders)
            assert payment.state in {"paid", "refunded"}
        else:
            assert not paid


async def rest(shop: PayShop) -> None:
    """Wait until no order waits and no payment has anything left to be done.

    However long that is on this machine, as long as it goes on.
    """
    unfinished = (
        "SELECT (SELECT count(*) FROM orders WHERE state IN ('awaiting_payment', 'refund_due')),"
        " (SELECT count(*) FROM payments WHERE next_try_at_ms IS NOT NULL)"
    )
    before = None
    async with asyncio.timeout(60) as patience:
        while True:
            found = await shop.database.read("look", lambda c: c.exec_driver_sql(unfinished))
            left = tuple(found.one())
            if left == (0, 0):
                return
            if left != before:
                before = left
                patience.reschedule(asyncio.get_running_loop().time() + 60)
            await asyncio.sleep(0.05)


def without_guard() -> Any:
    """The statement that moves orders, with the state that they come from left out of its WHERE."""
    return (
        update(orders)
        .where(orders.c.reservation_id.in_(bindparam("reservation_ids", expanding=True)))
        .values(
            state=bindparam("to_state"),
            state_changed_at_ms=bindparam("now_ms"),
            reason=bindparam("because"),
        )
        .returning(orders.c.reservation_id)
    )


@pytest.mark.parametrize("guarded", [True, False])
async def test_two_ends_of_one_order_without_the_guard_give_its_unit_back_twice(
    shop: PayShop, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of this file: whoever wins the move gives the unit back, here by a plain
    addition behind it. With the guard one wins; without it, and without the trigger, both do.
    """
    sale = await shop.sale(stock=1)
    ((user, order),) = (await shop.buy(sale, ["ann"])).items()
    await shop.make_due([order])
    meta = shop.keys.bucket(BucketId(sale.sale_id, 0)).meta

    given_back: list[int] = []

    async def plainly(connection: Any, moved: Any, **_: Any) -> None:
        given_back.append(len(moved))

    monkeypatch.setattr(moves, "_give_back", plainly)
    if not guarded:
        monkeypatch.setattr(statements, "MOVE_ORDERS", without_guard())
        on = "" if shop.database.is_sqlite else " ON orders"
        await shop.database.write(
            "drop it", lambda c: c.execute(text(f"DROP TRIGGER orders_edges{on}"))
        )
    due = await shop.ledger.expiry.due(10)
    assert due == [order]
    reply = await shop.ask("POST", f"/orders/{order}/cancel", user)
    assert reply.status == 200
    found = await shop.order(order)

    async def expire(connection: Any) -> None:
        moving = statements.MOVING_ORDERS.where(orders.c.reservation_id == order)
        row = (await connection.execute(moving)).one()
        await moves.move_orders(
            connection,
            [row],
            OrderState.AWAITING_PAYMENT,
            OrderState.EXPIRED,
            at_ms=1,
            actor="reaper",
            reason=None,
        )

    await shop.database.write("expire what was due a moment ago", expire)
    for units in given_back:
        await shop.redis.hincrby(meta, "stock", units)
    assert found.state is OrderState.CANCELLED
    assert await shop.remaining(sale) == (1 if guarded else 2)
