import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from integration.web.http import Client, running, until
from seckill.domain.ids import UserId
from seckill.domain.order import OrderState
from seckill.web.dev_auth import DevAuth
from seckill.web.limits import WebLimits
from seckill.web.server import ServerSettings
from unit.web.doubles import PATIENT, PartAway, World, order, place, reservation

ANN, BOB = {"x-user-id": "ann"}, {"x-user-id": "bob"}


def world_with(*numbers: int, limits: WebLimits | None = None) -> World:
    world = World(limits)
    world.books.orders = {reservation(number): order(number) for number in numbers}
    return world


async def test_a_buyer_follows_a_purchase_from_queue_to_ledger() -> None:
    world = world_with()
    world.queue.held[place(1), "ann"] = 2
    async with running(world) as service:
        queued = await service.ask("GET", f"/orders/{reservation(1)}", ANN)
        assert queued.status == 200
        assert queued.json == {
            "reservation_id": reservation(1),
            "goods_id": "tea",
            "user_id": "ann",
            "quantity": 2,
            "state": "queued",
            "price_fen": 1999,
            "total_fen": 3998,
            "admitted_at": None,
            "pay_by": None,
            "paid_at": None,
            "continued_as": None,
            "reason": None,
        }
        world.books.orders[reservation(1)] = order(1, quantity=2)
        ordered = await service.ask("GET", f"/orders/{reservation(1)}", ANN)
        assert ordered.json["state"] == "awaiting_payment"
        assert ordered.json["admitted_at"] == "2026-12-01T11:59:55.123Z"
        assert ordered.json["pay_by"] == "2026-12-01T12:15:00.123Z"


@pytest.mark.parametrize(
    ("method", "end"),
    [("GET", ""), ("HEAD", ""), ("POST", "/cancel"), ("POST", "/pay"), ("GET", "/events")],
)
async def test_somebody_elses_purchase_looks_like_none(method: str, end: str) -> None:
    world = world_with(1)
    async with running(world) as service:
        path = f"/orders/{reservation(1)}{end}"
        others = await service.ask(method, path, BOB)
        unknown = await service.ask(method, f"/orders/{reservation(2)}{end}", BOB)
        nonsense = await service.ask(method, f"/orders/%00{end}", BOB)
        nobody = await service.ask(method, path)
        assert (others.status, unknown.status, nonsense.status, nobody.status) == (
            404,
            404,
            404,
            401,
        )
        assert others.body == unknown.body == nonsense.body
        assert "www-authenticate" in nobody.headers
    assert world.books.orders[reservation(1)].state is OrderState.AWAITING_PAYMENT


async def test_head_and_other_methods_on_an_order() -> None:
    world = world_with(1)
    async with running(world) as service:
        path = f"/orders/{reservation(1)}"
        full = await service.ask("GET", path, ANN)
        head = await service.ask("HEAD", path, ANN)
        assert head.headers["content-length"] == str(len(full.body))
        for method in ("POST", "PUT", "DELETE"):
            reply = await service.ask(method, path, ANN)
            assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert (await service.ask("HEAD", path + "/events", ANN)).status == 405
        assert (await service.ask("GET", path + "/cancel", ANN)).status == 405


async def test_ones_own_purchases_come_in_pages_newest_first() -> None:
    world = world_with(*range(1, 8))
    world.books.orders[reservation(9)] = order(9, "bob")
    async with running(world) as service:
        seen: list[str] = []
        path: str | None = "/orders?limit=3"
        while path:
            page = (await service.ask("GET", path, ANN)).json
            assert len(page["orders"]) <= 3
            seen += [entry["reservation_id"] for entry in page["orders"]]
            path = page["next"]
        assert seen == [reservation(n) for n in range(7, 0, -1)]
        assert (await service.ask("GET", f"/orders?before={reservation(9)}", ANN)).json == {
            "orders": [],
            "next": None,
        }
        assert (await service.ask("GET", "/orders")).status == 401


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=1.5", "limit="])
async def test_a_page_size_out_of_bounds_names_field_and_rule(query: str) -> None:
    async with running(world_with()) as service:
        reply = await service.ask("GET", f"/orders?{query}", ANN)
    assert reply.status == 422
    assert reply.json["field"] == "limit"
    assert reply.json["rule"]


async def test_an_unpaid_order_is_cancelled_once() -> None:
    world = world_with(1)
    world.books.orders[reservation(2)] = order(2, state=OrderState.PAID)
    world.queue.held[place(3), "ann"] = 1
    async with running(world) as service:
        for _ in range(2):
            reply = await service.ask("POST", f"/orders/{reservation(1)}/cancel", ANN)
            assert (reply.status, reply.json["state"]) == (200, "cancelled")
        paid = await service.ask("POST", f"/orders/{reservation(2)}/cancel", ANN)
        queued = await service.ask("POST", f"/orders/{reservation(3)}/cancel", ANN)
        assert (paid.status, queued.status) == (409, 409)
        assert "paid" in paid.json["detail"]
        assert queued.headers["retry-after"] == "1"


class Counted(DevAuth):
    """Knows how many have asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.all_have = asyncio.Event()

    def identify(self, headers: Mapping[bytes, bytes], query_string: bytes) -> UserId:
        self.asked += 1
        if self.asked == 500:
            self.all_have.set()
        return super().identify(headers, query_string)


async def test_five_hundred_pollers_share_few_reads_and_leave_nothing_behind() -> None:
    auth = Counted()
    world = World(auth=auth)
    world.books.orders = {reservation(number): order(number) for number in range(1, 501)}

    async def slow() -> None:
        await auth.all_have.wait()

    world.books.before_read = slow
    async with running(world) as service:
        replies = await asyncio.gather(
            *(service.ask("GET", f"/orders/{reservation(n)}", ANN) for n in range(1, 501))
        )
        assert {reply.status for reply in replies} == {200}
        assert [r.json["reservation_id"] for r in replies] == [
            reservation(n) for n in range(1, 501)
        ]
        assert len(world.books.reads) <= 3
        assert world.books.in_flight_most == 1
        assert world.books.in_flight == 0


async def test_a_ledger_that_is_away_or_slow_is_a_polite_503() -> None:
    world = world_with(1, limits=replace(PATIENT, order_wait_ms=100))
    world.books.error = PartAway("database gone")
    async with running(world) as service:
        for method, path in [
            ("GET", f"/orders/{reservation(1)}"),
            ("GET", "/orders"),
            ("POST", f"/orders/{reservation(1)}/cancel"),
            ("GET", f"/orders/{reservation(1)}/events"),
        ]:
            reply = await service.ask(method, path, ANN)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert b"database" not in reply.body
        world.books.error = None
        held = asyncio.Event()

        async def hang() -> None:
            await held.wait()

        world.books.before_read = hang
        reply = await service.ask("GET", f"/orders/{reservation(1)}", ANN)
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert (await service.ask("POST", "/seckill/tea", ANN)).status == 202, "POST asks no ledger"
        held.set()
        async with asyncio.timeout(60):
            while (await service.ask("GET", f"/orders/{reservation(1)}", ANN)).status != 200:
                pass


class Stream:
    """An event stream as a browser reads it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.rest = b""

    async def open(self, number: int, headers: dict[str, str] = ANN) -> None:
        self.client.send("GET", f"/orders/{reservation(number)}/events", headers)
        status, answered = await self.client.head()
        assert status == 200
        assert answered["content-type"] == "text/event-stream"
        assert answered["cache-control"] == "no-store"

    async def block(self) -> str | None:
        """The next event or comment; None at the end."""
        async with asyncio.timeout(60):
            while b"\n\n" not in self.rest:
                chunk = await self.client.chunk()
                if not chunk:
                    return None
                self.rest += chunk
            block, _, self.rest = self.rest.partition(b"\n\n")
            return block.decode()

    async def state(self) -> str:
        block = await self.block()
        assert block is not None
        event, name, data = block.split("\n")
        order_json = json.loads(data.removeprefix("data: "))
        assert event == "event: state"
        assert name == f"id: {order_json['state']}"
        return str(order_json["state"])


FAST = replace(PATIENT, sse_poll_ms=10, sse_heartbeat_ms=600_000)


async def test_a_stream_tells_each_state_and_ends_with_the_last() -> None:
    world = world_with(limits=FAST)
    world.queue.held[place(1), "ann"] = 1
    async with running(world) as service, service.connect() as client:
        stream = Stream(client)
        await stream.open(1)
        assert await stream.state() == "queued"
        world.books.orders[reservation(1)] = order(1)
        assert await stream.state() == "awaiting_payment"
        assert world.tally.streams == 1
        world.books.move(reservation(1), OrderState.PAID)
        assert await stream.state() == "paid"
        assert await stream.block() is None
        await until(lambda: world.tally.streams == 0, "the stream is closed")
        again = await service.ask(
            "GET", f"/orders/{reservation(1)}/events", ANN | {"last-event-id": "paid"}
        )
        assert again.status == 204, "an EventSource that comes back is told to stay away"


async def test_many_streams_share_one_poller_that_rests_when_nobody_watches() -> None:
    world = world_with(
        *range(1, 41), limits=replace(FAST, sse_poll_ms=20, sse_streams_per_user_max=50)
    )
    async with running(world) as service:
        clients = [service.connect() for _ in range(40)]
        streams = []
        for number, connecting in enumerate(clients, 1):
            stream = Stream(await connecting.__aenter__())
            await stream.open(number)
            assert await stream.state() == "awaiting_payment"
            streams.append(stream)
        world.books.reads.clear()
        await until(lambda: len(world.books.reads) >= 3, "the poller polls")
        assert all(len(read) == 40 for read in world.books.reads)
        assert world.books.in_flight_most <= 2
        for connecting in clients:
            await connecting.__aexit__(None, None, None)
        await until(lambda: world.tally.streams == 0, "leaving clients are noticed")
        settled = len(world.books.reads)
        await asyncio.sleep(0.2)
        assert len(world.books.reads) <= settled + 1


async def test_an_idle_stream_is_kept_alive_by_comments() -> None:
    world = world_with(1, limits=replace(FAST, sse_heartbeat_ms=30))
    async with running(world) as service, service.connect() as client:
        stream = Stream(client)
        await stream.open(1)
        assert await stream.state() == "awaiting_payment"
        assert [await stream.block() for _ in range(3)] == [":", ":", ":"]


async def test_an_old_stream_ends_and_says_when_to_come_back() -> None:
    world = world_with(1, limits=replace(FAST, sse_age_max_ms=200))
    async with running(world) as service, service.connect() as client:
        stream = Stream(client)
        await stream.open(1)
        await stream.state()
        retry = await stream.block()
        assert retry is not None
        assert 500 <= int(retry.removeprefix("retry: ")) <= 3_000
        assert await stream.block() is None


async def test_streams_are_bounded_for_all_and_for_one() -> None:
    limits = replace(FAST, sse_streams_max=3, sse_streams_per_user_max=2)
    world = world_with(1, limits=limits)
    world.books.orders |= {reservation(n): order(n, "bob") for n in (2, 3)}
    async with running(world) as service:
        clients = [service.connect() for _ in range(3)]
        opened = [Stream(await connecting.__aenter__()) for connecting in clients]
        await opened[0].open(1)
        await opened[1].open(1)
        greedy = await service.ask("GET", f"/orders/{reservation(1)}/events", ANN)
        assert greedy.status == 429
        await opened[2].open(2, BOB)
        full = await service.ask("GET", f"/orders/{reservation(3)}/events", BOB)
        assert (full.status, full.headers["retry-after"]) == (503, "5")
        assert world.tally.bounds == {"sse_streams_per_user": 1, "sse_streams": 1}
        for connecting in clients:
            await connecting.__aexit__(None, None, None)


async def test_a_ledger_away_leaves_streams_open_and_they_catch_up() -> None:
    world = world_with(1, limits=FAST)
    async with running(world) as service, service.connect() as client:
        stream = Stream(client)
        await stream.open(1)
        await stream.state()
        world.books.error = PartAway("gone")
        before = len(world.books.reads)
        await until(lambda: len(world.books.reads) > before + 2, "the poller goes on")
        world.books.move(reservation(1), OrderState.EXPIRED)
        world.books.error = None
        assert await stream.state() == "expired"


async def test_stopping_sends_streams_away_and_does_not_wait_for_them() -> None:
    world = world_with(1, limits=FAST)
    settings = ServerSettings(drain_ms=50, shutdown_grace_ms=8_000)
    async with running(world, settings) as service, service.connect() as client:
        stream = Stream(client)
        await stream.open(1)
        await stream.state()
        began = asyncio.get_running_loop().time()
        service.stop.set()
        retry = await stream.block()
        assert retry is not None
        assert retry.startswith("retry: ")
        assert await stream.block() is None
        assert asyncio.get_running_loop().time() - began < 2
