"""Whole runs against a real server that does what the test says."""

import asyncio
import contextlib
import gc
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Never

import pytest
import uvloop

from integration.stress.fault_maker import (
    BLOCKED,
    BUSY,
    SOLD_OUT,
    Custom,
    Fault,
    Reply,
    Request,
    Shop,
    purchase,
    serving,
)
from seckill.domain.errors import InvalidValue
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.stress import (
    Arrival,
    Audit,
    Connect,
    Fate,
    OrderFate,
    ProgressListener,
    Snapshot,
    Stage,
    StressPlan,
    StressReport,
    Target,
    TargetUnreachable,
    bearer_headers,
    click as click_module,
    render_text,
    run_stress,
    run_stress_in_new_loop,
)
from seckill.stress.connection import ConnectionPool
from seckill.stress.target import resolve
from services.patient_loop import PatientLoop

Change = Callable[[Request, Reply], Reply]
QUICK: dict[str, Any] = {
    "click_gap_ms": 5,
    "timeout_s": 60,
    "connect_timeout_s": 60,
    "deadline_s": 300,
    "follow_s": 60,
    "retries": 0,
}


@pytest.fixture(autouse=True)
def patient_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generator and server share a loop, and with it what time it is: a stall is none.

    Where they do not, the plan is a patient one.
    """

    def now_us() -> int:
        loop = asyncio.get_running_loop()
        now_s = loop.time() if isinstance(loop, PatientLoop) else time.monotonic()
        return round(now_s * 1e6)

    monkeypatch.setattr("seckill.stress.run._monotonic_us", now_us)


async def run(
    shop: Shop,
    *,
    stock: int | None = None,
    audit: Audit | None = None,
    progress: ProgressListener | None = None,
    **plan: Any,
) -> StressReport:
    async with serving(shop) as url:
        settings = {**QUICK, **plan}
        return await run_stress(
            StressPlan(stock=shop.left if stock is None else stock, **settings),
            Target(url=url),
            progress,
            audit=audit,
        )


def failed(report: StressReport) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_five_units_go_to_five_of_forty_buyers_and_everybody_else_is_told_so(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        report = runner.run(run(Shop(5), buyers=40, clicks=3))
    assert report.ok, render_text(report)
    assert report.exit_code == 0
    assert report.fates == {"refused:sold_out": 35, "won": 5}
    assert (report.winners, report.units_won, report.unique_reservations) == (5, 5, 5)
    assert report.clicks_sent == report.answers == 120
    assert report.answers_by_code == {0: 105, 2: 10, 1: 5}
    assert report.answers_by_status == {409: 115, 202: 5}
    assert report.orders == {"ordered": 5}
    assert report.latency.count == report.send_lag.count == 120
    assert report.first_answer_us is not None
    assert report.last_answer_us is not None
    assert 0 < report.first_answer_us <= report.last_answer_us


def test_the_blocking_entry_makes_its_own_loop() -> None:
    """The caller has no event loop: the server runs in a process of its own."""
    with fast_server(stock=3) as url:
        report = run_stress_in_new_loop(StressPlan(stock=3, buyers=20, **QUICK), Target(url=url))
    assert report.ok, render_text(report)
    assert report.units_won == 3


async def test_mixed_quantities_within_a_limit_of_two_are_counted_in_units() -> None:
    shop = Shop(31, limit=2)
    report = await run(
        shop, buyers=60, clicks=4, limit_per_user=2, quantity_weights=((1, 1), (2, 1)), seed=7
    )
    assert report.ok, render_text(report)
    assert report.units_won == 31 - shop.left
    assert shop.left == 0
    assert report.winners < report.units_won
    assert report.demand_units == 120 - sum(
        1
        for fate in report.buyer_fates
        if [r.quantity for r in shop.posts if r.user_id == fate.user_id] == [1, 2, 2, 2]
    )


# --- one fate per buyer ---

CLICK_FAULTS = [
    pytest.param(Reply(200, b"<html>"), Fate.VIOLATION, id="no JSON"),
    pytest.param(Reply(409, {"code": 0}), Fate.VIOLATION, id="fields missing"),
    pytest.param(purchase(200, 0), Fate.VIOLATION, id="status of another code"),
    pytest.param(purchase(409, 77), Fate.VIOLATION, id="unknown code"),
    pytest.param(purchase(202, 1), Fate.VIOLATION, id="success without a reservation"),
    pytest.param(
        purchase(202, 1, "r").but(headers={}), Fate.VIOLATION, id="success without Location"
    ),
    pytest.param(Reply(500, {"title": "boom"}), Fate.VIOLATION, id="HTTP 500"),
    pytest.param(Reply(409, b"x" * 70_000), Fate.VIOLATION, id="an answer without end"),
    pytest.param(SOLD_OUT.but(fault=Fault.GARBAGE), Fate.VIOLATION, id="not HTTP"),
    pytest.param(SOLD_OUT.but(fault=Fault.RESET), Fate.CONNECTION_ERROR, id="reset"),
    pytest.param(SOLD_OUT.but(fault=Fault.HALF), Fate.CONNECTION_ERROR, id="cut in the answer"),
    pytest.param(SOLD_OUT.but(fault=Fault.SILENT), Fate.TIMEOUT, id="never answered"),
    pytest.param(BUSY, Fate.UNDECIDED, id="busy"),
    pytest.param(BLOCKED, Fate.REFUSED, id="flow control"),
    pytest.param(SOLD_OUT, Fate.REFUSED, id="sold out"),
    pytest.param(SOLD_OUT.but(fault=Fault.SPLIT), Fate.REFUSED, id="byte by byte"),
    pytest.param(SOLD_OUT.but(fault=Fault.CHUNKED), Fate.REFUSED, id="in chunks"),
    pytest.param(SOLD_OUT.but(fault=Fault.EARLY_HINT), Fate.REFUSED, id="after an interim answer"),
]


@pytest.mark.parametrize(("reply", "fate"), CLICK_FAULTS)
async def test_what_one_buyer_meets_is_their_fate_and_nobody_elses(
    reply: Reply, fate: Fate
) -> None:
    def change(request: Request, honest: Reply) -> Reply:
        return reply if request.user_id == "buyer-3" else honest

    timeout_s = 0.4 if reply.fault is Fault.SILENT else 60
    report = await run(Custom(0, change), buyers=8, clicks=2, timeout_s=timeout_s)
    fates = {one.user_id: one.fate for one in report.buyer_fates}
    assert fates.pop("buyer-3") is fate
    assert set(fates.values()) == {Fate.REFUSED}
    assert sum(report.fates.values()) == 8
    unhappy = fate is not Fate.REFUSED
    assert report.ok is not unhappy, render_text(report)
    if fate in {Fate.VIOLATION, Fate.TIMEOUT, Fate.CONNECTION_ERROR}:
        assert any("buyer-3" in anomaly for anomaly in report.anomalies)


async def test_pipelined_answers_in_pieces_find_their_clicks() -> None:
    """Three clicks under way at once, and answers that end anywhere in a packet."""
    faults = [Fault.SPLIT, Fault.CHUNKED, Fault.NONE]

    def change(request: Request, honest: Reply) -> Reply:
        return honest.but(fault=faults[request.nth_of_user % 3], delay_s=0.05)

    report = await run(Custom(4, change), buyers=10, clicks=6, click_gap_ms=1)
    assert report.ok, render_text(report)
    assert report.answers_by_code == {0: 36, 2: 20, 1: 4}


async def test_two_buyers_with_one_reservation_id_are_both_a_violation() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        if request.user_id in {"buyer-1", "buyer-2"}:
            return purchase(202, 1, "twin")
        return honest

    report = await run(Custom(10, change), buyers=6, clicks=1, follow=False)
    told = {one.user_id: one for one in report.buyer_fates if one.fate is Fate.VIOLATION}
    assert set(told) == {"buyer-1", "buyer-2"}
    assert "unique_reservations" in failed(report)


async def test_a_duplicate_that_names_another_buyers_reservation_is_a_violation() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        if request.user_id == "buyer-1":
            return purchase(409, 2, "r.buyer-0.0")
        return honest

    report = await run(Custom(10, change), buyers=2, clicks=1)
    assert {one.fate for one in report.buyer_fates} == {Fate.VIOLATION}
    assert "unique_reservations" in failed(report)


async def test_a_buyer_with_two_reservations_where_one_is_allowed_is_a_violation() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        return purchase(202, 1, f"{request.user_id}.{request.nth_of_user}")

    report = await run(Custom(10, change), buyers=2, clicks=2, follow=False)
    assert report.fates == {"violation": 2}
    assert {"limit_kept", "answers_true"} <= failed(report)
    assert report.units_won == 4


async def test_one_reservation_for_two_different_clicks_is_a_violation() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        return purchase(202, 1, request.user_id)

    report = await run(Custom(10, change), buyers=1, clicks=2, follow=False)
    assert report.fates == {"violation": 1}


async def test_an_answer_that_nobody_asked_for_fails_the_run() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        return honest.but(fault=Fault.TWICE)

    report = await run(Custom(1, change), buyers=1, clicks=1, follow=False)
    assert failed(report) == {"answers_true"}
    assert "to no request" in render_text(report)


# --- the load is open ---


async def test_a_slow_server_never_slows_the_buyers() -> None:
    """Nobody is answered before all have clicked: one who waited for an answer never would."""
    all_are_here = asyncio.Event()

    def change(request: Request, honest: Reply) -> Reply:
        if len(shop.posts) == 30:
            all_are_here.set()
        return honest.but(after=all_are_here, delay_s=0.3)

    shop = Custom(0, change)
    report = await run(shop, buyers=5, clicks=6, click_gap_ms=20)
    assert report.answers == 30
    # Answers come one after the other on a connection: the sixth is there after 6 × 0.3 s, and the
    # whole wait since the intended instant is its latency.
    assert report.latency.max_us > 1_500_000
    assert report.latency.p50_us > 600_000


async def test_a_frozen_server_shows_in_the_latency_of_every_click_meant_for_that_time() -> None:
    """Coordinated omission: a closed loop would send one click and call the rest fast."""
    frozen_from: list[float] = []

    def change(request: Request, honest: Reply) -> Reply:
        frozen_from.append(request.at_s)
        return honest.but(delay_s=max(0.0, frozen_from[0] + 1.0 - request.at_s))

    report = await run(Custom(0, change), buyers=20, clicks=1, arrival=Arrival.UNIFORM, over_s=0.5)
    assert report.answers == 20
    assert report.latency.p50_us > 300_000


async def test_the_planned_instants_reach_the_server() -> None:
    shop = Shop(0)
    report = await run(shop, buyers=50, clicks=1, arrival=Arrival.UNIFORM, over_s=1.0, seed=3)
    arrivals = [request.at_s for request in shop.posts]
    assert 0.7 < max(arrivals) - min(arrivals) < 3
    assert report.send_lag.count == 50


# --- retries ---


async def test_a_polite_buyer_waits_as_told_and_asks_again() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        return BUSY if request.nth_of_user < 2 else honest

    shop = Custom(1, change)
    report = await run(shop, buyers=1, clicks=1, retries=3, retry_after_max_s=0.2)
    assert report.fates == {"won": 1}
    assert report.retries_sent == 2
    assert report.retry_latency.count == 2
    times = [request.at_s for request in shop.posts]
    # Retry-After says 1 s, the plan cuts it to 0.2 s; up to a quarter of jitter on top.
    assert all(0.2 <= later - earlier < 0.9 for earlier, later in pairwise(times))


async def test_a_buyer_who_never_hears_a_decision_stops_after_the_retries() -> None:
    report = await run(
        Custom(1, lambda _request, _honest: BLOCKED),
        buyers=2,
        clicks=2,
        retries=2,
        retry_after_max_s=0.05,
    )
    assert report.fates == {"refused:blocked": 2}
    assert report.clicks_sent == 4
    assert report.retries_sent == 4


async def test_a_retry_carries_the_key_of_the_click_it_repeats() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        return BUSY if request.nth_of_user < 2 else honest

    shop = Custom(1, change)
    await run(shop, buyers=1, clicks=2, retries=1, retry_after_max_s=0.05, idempotent=True)
    keys = [request.headers["idempotency-key"] for request in shop.posts]
    assert len(keys) == 3
    assert keys[0] != keys[1]
    assert keys[2] in keys[:2]


async def test_the_same_success_again_under_the_same_key_is_one_purchase() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        reply = purchase(202, 1, "r.buyer-0.0")
        return reply.but(fault=Fault.RESET) if request.nth_of_user == 0 else reply

    report = await run(
        Custom(1, change), buyers=1, clicks=1, retries=1, idempotent=True, faults_expected=True
    )
    assert report.ok, render_text(report)
    assert report.units_won == 1


async def test_a_buyer_whose_yes_was_lost_learns_of_it_by_asking_again() -> None:
    """The purchase happened, the connection broke before the answer."""

    def change(request: Request, honest: Reply) -> Reply:
        return honest.but(fault=Fault.RESET) if honest.body["code"] == 1 else honest

    report = await run(
        Custom(5, change, limit=3),
        buyers=2,
        clicks=1,
        retries=1,
        limit_per_user=3,
        quantity_weights=((3, 1),),
        stock=5,
    )
    assert report.fates["won"] == 1
    assert report.recovered == 1
    assert report.units_won == 3
    assert report.unknown_units == 0
    assert report.orders == {"ordered": 1}
    assert failed(report) == {"no_connection_errors"}
    assert report.connection_errors.keys() <= {"ECONNRESET", "closed without an answer"}


async def test_units_that_nobody_knows_of_are_not_called_unsold() -> None:
    """Stock 1: the winner's answer is lost and never asked for again; the other reads sold out."""

    def change(request: Request, honest: Reply) -> Reply:
        won = isinstance(honest.body, dict) and honest.body["code"] == 1
        return honest.but(fault=Fault.RESET) if won else honest

    report = await run(Custom(1, change), buyers=2, clicks=1, faults_expected=True)
    assert report.ok, render_text(report)
    assert report.unknown_units == 1
    tolerated = {check.name for check in report.checks if check.tolerated}
    assert tolerated == {"everybody_answered", "no_connection_errors"}


async def test_a_stuck_connection_is_left_for_a_new_one_when_asking_again() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        return honest.but(fault=Fault.SILENT) if request.nth_of_user == 0 else honest

    shop = Custom(1, change)
    report = await run(shop, buyers=1, clicks=1, retries=1, timeout_s=0.2, retry_after_max_s=0.05)
    assert report.fates == {"won": 1}
    assert report.recovered == 1
    assert shop.connections_made == 3  # one knocks before the run


async def test_an_answer_after_the_timeout_still_counts() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        return honest.but(delay_s=0.3) if request.user_id == "buyer-0" else honest.but(delay_s=0.15)

    # buyer-1 keeps the rush open: the timeout of their later click comes after the late answer.
    report = await run(
        Custom(5, change), buyers=2, clicks=2, timeout_s=0.2, click_gap_ms=200, seed=2
    )
    assert report.answers_late >= 1
    assert report.latency.max_us >= 200_000
    assert report.fates == {"won": 2}


async def test_a_late_answer_spares_the_retry_that_was_planned() -> None:
    def change(request: Request, honest: Reply) -> Reply:
        return honest.but(delay_s=0.4)

    report = await run(
        Custom(5, change), buyers=1, clicks=1, timeout_s=0.2, retries=3, retry_after_max_s=5
    )
    assert report.fates == {"won": 1}
    assert report.answers_late == 1
    assert report.retries_sent == 0


# --- it ends by itself ---


async def test_a_server_that_never_answers_ends_as_timeouts_within_the_bounds() -> None:
    shop = Custom(5, lambda _request, honest: honest.but(fault=Fault.SILENT))
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    report = await run(shop, buyers=5, clicks=2, timeout_s=0.3, follow=False)
    assert loop.time() - began_s < 3
    assert report.fates == {"timeout": 5}
    assert report.timeouts == 10
    assert "everybody_answered" in failed(report)
    # Who waited in vain is part of the latency, with the time they waited.
    assert report.latency.count == 10
    assert report.latency.p50_us >= 300_000
    assert any("lower bounds" in note for note in report.notes)


async def test_the_deadline_ends_the_rush_whatever_the_timeout() -> None:
    shop = Custom(5, lambda _request, honest: honest.but(fault=Fault.SILENT))
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    report = await run(
        shop, buyers=2, clicks=1, timeout_s=60, deadline_s=0.4, retries=5, follow=False
    )
    assert loop.time() - began_s < 3
    assert report.fates == {"timeout": 2}
    assert any("deadline" in note for note in report.notes)


async def test_nobody_at_the_target_is_one_error_before_the_run() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TargetUnreachable, match="Is the service running there"):
            await run_stress(StressPlan(stock=1, buyers=5), Target(url=url))


async def test_a_server_that_goes_away_in_the_run_leaves_connection_errors() -> None:
    shop = Custom(5, lambda _request, honest: honest.but(fault=Fault.RESET))
    async with serving(shop) as url:
        report = await run_stress(
            StressPlan(stock=5, buyers=10, **{**QUICK, "clicks": 2, "follow": False}),
            Target(url=url),
        )
    assert report.fates == {"connection_error": 10}
    assert sum(report.connection_errors.values()) == 20


async def test_a_server_that_stopped_listening_is_a_connection_error_and_nothing_was_sent() -> None:
    """It dies right after the run has knocked: nothing can have been sold, and retries do not help."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)

    async def accept_once() -> None:
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        accepted.close()
        listener.close()

    accepting = asyncio.create_task(accept_once())
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    plan = StressPlan(
        stock=5,
        buyers=10,
        **{**QUICK, "clicks": 2, "retries": 1, "retry_after_max_s": 0.05},
        connect=Connect.RUSH,
        arrival=Arrival.UNIFORM,
        over_s=0.2,
    )
    report = await run_stress(plan, Target(url=url))
    await accepting
    assert report.fates == {"connection_error": 10}
    assert report.clicks_sent == 0
    assert report.unknown_units == 0
    assert set(report.connection_errors) == {"connecting: ECONNREFUSED"}
    assert "connecting: ECONNREFUSED" in render_text(report)


class Asked:
    """A request that only remembers how it ended."""

    given_up = False

    def __init__(self) -> None:
        self.end = ""

    def sent(self, at_us: int) -> None: ...

    def answered(self, answer: object) -> None: ...

    def misanswered(self, reason: str) -> None: ...

    def failed(self, reason: str) -> None:
        self.end = reason


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_server_that_goes_away_while_buyers_connect_leaves_no_socket_behind(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """It takes each connection and resets it, as a process does that is killed in a rush."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=300)

    def reset_everybody() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                accepted.close()

    async def all_meet_it() -> set[str]:
        buyers = [Asked() for _ in range(300)]
        endpoint = await resolve(Target(url=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            pool = ConnectionPool(
                endpoint,
                count=len(buyers),
                sources=(),
                connect_timeout_s=60,
                tasks=tasks,
                now_us=lambda: 0,
            )
            for number, buyer in enumerate(buyers):
                pool.of_buyer(number).submit(buyer, b"GET / HTTP/1.1\r\n\r\n")
            while not all(buyer.end for buyer in buyers):
                await asyncio.sleep(0.01)
            await pool.close()
        return {buyer.end for buyer in buyers}

    resetting = threading.Thread(target=reset_everybody)
    resetting.start()
    ends: set[str] = set()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # Until some were through before the reset came: they are what this is about.
            for _ in range(30):
                with asyncio.Runner(loop_factory=make_loop) as runner:
                    ends |= runner.run(all_meet_it())
                if not all(end.startswith("connecting") for end in ends):
                    break
            gc.collect()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        resetting.join(60)
        listener.close()
    assert not all(end.startswith("connecting") for end in ends), ends
    assert not [str(told.message) for told in caught if told.category is ResourceWarning]


async def test_connecting_is_bounded_too() -> None:
    """A listener whose queue is full answers no handshake."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        plan = StressPlan(
            stock=5, buyers=6, clicks=1, **{**QUICK, "connect_timeout_s": 0.3, "timeout_s": 1}
        )
        report = await run_stress(plan, Target(url=url))
    assert report.connect_failures["connecting timed out"] >= 4
    assert "connection_error" in report.fates


async def test_a_cancelled_run_closes_its_connections() -> None:
    shop = Custom(5, lambda _request, honest: honest.but(fault=Fault.SILENT))
    async with serving(shop) as url:
        plan = StressPlan(stock=5, buyers=10, **QUICK)
        task = asyncio.create_task(run_stress(plan, Target(url=url)))
        async with asyncio.timeout(60):
            while len(shop.posts) < 30:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # serving() itself now waits for every connection to be gone.


async def test_a_bug_of_the_generator_stops_the_run_and_is_no_buyers_fate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(answer: object) -> Never:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(click_module, "read_purchase", broken)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    with pytest.raises(BaseExceptionGroup) as caught:
        await run(Shop(1), buyers=2, clicks=1)
    assert caught.group_contains(ZeroDivisionError)


# --- connections ---


async def test_an_announced_close_costs_no_click() -> None:
    """The server closes after every answer and says so: what is behind it goes again elsewhere."""

    def change(request: Request, honest: Reply) -> Reply:
        return honest.but(fault=Fault.LAST)

    report = await run(Custom(0, change), buyers=5, clicks=3, click_gap_ms=1)
    assert report.ok, render_text(report)
    assert report.answers == 15
    assert report.resent > 0


async def test_buyers_beyond_the_connections_take_turns_and_the_report_says_so() -> None:
    shop = Shop(5)
    report = await run(shop, buyers=50, clicks=2, connections=4)
    assert report.ok, render_text(report)
    assert (report.connections, report.connections_shared) == (4, True)
    assert shop.connections_made == 4 + 1
    assert any("50 buyers shared 4 connections" in note for note in report.notes)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
async def test_many_connections_come_from_several_addresses() -> None:
    shop = Shop(5)
    report = await run(shop, buyers=30, clicks=1, connections_per_source=10)
    assert report.ok, render_text(report)
    assert {request.peer for request in shop.posts} == {"127.0.0.1", "127.0.0.2", "127.0.0.3"}
    assert report.source_addresses == 3


async def test_connections_can_be_opened_in_the_rush_and_the_report_says_so() -> None:
    report = await run(Shop(5), buyers=100, clicks=2, connect=Connect.RUSH)
    assert report.ok, render_text(report)
    assert report.clicks_sent == 200
    assert any("opened in the rush" in note for note in report.notes)


async def test_more_connections_than_descriptors_are_refused_by_field_and_rule() -> None:
    with pytest.raises(InvalidValue, match="descriptors") as caught:
        await run(Shop(1), buyers=200_000, clicks=1, connections=200_000)
    assert caught.value.field == "connections"


@pytest.mark.parametrize("url", ["http://192.0.2.1:80", "http://[2001:db8::1]:80"])
async def test_another_machine_is_refused_by_field_and_rule(url: str) -> None:
    with pytest.raises(InvalidValue, match="another machine") as caught:
        await run_stress(StressPlan(stock=1), Target(url=url))
    assert caught.value.field == "url"


async def test_buyers_can_show_a_bearer_token() -> None:
    class Bearer(Shop):
        def answer(self, request: Request) -> Reply:
            request.headers["x-user-id"] = request.headers["authorization"].split(".")[1]
            return super().answer(request)

    shop = Bearer(2)
    async with serving(shop) as url:
        target = Target(url=url, headers_for=bearer_headers(lambda user_id: f"t.{user_id}.s"))
        report = await run_stress(StressPlan(stock=2, buyers=4, **QUICK), target)
    assert report.ok, render_text(report)


# --- the verdict ---


async def test_an_oversold_sale_fails() -> None:
    report = await run(Shop(6), stock=5, buyers=10, clicks=1)
    assert "no_oversell" in failed(report)
    assert report.exit_code == 1


async def test_sold_out_while_there_is_stock_fails() -> None:
    report = await run(Shop(4), stock=5, buyers=10, clicks=1)
    assert failed(report) == {"no_unit_left"}


async def test_not_enough_left_for_two_is_true_while_one_is_left() -> None:
    report = await run(
        Shop(5, limit=2), buyers=10, clicks=1, limit_per_user=2, quantity_weights=((2, 1),)
    )
    assert report.ok, render_text(report)
    assert report.units_won == 4


async def test_fewer_buyers_than_stock_leave_stock_and_pass() -> None:
    report = await run(Shop(50), buyers=10, clicks=2)
    assert report.ok, render_text(report)
    assert report.units_won == report.demand_units == 10


async def test_no_stock_at_all_passes_with_nobody_winning() -> None:
    report = await run(Shop(0), buyers=10, clicks=2)
    assert report.ok, render_text(report)
    assert report.winners == 0


async def test_a_sale_found_sold_out_proves_nothing_and_fails() -> None:
    report = await run(Shop(0), buyers=10, clicks=2, stock_found=True)
    assert failed(report) == {"stock_to_sell"}
    assert "nothing was tested" in render_text(report)


async def test_the_text_cuts_no_name_and_has_its_values_in_one_column() -> None:
    report = await run(Shop(1), buyers=3, clicks=2, stock=1)
    text = render_text(report)
    assert "1 unit won of 1" in text
    for code in report.answers_by_code:
        assert f"  {OUTCOME_TEXTS[Outcome(code)].en} ({code})  " in text
    blocks, _, verdict = text.partition("\nVerdict\n")
    for part in (blocks.partition("\n\nRequests")[2], verdict.partition("\n\n")[0]):
        rows = [line for line in part.splitlines() if line.startswith("  ")]
        assert len(rows) > 8
        assert all(re.match(r"  \S", row) for row in rows)
        # Names hold single spaces at most, so the first wider gap ends one.
        starts = {re.match(r"  (?:\S+ )*\S+ {2,}", row).end() for row in rows}  # type: ignore[union-attr]
        assert len(starts) == 1, part


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (purchase(425, 4), "not started"),
        (purchase(410, 5), "ended"),
        (purchase(404, 6), "no such goods"),
        (purchase(409, 2, "from-last-year"), "had bought before"),
    ],
)
async def test_a_sale_that_is_closed_or_stale_proves_nothing_and_fails(
    reply: Reply, word: str
) -> None:
    report = await run(Custom(5, lambda _request, _honest: reply), buyers=1, clicks=2)
    assert failed(report) == {"sale_open"}
    assert word in render_text(report)


async def test_a_503_without_retry_after_is_rude() -> None:
    report = await run(
        Custom(5, lambda _request, _honest: BUSY.but(headers={})), buyers=3, clicks=1
    )
    assert failed(report) == {"errors_polite", "everybody_decided"}


async def test_a_500_is_no_answer_at_all() -> None:
    report = await run(
        Custom(5, lambda _request, _honest: Reply(500, {"title": "x"})), buyers=3, clicks=1
    )
    assert failed(report) == {"errors_polite", "answers_true"}


@pytest.mark.parametrize("ok", [True, False, None, "yes"])
async def test_only_an_audit_that_says_true_passes(ok: object) -> None:
    async def audit() -> dict[str, object]:
        return {"oversold": 0} if ok is None else {"ok": ok, "oversold": 0}

    report = await run(Shop(2), buyers=3, clicks=1, audit=audit)
    assert report.ok is (ok is True)
    assert report.audit == await audit()


# --- told yes, has an order ---


def order_case(state: str = "awaiting_payment", **wrong: object) -> Change:
    def change(request: Request, honest: Reply) -> Reply:
        return honest.but(body={**honest.body, "state": state, **wrong})

    return change


@pytest.mark.parametrize(
    ("change_order", "fate"),
    [
        (order_case(), OrderFate.ORDERED),
        (order_case("paid"), OrderFate.ORDERED),
        (order_case("compensated"), OrderFate.COMPENSATED),
        (order_case("queued"), OrderFate.QUEUED),
        (order_case("lost in space"), OrderFate.WRONG),
        (order_case(user_id="somebody"), OrderFate.WRONG),
        (order_case(goods_id="2"), OrderFate.WRONG),
        (order_case(quantity=2), OrderFate.WRONG),
        (order_case(reservation_id="other"), OrderFate.WRONG),
        (order_case(quantity="1"), OrderFate.WRONG),
        (lambda _request, _honest: Reply(404, {}), OrderFate.MISSING),
        (lambda _request, _honest: Reply(503, {}), OrderFate.UNREACHABLE),
        (lambda _request, honest: honest.but(fault=Fault.RESET), OrderFate.UNREACHABLE),
        (lambda _request, honest: honest.but(fault=Fault.SILENT), OrderFate.UNREACHABLE),
        (lambda _request, honest: honest.but(fault=Fault.GARBAGE), OrderFate.UNREACHABLE),
    ],
)
async def test_every_yes_is_followed_to_its_order(change_order: Change, fate: OrderFate) -> None:
    shop = Custom(2, lambda _request, honest: honest, change_order=change_order)
    report = await run(shop, buyers=5, clicks=1, follow_s=1.0, timeout_s=0.5)
    assert report.orders == {fate.value: 2}
    assert ("orders" in failed(report)) is (fate is not OrderFate.ORDERED)


async def test_an_order_that_comes_late_is_waited_for() -> None:
    looks = 0

    def change_order(request: Request, honest: Reply) -> Reply:
        nonlocal looks
        looks += 1
        return order_case("queued" if looks < 6 else "awaiting_payment")(request, honest)

    shop = Custom(2, lambda _request, honest: honest, change_order=change_order)
    report = await run(shop, buyers=5, clicks=1)
    assert report.ok, render_text(report)
    assert looks > 6
    assert report.order_states == {"awaiting_payment": 2}


async def test_a_reservation_denied_once_stays_denied() -> None:
    looks = 0

    def change_order(request: Request, honest: Reply) -> Reply:
        nonlocal looks
        looks += 1
        return Reply(404, {}) if looks == 1 else honest

    shop = Custom(1, lambda _request, honest: honest, change_order=change_order)
    report = await run(shop, buyers=1, clicks=1)
    assert report.orders == {"missing": 1}


# --- what is shown ---


async def test_the_report_is_plain_json_and_ends_in_the_verdict() -> None:
    report = await run(Shop(2), buyers=5, clicks=2)
    told = json.loads(json.dumps(report.to_dict()))
    assert told["ok"] is True
    assert told["units_won"] == 2
    assert told["latency"]["count"] == 10
    assert told["plan"]["arrival"] == "at_once"
    assert {check["name"] for check in told["checks"]} >= {"no_oversell", "orders"}
    text = render_text(report)
    assert text.splitlines()[-1] == "OK: every promise was kept"


async def test_progress_goes_through_every_stage_and_ends_complete() -> None:
    class Listener:
        def __init__(self) -> None:
            self.seen: list[Snapshot] = []

        def report(self, snapshot: Snapshot) -> None:
            self.seen.append(snapshot)

    async def audit() -> dict[str, object]:
        return {"ok": True}

    listener = Listener()
    await run(Shop(2), buyers=5, clicks=2, progress=listener, audit=audit)
    last = {snapshot.stage: snapshot for snapshot in listener.seen}
    assert list(last) == list(Stage)
    assert all(snapshot.done == snapshot.total for snapshot in last.values())
    assert last[Stage.RUSH].answers == 10
    assert last[Stage.RUSH].won == 2


# --- ten thousand ---


class fast_server:  # noqa: N801  -- used as a function
    def __init__(self, stock: int) -> None:
        self._stock = stock

    def __enter__(self) -> str:
        program = Path(__file__).with_name("fast_server.py")
        self._process = subprocess.Popen(
            [sys.executable, program, str(self._stock)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        assert self._process.stdout is not None
        return f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.slow
def test_ten_thousand_buyers_at_once_each_get_one_fate() -> None:
    with fast_server(stock=100) as url:
        report = run_stress_in_new_loop(
            StressPlan(stock=100, buyers=10_000, clicks=3, **{**QUICK, "click_gap_ms": 50}),
            Target(url=url),
        )
    assert report.ok, render_text(report)
    assert report.fates == {"refused:sold_out": 9_900, "won": 100}
    assert report.clicks_sent == report.answers == 30_000
    assert report.generator_cpu_s > 0
