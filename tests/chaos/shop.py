"""A shop for the chaos tests: a sale on a running service, its buyers, and what they were told."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from chaos.rounds import kill_environment
from seckill.admission.scripts import Status
from seckill.domain.ids import check_goods_id
from seckill.domain.reservation import BucketId
from seckill.domain.sale import NewSale
from seckill.runtime.auditing import audit
from seckill.runtime.bootstrap import Stores
from services.seckill_service import SeckillService, wait_until

__all__ = ["STOCK", "Shop", "running"]

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
        connection = http.client.HTTPConnection(self.service.bind, timeout=60)
        try:
            connection.request(method, path, headers={"X-User-Id": user})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            connection.close()

    def buy(self, user: str, patience_s: float = 90) -> tuple[int, dict[str, Any]]:
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
        wait_until("all is written", lambda: self.view()[2] == 0, 90)

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

        wait_until("the statement is written", lambda: bool(self.service.with_stores(ended)), 90)

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
    service = SeckillService(
        folder / "data",
        "--workers",
        "2",
        *flags,
        environment={**kill_environment(), "SECKILL_AUDIT_EVERY_S": "1", **environment},
    )
    try:
        yield service.start()
    finally:
        service.stop()
