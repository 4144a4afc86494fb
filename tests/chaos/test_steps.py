"""kill -9 between two steps that belong together, one in the ledger and one in Redis.

What the keeper, the sweep and the clean-up do takes two stores, and so two steps; whoever dies
between them leaves the first one done. Each round arms one such point, sees somebody die there, and
has the books balance. SECKILL_CHAOS_ROUNDS (3) and SECKILL_CHAOS_SEED set length and luck.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest
from sqlalchemy import text

from chaos.rounds import ROUNDS, SEED, Armed, frozen
from chaos.shop import STOCK, Shop, running
from seckill.domain.ids import check_goods_id
from seckill.domain.reservation import BucketId
from seckill.domain.sale import Sale
from seckill.runtime.bootstrap import Stores
from seckill.runtime.keeper import RestartPolicy
from services.seckill_service import SeckillService, wait_until

_DEATHS_AT_A_STRETCH = RestartPolicy().deaths_max // 2
"""A worker that dies so soon and so often that it counts as broken ends the run, as it is to."""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]


def test_the_keeper_dies_when_the_ledger_goes_on_and_redis_does_not_yet(tmp_path: Path) -> None:
    """Redis was started again and has lost nothing: the next keeper finishes it, once."""
    luck = random.Random(SEED)
    point = "keeper.before_carry_on"
    armed = Armed(tmp_path / "armed", point)
    with running(tmp_path / "run", **armed.environment) as service:
        shop = Shop(service, "tea")
        for number in range(ROUNDS):
            if number % _DEATHS_AT_A_STRETCH == _DEATHS_AT_A_STRETCH - 1:
                _let_deaths_be_forgotten(service)
            shop.rush([f"a{number}", f"b{number}"])
            armed.arm(point)
            assert service.kill("redis")
            armed.wait_died(point)
            if luck.random() < 0.5:
                wait_until("there is a Redis", lambda: bool(service.pids("redis")))
                service.kill("redis")  # once more, before anybody has finished it
            assert shop.buy(f"c{number}", 60)[0] == 202
            assert {shop.buy(user)[0] for user in (f"a{number}", f"b{number}")} == {409}
            found = shop.check()
            assert {one["outcome"] for one in found["statements"]} == {"carried_on"}
            assert found["line"]["left_units"] == STOCK - 3 * (number + 1)


def _let_deaths_be_forgotten(service: SeckillService) -> None:
    """Have the worker do its work for so long that its next death is the first in a row again."""
    wait_until("all is well", service.healthy, 60)
    time.sleep(RestartPolicy().stable_after_ms / 1000)


def test_the_keeper_dies_when_a_rebuild_is_planned_and_redis_is_empty_still(tmp_path: Path) -> None:
    """The next one plans anew: what was lost is named once, and its units are withheld once."""
    point = "keeper.before_open"
    armed = Armed(tmp_path / "armed", point)
    lost: set[str] = set()
    with running(tmp_path / "run", **armed.environment) as service:
        shop = Shop(service, "tea")
        for number in range(ROUNDS):
            shop.rush([f"a{number}"])
            shop.wait_written()
            with frozen(service.pids("worker")):
                # Redis may have handed this one to the worker already: then it is not lost.
                shop.buy(f"x{number}")
                shop.rush([f"b{number}"])
                service.with_stores(lambda stores: stores.redis.flushall())
                armed.arm(point)
            armed.wait_died(point)
            assert shop.buy(f"c{number}", 60)[0] == 202
            shop.wait_written()
            lost.add(f"b{number}")
            if shop.states()[f"x{number}"][1] == "compensated":
                lost.add(f"x{number}")
            found = shop.check(lost=lost)
            assert {one["outcome"] for one in found["statements"]} == {"rebuilt"}
            for told in ("lost_count", "withheld_units"):
                assert sum(one[told] for one in found["statements"]) == len(lost)
            assert found["line"]["left_units"] == STOCK - 4 * (number + 1)


def test_a_stock_change_is_made_once_by_whoever_lives(tmp_path: Path) -> None:
    """The operator's command dies, or the order worker; Redis may be another one afterwards."""
    luck = random.Random(SEED)
    point = "sweep.after_stock_change"
    armed = Armed(tmp_path / "armed", point)
    stock = STOCK
    with running(tmp_path / "run", **armed.environment) as service:
        shop = Shop(service, "tea")
        for number in range(ROUNDS):
            shop.rush([f"a{number}"])
            by, change = luck.choice([5, 1, -3]), f"change-{number}"
            command = ("sale", "stock", "tea", f"--by={by}", "--change-id", change)
            armed.arm(point)
            # With a worker that is frozen nobody but the operator carries it on.
            with _worker_frozen(service) if number % 2 == 0 else nullcontext():
                asked = service.cli(*command, check=False)
                armed.wait_died(point)
                assert asked.returncode in {0, -signal.SIGKILL}, asked.stderr
                if luck.random() < 0.5:
                    killed = service.kill("redis")
                    wait_until("there is another", lambda gone=killed: _is_another(service, gone))  # type: ignore[misc]
                if number % 2 == 0 or luck.random() < 0.5:
                    service.cli(*command)  # an operator who has no answer asks again
            wait_until("it is written down", lambda name=change: _is_applied(service, name), 60)  # type: ignore[misc]
            stock += by
            assert shop.buy(f"b{number}", 60)[0] == 202
            found = shop.check()
            line = found["line"]
            assert (line["put_units"], line["left_units"]) == (stock, stock - 2 * (number + 1))
            # Twice in Redis would have been found by the fence, and mended by a rebuild.
            assert {one["outcome"] for one in found["statements"]} <= {"carried_on"}


@contextmanager
def _worker_frozen(service: SeckillService) -> Iterator[None]:
    """Freeze the order worker, but not while it holds the one lock that SQLite has for writing."""
    with closing(sqlite3.connect(service.data_dir / "ledger.db", timeout=0)) as books:
        for _ in range(100):
            with frozen(service.pids("worker")):
                try:
                    books.executescript("BEGIN IMMEDIATE; ROLLBACK")
                except sqlite3.OperationalError:
                    pass
                else:
                    yield
                    return
            time.sleep(0.02)  # for it to end what it is writing
    pytest.fail("the order worker writes all the time")


def _is_another(service: SeckillService, killed: int) -> bool:
    return service.healthy() and service.pids("redis") != [killed]


def _is_applied(service: SeckillService, change_id: str) -> bool:
    state = service.with_stores(lambda stores: stores.ledger.sales.stock_change_state(change_id))
    assert state in {"pending", "applied"}
    return bool(state == "applied")


def test_the_keys_of_a_sale_that_is_over_leave_redis_whoever_dies(tmp_path: Path) -> None:
    """Buyers read that it has ended all the time, and nobody takes the missing keys for a loss."""
    points = ("clean_up.before_forget", "clean_up.before_cleaned")
    armed = Armed(tmp_path / "armed", *points)
    environment = armed.environment | {"SECKILL_CLEAN_UP_AFTER_S": "0"}
    with running(tmp_path / "run", **environment) as service:
        for number in range(ROUNDS):
            shop = Shop(service, f"over-{number}")
            shop.rush([f"a{each}" for each in range(5)])
            shop.wait_written()
            for user in ("a0", "a1"):
                assert shop.ask("POST", f"/orders/{shop.told[user]}/cancel", user)[0] == 200
            service.cli("sale", "end", shop.goods)
            service.with_stores(lambda stores, goods=shop.goods: _pay_the_rest(stores, goods))  # type: ignore[misc]
            deaths = 0
            for point in points:
                armed.arm(point)
            deadline = time.monotonic() + 180
            while (ended := _clean_up(service, armed)) != (0, 1):
                assert time.monotonic() < deadline, ended
                deaths += ended[0] == -signal.SIGKILL
                assert shop.ask("POST", f"/seckill/{shop.goods}", "late")[0] == 410
                assert shop.audit()["ok"]
                time.sleep(1)  # each try is a process of its own, and most of them come too early
            assert deaths == len(points)
            assert shop.ask("POST", f"/seckill/{shop.goods}", "a4")[0] == 410
            assert service.with_stores(lambda stores, goods=shop.goods: _keys(stores, goods)) == []  # type: ignore[misc]
            assert shop.audit()["ok"]
            states = {user: state for user, (_, state, _) in shop.states().items()}
            cancelled = {"a0": "cancelled", "a1": "cancelled"}
            assert states == dict.fromkeys(shop.told, "paid") | cancelled, "the story stays"
        assert "lost data" not in service.log()


def _clean_up(service: SeckillService, armed: Armed) -> tuple[int, int]:
    """Exit code of one clean-up, and how many sales it cleaned."""
    # Long enough for the web processes to learn that a sale is retired: they look 4 times a second,
    # and on a busy machine may stand still for seconds.
    settle_ms = "2500"
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("clean_up_once.py")), str(service.data_dir), settle_ms],
        env=os.environ | armed.environment,
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode, int(done.stdout.splitlines()[-1]) if done.returncode == 0 else 0


async def _sale(stores: Stores, goods: str) -> Sale:
    sale = await stores.ledger.sales.sale_of_goods(check_goods_id(goods))
    assert sale is not None
    return sale


async def _pay_the_rest(stores: Stores, goods: str) -> None:
    """Let every order reach its end, by the ledger's own hand."""
    sale_id = (await _sale(stores, goods)).sale_id
    await stores.database.write(
        "pay",
        lambda c: c.execute(
            text(
                "UPDATE orders SET state = 'paid', paid_at_ms = 1"
                " WHERE sale_id = :sale_id AND state = 'awaiting_payment'"
            ),
            {"sale_id": sale_id},
        ),
    )


async def _keys(stores: Stores, goods: str) -> list[bytes]:
    base = stores.keys.bucket(BucketId((await _sale(stores, goods)).sale_id, 0)).base
    pattern = base.replace("{", r"\{").replace("}", r"\}") + "*"
    return [key async for key in stores.redis.scan_iter(match=pattern)]
