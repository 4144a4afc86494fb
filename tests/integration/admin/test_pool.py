"""C79: operators and buyers share a small pool, and nobody waits in it for long."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncConnection

from contract.ledger.kit import open_shop
from integration.admin.kit import AdminService, goods
from integration.web.http import Client, Reply, running, until
from seckill.domain.operators import Role
from seckill.ledger import Database, LedgerOptions, SQLLedger
from seckill.runtime.admin_parts import admin_parts
from seckill.runtime.web_ports import LedgerBooks
from services.stage import open_gate
from services.standstill import Standstill
from unit.web.doubles import World

POOL = 5
POLLERS, STREAMS, ORDERS = 500, 200, 100_000
LATENCY_S = 0.2


class SlowDatabase(Database):
    """Each answer takes a while, with its connection lent out, as one far away would."""

    latency_s = 0.0

    async def read(self, doing: str, work: Callable[[AsyncConnection], Awaitable[Any]]) -> Any:
        async def slowly(connection: AsyncConnection) -> Any:
            time.sleep(self.latency_s)  # noqa: ASYNC251  -- in the thread of its transaction
            return await work(connection)

        return await super().read(doing, slowly)


@dataclass
class Crowd:
    """A web process whose ledger has a pool of five."""

    admin: AdminService
    database: SlowDatabase
    buyers: list[tuple[str, str]]
    """Users and their reservations."""
    goods_id: str
    """What can be bought."""

    async def poll(self, number: int) -> Reply:
        user, reservation = self.buyers[number % len(self.buyers)]
        return await self.admin.service.ask("GET", f"/orders/{reservation}", {"x-user-id": user})


async def _many_orders(connection: AsyncConnection) -> None:
    """A sale of a hundred thousand, written at once: how they came is not what is tested."""
    await connection.execute(
        text(
            "INSERT INTO orders (reservation_id, sale_id, bucket, epoch, seq, user_id, quantity,"
            " price_fen, state, attempt_id, admitted_at_ms, created_at_ms, pay_by_ms,"
            " state_changed_at_ms)"
            " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :many)"
            " SELECT printf('%032x', i), (SELECT max(sale_id) FROM sales), 0, 1, i,"
            " 'u' || i, 1, 1, 'awaiting_payment', 'a' || i, 1, 1, 4000000000000, 1 FROM n"
        ),
        {"many": ORDERS},
    )


@pytest.fixture
async def crowd(shop: AdminService, tmp_path: Path) -> AsyncIterator[Crowd]:
    database = SlowDatabase(LedgerOptions(url=shop.stores.settings.database_url, pool_size=POOL))
    ledger = SQLLedger(database, shop.stores.ids, shop.stores.clock)
    sold = await open_shop(ledger, goods=goods(), stock=1_000)
    events = [sold.admitted(seq) for seq in range(1, 51)]
    await ledger.write(events)
    buyers = [(str(e.user_id), str(shop.stores.ids.encode(e.place))) for e in events]
    await open_shop(ledger, goods="many")
    await database.write("write many orders", _many_orders)
    name = goods()
    await shop.made("POST", "/sales", {"goods_id": name, "stock": 1_000, "reason": "to be sold"})
    stores = replace(shop.stores, database=database, ledger=ledger)
    world = World()
    world.shop.entries = []
    async with contextlib.AsyncExitStack() as stack:
        gate = await stack.enter_async_context(
            open_gate(shop.stores.settings.redis_url, stores.keys, tmp_path / "marks")
        )
        await gate.gate.catalogue.refresh()
        world.parts = replace(
            world.parts,
            gate=gate.gate,
            books=LedgerBooks(ledger),
            ids=stores.ids,
            admin=admin_parts(stores),
            clock=stores.clock,
        )
        service = await stack.enter_async_context(running(world))
        admin = AdminService(service, stores, shop.tokens, shop.described)
        yield Crowd(admin, database, buyers, name)
    await database.dispose()


async def test_c79_a_small_pool_under_a_crowd_of_pollers_streams_and_a_long_list(
    crowd: Crowd,
) -> None:
    """Everybody reads an answer or 503 with Retry-After; purchases never wait for the ledger."""
    database, service = crowd.database, crowd.admin.service
    database.latency_s = LATENCY_S
    async with contextlib.AsyncExitStack() as stack:
        streams: list[Client] = []
        for number in range(STREAMS):
            user, reservation = crowd.buyers[number % len(crowd.buyers)]
            client = await stack.enter_async_context(service.connect())
            client.send("GET", f"/orders/{reservation}/events", {"x-user-id": user})
            streams.append(client)
        for client in streams:
            async with asyncio.timeout(30):
                status, _ = await client.head()
            assert status in {200, 429}  # one user may not have more than a few
        # A stream that says nothing holds no connection.
        await until(lambda: database.connections_in_use == 0, "the streams let go of the pool", 30)

        async def leave_at_once(number: int) -> None:
            user, reservation = crowd.buyers[number % len(crowd.buyers)]
            async with service.connect() as client:
                client.send("GET", f"/orders/{reservation}", {"x-user-id": user})

        async def walk() -> list[Reply]:
            replies = []
            path = "/orders?goods_id=many&limit=100"
            for _ in range(5):
                replies.append(await crowd.admin.ask("GET", path, role=Role.VIEWER))
                if replies[-1].status == 200:
                    path = replies[-1].json["next"].removeprefix("/admin/api")
            return replies

        async def purchases() -> list[Reply]:
            return [
                await service.ask("POST", f"/seckill/{crowd.goods_id}", {"x-user-id": f"buyer-{n}"})
                for n in range(20)
            ]

        async with asyncio.TaskGroup() as load:
            polls = [load.create_task(crowd.poll(n)) for n in range(POLLERS)]
            leavers = [load.create_task(leave_at_once(n)) for n in range(100)]
            walks = [load.create_task(walk()) for _ in range(4)]
            bought = load.create_task(purchases())
        assert all(task.done() for task in leavers)
        replies = [task.result() for task in polls] + [r for w in walks for r in w.result()]
        assert {reply.status for reply in replies} <= {200, 503}
        assert all("retry-after" in reply.headers for reply in replies if reply.status == 503)
        assert any(reply.status == 200 for task in walks for reply in task.result())
        assert {reply.status for reply in bought.result()} == {202}
        await until(lambda: database.connections_in_use == 0, "every connection came back", 30)


async def test_c79_who_waits_for_a_full_pool_reads_503_and_a_purchase_does_not_wait(
    crowd: Crowd,
) -> None:
    database = crowd.database
    held = Standstill()
    # In a group, so that one which is given no connection ends the test instead of the wait.
    async with asyncio.TaskGroup() as holders:
        for _ in range(POOL):
            holders.create_task(database.read("hold a connection", held.stop_here))
        await held.reached(POOL)
        try:
            assert database.connections_in_use == POOL
            assert database.options.pool_timeout_s <= 2
            listed, polled = await asyncio.gather(
                crowd.admin.ask("GET", "/orders?goods_id=many"), crowd.poll(0)
            )
            assert (listed.status, polled.status) == (503, 503)
            assert int(listed.headers["retry-after"]) >= 1
            bought = await crowd.admin.service.ask(
                "POST", f"/seckill/{crowd.goods_id}", {"x-user-id": "quick"}
            )
            assert bought.status == 202
        finally:
            held.go_on()
    assert (await crowd.admin.ask("GET", "/orders?goods_id=many")).status == 200
    await until(lambda: database.connections_in_use == 0, "every connection came back")


async def test_the_hundred_thousandth_order_is_as_near_as_the_first(crowd: Crowd) -> None:
    """A page is found by the index: no step of the plan sorts, or reads through all orders."""
    asked: list[tuple[str, Any]] = []

    @event.listens_for(crowd.database._engine.sync_engine, "before_cursor_execute")
    def note(_c: Any, _k: Any, statement: str, parameters: Any, _x: Any, _many: bool) -> None:
        if "FROM orders" in statement and "LIMIT" in statement:
            asked.append((statement, parameters))

    first = await crowd.admin.made("GET", "/orders?goods_id=many&limit=2")
    assert [int(one["reservation_id"], 16) for one in first["orders"]] == [ORDERS, ORDERS - 1]
    late = f"/orders?goods_id=many&limit=100&before={51:032x}"
    last = await crowd.admin.made("GET", late)
    assert [int(one["reservation_id"], 16) for one in last["orders"]] == [*range(50, 0, -1)]
    assert last["next"] is None
    await crowd.admin.made("GET", "/orders?limit=100")
    assert len(asked) == 3

    async def plan(connection: AsyncConnection, statement: str, parameters: Any) -> str:
        rows = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        return " / ".join(row[-1] for row in rows)

    for statement, parameters in tuple(asked):
        told = await crowd.database.read(
            "explain", partial(plan, statement=statement, parameters=parameters)
        )
        assert "TEMP B-TREE" not in told, told
        assert "orders USING INDEX" in told, told
