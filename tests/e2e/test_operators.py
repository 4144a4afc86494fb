"""The operators' API of a service as a user starts it: from the set-up link to the repair."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from services.seckill_service import PATIENT, SeckillService, wait_until

WHY = {"reason": "the story wants it"}


class Operator:
    """A program that works with the API."""

    def __init__(self, service: SeckillService, token: str = "") -> None:
        self.service = service
        self.token = token

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        request = urllib.request.Request(  # noqa: S310  -- our own address
            f"{self.service.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "content-type": "application/json",
                "authorization": f"Bearer {self.token}",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:  # noqa: S310  -- as above
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read())

    def made(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        status, said = self.ask(method, f"/admin/api{path}", body, **headers)
        assert status in {200, 201}, said
        return said


def test_from_the_set_up_link_to_a_sale_its_orders_and_its_audit(tmp_path: Path) -> None:
    """One story, since a service takes seconds to start."""
    service = SeckillService(tmp_path / "data", "--workers", "1", environment=PATIENT).start()
    try:
        wait_until("the start prints the link", lambda: "/admin/setup#" in service.log())
        link = re.search(r"http://\S+/admin/setup#(\S+)", service.log())
        assert link is not None
        assert not (tmp_path / "data" / "run" / "setup-link").exists()
        stranger = Operator(service)
        wish = {"secret": link[1], "name": "ann"}
        status, made = stranger.ask("POST", "/admin/api/setup", wish)
        assert (status, made["role"]) == (201, "admin"), made
        assert stranger.ask("POST", "/admin/api/setup", wish)[0] == 403
        assert service.cli("admin", "setup-link", check=False).returncode == 1
        ann = Operator(service, made["token"])
        deploy = Operator(
            service,
            service.cli_json("admin", "token", "create", "--name", "deploy", "--role", "operator")[
                "token"
            ],
        )
        assert deploy.made("GET", "/me") == {"name": "deploy", "role": "operator"}

        deploy.made("POST", "/sales", {"goods_id": "tea", "stock": 5, **WHY})
        deploy.made("POST", "/sales/tea/stock", {"by": 2, **WHY}, idempotency_key="k1")
        status, bought = stranger.ask("POST", "/seckill/tea", x_user_id="bob")
        assert status == 202, bought
        bought_id = bought["reservation_id"]
        wait_until(
            "the order is written",
            lambda: ann.ask("GET", f"/admin/api/orders/{bought_id}")[0] == 200,
        )
        trace = ann.made("GET", f"/orders/{bought_id}/trace")
        assert trace["state"] == "awaiting_payment"
        assert any("of bob admitted" in step["what"] for step in trace["steps"])
        deploy.made("POST", f"/orders/{bought_id}/cancel", WHY)
        assert ann.made("GET", "/orders?goods_id=tea&state=cancelled")["orders"]

        ann.made("PUT", "/rules/flow?reason=none+gets+in", [{"resource": "seckill-jk", "count": 0}])
        wait_until(
            "the rule is obeyed",
            lambda: stranger.ask("POST", "/seckill/tea", x_user_id="eve")[0] == 429,
        )
        ann.made("PUT", "/rules/flow?reason=all+get+in", [])

        now = ann.made("POST", "/audit")
        assert now["report"]["ok"], now
        wait_until("the background audit has run", lambda: ann.made("GET", "/audit")["report"])
        assert ann.made("GET", "/fences") == {"statements": []}
        plan = ann.made("POST", "/reconcile", {"goods_id": "tea", **WHY})
        assert (plan["ok"], plan["plan"]) == (True, [])
        assert ann.made("POST", "/reconcile", {"apply": True, **WHY})["ok"]

        tokens = service.cli_json("admin", "token", "list")
        (of_ann,) = [one["token_id"] for one in tokens if one["name"] == "ann"]
        service.cli("admin", "token", "revoke", of_ann, "--reason", "the story ends")
        assert ann.ask("GET", "/admin/api/me")[0] == 401
        log = service.cli_json("admin", "log", "--actor", "api:deploy")
        assert [one["action"] for one in log] == ["cancel_order", "request_stock_change", "create_sale"]  # fmt: skip
        for secret in (made["token"], deploy.token):
            assert secret not in service.log()
    finally:
        service.stop()
    assert "Traceback" not in service.log()
