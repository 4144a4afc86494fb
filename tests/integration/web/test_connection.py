"""What the HTTP server owes its clients on one connection, as they see it on the wire."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.web.http import Client, Service, running, until
from integration.web.test_purchase import assert_problem
from seckill.admission.decision import Decision
from seckill.domain.outcomes import Outcome
from seckill.web.connection import Connection
from seckill.web.limits import WebLimits
from seckill.web.server import ServerSettings, new_event_loop, serve
from unit.web.doubles import World, order, reservation

ANN = {"x-user-id": "ann"}


async def wire(service: Service, data: bytes) -> bytes:
    """Everything that is answered to some bytes, until the server closes."""
    async with service.connect() as client:
        client.writer.write(data)
        async with asyncio.timeout(60):
            return await client.reader.read()


@contextlib.asynccontextmanager
async def small_buffers(service: Service) -> AsyncIterator[socket.socket]:
    """A connection of which the kernel keeps next to nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", service.port))
        yield connection
    finally:
        connection.close()


NOT_HTTP = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 501),  # TLS spoken to a plain port
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"POST /seckill/tea?userId=ann\r\n\r\n", 505),
    (b"POST /seckill/tea?userId=ann HTTP/2.0\r\n\r\n", 505),
    (b"POST /seckill/tea?userId=ann HTTP/2.0\r\nconnection: keep-alive\r\n\r\n", 505),
    (b"POST /seckill/tea HTTP/9.9\r\n\r\n", 400),
    (b"MADEUP /seckill/tea HTTP/1.1\r\nhost: t\r\n\r\n", 501),
    (b"POST /seckill/tea HTTP/1.1\r\nx-user-id ann\r\n\r\n", 400),
    (b"POST /seckill/tea HTTP/1.1\r\nx-user-id: a\x00b\r\n\r\n", 400),
    (b"POST /seckill/tea HTTP/1.1\r\n x-user-id: ann\r\n\r\n", 400),
    (b"POST /seckill/tea HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
    (b"POST /seckill/tea HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx", 400),
    (
        b"POST /seckill/tea HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        400,
    ),
    (b"POST /seckill/tea HTTP/1.1\r\ntransfer-encoding: gzip\r\nx-user-id: ann\r\n\r\n", 400),
    (b"POST /seckill/tea HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
    (
        b"POST /seckill/tea HTTP/1.1\r\nx-user-id: ann\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
        b"content-length: 14\r\n\r\n" + b'{"quantity":2}',
        400,
    ),
]


@pytest.mark.parametrize(("data", "status"), NOT_HTTP)
async def test_what_is_no_request_is_refused_and_buys_nothing(data: bytes, status: int) -> None:
    world = World()
    async with running(world) as service:
        answer = await wire(service, data)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in head
    assert b"content-type: application/problem+json" in head
    assert body.startswith(b'{"type":"about:blank"')
    assert world.gate.calls == []
    assert world.tally.answered == {("(none)", "OTHER", status): 1}


async def test_a_broken_request_behind_a_good_one_does_not_cost_its_answer() -> None:
    world = World()
    world.gate.holds = True
    async with running(world) as service, service.connect() as client:
        client.send("POST", "/seckill/tea", ANN)
        client.writer.write(b"\x00\x00\r\n\r\n")
        await until(lambda: world.gate.futures, "the gate was asked")
        client.send("POST", "/seckill/tea", {"x-user-id": "eve"})  # behind it nothing is read
        await client.writer.drain()
        await asyncio.sleep(0.05)
        world.gate.futures[0].set_result(Decision(Outcome.SUCCESS, reservation(1)))
        assert (await client.reply()).status == 202
        assert (await client.reply()).status == 501
        assert await client.closed()
    assert [call[1] for call in world.gate.calls] == ["ann"]


async def test_another_protocol_is_not_spoken_and_the_purchase_is_answered_once() -> None:
    world = World()
    async with running(world) as service:
        answer = await wire(
            service,
            b"POST /seckill/tea HTTP/1.1\r\nx-user-id: ann\r\nconnection: upgrade\r\n"
            b"upgrade: h2c\r\n\r\nPOST /seckill/tea HTTP/1.1\r\nx-user-id: eve\r\n\r\n",
        )
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer
    assert [call[1] for call in world.gate.calls] == ["ann"]


async def test_requests_of_both_kinds_are_answered_in_the_order_in_which_they_came() -> None:
    world = World()
    world.books.orders[reservation(1)] = order(1)
    async with running(world) as service, service.connect() as client:
        kinds = [
            ("POST", "/seckill/tea", 202),
            ("GET", "/healthz", 200),
            ("GET", f"/orders/{reservation(1)}", 200),
            ("GET", "/nothing", 404),
            ("HEAD", "/goods", 200),
        ] * 20
        for method, path, _ in kinds:
            client.send(method, path, ANN)
        for method, _, status in kinds:
            assert (await client.reply(to_head=method == "HEAD")).status == status


async def test_a_head_of_many_pieces_is_read_as_one() -> None:
    world = World()
    async with running(world) as service, service.connect() as client:
        client.writer.transport.set_write_buffer_limits(0)
        whole = (
            b"POST /seckill/tea?userId=bob HTTP/1.1\r\nhost: t\r\nIdempotency-KEY: k\r\n"
            b"content-length: 14\r\n\r\n" + b'{"quantity":2}'
        )
        for _ in range(2):
            for at in range(len(whole)):
                client.writer.write(whole[at : at + 1])
                await client.writer.drain()
                await asyncio.sleep(0)
            assert (await client.reply()).status == 202
    assert [call[:3] for call in world.gate.calls] == [("tea", "bob", 2)] * 2
    assert world.gate.calls[0][3] == world.gate.calls[1][3]


@pytest.mark.parametrize("in_one_piece", [True, False])
@pytest.mark.parametrize(
    "headers",
    [b"x: " + b"x" * 9_000 + b"\r\n", b"x: y\r\n" * 300, b"x" * 9_000 + b": y\r\n"],
    ids=["a long value", "many", "a long name"],
)
async def test_a_head_that_is_too_large_is_431(headers: bytes, in_one_piece: bool) -> None:
    world = World()
    settings = ServerSettings(drain_ms=0, head_bytes_max=8_192)
    data = b"POST /seckill/tea?userId=ann HTTP/1.1\r\nhost: t\r\n" + headers + b"\r\n"
    async with running(world, settings) as service, service.connect() as client:
        step = len(data) if in_one_piece else 700
        for at in range(0, len(data), step):
            client.writer.write(data[at : at + step])
            await asyncio.sleep(0.001)
        reply = await client.reply()
        assert_problem(reply, 431, "headers")
        assert await client.closed()
    assert world.gate.calls == []


async def test_a_client_that_waits_for_permission_gets_it_only_for_a_body_that_is_wanted() -> None:
    world = World()
    expecting = ANN | {"expect": "100-continue"}
    async with running(world) as service:
        async with service.connect() as client:
            client.send("POST", "/seckill/tea", expecting | {"content-length": "14"})
            assert await client.head() == (100, {})
            client.writer.write(b'{"quantity":2}')
            assert (await client.reply()).status == 202
        async with service.connect() as client:
            client.send("POST", "/seckill/tea", expecting | {"content-length": "10000000"})
            assert (await client.reply()).status == 413
    assert [call[2] for call in world.gate.calls] == [2]


async def test_the_refusal_of_a_long_body_is_read_by_a_client_that_first_sends_it_all() -> None:
    """Closing with unread bytes would reset the connection, and the client would see only that."""
    world = World()
    loop = asyncio.get_running_loop()
    async with running(world) as service, small_buffers(service) as client:
        head = b"POST /seckill/tea HTTP/1.1\r\nhost: t\r\nx-user-id: ann\r\n"
        async with asyncio.timeout(60):
            await loop.sock_sendall(client, head + b"content-length: 3000000\r\n\r\n")
            await loop.sock_sendall(client, b" " * 3_000_000)
            await loop.sock_sendall(client, head + b"\r\n")  # it is not heard any more
            assert (await loop.sock_recv(client, 1_000)).startswith(b"HTTP/1.1 413 ")
            assert await loop.sock_recv(client, 1_000) == b""
    assert world.gate.calls == []


async def test_a_body_of_another_route_is_bounded_in_bytes_and_in_time() -> None:
    async with running(World(), ServerSettings(drain_ms=0, body_bytes_max=1_000)) as service:
        async with service.connect() as client:
            client.send("POST", "/goods", {"content-length": "1001"})
            assert_problem(await client.reply(), 413, "body")
        assert (await service.ask("POST", "/goods", {}, b" " * 1_000)).status == 405
    hasty = ServerSettings(drain_ms=0, body_timeout_ms=100)
    async with running(World(), hasty) as service, service.connect() as client:
        client.send("POST", "/goods", {"content-length": "10"})
        assert_problem(await client.reply(), 408, "body")
        assert await client.closed()


@pytest.mark.parametrize("path", ["/healthz", "/seckill/tea"])
async def test_an_old_client_is_answered_in_its_way(path: str) -> None:
    """HTTP/1.0: closed unless asked to be kept, which is then said; ab does so."""
    start = b"POST" if path.startswith("/seckill") else b"GET"
    line = b"%b %b HTTP/1.0\r\nx-user-id: ann\r\n" % (start, path.encode())
    async with running(World()) as service:
        plain = await wire(service, line + b"\r\n")
        assert plain.startswith(b"HTTP/1.1 20")
        assert b"\r\nconnection: close\r\n" in plain
        async with service.connect() as client:
            for _ in range(2):
                client.writer.write(line + b"connection: keep-alive\r\n\r\n")
                assert (await client.reply()).headers["connection"] == "keep-alive"


async def test_a_client_that_has_said_all_still_hears_the_answer() -> None:
    """`printf … | nc`: one direction is closed right behind the request."""
    world = World()
    world.gate.holds = True
    async with running(world) as service, service.connect() as client:
        client.send("POST", "/seckill/tea", ANN)
        client.writer.write_eof()
        await until(lambda: world.gate.futures, "the gate was asked")
        await asyncio.sleep(0.02)
        world.gate.futures[0].set_result(Decision(Outcome.SUCCESS, reservation(1)))
        assert (await client.reply()).status == 202
        assert await client.closed()


async def test_an_absolute_target_and_a_fragment_name_the_same_goods() -> None:
    world = World()
    async with running(world) as service:
        for target in ("http://shop.example/seckill/tea?userId=ann", "/seckill/tea?userId=ann#top"):
            assert (await service.ask("POST", target)).status == 202
        assert (await service.ask("OPTIONS", "*")).status == 404
    assert [call[:2] for call in world.gate.calls] == [("tea", "ann")] * 2


async def test_answers_that_nobody_takes_do_not_pile_up_and_end_the_connection() -> None:
    world = World()
    settings = ServerSettings(drain_ms=0, idle_timeout_ms=800)
    loop = asyncio.get_running_loop()
    async with running(world, settings) as service, small_buffers(service) as client:
        request = b"POST /seckill/tea?userId=ann HTTP/1.1\r\nhost: t\r\n\r\n"
        sent = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                while True:
                    await loop.sock_sendall(client, request * 100)
                    sent += 100
        answered = len(world.gate.calls)
        assert answered < sent
        # What the kernel's buffers take, and one buffer of the server: no more is admitted.
        assert answered < 50_000
        assert (await service.ask("POST", "/seckill/tea", ANN)).status == 202


async def test_requests_that_come_without_waiting_are_not_read_into_memory_without_end() -> None:
    world = World()
    world.gate.holds = True
    loop = asyncio.get_running_loop()
    request = b"POST /seckill/tea?userId=ann HTTP/1.1\r\nhost: t\r\n\r\n"
    async with running(world) as service, small_buffers(service) as client:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await loop.sock_sendall(client, request * 400_000)
        [connection] = [
            one for one in gc.get_objects() if type(one) is Connection and one._current is not None
        ]
        # As many as come in one read of the event loop.
        assert 0 < len(connection._queue) <= 262_144 // len(request)
        assert len(world.gate.calls) == 1
        connection.abort()


async def test_many_requests_at_once_are_not_taken_for_one_large_head() -> None:
    world = World()
    request = b"POST /seckill/tea?userId=ann HTTP/1.1\r\nhost: t\r\nx: " + b"y" * 50 + b"\r\n\r\n"
    settings = ServerSettings(drain_ms=0, head_bytes_max=1_000)
    async with running(world, settings) as service, service.connect() as client:
        client.writer.write(request * 2_000)
        for _ in range(2_000):
            assert (await client.reply()).status == 202
    assert len(world.gate.calls) == 2_000


async def test_a_connection_that_says_nothing_is_closed_and_a_busy_one_is_not() -> None:
    world = World()
    settings = ServerSettings(drain_ms=0, idle_timeout_ms=300)
    async with running(world, settings) as service:
        async with service.connect() as silent, service.connect() as busy:
            for _ in range(12):
                busy.send("POST", "/seckill/tea", ANN)
                assert (await busy.reply()).status == 202
                await asyncio.sleep(0.05)
            assert await silent.closed()
        world.gate.holds = True
        async with service.connect() as waiting:
            waiting.send("POST", "/seckill/tea", ANN)
            await until(lambda: world.gate.futures, "the gate was asked")
            await asyncio.sleep(0.7)  # longer than idle: it waits for us, not we for it
            world.gate.futures[0].set_result(Decision(Outcome.SUCCESS, reservation(1)))
            assert (await waiting.reply()).status == 202


async def test_connections_beyond_the_bound_wait_in_the_backlog_and_are_served_after_it() -> None:
    world = World()
    settings = ServerSettings(drain_ms=0, connections_max=5)
    async with running(world, settings) as service, contextlib.AsyncExitStack() as stack:
        clients: list[Client] = []
        for _ in range(5):
            client = await stack.enter_async_context(service.connect())
            client.send("POST", "/seckill/tea", ANN)
            assert (await client.reply()).status == 202
            clients.append(client)
        late = [await stack.enter_async_context(service.connect()) for _ in range(5)]
        for client in late:
            client.send("POST", "/seckill/tea", {"x-user-id": "late"})
        await asyncio.sleep(0.1)
        assert {call[1] for call in world.gate.calls} == {"ann"}
        for client in clients:
            client.writer.close()
        for client in late:
            assert (await client.reply()).status == 202


async def test_a_stop_answers_every_purchase_under_way_and_resets_nobody() -> None:
    world = World()
    world.gate.holds = True
    async with running(world) as service, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(service.connect()) for _ in range(50)]
        for number, client in enumerate(clients):
            client.send("POST", "/seckill/tea", {"x-user-id": f"u{number}"})
        idle = await stack.enter_async_context(service.connect())
        await until(lambda: len(world.gate.futures) == 50, "all have asked")
        service.stop.set()
        assert await idle.closed()
        for number, future in enumerate(world.gate.futures):
            future.set_result(Decision(Outcome.SUCCESS, reservation(number + 1)))
        for client in clients:
            reply = await client.reply()
            assert (reply.status, reply.headers["connection"]) == (202, "close")
            assert await client.closed()


async def test_a_fault_in_one_answer_costs_the_others_of_its_batch_nothing() -> None:
    world = World()
    world.gate.holds = True
    async with running(world) as service, service.connect() as one, service.connect() as other:
        one.send("POST", "/seckill/tea", ANN)
        await until(lambda: world.gate.futures, "the gate was asked")
        other.send("POST", "/seckill/tea", {"x-user-id": "bob"})
        await until(lambda: len(world.gate.futures) == 2, "the gate was asked again")
        world.gate.futures[0].set_result(Decision(Outcome.SUCCESS))  # without a reservation
        world.gate.futures[1].set_result(Decision(Outcome.SUCCESS, reservation(1)))
        assert (await one.reply()).status == 500
        assert (await other.reply()).status == 202


async def test_a_connection_that_has_ended_leaves_nothing_behind() -> None:
    """It is freed at once: in a rush nobody comes to collect cycles."""

    def left() -> list[Any]:
        return [one for one in gc.get_objects() if type(one) is Connection and id(one) not in old]

    old: set[int] = set()
    gc.collect()
    old = {id(one) for one in left()}
    gc.disable()
    try:
        async with running(World()) as service:
            for path in ("/seckill/tea", "/goods"):
                async with service.connect() as client:
                    client.send("POST", path, ANN)
                    await client.reply()
                    assert len(left()) == 1
                    client.writer.write(b"half a requ")
            await until(lambda: not left(), "freed", seconds=3)
    finally:
        gc.enable()


def test_the_server_works_on_the_loop_that_serves_in_production() -> None:
    """The other tests here run on asyncio's own loop; uvloop's transports differ from its."""

    async def shop() -> None:
        world = World(WebLimits(body_timeout_ms=100))
        async with running(world) as service:
            async with service.connect() as client:
                for number in range(20):
                    client.send("POST", "/seckill/tea", {"x-user-id": f"u{number}"})
                for _ in range(20):
                    assert (await client.reply()).status == 202
                client.send("POST", "/seckill/tea", ANN | {"content-length": "5"})
                assert (await client.reply()).status == 408
                assert await client.closed()
            world.gate.holds = True
            async with service.connect() as leaving:
                leaving.send("POST", "/seckill/tea", ANN)
                await until(lambda: world.gate.futures, "the gate was asked")
            await asyncio.sleep(0.02)
            world.gate.futures[0].set_result(Decision(Outcome.SUCCESS, reservation(1)))
            await until(lambda: sum(world.tally.decided.values()) == 21, "followed")

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(shop())


async def test_serving_ends_when_the_application_fails() -> None:
    class Failing:
        def route(self, path: bytes) -> None:
            """Everything is served by ASGI."""

        def refused(self, status: int) -> None:
            pass

        async def __call__(self, *_: object) -> None:
            raise AssertionError

        async def run(self) -> None:
            raise RuntimeError("a part failed")

        def drain(self) -> None:
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(ExceptionGroup):
            await serve(Failing(), listener, ServerSettings(), asyncio.Event())
        assert listener.fileno() >= 0  # the caller's own
