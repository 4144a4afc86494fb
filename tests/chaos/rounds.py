"""Rounds of trouble: a sale of its own for each, buyers who do not give up, then the books.

SECKILL_CHAOS_ROUNDS (3) and SECKILL_CHAOS_SEED set length and luck of every test that uses this;
SECKILL_CHAOS_OUTAGES=whole, as scripts/chaos has it, lets a rush and an outage last as long as they
would, and not only as long as the point needs.
"""

import asyncio
import json
import os
import random
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from seckill.admission.scripts import Status
from seckill.domain.ids import check_goods_id
from seckill.domain.reservation import BucketId
from seckill.domain.sale import NewSale
from seckill.runtime.auditing import audit
from seckill.runtime.bootstrap import Stores
from seckill.runtime.opening import put_on_sale
from seckill.stress.plan import Arrival, StressPlan
from seckill.stress.report import StressReport
from seckill.stress.run import run_stress_in_new_loop
from seckill.stress.target import Target
from services.seckill_service import SeckillService, wait_until

__all__ = [
    "BUYERS",
    "CLICKS",
    "LOAD_S",
    "ROUNDS",
    "SEED",
    "STOCK",
    "WHOLE_OUTAGES",
    "Armed",
    "all_rounds",
    "buy",
    "check",
    "frozen",
    "kill_environment",
    "rounds_with_deaths",
    "run_round",
]  # fmt: skip

ROUNDS: Final = int(os.environ.get("SECKILL_CHAOS_ROUNDS", "3"))
SEED: Final = int(os.environ.get("SECKILL_CHAOS_SEED", "20261201"))
WHOLE_OUTAGES: Final = os.environ.get("SECKILL_CHAOS_OUTAGES") == "whole"

LOAD_S: Final = 2.5 if WHOLE_OUTAGES else 1.2
_KILL_POINTS: Final = str(Path(__file__).parent / "kill_points")
STOCK: Final = 400 if WHOLE_OUTAGES else 200
BUYERS: Final = 900 if WHOLE_OUTAGES else 450
CLICKS: Final = 2


def rush(service: SeckillService, goods_id: str, number: int) -> StressReport:
    """Buyers who come over some seconds, click twice, and ask again until they are decided."""
    plan = StressPlan(
        stock=STOCK,
        buyers=BUYERS,
        clicks=CLICKS,
        arrival=Arrival.UNIFORM,
        over_s=LOAD_S,
        retries=20,
        retry_after_max_s=0.5,
        timeout_s=4,
        deadline_s=120,
        follow_s=180,  # no sleep: until the last is ordered
        seed=SEED + number,
        user_prefix=f"{goods_id}-",
        faults_expected=True,
    )
    return run_stress_in_new_loop(plan, Target(url=service.url, goods_id=goods_id))


def run_round(
    service: SeckillService,
    number: int,
    disturb: Callable[[random.Random], None] | None,
    *,
    by_s: float = LOAD_S * 0.8,
) -> tuple[StressReport, dict[str, Any]]:
    """One sale under load while processes die. Returns what the buyers saw and the audit.

    Args:
        by_s: how long after the first buyer it is disturbed at the latest.
    """
    luck = random.Random(SEED * 1000 + number)
    goods_id = f"chaos-{number}"
    service.with_stores(lambda stores: create_sale(stores, goods_id))
    failures: list[BaseException] = []

    def disturbing() -> None:
        assert disturb is not None
        try:
            time.sleep(luck.uniform(0.2, by_s))  # when it strikes is the luck of the round
            disturb(luck)
        except BaseException as failure:  # noqa: BLE001  -- told to the test's own thread
            failures.append(failure)

    thread = threading.Thread(target=disturbing) if disturb else None
    if thread:
        thread.start()
    report = rush(service, goods_id, number)
    if thread:
        thread.join(180)
    assert not failures, failures
    wait_until("the service is whole again", service.healthy, 180)
    return report, service.with_stores(lambda stores: settled_audit(stores, goods_id))


async def create_sale(stores: Stores, goods_id: str) -> None:
    new = NewSale(
        goods_id=check_goods_id(goods_id), stock_units=STOCK, starts_at_ms=stores.clock.now_ms()
    )
    await put_on_sale(stores, new, actor="chaos")


async def settled_audit(stores: Stores, goods_id: str) -> dict[str, Any]:
    """Wait until outbox and topic have run dry, then audit; the sale as it stands is in the answer."""
    sale = await stores.ledger.sales.sale_of_goods(check_goods_id(goods_id))
    assert sale is not None
    async with asyncio.timeout(180):
        while True:
            view = await stores.buckets.look(BucketId(sale.sale_id, 0))
            if view.status is Status.OK and view.outbox_entries == 0:
                break
            await asyncio.sleep(0.05)
        if stores.kafka is not None:
            await stores.kafka.under_way.run_dry()
    report = (await audit(stores)).to_dict()
    sold = await stores.ledger.sales.sold_units(sale.sale_id)
    return report | {"sold": sold, "remaining": view.stock_units}


def check(
    service: SeckillService, number: int, report: StressReport, found: dict[str, Any]
) -> None:
    told = report.unique_reservations
    where = (
        f"round {number}: {report.fates}, orders {report.orders}, {found}\n{service.log()[-2000:]}"
    )
    assert report.ok, f"{[c for c in report.checks if not c.ok]} {report.anomalies} {where}"
    assert told > 0, where
    # Every reservation that anybody was told of has its order, and it is a live one.
    assert report.orders == {"ordered": told}, where
    assert report.order_states == {"awaiting_payment": told}, where
    assert found["sold"] + found["remaining"] == STOCK, where
    assert found["sold"] >= told, where
    assert found["ok"], where
    assert found["lost"] == found["stranded"] == found["oversold"] == found["duplicates"] == 0


def buy(service: SeckillService, goods_id: str, user: str) -> str:
    """One purchase by somebody new, who is told yes; returns the reservation id."""
    asked = urllib.request.Request(  # noqa: S310  -- our own
        f"{service.url}/seckill/{goods_id}?userId={user}", method="POST"
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310  -- our own
        told = json.loads(answer.read())
        assert (answer.status, told["code"]) == (202, 1), told
    return str(told["reservation_id"])


@contextmanager
def frozen(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes as they stand, and let them go on at the end of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def kill_environment() -> dict[str, str]:
    """Variables with which the processes of a service load what can kill them; see kill_points."""
    path = os.pathsep.join(filter(None, [_KILL_POINTS, os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path, "SECKILL_TEST_SEED": str(SEED)}


class Armed:
    """Points at which one process is to die, each when the test says so; see kill_points."""

    def __init__(self, folder: Path, *points: str) -> None:
        self._folder = folder
        self.points = points
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = kill_environment() | {
            "SECKILL_TEST_KILL": ",".join(points),
            "SECKILL_TEST_ARMED": str(folder),
        }

    def arm(self, point: str) -> None:
        """The next process that comes to the point dies there; those after it pass."""
        (self._folder / point).touch()

    def wait_died(self, point: str) -> None:
        """Wait until one has."""
        wait_until(f"somebody died at {point}", lambda: not (self._folder / point).exists())

    def disarm(self, point: str) -> bool:
        """Nobody shall die there any more. Whether somebody has since it was armed."""
        try:
            (self._folder / point).unlink()
        except FileNotFoundError:
            return True
        return False


def rounds_with_deaths(service: SeckillService, armed: Armed) -> None:
    """Rounds until somebody has died at each of the points in ROUNDS of them.

    In each round every point takes one process, in the middle of the rush. How often a point is
    passed depends on how full the batches are, so on the machine: a round that all survive must be
    right too, but shows nothing and does not count.
    """
    died: Counter[str] = Counter()

    def disturb(luck: random.Random) -> None:
        points = list(armed.points)
        luck.shuffle(points)
        for point in points:
            armed.arm(point)
            time.sleep(luck.uniform(0, 0.05))

    for number in range(ROUNDS * 5):
        # Before all is sold, or nobody writes or carries anything any more.
        report, found = run_round(service, number, disturb, by_s=LOAD_S * STOCK / BUYERS / 2)
        died.update(point for point in armed.points if armed.disarm(point))
        check(service, number, report, found)
        print(f"round {number}: {dict(died)} died so far, {report.unique_reservations} told")  # noqa: T201
        if all(died[point] >= ROUNDS for point in armed.points):
            return
    pytest.fail(f"in {ROUNDS * 5} rounds only {dict(died)} died: the test shows nothing")


def all_rounds(service: SeckillService, disturb: Callable[[random.Random], None] | None) -> None:
    for number in range(ROUNDS):
        report, found = run_round(service, number, disturb)
        check(service, number, report, found)
        print(f"round {number}: {report.unique_reservations} told, each has its order")  # noqa: T201
