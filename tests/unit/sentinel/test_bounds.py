"""Everything has a bound, and says so when it bites."""

from __future__ import annotations

import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import (
    FlowException,
    FlowRule,
    ParamFlowRule,
    Sentinel,
    Settings,
    VirtualClock,
)
from seckill.sentinel.flow.reject import RejectQPS
from seckill.sentinel.flow.slot import FastCheck

if TYPE_CHECKING:
    from collections.abc import Callable

    from unit.sentinel.engines import Bench


def test_resources_beyond_the_bound_pass_unchecked_and_are_counted(
    benches: Callable[..., Bench],
) -> None:
    it = benches(settings=Settings(resource_count_max=3))
    it.sentinel.flow.load([FlowRule(resource="[a-z]", regex=True, count=0)])
    assert [it.passes_one(name) for name in "abcde"] == [False, False, False, True, True]
    assert it.sentinel.alarms.unchecked_entries == 2
    assert len(it.sentinel.resources) == 3


def test_a_resource_with_a_rule_is_checked_however_many_there_are(
    benches: Callable[..., Bench],
) -> None:
    it = benches(settings=Settings(resource_count_max=3))
    it.sentinel.flow.load([FlowRule(resource="seckill-jk", count=0)])
    for number in range(10):
        it.passes_one(f"/orders/{number}")
    assert not it.passes_one("seckill-jk")


def test_contexts_beyond_the_bound_share_one_and_are_checked(benches: Callable[..., Bench]) -> None:
    it = benches(settings=Settings(context_count_max=3))
    it.sentinel.flow.load([FlowRule(resource="r", count=5)])
    passed = 0
    for number in range(10):
        with it.sentinel.context(f"c{number}"):
            passed += it.passes_one()
    assert passed == 5
    assert len(it.sentinel.entrances) == 4
    assert it.sentinel.alarms.surplus_contexts == 8


def test_callers_beyond_the_bound_share_one_counter(benches: Callable[..., Bench]) -> None:
    it = benches(settings=Settings(origin_count_max=2))
    it.sentinel.flow.load([FlowRule(resource="r", limit_app="other", count=1)])
    passed = []
    for number in range(6):
        with it.sentinel.context("c", f"app{number}"):
            passed.append(it.passes_one())
    assert passed == [True, True, True, False, False, False]
    assert it.sentinel.alarms.surplus_origins == 4
    assert len(it.sentinel.node("r").origins) == 3


def test_pairs_beyond_the_bound_are_counted_for_the_resource(benches: Callable[..., Bench]) -> None:
    it = benches(settings=Settings(node_count_max=2))
    it.sentinel.flow.load([FlowRule(resource="r", count=5)])
    passed = 0
    for number in range(10):
        with it.sentinel.context(f"c{number}"):
            passed += it.passes_one()
    assert passed == 5
    assert it.sentinel.alarms.surplus_nodes == 8


def test_values_are_forgotten_the_longest_unseen_first(benches: Callable[..., Bench]) -> None:
    it = benches(settings=Settings(hot_value_count_max=3))
    it.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=0, count=1)])
    for value in "abc":
        it.enter("r", value).exit()
    it.refusal("r", "a")
    it.enter("r", "d").exit()
    it.refusal("r", "a")
    it.enter("r", "b").exit()  # forgotten, so it begins anew


def test_a_name_that_is_too_long_is_cut(bench: Bench) -> None:
    bench.passes(2, "x" * 5000)
    assert list(bench.sentinel.resources) == ["x" * 1024]


def test_a_hostile_pattern_is_refused(bench: Bench) -> None:
    for pattern in (
        "(a+)+$",
        "(a|a)*",
        "(.*)*x",
        "((ab)*c)+",
        "a*b*c*d*",
        "[",
        "x" * 300,
        "(a{1,9}){2,}",
    ):
        report = bench.sentinel.flow.load([FlowRule(resource=pattern, regex=True, count=1)])
        assert report.refused[0].problems[0].field == "resource", pattern
    for pattern in ("GET:/g/[0-9]+", r"(get|post):/\(a\)+", "[(]+[)]+", "a(b)?c", "[]a]+", "[^]]+"):
        report = bench.sentinel.flow.load([FlowRule(resource=pattern, regex=True, count=1)])
        assert not report.refused, pattern
        re.compile(pattern)


def test_the_memory_of_a_resource_is_bounded(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", count=10_000_000)])
    for at_ms in range(0, 70_000, 10):
        bench.at(at_ms)
        bench.passes_one()
    node = bench.sentinel.node("r")
    assert len(list(node.seconds(bench.clock.now_ns()))) == 60
    assert len(node.log._times_ns) <= 1001


@pytest.mark.parametrize(
    "wrong",
    [
        {"sample_count": 3},
        {"cold_factor": 1},
        {"resource_count_max": 0},
        {"occupy_timeout_ms": -1},
        {"cluster_fallback": "maybe"},
    ],
)
def test_settings_are_checked(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        Settings(**wrong)


def race(sentinel: Sentinel, threads: int, calls: int) -> int:
    """How many of so many calls at once, from many threads, are let in."""
    passed = []
    barrier = threading.Barrier(threads)

    def run() -> None:
        barrier.wait()
        mine = 0
        for _ in range(calls):
            outcome = sentinel.try_entry("r")
            if not isinstance(outcome, FlowException):
                mine += 1
                outcome.exit()
        passed.append(mine)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=run) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return sum(passed)


def test_threads_do_not_overshoot_together() -> None:
    sentinel = Sentinel(clock=VirtualClock())
    sentinel.flow.load([FlowRule(resource="r", count=500)])
    assert race(sentinel, 8, 200) == 500
    node = sentinel.node("r")
    assert (node.window_passed, node.window_blocked, node.concurrency) == (500, 1100, 0)


class NoLock:
    """The guard taken out."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_details: object) -> None:
        return None


def test_the_control_threads_without_the_lock_overshoot(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel = Sentinel(clock=VirtualClock())
    sentinel.flow.load([FlowRule(resource="r", count=500)])
    monkeypatch.setattr(sentinel, "acquire", lambda: None)
    monkeypatch.setattr(sentinel, "release", lambda: None)
    monkeypatch.setattr(sentinel, "lock", NoLock())
    decide = RejectQPS.decide

    def slow(self: Any, entry: Any, node: Any, now_ns: Any) -> Any:
        outcome = decide(self, entry, node, now_ns)
        time.sleep(0)
        return outcome

    # Without the lock the race is between the check and the count: let others run just there.
    monkeypatch.setattr(RejectQPS, "decide", slow)
    monkeypatch.setattr(
        FastCheck,
        "check",
        lambda self, entry, now_ns: self._ask(self._shaper, entry, self._resource, now_ns),
    )
    assert race(sentinel, 8, 200) > 500
