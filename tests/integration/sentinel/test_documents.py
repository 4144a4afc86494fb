"""The examples of the documentation, run as they stand there."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seckill.sentinel import BlockException

if TYPE_CHECKING:
    import pytest

    from services.redis import RedisServer

DOCS = Path(__file__).parents[3] / "docs"
_EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


async def run_example(
    page: str, containing: str, *, serve: str = "", **known: Any
) -> dict[str, Any]:
    """Run the one example of a page with this text in it; returns the names it leaves.

    Args:
        serve: stands for the three dots of the example.
        known: names that the example takes for granted.
    """
    (source,) = (one for one in _EXAMPLE.findall((DOCS / page).read_text()) if containing in one)
    assert ("    ...  #" in source) is bool(serve)
    code = compile(
        source.replace("    ...  #", f"    {serve}  #"),
        page,
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
    )
    names = dict(known)
    running = eval(code, names)  # noqa: S307  it is our own text
    if inspect.isawaitable(running):
        await running
    return names


async def get(app: Any, path: str) -> tuple[int, bytes]:
    """Ask an ASGI application once, as a server would."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": b"", "headers": [], "scheme": "http", "server": ("test", 80),
        "asgi": {"version": "3.0"},
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent)


async def test_the_first_example_sells_and_refuses() -> None:
    names = await run_example(
        "sentinel.md", "def buy(", do_buy=lambda goods_id: f"sold {goods_id}",
        too_many=lambda rule, measured, limit: (rule.resource, measured, limit),
    )  # fmt: skip
    assert names["buy"]("1001") == "sold 1001"
    names["sentinel"].load_rules("flow", '[{"resource": "seckill-jk", "count": 0}]')
    resource, measured, limit = names["buy"]("1001")
    assert (resource, limit) == ("seckill-jk", 0)
    assert measured <= 1


async def test_a_fastapi_application_behind_the_middleware_and_the_decorator() -> None:
    names = await run_example("sentinel.md", "FastAPI()")
    app, sentinel = names["app"], names["sentinel"]
    assert await get(app, "/goods/7") == (200, b'{"goods_id":"7","price":"9.90"}')
    sentinel.load_rules("flow", '[{"resource": "price", "count": 0}]')
    assert await get(app, "/goods/7") == (200, b'{"goods_id":"7","price":"ask again"}')
    sentinel.load_rules("flow", '[{"resource": "GET:/goods/{goods_id}", "count": 0}]')
    status, body = await get(app, "/goods/8")
    assert (status, body) == (429, b"Blocked by Sentinel (flow limiting)")
    assert await get(app, "/elsewhere") == (404, b'{"detail":"Not Found"}')
    assert set(sentinel.resources) == {"price", "GET:/goods/{goods_id}"}
    assert sentinel.alarms.internal_errors == 0


async def test_the_example_of_one_limit_leases(redis_server: RedisServer) -> None:
    names = await run_example("sentinel.md", "RedisTokenSource(", url=redis_server.url)
    sentinel, tokens, leasing = names["sentinel"], names["tokens"], names["leasing"]
    try:
        async with asyncio.timeout(60):
            while not tokens.status().in_contact:
                await asyncio.sleep(0.005)
            while isinstance(sentinel.try_entry("seckill-jk"), BlockException):
                await asyncio.sleep(0.005)
    finally:
        leasing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leasing
        await names["client"].aclose()


async def test_the_example_of_the_dashboard_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = await run_example(
        "sentinel-dashboard.md", "SentinelTransport(source", serve="port = transport.port"
    )
    assert names["port"] >= 8719
    assert (tmp_path / "data" / "rules").is_dir()


def test_every_test_that_the_list_of_differences_names_is_there() -> None:
    pages = ("sentinel-differences.md", "sentinel-dashboard.md")
    text = "".join((DOCS / page).read_text() for page in pages)
    tests = DOCS.parent / "tests"
    written = "\n".join(path.read_text() for path in tests.rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)…?`", text))
    assert len(named) > 30
    missing = [name for name in named if not re.search(rf"def {name}", written)]
    assert not missing
    files = set(re.findall(r"`(?:tests/[\w/]+/)?(test_\w+\.py)`", text))
    assert files <= {path.name for path in tests.rglob("test_*.py")}
