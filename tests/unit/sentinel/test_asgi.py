"""An ASGI application behind the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import AuthorityRule, FlowRule, ParamFlowRule
from seckill.sentinel.asgi import RouteNames, SentinelMiddleware, ServerErrorStatus

if TYPE_CHECKING:
    from unit.sentinel.engines import Bench


async def ask(
    application: Any,
    path: Any = "/seckill/7",
    method: Any = "POST",
    headers: Any = (),
    kind: Any = "http",
) -> Any:
    """One request: the status and the body."""
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    await application(
        {"type": kind, "method": method, "path": path, "headers": list(headers)}, receive, send
    )
    return (sent[0]["status"], sent[-1]["body"], dict(sent[0]["headers"])) if sent else None


async def shop(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    if scope["path"] == "/seckill/raise":
        raise ValueError("mine")
    status = 503 if scope["path"] == "/seckill/503" else 202
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def names() -> Any:
    return RouteNames(["/seckill/{goods_id}", "/orders/{id}/items"])


async def test_requests_are_named_by_their_route(bench: Bench, names: Any) -> None:
    application = SentinelMiddleware(shop, bench.sentinel, names)
    for path in ("/seckill/1", "/seckill/2", "/other", "/seckill/1/2"):
        assert (await ask(application, path))[0] == 202
    assert list(bench.sentinel.resources) == ["POST:/seckill/{goods_id}"]
    node = bench.sentinel.node("POST:/seckill/{goods_id}")
    assert (node.window_success, node.resource_type, node.concurrency) == (2, 1, 0)
    assert bench.sentinel.inbound.window_passed == 2
    assert "sentinel_asgi_context" in bench.sentinel.entrances


async def test_one_too_many_is_told_so(bench: Bench, names: Any) -> None:
    bench.sentinel.flow.load([FlowRule(resource="POST:/seckill/{goods_id}", count=1)])
    application = SentinelMiddleware(shop, bench.sentinel, names)
    assert (await ask(application))[0] == 202
    status, body, headers = await ask(application)
    assert (status, body) == (429, b"Blocked by Sentinel (flow limiting)")
    assert headers[b"retry-after"] == b"1"
    assert headers[b"content-length"] == str(len(body)).encode()


async def test_failures_are_counted(bench: Bench, names: Any) -> None:
    application = SentinelMiddleware(shop, bench.sentinel, names)
    with pytest.raises(ValueError, match="mine"):
        await ask(application, "/seckill/raise")
    assert (await ask(application, "/seckill/503"))[0] == 503
    node = bench.sentinel.node("POST:/seckill/{goods_id}")
    assert (node.window_exceptions, node.window_success, node.concurrency) == (2, 2, 0)
    assert issubclass(ServerErrorStatus, Exception)


async def test_callers_and_values_come_from_the_request(bench: Bench, names: Any) -> None:
    bench.sentinel.authority.load(
        [AuthorityRule(resource="POST:/seckill/{goods_id}", limit_app="bad", strategy=1)]
    )
    bench.sentinel.param_flow.load(
        [ParamFlowRule(resource="POST:/seckill/{goods_id}", param_idx=0, count=1)]
    )

    async def on_block(block: Any, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": block.kind.encode()})

    application = SentinelMiddleware(
        shop,
        bench.sentinel,
        names,
        origin=lambda scope: dict(scope["headers"]).get(b"app", b"").decode(),
        arguments=lambda scope: (scope["path"].rsplit("/", 1)[-1],),
        on_block=on_block,
    )
    assert (await ask(application, headers=[(b"app", b"bad")]))[:2] == (403, b"authority")
    assert (await ask(application, headers=[(b"app", b"good")]))[0] == 202
    assert (await ask(application))[:2] == (403, b"param-flow")
    assert (await ask(application, "/seckill/8"))[0] == 202


async def test_what_is_no_request_passes(bench: Bench, names: Any) -> None:
    application = SentinelMiddleware(shop, bench.sentinel, names)
    assert await ask(application, kind="lifespan") is None
    assert bench.sentinel.resources == {}
