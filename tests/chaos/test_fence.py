"""Redis forgets: emptied, gone back in time, resynchronised from a stale replica, on real parts.

Each round is a sale of its own on a running service. Whatever Redis does, nobody may read "sold
out" for it, the sale must go on by itself, everybody who was told yes must have one order or read
that it was lost, and the audit must be calm in the end. SECKILL_CHAOS_ROUNDS (1) sets the length.
"""

import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from seckill.admission.scripts import Status
from seckill.domain.ids import check_goods_id
from seckill.domain.reservation import BucketId
from seckill.domain.sale import NewSale
from seckill.runtime.auditing import audit
from seckill.runtime.bootstrap import Stores
from services.redis import RedisServer
from services.seckill_service import SeckillService, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("SECKILL_CHAOS_ROUNDS", "1"))
KILL_POINTS = str(Path(__file__).parent / "kill_points")
STOCK = 100
DECIDED = frozenset({202, 409})


class Shop:
    """A running service, its buyers, and what they were told."""

    def __init__(self, service: SeckillService, goods: str) -> None:
        self.service = service
        self.goods = goods
        self.told: dict[str, str] = {}
        service.with_stores(self._create)

    async def _create(self, stores: Stores) -> None:
        new = NewSale(
            goods_id=check_goods_id(self.goods),
            stock_units=STOCK,
            starts_at_ms=stores.clock.now_ms() - 60_000,
        )
        await stores.ledger.sales.create_sale(new, actor="chaos")
        await stores.fence.keep()

    def ask(self, method: str, path: str, user: str) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(self.service.bind, timeout=10)
        try:
            connection.request(method, path, headers={"X-User-Id": user})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            connection.close()

    def buy(self, user: str, patience_s: float = 30) -> tuple[int, dict[str, Any]]:
        """Ask until it is decided, as a buyer does; 503 is the only thing to be patient with."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                status, answer = self.ask("POST", f"/seckill/{self.goods}", user)
            except OSError:
                status, answer = 503, {}
            if status in DECIDED:
                if status == 202:
                    self.told[user] = answer["reservation_id"]
                return status, answer
            assert status in {429, 503, 404}, (status, answer)  # 404: not in the catalogue yet
            assert time.monotonic() < deadline, f"not decided within {patience_s} s: {answer}"
            time.sleep(0.02)

    def rush(self, users: list[str]) -> list[tuple[int, dict[str, Any]]]:
        with ThreadPoolExecutor(16) as crowd:
            return list(crowd.map(self.buy, users))

    def view(self) -> tuple[Status, int, int]:
        """Status, units left and outbox entries of the bucket, as Redis has it now."""

        async def look(stores: Stores) -> tuple[Status, int, int]:
            sale = await stores.ledger.sales.sale_of_goods(check_goods_id(self.goods))
            assert sale is not None
            view = await stores.buckets.look(BucketId(sale.sale_id, 0))
            return view.status, view.stock_units, view.outbox_entries

        found: tuple[Status, int, int] = self.service.with_stores(look)
        return found

    def wait_written(self) -> None:
        wait_until("all is written", lambda: self.view()[2] == 0, 30)

    def reopened_after_s(self) -> float:
        """How long it takes until the bucket may be trusted again."""
        began = time.monotonic()
        wait_until("the sale goes on by itself", lambda: self.view()[0] is Status.OK, 60)
        return time.monotonic() - began

    def states(self) -> dict[str, tuple[int, str, str]]:
        """User to HTTP status, order state and reason, for everybody who was told yes."""
        found = {}
        for user, reservation_id in self.told.items():
            status, order = self.ask("GET", f"/orders/{reservation_id}", user)
            found[user] = (status, order.get("state", ""), order.get("reason") or "")
        return found

    def wait_told(self) -> None:
        """A bucket takes buyers a moment before the last words about its fence are written."""

        async def ended(stores: Stores) -> bool:
            statements = await stores.ledger.fences.statements()
            mine = [one for one in statements if one.goods_id == self.goods]
            return all(one.outcome is not None for one in mine)

        wait_until("the statement is written", lambda: bool(self.service.with_stores(ended)), 30)

    def audit(self) -> dict[str, Any]:
        async def work(stores: Stores) -> dict[str, Any]:
            return (await audit(stores)).to_dict()

        report: dict[str, Any] = self.service.with_stores(work)
        return report

    def check(self, *, lost: set[str] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
        """Everybody who was told yes has one order, but for those who read that it was lost."""
        self.wait_written()
        self.wait_told()
        states = self.states()
        assert {user for user, (status, _, _) in states.items() if status != 200} == set()
        assert {user for user, (_, state, _) in states.items() if state == "compensated"} == lost
        assert all("lost" in states[user][2] for user in lost)
        others = {user for user in self.told if user not in lost}
        assert {states[user][1] for user in others} <= {"awaiting_payment"}
        report = self.audit()
        assert report["ok"], report
        mine = [one for one in report["statements"] if one["goods_id"] == self.goods]
        assert {one["oversold_units"] for one in mine} <= {0}
        named = {name for one in mine for name in one["lost"]}
        assert {self.told[user] for user in lost} <= named
        line = next(line for line in report["sales"] if line["goods_id"] == self.goods)
        assert line["held_units"] == line["live_units"] == len(others)
        assert line["left_units"] + line["held_units"] == line["put_units"]
        return {"line": line, "statements": mine}


@contextlib.contextmanager
def running(folder: Path, *flags: str, **environment: str) -> Iterator[SeckillService]:
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, [KILL_POINTS, os.environ.get("PYTHONPATH", "")]))
    service = SeckillService(
        folder / "data",
        "--workers",
        "2",
        *flags,
        environment={"PYTHONPATH": path, "SECKILL_AUDIT_EVERY_S": "1", **environment},
    )
    try:
        yield service.start()
    finally:
        service.stop()


def test_flushall_under_living_connections_while_two_clocks_are_wrong(tmp_path: Path) -> None:
    """C5 b. One process is five seconds behind and another five ahead: nothing hangs on it."""
    with running(tmp_path, SECKILL_TEST_CLOCK="web-1:-5000,worker-0:5000") as service:
        for number in range(ROUNDS):
            shop = Shop(service, f"flush-{number}")
            assert {status for status, _ in shop.rush([f"a{n}" for n in range(40)])} == {202}
            shop.wait_written()
            service.with_stores(lambda stores: stores.redis.flushall())
            early = shop.rush([f"b{n}" for n in range(5)])
            assert {status for status, _ in early} == {202}, "closed for a moment, never sold out"
            for user in ("a0", "a1", "a2", "a3", "a4"):
                status, answer = shop.buy(user)
                assert (status, answer["code"]) == (409, 2)
                assert answer["reservation_id"] == shop.told[user]
            later = shop.rush([f"c{n}" for n in range(60)])
            assert sum(status == 202 for status, _ in later) == 55
            found = shop.check()
            assert found["line"]["left_units"] == 0
            (statement,) = found["statements"]
            assert (statement["outcome"], statement["lost_count"]) == ("rebuilt", 0)


@pytest.mark.long
def test_a_key_that_was_deleted_is_no_error_and_heals(tmp_path: Path) -> None:
    """C5 a and c: not an error, not sold out; and a service that starts changes nothing."""
    with running(tmp_path) as service:
        shop = Shop(service, "torn")
        shop.rush([f"a{n}" for n in range(40)])
        shop.wait_written()

        async def tear(stores: Stores) -> None:
            sale = await stores.ledger.sales.sale_of_goods(check_goods_id("torn"))
            assert sale is not None
            meta = stores.keys.bucket(BucketId(sale.sale_id, 0)).meta
            await stores.redis.hdel(meta, "stock")

        service.with_stores(tear)
        assert shop.buy("b")[0] == 202
        service.stop()
        service.start()
        assert shop.buy("a0")[0] == 409
        assert shop.check()["line"]["left_units"] == 59


def _external(server: RedisServer, durability: str = "fsync") -> dict[str, str]:
    return {"SECKILL_REDIS_URL": server.url, "SECKILL_DURABILITY": durability}


def _freeze(service: SeckillService, role: str, how: signal.Signals) -> None:
    for pid in service.pids(role):
        os.kill(pid, how)


@pytest.mark.long
def test_an_old_file_comes_back_and_what_was_in_no_log_is_named(tmp_path: Path) -> None:
    """10 buyers are in the ledger, 5 in the old file, 3 nowhere: those three are named, and only
    they; their units are not sold to others."""
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    server.start()
    try:
        with running(tmp_path, **_external(server)) as service:
            for number in range(ROUNDS):
                shop = Shop(service, f"old-{number}")
                shop.rush([f"a{n}" for n in range(10)])
                shop.wait_written()
                _freeze(service, "worker", signal.SIGSTOP)
                shop.rush([f"b{n}" for n in range(5)])
                server.copy_data(tmp_path / f"old-{number}")
                shop.rush([f"c{n}" for n in range(3)])
                server.kill()
                server.put_data_back(tmp_path / f"old-{number}")
                server.start()
                _freeze(service, "worker", signal.SIGCONT)
                assert shop.buy("d", 60)[0] == 202
                found = shop.check(lost={"c0", "c1", "c2"})
                assert found["line"]["left_units"] == STOCK - 19
                (statement,) = found["statements"]
                assert (statement["lost_count"], statement["withheld_units"]) == (3, 3)
                assert statement["compensated"] == 0
    finally:
        server.stop()


@pytest.mark.long
def test_a_stale_replica_takes_over_under_living_connections(tmp_path: Path) -> None:
    """The master is resynchronised from a replica that was cut off: same process, same
    connections, older data, and another replication id."""
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    stale = RedisServer(tmp_path / "stale")
    server.start()
    stale.start()
    try:
        with (
            running(tmp_path, **_external(server)) as service,
            server.client() as master,
            stale.client() as replica,
        ):
            for number in range(ROUNDS):
                shop = Shop(service, f"stale-{number}")
                shop.rush([f"a{n}" for n in range(10)])
                replica.replicaof("127.0.0.1", str(server.port))
                wait_until(
                    "in step", lambda: replica.info("replication")["master_link_status"] == "up"
                )
                shop.wait_written()
                assert master.wait(1, 5_000) == 1
                replica.replicaof("NO", "ONE")
                shop.rush([f"b{n}" for n in range(10)])
                shop.wait_written()
                master.replicaof("127.0.0.1", str(stale.port))
                wait_until(
                    "gone back",
                    lambda: master.info("replication").get("master_link_status") == "up",
                )
                master.replicaof("NO", "ONE")
                assert shop.buy("c", 60)[0] == 202
                assert shop.check()["line"]["left_units"] == STOCK - 21
    finally:
        server.stop()
        stale.stop()


def test_a_master_that_comes_back_empty_is_rebuilt_and_five_are_named(tmp_path: Path) -> None:
    """C73."""
    server = RedisServer(tmp_path / "redis", "--appendonly", "no")
    server.start()
    try:
        with running(tmp_path, **_external(server, "memory")) as service:
            wait_until("it warns", lambda: "keeps no append-only file" in service.log())
            for number in range(ROUNDS):
                shop = Shop(service, f"empty-{number}")
                shop.rush([f"a{n}" for n in range(54)])
                shop.wait_written()
                _freeze(service, "worker", signal.SIGSTOP)
                # The worker was waiting for news: Redis may have handed it the first of these, and
                # then that one is not lost with Redis.
                shop.buy("x")
                shop.rush([f"b{n}" for n in range(5)])
                server.restart()
                status, answer = shop.ask("POST", f"/seckill/{shop.goods}", "early")
                assert (status, answer["code"]) == (503, -2), "not the 100 units again"
                _freeze(service, "worker", signal.SIGCONT)
                shop.reopened_after_s()
                assert shop.view()[1] == 40, "what was promised is not sold to others"
                assert shop.buy("a7")[1]["code"] == 2
                shop.wait_written()
                x_lost = {"x"} if shop.states()["x"][1] == "compensated" else set()
                found = shop.check(lost={f"b{n}" for n in range(5)} | x_lost)
                assert found["line"]["buyers"] == 55 - len(x_lost)
                (statement,) = found["statements"]
                lost_and_found = (statement["lost_count"], statement["recovered_orders"])
                assert lost_and_found == (5 + len(x_lost), 0)
    finally:
        server.stop()


@pytest.mark.long
def test_two_hosts_judge_together_and_a_dead_one_is_not_waited_for_for_ever(
    tmp_path: Path,
) -> None:
    """Rule 5: the keeper of one host hears of the other's marks through the ledger."""
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    server.start()
    shared = {
        **_external(server),
        "SECKILL_DATABASE_URL": f"sqlite:///{tmp_path}/ledger.db",
        "SECKILL_FENCE_REPORT_WAIT_MS": "2000",
    }
    try:
        with (
            running(tmp_path / "one", "--workers", "1", **shared) as one,
            running(tmp_path / "two", "--workers", "1", **shared) as two,
        ):
            for number in range(ROUNDS):
                shop = Shop(one, f"hosts-{number}")
                shop.rush([f"a{n}" for n in range(10)])
                there = Shop.__new__(Shop)
                there.service, there.goods, there.told = two, shop.goods, shop.told
                there.rush([f"b{n}" for n in range(10)])
                shop.wait_written()
                server.restart()
                assert shop.buy("c")[0] == 202
                statement = shop.check()["statements"][0]
                assert (statement["outcome"], statement["unknown"]) == ("carried_on", [])
            # The second host dies as a whole, with a mark that nobody can read any more.
            there.buy("d")
            shop.wait_written()
            for pid in two.pids("web") + two.pids("worker"):
                os.kill(pid, signal.SIGSTOP)
            server.restart()
            assert shop.buy("e", 60)[0] == 202
            statement = shop.check()["statements"][0]
            assert statement["outcome"] == "rebuilt"
            assert "did not report" in statement["unknown"][0]
            for pid in two.pids("web") + two.pids("worker"):
                os.kill(pid, signal.SIGCONT)
    finally:
        server.stop()
