"""What an operator types when something is wrong, on a running service."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from seckill.domain.ids import check_goods_id
from seckill.domain.reservation import BucketId
from seckill.runtime.bootstrap import Stores
from services.seckill_service import PATIENT, SeckillService, wait_until


def buy(service: SeckillService, user: str) -> str:
    found: dict[str, Any] = {}

    def admitted() -> bool:
        connection = http.client.HTTPConnection(service.bind, timeout=60)
        try:
            connection.request("POST", "/seckill/tea", headers={"X-User-Id": user})
            answer = connection.getresponse()
            found.update(json.loads(answer.read()))
            return answer.status == 202
        finally:
            connection.close()

    wait_until(f"{user} is admitted", admitted)
    return str(found["reservation_id"])


def test_what_an_operator_types_when_something_is_wrong(tmp_path: Path) -> None:
    """One story, since a service takes seconds to start: trace, reconcile, statements."""
    service = SeckillService(tmp_path / "data", "--workers", "1", environment=PATIENT).start()
    try:
        service.cli("sale", "create", "tea", "--stock", "10", "--may-not-buy-again")
        assert service.cli_json("sale", "show", "tea")["may_buy_again"] is False
        ann, bob = buy(service, "ann"), buy(service, "bob")
        wait_until(
            "ann's order is written", lambda: "order awaiting_payment" in _trace(service, ann)
        )
        story = _trace(service, ann)
        for part in ("of ann admitted", "queued -> awaiting_payment by worker", "bucket ok",
                     "its buyer holds 1 units"):  # fmt: skip
            assert part in story, story
        as_data = service.cli_json("orders", "trace", ann)
        assert (as_data["state"], as_data["redis"]["held"]) == ("awaiting_payment", 1)
        assert service.cli("orders", "trace", "0" * 32, check=False).returncode != 0

        dry = service.cli("reconcile")
        assert dry.stdout == "nothing is to be repaired\n"
        service.with_stores(_strand)
        before = service.cli_json("sale", "show", "tea")["remaining"]
        dry = service.cli("reconcile", check=False)
        assert dry.returncode == 1
        assert "rebuild  goods tea" in dry.stdout
        assert "nothing was changed" in dry.stdout
        assert service.cli_json("sale", "show", "tea")["remaining"] == before
        # Two operators at once: both come to an end, and all is right afterwards.
        with ThreadPoolExecutor(2) as operators:
            done = list(
                operators.map(
                    lambda _: service.cli("reconcile", "tea", "--apply", check=False), range(2)
                )
            )
        assert any("done     bucket" in one.stdout for one in done), [one.stdout for one in done]
        again = service.cli_json("reconcile", "--apply")
        assert (again["ok"], again["plan"]) == (True, [])
        assert service.cli_json("sale", "show", "tea")["remaining"] == 8
        assert service.cli_json("audit")["ok"]
        statements = service.cli_json("rebuild", "--statements")
        assert {one["outcome"] for one in statements} == {"rebuilt"}
        assert "rebuilt under epoch" in service.cli("rebuild", "--statements").stdout
        assert "bucket rebuilt under epoch 2" in _trace(service, bob)
    finally:
        service.stop()


def _trace(service: SeckillService, reservation_id: str) -> str:
    return service.cli("orders", "trace", reservation_id).stdout


async def _strand(stores: Stores) -> None:
    """Let Redis hold a unit for somebody who never bought."""
    sale = await stores.ledger.sales.sale_of_goods(check_goods_id("tea"))
    assert sale is not None
    names = stores.keys.bucket(BucketId(sale.sale_id, 0))
    # In one step: between two of them the bucket is torn, and a keeper that looks just then makes
    # it anew by itself.
    async with stores.redis.pipeline(transaction=True) as pipeline:
        pipeline.hset(names.buyers, "ghost", "1.99.1.x")
        for field, by in (("held", 1), ("stock", -1), ("buyers", 1)):
            pipeline.hincrby(names.meta, field, by)
        await pipeline.execute()
