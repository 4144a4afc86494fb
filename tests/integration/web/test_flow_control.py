"""What a buyer reads whom flow control refuses, and whose address counts, over HTTP."""

from dataclasses import replace

import pytest

from integration.web.http import Reply, running
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.sentinel import FlowRule, Sentinel, VirtualClock
from seckill.web.addresses import Addresses
from seckill.web.caller_limits import limit_callers
from unit.web.doubles import World

ANN = {"x-user-id": "ann"}
FIVE = [202] * 5


def limited(*, proxies: int = 0, per_user: int = 0, per_address: int = 0) -> World:
    world = World()
    # Its clock stands still: all that is asked comes within one second, however slow the machine.
    world.parts = replace(
        world.parts, addresses=Addresses(proxies), sentinel=Sentinel(clock=VirtualClock())
    )
    limit_callers(world.parts.sentinel, per_user_per_s=per_user, per_address_per_s=per_address)
    return world


@pytest.mark.parametrize(("language", "text"), [("", "zh"), ("en-GB", "en"), ("fr", "zh")])
async def test_a_refused_buyer_reads_429_and_when_to_come_back(language: str, text: str) -> None:
    world = World()
    world.parts.sentinel.flow.load([FlowRule(resource="seckill-jk", count=0)])
    async with running(world) as service:
        headers = ANN | ({"accept-language": language} if language else {})
        reply = await service.ask("POST", "/seckill/tea", headers)
    assert (reply.status, reply.headers["retry-after"]) == (429, "1")
    assert reply.json == {
        "code": -1,
        "message": getattr(OUTCOME_TEXTS[Outcome.BLOCKED], text),
        "reservation_id": None,
        "retry_after_ms": 1_000,
    }
    assert OUTCOME_TEXTS[Outcome.BLOCKED].zh == "请求过于频繁，请稍后再试"
    assert world.gate.calls == []
    assert world.tally.decided == {(Outcome.BLOCKED, ""): 1}


async def _posts(world: World, forwarded: list[list[tuple[str, str | bytes]]]) -> list[Reply]:
    """One post for each list of headers, by different users, on one connection."""
    replies = []
    async with running(world) as service, service.connect() as client:
        for number, headers in enumerate(forwarded):
            client.send("POST", "/seckill/tea", [("x-user-id", f"u{number}"), *headers])
            replies.append(await client.reply())
    return replies


GARBAGE = b"\xfe," * 2_000 + b"x" * 6_000
HEADERS: list[list[tuple[str, str | bytes]]] = [
    [("x-forwarded-for", "6.6.6.6")],
    [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "7.7.7.7")],
    [("forwarded", "for=6.6.6.6")],
    [("x-forwarded-for", "2001:db8::1")],
    [("x-forwarded-for", "::ffff:1.2.3.4")],
    [("x-forwarded-for", GARBAGE)],
    [("forwarded", GARBAGE)],
    [],
]


async def test_c58_without_trusted_proxies_all_count_as_the_peer() -> None:
    world = limited(per_address=5)
    replies = await _posts(world, [HEADERS[n % len(HEADERS)] for n in range(40)])
    assert [reply.status for reply in replies] == FIVE + [429] * 35


async def test_c58_behind_a_proxy_the_rightmost_address_counts_and_garbage_is_the_proxys() -> None:
    world = limited(proxies=1, per_address=5)
    behind = [[*headers, ("x-forwarded-for", "9.9.9.9")] for headers in HEADERS]
    replies = await _posts(world, [*(behind[n % len(behind)] for n in range(40)), *HEADERS])
    assert [reply.status for reply in replies[:40]] == FIVE + [429] * 35
    assert {reply.status for reply in replies[40:]} == {202}, "other addresses have their own"


async def test_one_ipv6_network_counts_as_one_address() -> None:
    world = limited(proxies=1, per_address=5)
    replies = await _posts(
        world, [[("x-forwarded-for", f"2001:db8:1:2::{n:x}")] for n in range(1, 21)]
    )
    assert [reply.status for reply in replies] == FIVE + [429] * 15


async def test_each_user_has_a_limit_of_their_own() -> None:
    world = limited(per_user=5)
    async with running(world) as service, service.connect() as client:
        statuses = {}
        for user in ("ann", "bob"):
            for _ in range(8):
                client.send("POST", "/seckill/tea", {"x-user-id": user})
                statuses.setdefault(user, []).append((await client.reply()).status)
    assert statuses == {"ann": [*FIVE, 429, 429, 429], "bob": [*FIVE, 429, 429, 429]}


async def test_a_limit_is_no_answer_to_a_request_that_is_wrong() -> None:
    """What is refused before the sale is asked keeps its own answer, and costs no limit."""
    world = limited(per_user=1)
    async with running(world) as service:
        for _ in range(3):
            bad = await service.ask("POST", "/seckill/tea", ANN, b'{"quantity": 0}')
            assert bad.status == 422
        assert (await service.ask("POST", "/seckill/tea", ANN)).status == 202
        assert (await service.ask("POST", "/seckill/tea", ANN)).status == 429
