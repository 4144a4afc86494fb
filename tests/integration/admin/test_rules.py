"""Rules over HTTP, of every shape: what is refused names field and reason, and the old ones stay."""

import json
from typing import Any

from integration.admin.kit import WHY, AdminService
from seckill.domain.operators import Role

FLOW = [{"resource": "seckill-jk", "count": 1000.0}]
OF_KIND: dict[str, list[dict[str, Any]]] = {
    "flow": FLOW,
    "degrade": [{"resource": "a", "grade": 0, "count": 100, "timeWindow": 10, "slowRatioThreshold": 0.5}],
    "system": [{"qps": 500}],
    "authority": [{"resource": "a", "limitApp": "10.0.0.1", "strategy": 1}],
    "param-flow": [{"resource": "seckill-jk", "paramIdx": 0, "count": 5, "grade": 1}],
}  # fmt: skip

HOSTILE: list[tuple[bytes, str]] = [
    (b"", "$"),
    (b"{", "$"),
    (b"null", "$"),
    (b'"flow"', "$"),
    (b"\xff\xfe", "$"),
    (b"[1]", "0."),
    (b"[null]", "0."),
    (b"[[]]", "0."),
    (b"[{}]", "0."),
    (b'[{"resource": "a", "count": "many"}]', "0.count"),
    (b'[{"resource": "a", "count": NaN}]', ""),
    (b'[{"resource": "a", "count": 1e999}]', "0.count"),
    (b'[{"resource": "a", "count": -1}]', "0.count"),
    (b'[{"resource": "a", "count": 1, "count": 2}]', "count"),
    (b'[{"resource": "a", "count": 1, "grade": 7}]', "0.grade"),
    (b"[" * 100_000, "$"),
    (b'[{"resource": "a", "count": ' + b"9" * 10_000 + b"}]", ""),
    (b'[{"resource": "' + b"a" * 100_000 + b'", "count": 1}]', "0."),
]


async def test_rules_of_every_kind_are_put_in_force_shown_and_taken_away(
    shop: AdminService,
) -> None:
    for kind, rules in OF_KIND.items():
        row = await shop.made("PUT", f"/rules/{kind}?reason=try", rules, role=Role.OPERATOR)
        assert (row["ok"], row["in_force"], row["refused"]) == (True, 1, []), kind
        shown = await shop.made("GET", f"/rules/{kind}", role=Role.VIEWER)
        assert shown["version"] == row["version"]
        assert shown["rules"][0].items() >= rules[0].items()
        await shop.made("PUT", f"/rules/{kind}?reason=away", [])
        assert (await shop.made("GET", f"/rules/{kind}"))["rules"] == []
    kinds = (await shop.made("GET", "/rules"))["kinds"]
    assert {one["kind"] for one in kinds} == set(OF_KIND)
    log = (await shop.made("GET", "/actions"))["actions"]
    assert [one["action"] for one in log[:2]] == ["set_rules"] * 2
    assert (log[0]["detail"]["kind"], log[0]["detail"]["reason"]) == ("param-flow", "away")


async def test_hostile_rules_are_refused_with_field_and_reason_and_the_old_ones_stay(
    shop: AdminService,
) -> None:
    await shop.made("PUT", "/rules/flow?reason=first", FLOW)
    before = await shop.made("GET", "/rules/flow")
    for document, field in HOSTILE:
        refused = await shop.ask("PUT", "/rules/flow?reason=bad", raw=document)
        assert refused.status == 422, (document[:60], refused.body[:200])
        assert refused.json["field"].startswith(field), (document[:60], refused.json)
        assert refused.json["rule"]
        assert len(refused.body) < 200_000
        assert await shop.made("GET", "/rules/flow") == before, document[:60]
    oversized = b"[" + b'{"resource": "a", "count": 1},' * 40_000 + b"{}]"
    refused = await shop.ask("PUT", "/rules/flow?reason=bad", raw=oversized)
    assert (refused.status, refused.json["field"]) == (413, "body")
    assert len((await shop.made("GET", "/rules/flow/history"))["versions"]) == 1


async def test_one_bad_rule_refuses_the_list_unless_a_part_is_asked_for(shop: AdminService) -> None:
    mixed = [*FLOW, {"resource": "b", "count": -1}, {"resource": "", "count": 1}]
    refused = await shop.ask("PUT", "/rules/flow?reason=x", mixed)
    assert refused.status == 422
    assert {one["index"] for one in refused.json["errors"]} == {1, 2}
    assert {"field", "rule", "index", "resource"} == refused.json["errors"][0].keys()
    assert (await shop.made("GET", "/rules/flow"))["version"] is None
    part = await shop.made("PUT", "/rules/flow?reason=x&partial=true", mixed)
    assert (part["ok"], part["applied"], part["in_force"]) == (False, True, 1)
    assert [one["index"] for one in part["refused"]] == [1, 2]


async def test_two_who_change_the_same_rules_do_not_undo_each_other(shop: AdminService) -> None:
    looked = await shop.ask("GET", "/rules/flow")
    assert looked.headers["etag"] == '"0"'
    first = await shop.ask("PUT", "/rules/flow?reason=x", FLOW, if_match=looked.headers["etag"])
    assert first.status == 200
    other = [{"resource": "seckill-jk", "count": 5}]
    late = await shop.ask("PUT", "/rules/flow?reason=x", other, if_match=looked.headers["etag"])
    assert (late.status, late.json["field"]) == (412, "If-Match")
    assert (await shop.made("GET", "/rules/flow"))["rules"][0]["count"] == 1000
    fresh = await shop.ask("PUT", "/rules/flow?reason=x", other, if_match=first.headers["etag"])
    assert fresh.status == 200
    wrong = await shop.ask("PUT", "/rules/flow?reason=x", other, if_match="*")
    assert (wrong.status, wrong.json["field"]) == (422, "If-Match")


async def test_going_back_and_asking_twice(shop: AdminService) -> None:
    counts = [10.0, 20.0, 30.0]
    for count in counts:
        for _ in range(2):  # the same again is no new version
            await shop.made("PUT", f"/rules/flow?reason=to+{count}", [{"resource": "a", "count": count}])  # fmt: skip
    versions = (await shop.made("GET", "/rules/flow/history"))["versions"]
    assert [one["why"] for one in versions] == [f"to {count}" for count in counts]
    assert {one["who"] for one in versions} == {"api:admin"}
    for _ in range(2):
        row = await shop.made("POST", "/rules/flow/undo", {"to": versions[0]["version"], **WHY})
        assert row["restores"] == versions[0]["version"]
    assert (await shop.made("GET", "/rules/flow"))["rules"][0]["count"] == 10
    assert len((await shop.made("GET", "/rules/flow/history"))["versions"]) == 4
    gone = await shop.ask("POST", "/rules/flow/undo", {"to": 99, **WHY})
    assert (gone.status, gone.json["field"]) == (409, "to")


async def test_a_rule_change_says_why_and_names_a_kind_that_there_is(shop: AdminService) -> None:
    body = json.dumps(FLOW).encode()
    for path, field in (
        ("/rules/flow", "reason"),
        ("/rules/flow?reason=", "reason"),
        ("/rules/flow?reason=a%0Ab", "reason"),
        ("/rules/nothing?reason=x", "kind"),
    ):
        refused = await shop.ask("PUT", path, raw=body)
        assert (refused.status, refused.json["field"]) == (422, field), path
    refused = await shop.ask("PUT", "/rules/flow?reason=x", raw=body, content_type="text/plain")
    assert refused.status == 415
