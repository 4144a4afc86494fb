"""Sales, as an operator's program works with them."""

import asyncio
from typing import Any

from integration.admin.kit import WHY, AdminService, goods
from seckill.domain.ids import GoodsId
from seckill.domain.instants import rfc3339_ms
from seckill.domain.operators import Role
from seckill.domain.reservation import BucketId


async def _new(shop: AdminService, **fields: Any) -> str:
    name = goods()
    wish = {"goods_id": name, "stock": 10, **WHY, **fields}
    row = await shop.made("POST", "/sales", wish, role=Role.OPERATOR)
    assert row["goods_id"] == name
    return name


async def test_a_sale_from_its_beginning_to_its_end(shop_on_each: AdminService) -> None:
    shop = shop_on_each
    name = await _new(shop, title="绿茶 Tea", price_fen=1999, limit_per_user=2)
    shown = await shop.made("GET", f"/sales/{name}", role=Role.VIEWER)
    assert (shown["state"], shown["stock"], shown["remaining"], shown["sold"]) == ("running", 10, 10, 0)  # fmt: skip
    assert isinstance(shown["sale_id"], str)
    again = await shop.ask("POST", "/sales", {"goods_id": name, "stock": 10, **WHY})
    assert again.status == 409
    for verb, state in (("pause", "paused"), ("pause", "paused"), ("resume", "running"),
                        ("end", "ended"), ("end", "ended")):  # fmt: skip
        row = await shop.made("POST", f"/sales/{name}/{verb}", WHY)
        assert row["state"] == state, verb
    # Doing it again has changed nothing: not even the end, which is past.
    actions = [a for a in (await shop.made("GET", "/actions"))["actions"] if a["sale_id"]]
    assert [a["action"] for a in actions] == ["change_sale"] * 3 + ["create_sale"]
    assert {a["detail"]["reason"] for a in actions} == {WHY["reason"]}
    assert {a["actor"] for a in actions} == {"api:admin", "api:operator"}


async def test_an_edit_reaches_redis_and_ends_before_the_sale_starts(shop: AdminService) -> None:
    now_ms = shop.stores.clock.now_ms()
    name = await _new(shop, starts_at=rfc3339_ms(now_ms + 3_600_000))
    wish = {"title": "new", "price_fen": 5, "limit_per_user": 3, "pay_window_s": 60,
            "late_payment": "refund", "ends_at": rfc3339_ms(now_ms + 7_200_000)}  # fmt: skip
    row = await shop.made("PATCH", f"/sales/{name}", wish | WHY)
    assert {key: row[key] for key in wish} == wish
    bucket = await shop.stores.buckets.look(BucketId(int(row["sale_id"]), 0))  # type: ignore[arg-type]
    assert (bucket.limit_per_user, bucket.version) == (3, row["version"])
    same = await shop.made("PATCH", f"/sales/{name}", wish | WHY)
    assert same["version"] == row["version"]
    # Neither at once with a start that is near, nor after it.
    near = rfc3339_ms(shop.stores.clock.now_ms() + 5_000)
    refused = await shop.ask("PATCH", f"/sales/{name}", {"starts_at": near, "price_fen": 1, **WHY})
    assert refused.status == 409
    await shop.made("POST", f"/sales/{name}/open", WHY)
    for field in ("title", "price_fen", "limit_per_user", "pay_window_s", "late_payment"):
        value = {"title": "x", "late_payment": "take_free_unit"}.get(field, 9)
        refused = await shop.ask("PATCH", f"/sales/{name}", {field: value, **WHY})
        assert refused.status == 409, field
    later = rfc3339_ms(now_ms + 9_000_000)
    assert (await shop.made("PATCH", f"/sales/{name}", {"ends_at": later, **WHY}))["ends_at"] == later  # fmt: skip


WRONG_EDITS: list[tuple[dict[str, Any], str]] = [
    ({}, "body"),
    ({"title": None}, "title"),
    ({"starts_at": None}, "starts_at"),
    ({"price_fen": -1}, "price_fen"),
    ({"price_fen": 10**40}, "price_fen"),
    ({"price_fen": True}, "price_fen"),
    ({"price_fen": "1"}, "price_fen"),
    ({"price_fen": 1.5}, "price_fen"),
    ({"limit_per_user": 0}, "limit_per_user"),
    ({"pay_window_s": 0}, "pay_window_s"),
    ({"pay_window_s": 10**30}, "pay_window_s"),
    ({"late_payment": "keep"}, "late_payment"),
    ({"title": "x" * 201}, "title"),
    ({"title": "a\u0000b"}, "title"),
    ({"title": "\ud800"}, "title"),
    ({"ends_at": "2026-01-01"}, "ends_at"),
    ({"starts_at": "soon"}, "starts_at"),
    ({"stock": 5}, "stock"),
    ({"unknown": 1}, "unknown"),
]


async def test_a_wrong_edit_names_its_field_and_changes_nothing(shop: AdminService) -> None:
    name = await _new(shop, starts_at="2099-01-01T00:00:00Z")
    before = await shop.made("GET", f"/sales/{name}")
    for wish, field in WRONG_EDITS:
        refused = await shop.ask("PATCH", f"/sales/{name}", wish | WHY)
        assert (refused.status, refused.json["field"]) == (422, field), (wish, refused.body)
        assert refused.json["rule"]
    assert await shop.made("GET", f"/sales/{name}") == before


async def test_c49_fifty_additions_each_retried_add_up_to_fifty(shop: AdminService) -> None:
    """Each with its key, each sent twice at the same time: the lost update would show."""
    name = await _new(shop, stock=6)

    async def add(n: int) -> None:
        for _ in range(20):
            reply = await shop.ask(
                "POST", f"/sales/{name}/stock", {"by": 1, **WHY}, idempotency_key=f"key-{n}"
            )
            if reply.status != 503:
                break
            assert "retry-after" in reply.headers
            await asyncio.sleep(0.1)
        assert reply.status == 200, reply.body

    for some in range(0, 50, 10):
        await asyncio.gather(*(add(n) for n in [*range(some, some + 10)] * 2))
    row = await shop.made("GET", f"/sales/{name}")
    assert (row["stock"], row["remaining"]) == (56, 56)
    sale = await shop.stores.ledger.sales.sale_of_goods(GoodsId(name))
    assert sale is not None
    log = await shop.stores.ledger.actions.page(200, sale_id=sale.sale_id)
    changes = [one for one in log if one.action == "request_stock_change"]
    assert len(changes) == 50
    stocks = [one.detail["after"]["stock_units"] for one in reversed(changes)]
    assert stocks == list(range(7, 57))
    assert all(one.detail["after"]["stock_units"] - one.detail["before"]["stock_units"] == 1 for one in changes)  # fmt: skip


async def test_a_stock_change_needs_a_key_that_stands_for_one_change(shop: AdminService) -> None:
    name = await _new(shop)
    path = f"/sales/{name}/stock"
    without = await shop.ask("POST", path, {"by": 1, **WHY})
    assert (without.status, without.json["field"]) == (422, "Idempotency-Key")
    await shop.made("POST", path, {"by": 1, **WHY}, idempotency_key="k")
    other = await shop.ask("POST", path, {"by": 2, **WHY}, idempotency_key="k")
    assert (other.status, other.json["field"]) == (422, "Idempotency-Key")
    # Another operator's key of the same name is another key.
    await shop.made("POST", path, {"by": 2, **WHY}, idempotency_key="k", role=Role.OPERATOR)
    for by in (0, 10**9, -14, 1.0, "1"):
        refused = await shop.ask("POST", path, {"by": by, **WHY}, idempotency_key=f"k{by}")
        assert (refused.status, refused.json["field"]) == (422, "by"), by
    assert (await shop.made("GET", f"/sales/{name}"))["stock"] == 13


async def test_the_list_of_sales_comes_in_pages(shop: AdminService) -> None:
    names = [await _new(shop, stock=n) for n in range(1, 6)]
    seen: list[str] = []
    path: str | None = "/sales?limit=2"
    while path:
        page = await shop.made("GET", path, role=Role.VIEWER)
        assert len(page["sales"]) <= 2
        seen += [row["goods_id"] for row in page["sales"]]
        path = page["next"] and page["next"].removeprefix("/admin/api")
    assert seen == names[::-1]
    for wrong in ("limit=0", "limit=101", "before=x", "before=-1", "before=%00", "closed=2"):
        assert (await shop.ask("GET", f"/sales?{wrong}")).status == 422, wrong


async def test_what_is_not_there_is_said_to_be_not_there(shop: AdminService) -> None:
    for method, path, status in (
        ("GET", "/sales/none", 404),
        ("POST", "/sales/none/pause", 404),
        ("POST", "/sales/none/fly", 422),
        ("PATCH", "/sales/a%20b", 422),
        ("GET", "/sales/%ff", 400),
        ("GET", "/nothing", 404),
        ("PUT", "/sales", 405),
    ):
        body = None if method == "GET" else {"title": "x", **WHY} if method == "PATCH" else WHY
        reply = await shop.ask(method, path, body)
        assert reply.status == status, (path, reply.body)
        assert reply.headers["content-type"] == "application/problem+json"


async def test_while_the_ledger_is_away_an_operator_reads_503(shop: AdminService) -> None:
    await _new(shop)
    await shop.stores.database.dispose()
    reply = await shop.ask("GET", "/sales")
    assert reply.status == 503
    assert int(reply.headers["retry-after"]) >= 1
