"""Who may command."""

from __future__ import annotations

import pytest

from seckill.sentinel.transport import Access


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may_command_by_default(peer: str) -> None:
    assert Access().refusal(peer, {}, {}) is None


@pytest.mark.parametrize(
    "peer",
    ["10.0.0.1", "::2", "::ffff:10.0.0.1", "fe80::1%eth0", "", "localhost", "0.0.0.0"],  # noqa: S104
)
def test_nobody_else_may(peer: str) -> None:
    assert "may not command" in (Access().refusal(peer, {}, {}) or "")


def test_addresses_and_networks_can_be_allowed() -> None:
    access = Access(allow=("10.1.0.0/16", "fe80::/10"))
    assert access.refusal("10.1.2.3", {}, {}) is None
    assert access.refusal("fe80::1%eth0", {}, {}) is None
    assert access.refusal("10.2.0.1", {}, {})
    assert access.refusal("127.0.0.1", {}, {})
    with pytest.raises(ValueError, match="does not appear"):
        Access(allow=("everybody",))


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [
        ({"x-sentinel-token": "wolke"}, {}),
        ({"authorization": "Bearer wolke"}, {}),
        ({}, {"token": "wolke"}),
    ],
)
def test_a_token_lets_in_from_anywhere(headers: dict[str, str], parameters: dict[str, str]) -> None:
    assert Access(token="wolke").refusal("10.0.0.1", headers, parameters) is None
    assert Access(token="other").refusal("10.0.0.1", headers, parameters)
    assert Access().refusal("10.0.0.1", headers, parameters), "no token is no token"


def test_an_empty_token_is_none() -> None:
    assert Access(token="").refusal("10.0.0.1", {"x-sentinel-token": ""}, {"token": ""})


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example:8719"},
        {"host": "evil.example"},
        {"host": "localhost.evil.example:8719"},
    ],
)
def test_a_page_in_a_browser_on_this_machine_may_not(headers: dict[str, str]) -> None:
    assert Access().refusal("127.0.0.1", headers, {})


@pytest.mark.parametrize(
    "host",
    [
        "",
        "127.0.0.1:8719",
        "127.0.0.1",
        "[::1]:8719",
        "[::1]",
        "localhost:1",
        "LOCALHOST",
        "web-1:1",
    ],
)
def test_addresses_and_known_names_are_right(host: str) -> None:
    assert Access(host_names=["Web-1"]).refusal("127.0.0.1", {"host": host}, {}) is None
