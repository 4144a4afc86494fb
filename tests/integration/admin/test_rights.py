"""Who comes in, who may do what, and what it costs to guess."""

import asyncio
import io
import re

import pytest

from integration.admin.kit import WHY, AdminService
from seckill.domain.operators import Role
from seckill.runtime.beside import Beside
from seckill.runtime.logs import configure_logging
from seckill.web.problems import Unavailable

NO_TOKEN_NEEDED = {("post", "/admin/api/setup")}


def _routes(shop: AdminService) -> list[tuple[str, str, Role]]:
    return [
        (method, path, Role(operation["x-least-role"]))
        for path, operations in shop.described["paths"].items()
        if path.startswith("/admin/")
        for method, operation in operations.items()
        if (method, path) not in NO_TOKEN_NEEDED
    ]


def _filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", "none", path.removeprefix("/admin/api"))


async def test_every_route_lets_in_the_least_role_and_nobody_below_it(
    shop: AdminService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matrix: each route, each role, a stranger, and somebody who makes a token up."""

    async def let_in(*_: object) -> None:
        raise Unavailable("Whoever reads this was let in.")

    monkeypatch.setattr(Beside, "run", let_in)
    routes = _routes(shop)
    assert {role for _, _, role in routes} == set(Role)
    made_up = "sk_admin_0123456789ab_" + "x" * 43
    for method, path, least in routes:
        for role in Role:
            # A body that nothing can come of: who is let in is told so, and nothing is changed.
            reply = await shop.ask(method.upper(), _filled(path), role=role, raw=b"{")
            where = f"{method} {path} as {role}"
            if role.allows(least):
                assert reply.status not in {401, 403}, where
            else:
                assert reply.status == 403, where
        for token in ("", made_up):
            reply = await shop.ask(method.upper(), _filled(path), token=token, raw=b"{")
            assert reply.status in {401, 429}, f"{method} {path} with {token!r}"


async def test_reading_is_for_viewers_changing_for_operators_and_users_for_admins(
    shop: AdminService,
) -> None:
    for method, path, least in _routes(shop):
        if re.search(r"/(users|tokens)\b", path):
            assert least is Role.ADMIN, path
        else:
            assert least is (Role.VIEWER if method == "get" else Role.OPERATOR), path


async def test_what_is_no_token_of_ours_opens_nothing(shop: AdminService) -> None:
    for header in ("", "Basic YWRtaW46YWRtaW4=", "Bearer", "Bearer x", "Bearer sk_admin_",
                   "bearer \xff", "Bearer " + "a" * 5_000):  # fmt: skip
        sent: dict[str, str | bytes] = {"authorization": header.encode("latin-1")} if header else {}
        reply = await shop.service.ask("GET", "/admin/api/me", sent)
        assert reply.status == 401, header
        assert reply.headers["www-authenticate"].startswith("Bearer")


async def test_c62_who_loses_a_right_loses_it_with_the_next_request(
    shop_on_each: AdminService,
) -> None:
    """Expired, revoked, disabled, put down to a lower role: each counts at once."""
    shop = shop_on_each
    admins = shop.stores.ledger.admins
    made = await shop.made("POST", "/tokens", {"name": "operator", "days": 1, **WHY})
    token, token_id = made["token"], made["token_id"]
    assert (await shop.made("GET", "/me", token=token)) == {"name": "operator", "role": "operator"}
    await shop.made("PATCH", "/users/operator", {"role": "viewer", **WHY})
    assert (await shop.made("GET", "/me", token=token))["role"] == "viewer"
    refused = await shop.ask("POST", "/sales", {}, token=token)
    assert (refused.status, refused.json["detail"]) == (
        403, "This takes the role operator; the token has viewer.",
    )  # fmt: skip
    await shop.made("PATCH", "/users/operator", {"disabled": True, **WHY})
    assert (await shop.ask("GET", "/me", token=token)).status == 401
    await shop.made("PATCH", "/users/operator", {"disabled": False, "role": "operator", **WHY})
    assert (await shop.ask("GET", "/me", token=token)).status == 200
    for _ in range(2):
        revoked = await shop.made("DELETE", f"/tokens/{token_id}?reason=lost+laptop")
        assert revoked["revoked_at"] is not None
    assert (await shop.ask("GET", "/me", token=token)).status == 401
    _, old = await admins.make_token("viewer", actor="test")
    clock = admins._clock

    class Later:
        def now_ms(self) -> int:
            return clock.now_ms() + 91 * 86_400_000

        def monotonic_ms(self) -> float:
            return clock.monotonic_ms()

    admins._clock = Later()
    expired = await shop.ask("GET", "/me", token=old)
    assert (expired.status, expired.json["detail"]) == (401, "The token has expired.")


async def test_an_address_that_guesses_is_sent_away_and_a_known_operator_is_not(
    shop: AdminService,
) -> None:
    assert (await shop.ask("GET", "/me")).status == 200
    real = shop.tokens[Role.ADMIN]
    guesses = [real[:-1] + ("A" if real[-1] != "A" else "B"), "sk_admin_0123456789ab_" + "x" * 43]
    statuses = [(await shop.ask("GET", "/me", token=guesses[n % 2])).status for n in range(14)]
    assert statuses[:10] == [401] * 10
    assert set(statuses[10:]) == {429}
    away = await shop.ask("GET", "/me", token=guesses[0])
    assert 1 <= int(away.headers["retry-after"]) <= 600
    # Strangers are not even looked up; who was good lately still is.
    assert (await shop.ask("GET", "/me", role=Role.VIEWER)).status == 429
    assert (await shop.ask("GET", "/me")).status == 200


async def test_the_secret_of_a_token_is_neither_in_the_ledger_nor_in_the_log(
    shop: AdminService, tmp_path: object
) -> None:
    log = io.StringIO()
    configure_logging(level="debug", log_format="json", role="web", slot=0, stream=log)
    made = await shop.made("POST", "/tokens", {"name": "viewer", **WHY})
    token = made["token"]
    secret = token.rsplit("_", 1)[1] if token.count("_") == 3 else token.split("_", 3)[3]
    await shop.ask("GET", "/me", token=token)
    await shop.ask("GET", "/me", token=token + "x")
    await shop.ask("GET", f"/users/{token}", token=token)
    shown = await shop.made("GET", "/tokens") | await shop.made("GET", "/actions")
    assert secret not in str(shown)
    assert made["token_id"] in str(shown)
    for file in shop.stores.settings.data.root.parent.rglob("ledger.db*"):
        assert secret.encode() not in file.read_bytes()
    assert "was not let in" in log.getvalue()
    assert secret not in log.getvalue()


async def test_the_last_admin_cannot_lock_everybody_out(shop_on_each: AdminService) -> None:
    shop = shop_on_each
    for change in ({"role": "operator"}, {"disabled": True}):
        refused = await shop.ask("PATCH", "/users/admin", change | WHY)
        assert refused.status == 409, refused.body
    await shop.made("POST", "/users", {"name": "bob", "role": "admin", **WHY})
    # Two admins take each other's rights at the same time: one of them stays.
    both = await asyncio.gather(
        *(shop.ask("PATCH", f"/users/{name}", {"disabled": True, **WHY}) for name in ("admin", "bob"))
    )  # fmt: skip
    assert min(reply.status for reply in both) == 200
    users = await shop.stores.ledger.admins.users()
    assert [u.name for u in users if u.role is Role.ADMIN and u.disabled_at_ms is None]


async def test_a_token_cannot_do_more_than_its_user(shop: AdminService) -> None:
    more = await shop.ask("POST", "/tokens", {"name": "viewer", "role": "admin", **WHY})
    assert (more.status, more.json["field"]) == (422, "role")
    unknown = await shop.ask("POST", "/tokens", {"name": "nobody", **WHY})
    assert unknown.status == 404
    for days in (0, 367, -1, 10**30):
        refused = await shop.ask("POST", "/tokens", {"name": "viewer", "days": days, **WHY})
        assert (refused.status, refused.json["field"]) == (422, "days")
    for name in ("", "a b", "-a", "ä", "a" * 41, "x\u0000"):
        refused = await shop.ask("POST", "/users", {"name": name, "role": "viewer", **WHY})
        assert (refused.status, refused.json["field"]) == (422, "name"), name
    twice = await shop.ask("POST", "/users", {"name": "viewer", "role": "viewer", **WHY})
    assert twice.status == 409


async def test_every_change_says_who_when_and_why(shop: AdminService) -> None:
    await shop.made(
        "POST", "/users", {"name": "eve", "role": "viewer", "reason": "a new colleague"}
    )
    await shop.made("PATCH", "/users/eve", {"role": "operator", "reason": "has learned it"})
    found = (await shop.made("GET", "/actions?actor=api:admin"))["actions"]
    assert [(one["action"], one["detail"]["reason"]) for one in found] == [
        ("change_user", "has learned it"),
        ("add_user", "a new colleague"),
    ]
    assert found[0]["detail"]["before"] == {"role": "viewer", "disabled": False}
    assert found[0]["detail"]["after"] == {"role": "operator", "disabled": False}
    for wish in ({}, {"reason": ""}, {"reason": "x" * 501}, {"reason": "line\nbreak"}):
        refused = await shop.ask("PATCH", "/users/eve", {"role": "viewer", **wish})
        assert (refused.status, refused.json["field"]) == (422, "reason"), wish
    first = await shop.made("GET", "/actions?limit=2")
    rest = await shop.made("GET", first["next"].removeprefix("/admin/api"))
    ids = [int(one["action_id"]) for page in (first, rest) for one in page["actions"]]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == len(ids) == 4


async def test_c61_no_cookie_lets_anybody_in_so_no_foreign_page_can_act(shop: AdminService) -> None:
    token = shop.tokens[Role.ADMIN]
    for cookie in (f"token={token}", f"authorization=Bearer {token}", f"session={token}"):
        reply = await shop.service.ask("GET", "/admin/api/me", {"cookie": cookie})
        assert reply.status == 401
        assert "set-cookie" not in reply.headers
    form = await shop.ask("POST", "/users", raw=b"name=x&role=admin", content_type="text/plain")
    assert form.status == 415
    in_query = await shop.service.ask("GET", f"/admin/api/me?access_token={token}")
    assert in_query.status == 401
