"""Orders, dead letters and the promises, as an operator's program works with them."""

import base64
from typing import Any

from contract.ledger.kit import Shop, open_shop
from contract.ledger.test_payments import news
from integration.admin.kit import WHY, AdminService, goods
from seckill.domain.ids import UserId
from seckill.domain.operators import Role
from seckill.domain.payment import NewsKind, PaymentId
from seckill.domain.reservation import BucketId

BUYERS = 7


async def _sold(shop: AdminService, buyers: int = BUYERS) -> tuple[Shop, list[str]]:
    """A sale with orders, written as the order worker writes them."""
    sold = await open_shop(shop.stores.ledger, goods=goods())
    events = [sold.admitted(seq) for seq in range(1, buyers + 1)]
    await shop.stores.ledger.write(events)
    return sold, [str(shop.stores.ids.encode(event.place)) for event in events]


async def test_orders_are_found_by_sale_buyer_and_state_page_by_page(
    shop_on_each: AdminService,
) -> None:
    shop = shop_on_each
    older, old_ids = await _sold(shop)
    newer, new_ids = await _sold(shop, 3)
    await shop.made("POST", f"/orders/{old_ids[0]}/cancel", WHY)

    async def found(query: str) -> list[str]:
        seen: list[str] = []
        path: str | None = f"/orders?limit=2&{query}"
        while path:
            page = await shop.made("GET", path, role=Role.VIEWER)
            assert len(page["orders"]) <= 2
            seen += [one["reservation_id"] for one in page["orders"]]
            path = page["next"] and page["next"].removeprefix("/admin/api")
        return seen

    assert await found("") == [*reversed(new_ids), *reversed(old_ids)]
    of_older = f"goods_id={older.sale.goods_id}"
    assert await found(of_older) == [*reversed(old_ids)]
    assert await found(f"{of_older}&state=cancelled") == [old_ids[0]]
    assert await found(f"{of_older}&state=awaiting_payment") == [*reversed(old_ids[1:])]
    assert await found("user_id=user-2") == [new_ids[1], old_ids[1]]
    assert await found(f"user_id=user-2&goods_id={newer.sale.goods_id}") == [new_ids[1]]
    assert await found("goods_id=nothing") == []
    assert await found("before=0123456789abcdef") == []
    for wrong, field in (
        ("state=paid", "state"),
        ("state=queued", "state"),
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("user_id=", "user_id"),
        ("user_id=a%00b", "user_id"),
        ("goods_id=a/b", "goods_id"),
        ("before=%00", "before"),
    ):
        refused = await shop.ask("GET", f"/orders?{wrong}")
        assert (refused.status, refused.json["field"]) == (422, field), wrong


async def test_an_operator_cancels_and_refunds_each_once(shop: AdminService) -> None:
    ledger = shop.stores.ledger
    sold, ids = await _sold(shop)
    for _ in range(2):
        row = await shop.made("POST", f"/orders/{ids[0]}/cancel", {"reason": "made a mistake"})
        assert (row["state"], row["reason"]) == ("cancelled", "made a mistake")
    assert (await shop.ask("POST", f"/orders/{ids[0]}/refund", WHY)).status == 409
    await ledger.payments.start(
        shop.stores.ids.encode(sold.place(2)), UserId("user-2"), new_id=PaymentId("p2")
    )
    await ledger.payments.take(news(NewsKind.PAID, "p2"))
    assert (await shop.ask("POST", f"/orders/{ids[1]}/cancel", WHY)).status == 409
    for _ in range(2):
        row = await shop.made("POST", f"/orders/{ids[1]}/refund", {"reason": "it was broken"})
        assert row["state"] == "refund_due"
    story = await shop.made("GET", f"/orders/{ids[1]}", role=Role.VIEWER)
    assert [move["to_state"] for move in story["moves"]] == ["awaiting_payment", "paid", "refund_due"]  # fmt: skip
    assert (story["moves"][-1]["actor"], story["moves"][-1]["reason"]) == ("api:admin", "it was broken")  # fmt: skip
    assert [payment["state"] for payment in story["payments"]] == ["refund_due"]
    log = (await shop.made("GET", "/actions?actor=api:admin"))["actions"]
    assert [one["action"] for one in log] == ["refund_order", "cancel_order"]
    for path in ("/orders/0123", "/orders/" + "f" * 32, "/orders/" + "z" * 64):
        assert (await shop.ask("GET", path)).status == 404, path
        assert (await shop.ask("POST", f"{path}/cancel", WHY)).status == 404, path
        assert (await shop.ask("GET", f"{path}/trace")).status == 404, path
    for path in ("/orders/A%00", "/orders/%27%3B--"):
        assert (await shop.ask("GET", path)).status == 422, path


async def _dead_letter(shop: AdminService, content: bytes) -> tuple[str, Any]:
    name = goods()
    row = await shop.made("POST", "/sales", {"goods_id": name, "stock": 1, **WHY})
    keys = shop.stores.keys.bucket(BucketId(int(row["sale_id"]), 0))  # type: ignore[arg-type]
    entry = await shop.stores.redis.xadd(
        keys.dead, {b"entry": b"1-1", b"reason": b"cannot be read", b"e": content}
    )
    return f"outbox:{row['sale_id']}.0:{entry.decode()}", keys


async def test_a_dead_letter_is_looked_at_replayed_and_discarded(shop: AdminService) -> None:
    first, keys = await _dead_letter(shop, b"\x00\xffbytes")
    second, _ = await _dead_letter(shop, b"more")
    page = await shop.made("GET", "/dead-letters?limit=1", role=Role.VIEWER)
    assert [one["name"] for one in page["dead_letters"]] == [first]
    rest = await shop.made("GET", page["next"].removeprefix("/admin/api"))
    assert ([one["name"] for one in rest["dead_letters"]], rest["next"]) == ([second], None)
    shown = await shop.made("GET", f"/dead-letters/{first}")
    assert base64.b64decode(shown["content_base64"]) == b"\x00\xffbytes"
    assert shown["reason"] == "cannot be read"
    before = await shop.stores.redis.xlen(keys.outbox)
    await shop.made("POST", f"/dead-letters/{first}/replay", WHY, role=Role.OPERATOR)
    assert await shop.stores.redis.xlen(keys.outbox) == before + 1
    assert (await shop.ask("POST", f"/dead-letters/{first}/replay", WHY)).status == 404
    assert await shop.stores.redis.xlen(keys.outbox) == before + 1
    await shop.made("POST", f"/dead-letters/{second}/discard", WHY)
    assert (await shop.made("GET", "/dead-letters"))["dead_letters"] == []
    log = (await shop.made("GET", "/actions?limit=2"))["actions"]
    assert [one["action"] for one in log] == ["discard_dead_letter", "replay_dead_letter"]
    assert [one["detail"]["name"] for one in log] == [second, first]
    for name in ("none", "outbox:1.0:1-1", "outbox:", "kafka:0:1", "outbox:x.y:z"):
        assert (await shop.ask("GET", f"/dead-letters/{name}")).status == 404, name


async def test_the_last_audit_and_what_the_fence_did_are_there_for_every_host(
    shop_on_each: AdminService,
) -> None:
    shop = shop_on_each
    first = await shop.made("GET", "/audit", role=Role.VIEWER)
    assert first == {"at": None, "report": None}
    results = shop.stores.ledger.audit_results
    for ok in (True, False):
        await results.keep({"ok": ok, "findings": []}, ok=ok, at_ms=1_000)
        latest = await shop.made("GET", "/audit")
        assert latest == {"at": "1970-01-01T00:00:01.000Z", "report": {"ok": ok, "findings": []}}
    row = await shop.made("POST", "/sales", {"goods_id": goods(), "stock": 5, **WHY})
    at = BucketId(int(row["sale_id"]), 0)  # type: ignore[arg-type]
    await shop.stores.ledger.fences.notice(at, 1, "the test doubts it")
    for query in ("", f"?goods_id={row['goods_id']}"):
        (statement,) = (await shop.made("GET", f"/fences{query}"))["statements"]
        told = ("cause", "paused_ms", "lost_count", "compensated", "oversold_units")
        assert [statement[name] for name in told] == ["the test doubts it", None, 0, 0, 0]
    assert (await shop.ask("GET", "/fences?goods_id=none")).status == 404
    assert (await shop.ask("POST", "/reconcile", {"goods_id": "none", **WHY})).status == 404
