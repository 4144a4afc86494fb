import re
import time
from html.parser import HTMLParser
from typing import Any

import jsonschema_rs
import jwt
import pytest

from integration.web.http import Reply, Service, running
from seckill.admission.decision import Decision
from seckill.domain.clock import SystemClock
from seckill.domain.order import OrderState
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.web.auth import FixedKey, JWTAuth
from seckill.web.ports import DependencyStatus, SaleOnShow
from unit.web.doubles import (
    NOW_MS,
    PartAway,
    World,
    order,
    place,
    reservation,
    sale,
)

ANN = {"x-user-id": "ann"}


@pytest.mark.parametrize(
    ("left", "paid", "due", "held", "next_at"),
    [
        (0, 30, NOW_MS + 5_000, 70, "2026-12-01T12:00:05.123Z"),
        (0, 100, None, 0, None),
        (40, 10, NOW_MS + 5_000, 50, None),
        (95, 10, None, None, None),  # read at two moments: they cannot both be true now
        (None, 10, NOW_MS, None, None),
    ],
)
async def test_what_is_left_held_and_paid_adds_up_to_what_was_put_on_sale(
    left: int | None, paid: int, due: int | None, held: int | None, next_at: str | None
) -> None:
    world = World()
    world.shop.entries = [SaleOnShow(sale(), left, paid, due)]
    async with running(world) as service:
        item = (await service.ask("GET", "/goods/tea")).json
    assert (item["held"], item["next_release_at"]) == (held, next_at)
    if held is not None:
        assert item["remaining"] + item["held"] + item["paid"] == item["stock"]


async def test_the_shelf_shows_every_field_that_is_promised() -> None:
    world = World()
    async with running(world) as service:
        one = await service.ask("GET", "/goods/tea")
        assert one.status == 200
        assert one.json == {
            "goods_id": "tea",
            "title": "绿茶 Tea",
            "state": "running",
            "starts_at": "2026-12-01T11:59:00.123Z",
            "ends_at": "2026-12-01T12:01:00.123Z",
            "price_fen": 1999,
            "limit_per_user": 2,
            "may_buy_again": True,
            "stock": 100,
            "remaining": 40,
            "server_time": "2026-12-01T12:00:00.123Z",
            "held": None,
            "paid": None,
            "next_release_at": None,
        }
        listed = (await service.ask("GET", "/goods")).json
        alone = {"held", "paid", "next_release_at"}
        assert listed["goods"] == [{k: v for k, v in one.json.items() if k not in alone}]
        assert (listed["next"], listed["server_time"]) == (None, one.json["server_time"])
        assert (await service.ask("GET", "/goods/none")).status == 404


@pytest.mark.parametrize(
    ("shift_ms", "state"),
    [
        (-1, "scheduled"),
        (0, "running"),
        (119_999, "running"),
        (120_000, "ended"),
        (120_001, "ended"),
    ],
)
async def test_the_window_begins_with_its_first_and_ends_before_its_last_instant(
    shift_ms: int, state: str
) -> None:
    world = World()
    start = sale().starts_at_ms
    world.clock.at_ms = start + shift_ms
    async with running(world) as service:
        assert (await service.ask("GET", "/goods/tea")).json["state"] == state


async def test_the_shelf_comes_in_pages_newest_first() -> None:
    world = World()
    world.shop.entries = [SaleOnShow(sale(f"g&{n}", n), None) for n in (2, 5, 1, 4, 3)]
    async with running(world) as service:
        seen: list[str] = []
        path: str | None = "/goods?limit=2"
        while path:
            page = (await service.ask("GET", path)).json
            seen += [entry["goods_id"] for entry in page["goods"]]
            assert all(entry["remaining"] is None for entry in page["goods"])
            path = page["next"]
        assert seen == ["g&5", "g&4", "g&3", "g&2", "g&1"]
        assert (await service.ask("GET", "/goods?after=gone")).json["goods"] == []


@pytest.mark.parametrize(
    ("path", "status"),
    [(b"/goods/%ff", 400), (b"/goods/%", 400), (b"/goods/a%20b", 422), (b"/goods/a%2Fb", 404)],
)
async def test_a_goods_id_in_the_path_is_read_strictly(path: bytes, status: int) -> None:
    async with running(World()) as service:
        reply = await service.ask("GET", path)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/problem+json"


async def test_a_shelf_that_cannot_be_read_is_a_503() -> None:
    world = World()
    world.shop.error = PartAway("redis gone")
    async with running(world) as service:
        for path in ("/goods", "/goods/tea"):
            reply = await service.ask("GET", path)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert b"redis" not in reply.body
        world.shop.error = ZeroDivisionError("a bug")
        reply = await service.ask("GET", "/goods")
        assert (reply.status, reply.headers["content-type"]) == (500, "application/problem+json")
        assert b"bug" not in reply.body


async def test_alive_never_depends_on_anybody_and_ready_says_who_is_away() -> None:
    world = World()
    async with running(world) as service:
        assert (await service.ask("GET", "/readyz")).json["status"] == "ready"
        world.neighbours.status = dict.fromkeys(("redis", "ledger"), DependencyStatus.DOWN)
        ready = await service.ask("GET", "/readyz")
        assert (ready.status, ready.json["status"]) == (200, "degraded")
        assert ready.json["dependencies"]["redis"] == {
            "status": "down",
            "since": "2026-12-01T12:00:00.123Z",
            "detail": "",
        }
        service.app.drain()
        draining = await service.ask("GET", "/readyz")
        assert (draining.status, draining.json["status"]) == (503, "draining")
        alive = await service.ask("GET", "/healthz")
        assert (alive.status, alive.json) == (200, {"status": "alive"})
        for method, path in [("GET", "/healthz"), ("POST", "/seckill/tea"), ("GET", "/orders/x")]:
            assert (await service.ask(method, path, ANN)).headers["connection"] == "close"


async def test_the_metrics_page_is_handed_through_and_requests_are_counted_by_route() -> None:
    world = World()
    async with running(world) as service:
        page = await service.ask("GET", "/metrics")
        assert page.body == b"# HELP up\nup 1\n"
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
        await service.ask("GET", "/goods/tea")
        await service.ask("GET", "/made/up/by/a/scanner")
        await service.ask("POST", "/goods")
        await service.ask("MADEUP", "/goods")
        await service.ask("MADEUP", "/seckill/tea")
    assert world.tally.answered == {
        ("/metrics", "GET", 200): 1,
        ("/goods/{goods_id}", "GET", 200): 1,
        ("(none)", "GET", 404): 1,
        ("/goods", "POST", 405): 1,
        ("(none)", "OTHER", 501): 2,
    }


async def test_every_answer_of_the_framework_carries_the_security_headers() -> None:
    async with running(World()) as service:
        for method, path in [
            ("GET", "/goods"),
            ("GET", "/nothing"),
            ("PUT", "/goods"),
            ("GET", "/orders"),
        ]:
            headers = (await service.ask(method, path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["content-security-policy"].startswith("default-src 'none'")


async def test_head_is_get_without_a_body() -> None:
    async with running(World()) as service:
        for path in ("/goods", "/goods/tea", "/healthz", "/readyz", "/docs", "/nothing"):
            full, head = await service.ask("GET", path), await service.ask("HEAD", path)
            assert (head.status, head.headers["content-length"]) == (
                full.status,
                str(len(full.body)),
            )
            async with service.connect() as client:
                client.send("HEAD", path)
                client.send("GET", "/healthz")
                await client.reply(to_head=True)
                assert (await client.reply()).json == {"status": "alive"}


SECRET = b"0123456789abcdef0123456789abcdef"


def bearer(subject: str, **claims: Any) -> dict[str, str]:
    payload = {"sub": subject, "exp": int(time.time()) + 3_600} | claims
    return {"authorization": "Bearer " + jwt.encode(payload, SECRET, "HS256")}


@pytest.mark.parametrize("end", ["/pay", "/cancel"])
async def test_an_order_is_paid_and_cancelled_by_its_buyer_s_fresh_token_alone(end: str) -> None:
    """C82: somebody else's token finds nothing, an expired one or none says who to be."""
    world = World(auth=JWTAuth("HS256", FixedKey("HS256", SECRET), SystemClock()))
    world.books.orders[reservation(1)] = order(1)
    path = f"/orders/{reservation(1)}{end}"
    async with running(world) as service:
        others = await service.ask("POST", path, bearer("bob"))
        unknown = await service.ask("POST", f"/orders/{reservation(2)}{end}", bearer("bob"))
        assert (others.status, others.body) == (404, unknown.body)
        expired = bearer("ann", exp=int(time.time()) - 61)
        for headers in ({}, {"x-user-id": "ann"}, expired):
            assert (await service.ask("POST", path, headers)).status == 401
        assert world.books.orders[reservation(1)].state is OrderState.AWAITING_PAYMENT
        assert world.till.payments == {}
        assert (await service.ask("POST", path, bearer("ann"))).status == 200


async def test_with_tokens_only_the_token_says_who_the_buyer_is() -> None:
    world = World(auth=JWTAuth("HS256", FixedKey("HS256", SECRET), SystemClock()))
    world.books.orders[reservation(1)] = order(1)
    path = f"/orders/{reservation(1)}"
    async with running(world) as service:
        bought = await service.ask(
            "POST", "/seckill/tea?userId=eve", bearer("ann") | {"x-user-id": "eve"}
        )
        assert bought.status == 202
        assert [call[1] for call in world.gate.calls] == ["ann"]
        assert (await service.ask("GET", path, bearer("ann"))).status == 200
        assert (await service.ask("GET", path, bearer("bob"))).status == 404
        expired = bearer("ann", exp=int(time.time()) - 3600)
        for method, target, headers in [
            ("POST", "/seckill/tea", ANN),
            ("POST", "/seckill/tea", expired),
            ("GET", path, expired),
            ("GET", path + "/events", expired),
            ("POST", path + "/cancel", expired),
            ("GET", "/orders", ANN),
        ]:
            reply = await service.ask(method, target, headers)
            assert reply.status == 401
            assert reply.headers["www-authenticate"].startswith('Bearer realm="seckill"')
    assert len(world.gate.calls) == 1
    assert world.books.orders[reservation(1)].state is OrderState.AWAITING_PAYMENT


class Contract:
    """Compares answers with the OpenAPI document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.seen: set[tuple[str, str, str]] = set()

    def check(self, route: str, method: str, reply: Reply) -> None:
        operation = self.document["paths"][route][method]
        response = operation["responses"].get(str(reply.status))
        assert response, f"{method} {route} does not document {reply.status}"
        media_type = reply.headers["content-type"].split(";")[0]
        assert media_type in response["content"], f"{reply.status} {media_type}"
        schema = response["content"][media_type]["schema"]
        if media_type.endswith("json"):
            jsonschema_rs.validator_for(
                schema | {"components": self.document["components"]}
            ).validate(reply.json)
        for name, header in response.get("headers", {}).items():
            value = reply.headers.get(name.lower())
            if value is not None:
                jsonschema_rs.validator_for(header["schema"]).validate(value)
        self.seen.add((route, method, str(reply.status)))


async def document_of(service: Service) -> dict[str, Any]:
    reply = await service.ask("GET", "/openapi.json")
    assert reply.status == 200
    document: dict[str, Any] = reply.json
    return document


async def test_the_purchase_route_answers_as_its_document_says() -> None:
    world = World()
    async with running(world) as service:
        contract = Contract(await document_of(service))
        route = "/seckill/{goods_id}"
        for outcome in Outcome:
            reservation_id = (
                reservation(3) if outcome in {Outcome.SUCCESS, Outcome.OVER_LIMIT} else None
            )
            world.gate.decision = Decision(
                outcome, reservation_id, replayed=True, starts_at_ms=NOW_MS, retry_after_ms=1
            )
            for language in ("zh", "en"):
                reply = await service.ask(
                    "POST", "/seckill/tea", ANN | {"accept-language": language}
                )
                assert str(reply.status) in contract.document["paths"][route]["post"]["responses"]
                contract.check(route, "post", reply)
        for path, headers, body in [
            ("/seckill/%ff", ANN, None),
            ("/seckill/tea", {}, None),
            ("/seckill/tea", ANN | {"content-type": "text/css"}, None),
            ("/seckill/tea", ANN, b" " * 5000),
            ("/seckill/tea", ANN, b'{"quantity":0}'),
        ]:
            contract.check(route, "post", await service.ask("POST", path, headers, body))
        contract.check(route, "post", await service.ask("PUT", "/seckill/tea", ANN))
        documented = set(contract.document["paths"][route]["post"]["responses"]) - {"408"}
        assert {status for _, _, status in contract.seen} == documented
        statuses = {str(texts.http_status) for texts in OUTCOME_TEXTS.values()}
        assert statuses <= documented


async def test_all_other_routes_answer_as_their_document_says() -> None:
    world = World()
    world.books.orders[reservation(1)] = order(1, reason="a reason")
    world.books.orders[reservation(2)] = order(2, state=OrderState.PAID)
    world.queue.held[place(3), "ann"] = 1
    async with running(world) as service:
        contract = Contract(await document_of(service))

        async def check(route: str, method: str, path: str, status: int, **headers: str) -> None:
            reply = await service.ask(method, path, headers)
            assert reply.status == status
            contract.check(route, method.lower(), reply)

        one = "/orders/{reservation_id}"
        ann = {"x-user-id": "ann"}
        for number in (1, 2, 3):
            await check(one, "GET", f"/orders/{reservation(number)}", 200, **ann)
        await check(one, "GET", "/orders/none", 404, **ann)
        await check(one, "GET", "/orders/none", 401)
        await check(one, "GET", "/orders/none", 422, **{"x-user-id": "a b"})
        await check(one + "/cancel", "POST", f"/orders/{reservation(1)}/cancel", 200, **ann)
        await check(one + "/cancel", "POST", f"/orders/{reservation(2)}/cancel", 409, **ann)
        await check(one + "/cancel", "POST", "/orders/none/cancel", 404, **ann)
        world.books.orders[reservation(4)] = order(4)
        for number, status in ((4, 200), (2, 200), (1, 409), (3, 409)):
            await check(one + "/pay", "POST", f"/orders/{reservation(number)}/pay", status, **ann)
        await check(one + "/pay", "POST", "/orders/none/pay", 404, **ann)
        await check(one + "/pay", "POST", "/orders/none/pay", 401)
        await check("/payments/webhook", "POST", "/payments/webhook", 401)
        await check(one + "/events", "GET", f"/orders/{reservation(2)}/events", 200, **ann)
        await check(one + "/events", "GET", "/orders/none/events", 404, **ann)
        await check("/orders", "GET", "/orders", 200, **ann)
        await check("/orders", "GET", "/orders?limit=1", 200, **ann)
        await check("/orders", "GET", "/orders?limit=0", 422, **ann)
        await check("/orders", "GET", "/orders", 401)
        await check("/goods", "GET", "/goods", 200)
        await check("/goods", "GET", "/goods?limit=1000", 422)
        await check("/goods/{goods_id}", "GET", "/goods/tea", 200)
        await check("/goods/{goods_id}", "GET", "/goods/none", 404)
        await check("/goods/{goods_id}", "GET", "/goods/a%20b", 422)
        await check("/goods/{goods_id}", "GET", "/goods/%ff", 400)
        await check("/healthz", "GET", "/healthz", 200)
        await check("/readyz", "GET", "/readyz", 200)
        await check("/metrics", "GET", "/metrics", 200)
        world.books.error = PartAway("gone")
        world.shop.error = PartAway("gone")
        await check(one, "GET", f"/orders/{reservation(1)}", 503, **ann)
        await check("/orders", "GET", "/orders", 503, **ann)
        await check("/goods", "GET", "/goods", 503)
        service.app.drain()
        await check("/readyz", "GET", "/readyz", 503)
    assert {route for route, _, _ in contract.seen} == set(contract.document["paths"]) - {
        "/seckill/{goods_id}"
    }


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.ids: set[str] = set()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in {"script", "link", "img", "iframe"}:
            self.loads.append(tag)
        if "id" in values:
            self.ids.add(values["id"] or "")
        if tag == "a" and (values.get("href") or "").startswith("#"):
            self.anchors.add((values["href"] or "")[1:])


async def test_the_page_for_people_needs_nothing_from_elsewhere() -> None:
    async with running(World()) as service:
        page = await service.ask("GET", "/docs")
        document = await document_of(service)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    text = page.body.decode()
    links = _Links()
    links.feed(text)
    assert links.loads == []
    assert links.anchors
    assert links.anchors <= links.ids
    assert not re.search(r"https?://", text)
    # The buyers' calls come first, and none is left out.
    assert text.index("/seckill/{goods_id}") < text.index("/orders/{reservation_id}/pay")
    for path in document["paths"]:
        assert path in text
