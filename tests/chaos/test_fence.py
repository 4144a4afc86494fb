"""Redis forgets: emptied, gone back in time, resynchronised from a stale replica, on real parts.

Each round is a sale of its own on a running service. Whatever Redis does, nobody may read "sold
out" for it, the sale must go on by itself, everybody who was told yes must have one order or read
that it was lost, and the audit must be calm in the end. SECKILL_CHAOS_ROUNDS (1) sets the length.
"""

import os
import signal
from pathlib import Path

import pytest

from chaos.shop import STOCK, Shop, running
from seckill.domain.ids import check_goods_id
from seckill.domain.reservation import BucketId
from seckill.runtime.bootstrap import Stores
from services.redis import RedisServer
from services.seckill_service import SeckillService, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("SECKILL_CHAOS_ROUNDS", "1"))


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
                assert shop.buy("d")[0] == 202
                found = shop.check(lost={"c0", "c1", "c2"})
                assert found["line"]["left_units"] == STOCK - 19
                (statement,) = found["statements"]
                assert (statement["lost_count"], statement["withheld_units"]) == (3, 3)
                assert statement["compensated"] == 0
    finally:
        server.remove()


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
                assert master.wait(1, 60_000) == 1
                replica.replicaof("NO", "ONE")
                shop.rush([f"b{n}" for n in range(10)])
                shop.wait_written()
                master.replicaof("127.0.0.1", str(stale.port))
                wait_until(
                    "gone back",
                    lambda: master.info("replication").get("master_link_status") == "up",
                )
                master.replicaof("NO", "ONE")
                assert shop.buy("c")[0] == 202
                assert shop.check()["line"]["left_units"] == STOCK - 21
    finally:
        server.remove()
        stale.remove()


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
        server.remove()


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
            assert shop.buy("e")[0] == 202
            statement = shop.check()["statements"][0]
            assert statement["outcome"] == "rebuilt"
            assert "did not report" in statement["unknown"][0]
            for pid in two.pids("web") + two.pids("worker"):
                os.kill(pid, signal.SIGCONT)
    finally:
        server.remove()
