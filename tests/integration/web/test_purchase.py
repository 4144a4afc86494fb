import asyncio
import re

import pytest

from integration.web.http import Reply, running, until
from seckill.admission.decision import Decision
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.web.limits import WebLimits
from unit.web.doubles import NOW_MS, PartAway, World, reservation

ANN = {"x-user-id": "ann"}


async def test_a_buyer_gets_an_answer_in_their_language_and_a_place_to_look() -> None:
    world = World()
    async with running(world) as service:
        zh = await service.ask("POST", "/seckill/tea", ANN)
        assert zh.status == 202
        assert zh.json == {
            "code": 1,
            "message": "秒杀成功，请等待订单生成",
            "reservation_id": reservation(1),
        }
        assert zh.headers["location"] == f"/orders/{reservation(1)}"
        assert zh.headers["cache-control"] == "no-store"
        en = await service.ask(
            "POST", "/seckill/tea?userId=bob", {"accept-language": "en-GB,zh;q=0.5"}
        )
        assert en.json["message"] == OUTCOME_TEXTS[Outcome.SUCCESS].en
    goods, users, quantities, attempts = zip(*world.gate.calls, strict=True)
    assert (goods, users, quantities) == (("tea", "tea"), ("ann", "bob"), (1, 1))
    assert len(set(attempts)) == 2
    assert world.tally.answered == {("/seckill/{goods_id}", "POST", 202): 2}


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("outcome", list(Outcome))
async def test_every_decision_reaches_the_buyer(outcome: Outcome, held: bool) -> None:
    world = World()
    decision = Decision(
        outcome,
        reservation(4) if outcome in {Outcome.SUCCESS, Outcome.DUPLICATE} else None,
        retry_after_ms=1_500,
        starts_at_ms=NOW_MS,
        left_units=3,
        cause="redis",
    )
    world.gate.decision, world.gate.holds = decision, held
    async with running(world) as service, service.connect() as client:
        client.send("POST", "/seckill/tea", ANN)
        if held:
            await until(lambda: world.gate.futures, "the gate was asked")
            world.gate.futures[0].set_result(decision)
        reply = await client.reply()
    assert reply.status == OUTCOME_TEXTS[outcome].http_status
    assert reply.json["code"] == outcome.value
    assert world.tally.decided == {(outcome, "redis"): 1}


async def test_the_same_key_is_the_same_attempt_whoever_serves_it() -> None:
    world = World()
    async with running(world) as service:
        for _ in range(2):
            await service.ask("POST", "/seckill/tea", ANN | {"idempotency-key": "K/1"})
        world.gate.decision = Decision(Outcome.SUCCESS, reservation(1), replayed=True)
        replay = await service.ask("POST", "/seckill/tea", ANN | {"idempotency-key": "K/2"})
        world.gate.decision = Decision(Outcome.KEY_REUSED)
        reused = await service.ask("POST", "/seckill/tea", ANN | {"idempotency-key": "K/2"})
    attempts = [call[3] for call in world.gate.calls]
    assert attempts[0] == attempts[1] != attempts[2]
    assert (replay.status, replay.headers["idempotency-replayed"]) == (202, "true")
    assert (reused.status, reused.json["code"]) == (422, 9)


async def test_the_trace_of_a_purchase_goes_along_and_a_broken_one_stops_nobody() -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    world = World()
    async with running(world) as service:
        for headers in (
            {},
            {"traceparent": trace},
            {"traceparent": "no trace"},
            {"traceparent": trace, "accept-language": "en"},
        ):
            assert (await service.ask("POST", "/seckill/tea?userId=ann", headers)).status == 202
    assert world.gate.traces == ["", trace, "", trace]


GOOD_PATHS = [
    (b"/seckill/%E8%8C%B6", "茶"),
    (b"/seckill/a:b", "a:b"),
    (b"/seckill/%7Ba%7D", "{a}"),
    ("/seckill/e\u0301".encode(), "e\u0301"),
    (b"/seckill/%C3%A9", "é"),
    (b"/seckill/%D9%A3", "٣"),
    (b"/seckill/%F0%9F%8D%B5", "🍵"),
    (b"/seckill/a+b", "a+b"),
]


@pytest.mark.parametrize(("path", "goods_id"), GOOD_PATHS)
async def test_goods_ids_arrive_byte_for_byte(path: bytes, goods_id: str) -> None:
    world = World()
    async with running(world) as service:
        for _ in range(2):
            assert (await service.ask("POST", path, {"x-user-id": goods_id.encode()})).status == 202
    assert {call[:2] for call in world.gate.calls} == {(goods_id, goods_id)}


JSON = {"content-type": "application/json"}

# path, headers, body -> status, field
BAD_INPUT = [
    # the goods id
    (b"/seckill/%ff", {}, None, 400, "goods_id"),
    (b"/seckill/%", {}, None, 400, "goods_id"),
    (b"/seckill/%ED%A0%80", {}, None, 400, "goods_id"),
    (b"/seckill/a%00b", {}, None, 422, "goods_id"),
    (b"/seckill/a%0Ab", {}, None, 422, "goods_id"),
    (b"/seckill/%20", {}, None, 422, "goods_id"),
    (b"/seckill/a%2Fb", {}, None, 422, "goods_id"),
    (b"/seckill/..%2F..%2Fx", {}, None, 422, "goods_id"),
    (b"/seckill/..", {}, None, 422, "goods_id"),
    (b"/seckill/%2500", {}, None, 422, "goods_id"),
    (b"/seckill/%E2%80%8F", {}, None, 422, "goods_id"),
    (b"/seckill/" + b"x" * 65, {}, None, 422, "goods_id"),
    (b"/seckill/" + b"%F0%9F%8D%B5" * 49, {}, None, 422, "goods_id"),
    # the buyer
    (b"/seckill/tea", {"x-user-id": None}, None, 401, None),
    (b"/seckill/tea?userId=bob", {}, None, 400, "X-User-Id"),
    (b"/seckill/tea?userId=ann&userId=ann", {}, None, 400, "userId"),
    (b"/seckill/tea?userId=%ff", {"x-user-id": None}, None, 400, "userId"),
    (b"/seckill/tea", {"x-user-id": b"\xff\xfe"}, None, 400, "X-User-Id"),
    (b"/seckill/tea", {"x-user-id": b"a b"}, None, 422, "X-User-Id"),
    (b"/seckill/tea", {"x-user-id": b""}, None, 422, "X-User-Id"),
    (b"/seckill/tea", {"x-user-id": b"x" * 65}, None, 422, "X-User-Id"),
    (b"/seckill/tea", {"x-user-id": b"x" * 20_000}, None, 422, "X-User-Id"),
    (b"/seckill/tea?userId=" + b"x" * 20_000, {"x-user-id": None}, None, 422, "userId"),
    # the key
    (b"/seckill/tea", {"idempotency-key": b""}, None, 400, "Idempotency-Key"),
    (b"/seckill/tea", {"idempotency-key": b"k" * 256}, None, 400, "Idempotency-Key"),
    (b"/seckill/tea", {"idempotency-key": b"two words"}, None, 400, "Idempotency-Key"),
    (b"/seckill/tea", {"idempotency-key": "é".encode()}, None, 400, "Idempotency-Key"),
    # what the body is said to be
    (b"/seckill/tea", {"content-type": b"text/plain"}, b"{}", 415, "Content-Type"),
    (b"/seckill/tea", {"content-type": b"application/xml"}, None, 415, "Content-Type"),
    (
        b"/seckill/tea",
        {"content-type": b"application/json;charset=gbk"},
        b"{}",
        415,
        "Content-Type",
    ),
    (
        b"/seckill/tea",
        {"content-type": b"application/x-www-form-urlencoded"},
        b"a=1",
        415,
        "Content-Type",
    ),
    (b"/seckill/tea", {"content-encoding": b"gzip"}, b"{}", 415, "Content-Encoding"),
    (b"/seckill/tea", {}, b" " * 4097, 413, "body"),
    # the body
    (b"/seckill/tea", JSON, b"\xff", 400, "body"),
    (b"/seckill/tea", JSON, b"{", 400, "body"),
    (b"/seckill/tea", JSON, b"[]", 400, "body"),
    (b"/seckill/tea", JSON, b'{"quantity":NaN}', 400, "body"),
    (b"/seckill/tea", JSON, b'{"quantity":1,"quantity":2}', 400, "body"),
    (b"/seckill/tea", JSON, b'{"quantity":0}', 422, "quantity"),
    (b"/seckill/tea", JSON, b'{"quantity":-1}', 422, "quantity"),
    (b"/seckill/tea", JSON, b'{"quantity":1.5}', 422, "quantity"),
    (b"/seckill/tea", JSON, b'{"quantity":"1"}', 422, "quantity"),
    (b"/seckill/tea", JSON, b'{"quantity":true}', 422, "quantity"),
    (b"/seckill/tea", JSON, b'{"quantity":null}', 422, "quantity"),
    (b"/seckill/tea", JSON, b'{"quantity":9007199254740993}', 422, "quantity"),
    (b"/seckill/tea", JSON, b'{"quantity":1e309}', 422, "quantity"),
    (b"/seckill/tea", JSON, b'{"token":1}', 422, "token"),
    (b"/seckill/tea", JSON, b'{"token":"' + b"x" * 513 + b'"}', 422, "token"),
    (b"/seckill/tea", JSON, b'{"userId":"bob"}', 422, "userId"),
    (b"/seckill/tea", JSON, b'{"\\ud800":1}', 422, "?"),
]


def assert_problem(reply: Reply, status: int, field: str | None) -> None:
    assert reply.status == status
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json
    assert problem["type"] == "about:blank"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem.get("field") == field
    assert bool(problem.get("rule")) == (field is not None)


@pytest.mark.parametrize(("path", "headers", "body", "status", "field"), BAD_INPUT)
async def test_bad_input_is_refused_before_admission(
    path: bytes,
    headers: dict[str, bytes | None],
    body: bytes | None,
    status: int,
    field: str | None,
) -> None:
    world = World()
    sent = {name: value for name, value in (ANN | headers).items() if value is not None}
    async with running(world) as service:
        reply = await service.ask("POST", path, sent, body)
        assert_problem(reply, status, field)
        assert world.gate.calls == []
        assert (await service.ask("POST", "/seckill/tea", ANN)).status == 202


@pytest.mark.parametrize("name", ["x-user-id", "idempotency-key", "content-type", "authorization"])
async def test_a_header_that_counts_given_twice_is_refused(name: str) -> None:
    world = World()
    pairs: list[tuple[str, str | bytes]] = [("x-user-id", "ann"), (name, "x"), (name, "x")]
    async with running(world) as service:
        reply = await service.ask("POST", "/seckill/tea", pairs)
    assert reply.status == 400
    assert reply.json["field"].lower() == name
    assert world.gate.calls == []


async def test_good_bodies_are_taken() -> None:
    world = World()
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with running(world) as service:
        for headers, body in [
            (JSON, b'{"quantity": 2, "token": "t"}'),
            ({}, b'{"quantity":2}'),
            ({"content-type": "application/json; charset=utf-8"}, b'{"quantity":2}'),
            ({"transfer-encoding": "chunked"}, b'6\r\n{"quan\r\n8\r\ntity":2}\r\n0\r\n\r\n'),
        ]:
            assert (await service.ask("POST", "/seckill/tea", ANN | headers, body)).status == 202
        assert [call[2] for call in world.gate.calls] == [2, 2, 2, 2]
        for headers, empty in [(form, b""), (JSON, b""), ({}, b""), ({}, None)]:
            assert (await service.ask("POST", "/seckill/tea", ANN | headers, empty)).status == 202
        assert [call[2] for call in world.gate.calls[4:]] == [1, 1, 1, 1]


async def test_a_body_of_ten_megabytes_is_refused_unread() -> None:
    world = World()
    async with running(world) as service, service.connect() as client:
        client.send("POST", "/seckill/tea", ANN | {"content-length": "10000000"})
        assert_problem(await client.reply(), 413, "body")
        assert await client.closed()
    assert world.gate.calls == []


async def test_a_body_without_a_length_is_cut_at_the_bound() -> None:
    world = World()
    async with running(world) as service, service.connect() as client:
        client.send("POST", "/seckill/tea", ANN | {"transfer-encoding": "chunked"})
        client.writer.write(b"1001\r\n" + b" " * 4097 + b"\r\n")
        assert_problem(await client.reply(), 413, "body")
        assert await client.closed()
    assert world.gate.calls == []


async def test_a_slow_body_is_waited_for_only_so_long() -> None:
    world = World(WebLimits(body_timeout_ms=100))
    async with running(world) as service, service.connect() as client:
        client.send("POST", "/seckill/tea", ANN | {"content-length": "14"})
        client.writer.write(b'{"quan')
        assert_problem(await client.reply(), 408, "body")
        assert await client.closed()
    assert world.gate.calls == []


async def test_a_client_that_leaves_in_the_middle_of_its_body_buys_nothing() -> None:
    world = World()
    async with running(world) as service:
        async with service.connect() as client:
            client.send("POST", "/seckill/tea", ANN | {"content-length": "14"})
            client.writer.write(b'{"quan')
            await client.writer.drain()
        await until(lambda: world.tally.answered, "the request has ended")
    assert world.tally.answered == {("/seckill/{goods_id}", "POST", 499): 1}
    assert world.gate.calls == []


async def test_the_admission_of_a_client_that_left_goes_on() -> None:
    world = World()
    world.gate.holds = True
    async with running(world) as service:
        async with service.connect() as client:
            client.send("POST", "/seckill/tea", ANN)
            await until(lambda: world.gate.futures, "the gate was asked")
        async with service.connect() as other:
            other.send("POST", "/seckill/tea", {"x-user-id": "bob"})
            await until(lambda: len(world.gate.futures) == 2, "the gate was asked again")
            left, stayed = world.gate.futures
            assert not left.done()
            assert not left.cancelled()
            left.set_result(Decision(Outcome.SUCCESS, reservation(1)))
            stayed.set_result(Decision(Outcome.SUCCESS, reservation(2)))
            reply = await other.reply()
        assert reply.json["reservation_id"] == reservation(2)
        await until(lambda: sum(world.tally.decided.values()) == 2, "both were followed")


async def test_requests_sent_without_waiting_are_answered_in_order() -> None:
    world = World()
    world.gate.holds = True
    async with running(world) as service, service.connect() as client:
        for number in range(20):
            body = b'{"quantity":%d}' % (number + 1) if number % 2 else None
            client.send("POST", "/seckill/tea", {"x-user-id": f"u{number}"}, body)
        for number in range(20):
            await until(lambda n=number: len(world.gate.futures) > n, "the gate was asked")
            world.gate.futures[number].set_result(
                Decision(Outcome.SUCCESS, reservation(number + 1))
            )
            assert (await client.reply()).json["reservation_id"] == reservation(number + 1)
    assert [call[1] for call in world.gate.calls] == [f"u{n}" for n in range(20)]
    assert [call[2] for call in world.gate.calls] == [n + 1 if n % 2 else 1 for n in range(20)]


async def test_replies_are_never_mixed_up() -> None:
    """Each buyer reads their own reservation, however the batch completes."""
    world = World()
    world.gate.holds = True
    async with running(world) as service:

        async def buy(number: int) -> str:
            reply = await service.ask("POST", "/seckill/tea", {"x-user-id": f"u{number}"})
            return str(reply.json["reservation_id"])

        buying = [asyncio.create_task(buy(number)) for number in range(1, 101)]
        await until(lambda: len(world.gate.futures) == 100, "all have asked")
        for call, future in reversed(list(zip(world.gate.calls, world.gate.futures, strict=True))):
            future.set_result(Decision(Outcome.SUCCESS, reservation(int(call[1][1:]))))
        assert await asyncio.gather(*buying) == [reservation(n) for n in range(1, 101)]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_told_which_one_there_is(method: str) -> None:
    world = World()
    async with running(world) as service:
        reply = await service.ask(method, "/seckill/tea", ANN)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert world.gate.calls == []


@pytest.mark.parametrize("path", ["/seckill", "/seckill/", "/seckill/a/b", "/seckill%2Ftea"])
async def test_paths_beside_the_route_are_unknown(path: str) -> None:
    world = World()
    async with running(world) as service:
        assert_problem(await service.ask("POST", path, ANN), 404, None)
    assert world.gate.calls == []


@pytest.mark.parametrize("error", [PartAway("redis"), ZeroDivisionError("a bug")])
async def test_a_fault_of_the_gate_is_a_500_without_its_text(error: Exception) -> None:
    world = World()
    world.gate.decision = error
    async with running(world) as service:
        reply = await service.ask("POST", "/seckill/tea", ANN)
    assert_problem(reply, 500, None)
    assert not re.search(rb"redis|bug|Traceback", reply.body)


async def test_a_refused_request_leaves_the_connection_usable() -> None:
    """What was announced and not read must not be taken for the next request."""
    world = World()
    async with running(world) as service, service.connect() as client:
        body = b"POST /seckill/stolen HTTP/1.1\r\nhost: x\r\nx-user-id: eve\r\n\r\n"
        client.send("POST", "/seckill/tea", {"x-user-id": "a b"}, body)
        client.send("POST", "/seckill/tea", ANN)
        assert (await client.reply()).status == 422
        assert (await client.reply()).status == 202
    assert [call[:2] for call in world.gate.calls] == [("tea", "ann")]
