"""Where clicks may go, and how requests are written."""

import resource
import socket

import pytest

from seckill.domain.errors import InvalidValue
from seckill.stress import StressPlan, Target, bearer_headers
from seckill.stress.limits import SPARE_DESCRIPTORS, connection_budget, raise_descriptor_limit
from seckill.stress.target import Endpoint, resolve

HERE = Endpoint(socket.AF_INET, "127.0.0.1", 8000, loopback=True)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("url", {"url": "https://127.0.0.1"}),
        ("url", {"url": "127.0.0.1:8000"}),
        ("url", {"url": "http://"}),
        ("url", {"url": "http://127.0.0.1:8000/shop"}),
        ("url", {"url": "http://127.0.0.1:8000?x=1"}),
        ("url", {"url": "http://me@127.0.0.1:8000"}),
        ("url", {"url": "http://127.0.0.1:99999"}),
        ("url", {"url": "http://[::1"}),
        ("goods_id", {"goods_id": "a/b"}),
        ("goods_id", {"goods_id": ""}),
    ],
)
def test_an_unfit_target_is_refused_by_field_and_rule(field: str, changes: dict) -> None:
    with pytest.raises(InvalidValue) as caught:
        Target(**changes)
    assert caught.value.field == field


def test_requests_are_written_as_http_wants_them() -> None:
    target = Target(url="http://127.0.0.1:8000/", goods_id="商品-1")
    assert target.purchase_head("用户") == (
        "POST /seckill/%E5%95%86%E5%93%81-1 HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n"
        "X-User-Id: 用户\r\n".encode()
    )
    target = Target(url="http://[::1]", headers_for=bearer_headers(lambda user: f"t-{user}"))
    assert target.order_request("u", "r/1") == (
        b"GET /orders/r%2F1 HTTP/1.1\r\nHost: [::1]:80\r\nAuthorization: Bearer t-u\r\n\r\n"
    )


@pytest.mark.parametrize(
    "headers", [{"X-A": "1\r\nX-B: 2"}, {"X A": "1"}, {"X": "é\x00"}, {"": "x"}]
)
def test_a_header_that_would_break_the_request_is_refused(headers: dict[str, str]) -> None:
    target = Target(headers_for=lambda _user: headers)
    with pytest.raises(InvalidValue, match="headers_for"):
        target.purchase_head("u")


async def test_loopback_is_allowed_and_elsewhere_only_in_so_many_words() -> None:
    assert (await resolve(Target(url="http://localhost:1"))).loopback
    assert (await resolve(Target(url="http://127.9.9.9:1"))).host == "127.9.9.9"
    assert (await resolve(Target(url="http://[::1]:1"))).family is socket.AF_INET6
    with pytest.raises(InvalidValue, match="another machine"):
        await resolve(Target(url="http://192.0.2.1:1"))
    remote = await resolve(Target(url="http://192.0.2.1:1", allow_remote=True))
    assert not remote.loopback


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == allowed
    assert hard in (allowed, resource.RLIM_INFINITY)


def test_buyers_beyond_the_descriptors_share_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    plan = StressPlan(stock=1, buyers=60_000)
    budget = connection_budget(plan, HERE, descriptors=20_000)
    assert budget.shared
    assert budget.connections == budget.allowed
    assert 19_000 < budget.connections < 20_000 - SPARE_DESCRIPTORS
    assert budget.sources == tuple(f"127.0.0.{number}" for number in range(1, 5))


def test_connections_beyond_the_descriptors_are_refused_by_field_and_rule() -> None:
    plan = StressPlan(stock=1, buyers=60_000, connections=20_000)
    with pytest.raises(InvalidValue, match="ulimit") as caught:
        connection_budget(plan, HERE, descriptors=20_000)
    assert caught.value.field == "connections"
    with pytest.raises(InvalidValue, match="none can be opened"):
        connection_budget(StressPlan(stock=1), HERE, descriptors=SPARE_DESCRIPTORS)


def test_many_connections_take_further_loopback_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    plan = StressPlan(stock=1, buyers=60_000, clicks=1)
    budget = connection_budget(plan, HERE, descriptors=100_000)
    assert budget.sources == tuple(f"127.0.0.{number}" for number in range(1, 13))
    assert not budget.shared
    assert (
        connection_budget(StressPlan(stock=1, buyers=5_000), HERE, descriptors=9_000).sources == ()
    )


def test_more_source_addresses_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    plan = StressPlan(stock=1, buyers=60_000, clicks=1, connections_per_source=100)
    with pytest.raises(InvalidValue, match="254") as caught:
        connection_budget(plan, HERE, descriptors=100_000)
    assert caught.value.field == "connections_per_source"


@pytest.mark.parametrize(
    ("platform", "endpoint"),
    [
        ("darwin", HERE),
        ("linux", Endpoint(socket.AF_INET6, "::1", 1, loopback=True)),
        ("linux", Endpoint(socket.AF_INET, "192.0.2.1", 1, loopback=False)),
    ],
)
def test_where_there_are_no_further_addresses_the_plan_is_refused(
    monkeypatch: pytest.MonkeyPatch, platform: str, endpoint: Endpoint
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    plan = StressPlan(stock=1, buyers=60_000, clicks=1)
    with pytest.raises(InvalidValue, match="25,000") as caught:
        connection_budget(plan, endpoint, descriptors=100_000)
    assert caught.value.field == "connections"
