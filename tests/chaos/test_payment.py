"""kill -9 of web, worker and reaper in the middle of paying, expiring, releasing and refunding.

The real service with the sandbox provider. Each round is a sale of its own: some buyers pay, some
fail, pay late, pay twice, pay a wrong amount, cancel, or walk away, while processes die at exact
points. Then everything comes to rest by itself, and the books must say where every yuan and every
unit is. SECKILL_CHAOS_ROUNDS (3) and SECKILL_CHAOS_SEED set length and luck.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from chaos.rounds import ROUNDS, SEED, WHOLE_OUTAGES
from seckill.admission.scripts import ADMIT, Status
from seckill.domain.errors import SeckillError
from seckill.domain.ids import GoodsId
from seckill.domain.order import EDGES, OrderState
from seckill.domain.reservation import BucketId
from seckill.domain.sale import NewSale
from seckill.payment.sandbox import Play
from seckill.runtime.auditing import audit
from seckill.runtime.bootstrap import Stores
from services.seckill_service import SeckillService, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

KILL_POINTS = str(Path(__file__).parent / "kill_points")
STOCK = 24
BUYERS = 32
WINDOW_S = 2
PRICE_FEN = 9_900
ENDS = {"paid", "expired", "cancelled", "refunded", "compensated"}


@contextmanager
def _service(folder: Path, kill: str = "", **more: str) -> Iterator[SeckillService]:
    print(f"chaos seed {SEED}, {ROUNDS} rounds")  # noqa: T201  -- a failure is a seed to replay
    path = os.pathsep.join(filter(None, [KILL_POINTS, os.environ.get("PYTHONPATH", "")]))
    environment = {
        "PYTHONPATH": path,
        "SECKILL_TEST_KILL": kill,
        "SECKILL_TEST_SEED": str(SEED),
        "SECKILL_REAPER_EVERY_MS": "50",
        **more,
    }
    service = SeckillService(
        folder / "data", "--workers", "2", environment=environment, start_timeout_s=180
    )
    try:
        yield service.start()
    finally:
        service.stop()


def _post(service: SeckillService, path: str) -> tuple[int, Any]:
    """POST until somebody answers: a process that dies takes only its own answers with it."""
    deadline = time.monotonic() + 60
    while True:
        request = urllib.request.Request(service.url + path, method="POST")  # noqa: S310  -- our own
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  -- as above
                body = answer.read()
                return answer.status, json.loads(body) if body[:1] == b"{" else None
        except urllib.error.HTTPError as error:
            with error:
                body = error.read()
            if error.code < 500 and not (error.code == 409 and b"still being created" in body):
                return error.code, json.loads(body)
        except OSError:
            pass
        assert time.monotonic() < deadline, f"nobody answers {path}"
        time.sleep(0.05)


def _buyer(service: SeckillService, goods_id: str, number: int) -> None:
    """One buyer: buys, and does something about it or not."""
    luck = random.Random(f"{SEED}/{goods_id}/{number}")
    me = f"userId={goods_id}-{number}"
    status, answer = _post(service, f"/seckill/{goods_id}?{me}")
    if status not in {202, 409} or not answer["reservation_id"]:
        return
    order = f"/orders/{answer['reservation_id']}"
    deed = luck.choice([*Play, Play.PAY, "cancel", "walk away"])
    if deed == "walk away":
        return
    if deed == "cancel":
        _post(service, f"{order}/cancel?{me}")
        return
    status, started = _post(service, f"{order}/pay?{me}")
    if status == 200 and started["payment_id"]:
        page = started["page_url"].removeprefix(service.url)
        _post(service, f"{page}/{deed.value}")


async def _create(stores: Stores, goods_id: str) -> None:
    await stores.ledger.sales.create_sale(
        NewSale(
            goods_id=GoodsId(goods_id),
            stock_units=STOCK,
            price_fen=PRICE_FEN,
            starts_at_ms=1,
            pay_window_ms=WINDOW_S * 1_000,
        ),
        actor="chaos",
    )
    await stores.fence.keep()


async def _select(stores: Stores, query: str) -> list[Any]:
    found = await stores.database.read("look", lambda c: c.execute(text(query)))
    return list(found.all())


async def _at_rest(stores: Stores) -> bool:
    busy = await _select(
        stores,
        "SELECT (SELECT count(*) FROM orders WHERE state IN ('awaiting_payment', 'refund_due'))"
        " + (SELECT count(*) FROM payments WHERE next_try_at_ms IS NOT NULL)"
        " + (SELECT count(*) FROM releases WHERE state = 'pending')",
    )
    return bool(busy[0][0] == 0)


def _rests(service: SeckillService) -> bool:
    """Whether the service is whole, and nothing is left to be done. Not while a part is away."""
    if not service.healthy():
        return False
    try:
        return bool(service.with_stores(_at_rest))
    except SeckillError:
        return False


def _news_is_out(service: SeckillService) -> bool:
    """Whether the sandbox has told everything. What is to be late comes as soon as it is late."""
    with closing(sqlite3.connect(service.data_dir / "sandbox.db", timeout=30)) as books, books:
        books.execute(
            "UPDATE messages SET next_at_ms = :now_ms WHERE tries = 0 AND next_at_ms > :now_ms"
            " AND (SELECT max(deadline_ms) FROM charges) < :now_ms - 300",
            {"now_ms": int(time.time() * 1_000)},
        )
        (left,) = books.execute(
            "SELECT count(*) FROM messages WHERE next_at_ms IS NOT NULL"
        ).fetchone()
    return bool(left == 0)


async def _check(stores: Stores, where: str) -> Counter[str]:
    """Where every unit and every yuan is, over all sales so far."""
    states = Counter(dict(await _select(stores, "SELECT state, count(*) FROM orders GROUP BY 1")))
    assert set(states) <= ENDS, where
    for start, end in await _select(stores, "SELECT from_state, to_state FROM order_events"):
        assert OrderState(end) in EDGES[OrderState(start)], where
    # Each unit was released once, and those of the live orders not at all.
    unmatched = await _select(
        stores,
        "SELECT o.reservation_id, o.state FROM orders o LEFT JOIN releases r"
        " ON r.reservation_id = o.reservation_id"
        " WHERE (o.state = 'paid') = (r.reservation_id IS NOT NULL)",
    )
    assert unmatched == [], where
    # Money that came is in one paid order, or went back.
    wrong = await _select(
        stores,
        "SELECT payment_id, state FROM payments"
        " WHERE received_fen IS NOT NULL AND state NOT IN ('paid', 'refunded')",
    )
    assert wrong == [], where
    paid = await _select(
        stores,
        "SELECT o.reservation_id FROM orders o LEFT JOIN payments p"
        " ON p.pays = o.reservation_id AND p.state = 'paid'"
        " WHERE (o.state = 'paid')"
        " <> (p.payment_id IS NOT NULL AND p.received_fen = o.price_fen * o.quantity)",
    )
    assert paid == [], where
    for sale in await stores.ledger.sales.sales():
        view = await stores.buckets.look(BucketId(sale.sale_id, 0))
        sold = await stores.ledger.sales.sold_units(sale.sale_id)
        assert view.status is Status.OK, where
        assert (view.held_units, view.stock_units) == (sold, sale.stock_units - sold), where
    report = await audit(stores)
    assert report.ok, (report.findings, where)
    return states


def _round(service: SeckillService, goods_id: str) -> Counter[str]:
    service.with_stores(lambda stores: _create(stores, goods_id))
    with ThreadPoolExecutor(16) as crowd:
        for done in [crowd.submit(_buyer, service, goods_id, number) for number in range(BUYERS)]:
            done.result(120)
    wait_until("the sandbox has told all its news", lambda: _news_is_out(service), 90)
    wait_until(
        "every order and payment has come to its end",
        lambda: _rests(service),
        90,
    )
    states: Counter[str] = service.with_stores(
        lambda stores: _check(stores, f"{goods_id}\n{service.log()[-3000:]}")
    )
    return states


# Few enough that a part which was started again gets something done before it dies again.
POINTS = (
    "web.after_start:30,web.before_news:40,web.after_news:40,"
    "reaper.before_expiry:12,reaper.after_expiry:12,reaper.after_call:20,"
    "sweep.after_release:16,worker.after_commit:60"
)


@pytest.mark.parametrize("reaper", ["worker", pytest.param("process", marks=pytest.mark.long)])
def test_processes_die_in_the_middle_of_paying_expiring_and_refunding(
    tmp_path: Path, reaper: str
) -> None:
    with _service(tmp_path, POINTS, SECKILL_REAPER=reaper) as service:
        deaths = 0
        for number in range(ROUNDS * 5):
            states = _round(service, f"pay-{number}")
            deaths = service.log().count("a part died")
            print(f"round {number}: {deaths} deaths so far, {dict(states)}")  # noqa: T201
            if number + 1 >= ROUNDS and deaths >= ROUNDS:
                return
    pytest.fail(f"only {deaths} deaths in {ROUNDS * 5} rounds: the test shows nothing")


def test_orders_due_during_an_outage_expire_within_five_seconds_of_its_end(tmp_path: Path) -> None:
    """C23: everything is down while 200 deadlines pass; two reapers come back. Each expires once,
    and none of them is given a new pay window.
    """
    with _service(tmp_path) as service:
        service.with_stores(lambda stores: _unpaid(stores, 200))
        in_ms = int(time.time() * 1_000)
        service.with_stores(lambda stores: _spread_deadlines(stores, in_ms, 4_000))
        time.sleep(1.0)  # some expire before the outage, most in it
        service.kill_supervisor()
        time.sleep(max(0.0, in_ms / 1_000 + 4.0 - time.time()))
        service.start()
        another = _more_reapers(service, 1)
        try:
            wait_until("all are expired and released", lambda: _rests(service), 90)
        finally:
            _end(another)
        moves = service.with_stores(
            lambda stores: _select(
                stores, "SELECT at_ms, reservation_id FROM order_events WHERE to_state = 'expired'"
            )
        )
        assert len({name for _, name in moves}) == len(moves) == 200
        back_ms = service.with_stores(_first_move_after_outage)
        assert max(at_ms for at_ms, _ in moves) - back_ms <= 5_000
        service.with_stores(lambda stores: _check(stores, service.log()[-3000:]))


async def _unpaid(stores: Stores, orders: int) -> None:
    """A sale that is sold out to buyers who do nothing."""
    sale = await stores.ledger.sales.create_sale(
        NewSale(goods_id=GoodsId("idle"), stock_units=orders, price_fen=PRICE_FEN, starts_at_ms=1),
        actor="chaos",
    )
    await stores.fence.keep()
    keys = stores.keys.bucket(BucketId(sale.sale_id, 0))
    for first in range(0, orders, 250):
        request: list[Any] = [1, 0, 0]
        for number in range(first, min(first + 250, orders)):
            request += [f"idle-{number}", f"a{number}", 1]
        await stores.scripts.run(ADMIT, (keys.meta, keys.buyers, keys.outbox), request)
    async with asyncio.timeout(60):
        while (await _select(stores, "SELECT count(*) FROM orders"))[0][0] < orders:
            await asyncio.sleep(0.05)


async def _spread_deadlines(stores: Stores, from_ms: int, over_ms: int) -> None:
    await stores.database.write(
        "move deadlines",
        lambda c: c.execute(
            text(
                "UPDATE orders SET pay_by_ms = :from_ms + (seq * 7919) % :over_ms"
                if over_ms
                else "UPDATE orders SET pay_by_ms = :from_ms + 0 * :over_ms"
            ),
            {"from_ms": from_ms, "over_ms": over_ms},
        ),
    )


async def _first_move_after_outage(stores: Stores) -> int:
    """When the reaper was at work again: the outage is the longest pause between two moves."""
    moves = [
        at_ms
        for (at_ms,) in await _select(
            stores,
            "SELECT DISTINCT at_ms FROM order_events WHERE to_state = 'expired' ORDER BY at_ms",
        )
    ]
    pauses = [(b - a, b) for a, b in itertools.pairwise(moves)]
    return int(max(pauses)[1]) if pauses else int(moves[0])


def _more_reapers(service: SeckillService, count: int) -> list["subprocess.Popen[bytes]"]:
    with service.data_dir.with_name("reapers.log").open("ab") as log:
        return [
            subprocess.Popen(
                [
                    sys.executable, "-m", "seckill", "reaper", "--slot", str(slot),
                    "--data-dir", str(service.data_dir),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "SECKILL_REAPER_EVERY_MS": "50"},
            )
            for slot in range(1, count + 1)
        ]  # fmt: skip


def _end(reapers: list["subprocess.Popen[bytes]"]) -> None:
    for reaper in reapers:
        reaper.send_signal(signal.SIGCONT)
        reaper.kill()
        reaper.wait(20)


@pytest.mark.long
def test_one_reaper_is_killed_one_is_frozen_and_one_order_cannot_be_expired(
    tmp_path: Path, postgres_server: Any
) -> None:
    """C80: all orders are due in the same second; the last reaper does it, each order once."""
    orders = 10_000 if WHOLE_OUTAGES else 1_000
    url = postgres_server.create_database()
    luck = random.Random(SEED)
    with _service(tmp_path, SECKILL_REAPER="none", SECKILL_DATABASE_URL=url) as service:
        service.with_stores(lambda stores: _unpaid(stores, orders))
        service.with_stores(
            lambda stores: stores.database.write(
                "spoil one",
                lambda c: c.execute(text("UPDATE holdings SET units = 0 WHERE user_id = 'idle-7'")),
            )
        )
        reapers = _more_reapers(service, 3)
        try:
            wait_until("the reapers are at work", lambda: _locked(service, 3), 60)
            service.with_stores(lambda stores: _spread_deadlines(stores, 1, 0))
            time.sleep(luck.uniform(0.0, 0.15))
            reapers[0].kill()
            time.sleep(luck.uniform(0.0, 0.15))
            reapers[1].send_signal(signal.SIGSTOP)
            wait_until(
                "all but the bad one are expired",
                lambda: (
                    service.with_stores(
                        lambda stores: _select(
                            stores, "SELECT count(*) FROM orders WHERE state = 'awaiting_payment'"
                        )
                    )[0][0]
                    == 1
                ),
                60,
            )
            stuck = service.cli_json("orders", "stuck")
            assert len(stuck) == 1
            assert stuck[0]["tries"] >= 1
        finally:
            _end(reapers)
        moves = service.with_stores(
            lambda stores: _select(
                stores,
                "SELECT reservation_id, count(*) FROM order_events WHERE to_state = 'expired'"
                " GROUP BY 1",
            )
        )
        assert len(moves) == orders - 1
        assert {count for _, count in moves} == {1}


def _locked(service: SeckillService, count: int) -> bool:
    """Whether so many reapers have their numbers and their metrics."""
    metrics = service.data_dir / "run" / "metrics"
    return all(any(metrics.glob(f"reaper-{slot}*")) for slot in range(1, count + 1))
