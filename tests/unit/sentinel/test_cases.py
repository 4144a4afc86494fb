"""What went wrong for others, and is right here. Each test is named after what somebody would see."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import (
    AS_ORIGINAL,
    Difference,
    Entry,
    FlowRule,
    ParamFlowItem,
    ParamFlowRule,
    Sentinel,
)
from seckill.sentinel.clock import NANOSECONDS_PER_MS, NANOSECONDS_PER_S
from seckill.sentinel.words import ControlBehavior

if TYPE_CHECKING:
    from collections.abc import Callable

    from unit.sentinel.engines import Bench


PACES = [0.2, 1, 999, 1000, 1001, 1500, 2000, 2005, 5000, 50_000]


def offer(it: Bench, per_second: Any, seconds: Any, *args: object) -> Any:
    """Calls at an even rate on the virtual clock, each waiting on its own: (pass times, waits)."""
    start_ns = it.clock.now_ns()
    passed_ns, waits_ns = [], []
    for number in range(int(per_second * seconds)):
        due_ns = start_ns + int(number * NANOSECONDS_PER_S / per_second)
        it.clock.advance_ns(max(0, due_ns - it.clock.now_ns()))
        before = len(it.waiter.waits_ns)
        entry = it.sentinel.try_entry("r", *args)
        if isinstance(entry, Entry):
            entry.exit()
            wait_ns = sum(it.waiter.waits_ns[before:])
            waits_ns.append(wait_ns)
            passed_ns.append(it.clock.now_ns() + wait_ns - start_ns)
    return passed_ns, waits_ns


@pytest.mark.parametrize("count", PACES)
def test_c37_a_paced_gate_lets_in_what_it_says_at_every_count(
    benches: Callable[..., Bench], count: Any
) -> None:
    it = benches(advance=False)
    rule = FlowRule(
        resource="r",
        count=count,
        control_behavior=ControlBehavior.RATE_LIMITER,
        max_queueing_time_ms=500,
    )
    it.sentinel.flow.load([rule])
    seconds = 5 if count <= 1500 else 10_000 / count
    passed_ns, waits_ns = offer(it, max(count * 3, 1), seconds)
    within = sum(1 for at_ns in passed_ns if at_ns < seconds * NANOSECONDS_PER_S)
    if count < 1:
        assert within == 1
    else:
        assert within == pytest.approx(count * seconds, rel=0.02, abs=1)
    assert max(waits_ns) <= 500 * NANOSECONDS_PER_MS
    assert it.sentinel.alarms.internal_errors == 0


@pytest.mark.parametrize("count", [1000, 1001])
def test_c38_a_hot_value_is_paced_exactly_and_disturbs_no_cold_one(
    benches: Callable[..., Bench], count: Any
) -> None:
    seconds, cold_count = 5, 50
    it = benches(advance=False)
    rule = ParamFlowRule(
        resource="r",
        param_idx=0,
        count=count,
        control_behavior=ControlBehavior.RATE_LIMITER,
        max_queueing_time_ms=100,
    )
    it.sentinel.param_flow.load([rule])
    start_ns = it.clock.now_ns()
    calls = [(number / (count * 2), "hot") for number in range(count * 2 * seconds)]
    # Four are there at any time: that is enough to disturb, and the test takes a second, not eight.
    cold_calls = int(count * 0.5 * 0.4)
    for cold in range(cold_count):
        calls += [
            (cold * 0.09 + number / (count * 0.5) + cold * 1e-6, f"cold{cold}")
            for number in range(cold_calls)
        ]
    within: dict[str, int] = {}
    for at_s, value in sorted(calls):
        it.clock.advance_ns(max(0, start_ns + int(at_s * NANOSECONDS_PER_S) - it.clock.now_ns()))
        before = len(it.waiter.waits_ns)
        entry = it.sentinel.try_entry("r", value)
        if isinstance(entry, Entry):
            entry.exit()
            turn_ns = it.clock.now_ns() + sum(it.waiter.waits_ns[before:]) - start_ns
            within[value] = within.get(value, 0) + (turn_ns < seconds * NANOSECONDS_PER_S)
    assert within.pop("hot") == pytest.approx(count * seconds, rel=0.02)
    assert set(within.values()) == {cold_calls}
    assert len(within) == cold_count


SPELLINGS = [
    "int",
    "java.lang.Integer",
    "long",
    "java.lang.Long",
    "java.lang.String",
    "",
    "short",
    "byte",
]


@pytest.mark.parametrize("class_type", SPELLINGS)
@pytest.mark.parametrize("argument", ["1", 1])
def test_c40_an_item_applies_to_every_value_it_can_mean(
    bench: Bench, class_type: Any, argument: Any
) -> None:
    item = ParamFlowItem(object="1", count=10, class_type=class_type)
    report = bench.sentinel.param_flow.load(
        [ParamFlowRule(resource="r", param_idx=0, count=5, param_flow_item_list=(item,))]
    )
    assert not report.warnings
    passed = sum(isinstance(bench.sentinel.try_entry("r", argument), Entry) for _ in range(12))
    assert passed == 10


@pytest.mark.parametrize(
    ("text", "class_type"),
    [
        ("PARAM", "int"),
        ("300", "byte"),
        ("1.5", "long"),
        ("ab", "char"),
        ("maybe", "boolean"),
        ("1e99", "float"),
        ("x", "java.util.UUID"),
    ],
)
def test_c40_an_item_that_can_mean_nothing_is_named(
    bench: Bench, text: Any, class_type: Any
) -> None:
    items = (
        ParamFlowItem(object=text, count=10, class_type=class_type),
        ParamFlowItem(object="1", count=2),
    )
    report = bench.sentinel.param_flow.load(
        [ParamFlowRule(resource="r", param_idx=0, count=5, param_flow_item_list=items)]
    )
    assert report.in_force == 1
    (warning,) = report.warnings
    assert warning.index == 0
    assert warning.problems[0].field == "paramFlowItemList[0].object"
    assert "left out" in warning.problems[0].reason
    passed = sum(isinstance(bench.sentinel.try_entry("r", text), Entry) for _ in range(12))
    assert passed == 5, "the rule itself is in force"


def ramp_of(it: Bench, rule: Any, seconds: Any) -> Any:
    """Passed per second when 2,000 a second come."""
    found = []
    for second in range(seconds):
        passed = 0
        for tenth in range(10):
            it.clock.set_ms(it.start_ms + second * 1000 + tenth * 100)
            passed += it.passes(200)
        found.append(passed)
    return found


def test_c46_a_cold_gate_opens_a_third_at_first_and_wholly_after_its_period(
    benches: Callable[..., Bench],
) -> None:
    rule = FlowRule(
        resource="r", count=900, control_behavior=ControlBehavior.WARM_UP, warm_up_period_sec=10
    )
    curves = {}
    for name, undone in (("ours", frozenset()), ("theirs", AS_ORIGINAL)):
        it = benches(undone=undone)
        it.sentinel.flow.load([rule])
        curves[name] = ramp_of(it, rule, 12)
    ours = curves["ours"]
    assert ours == curves["theirs"]
    assert ours[0] == pytest.approx(300, rel=0.1)
    assert ours[11] == 900
    assert all(later >= earlier * 0.9 for earlier, later in itertools.pairwise(ours))


def test_c46_a_gate_can_be_warmed_before_the_sale(bench: Bench) -> None:
    rule = FlowRule(
        resource="r", count=900, control_behavior=ControlBehavior.WARM_UP, warm_up_period_sec=10
    )
    bench.sentinel.flow.load([rule])
    assert bench.sentinel.flow.pre_warm("r", bench.clock.now_ns()) == 1
    assert ramp_of(bench, rule, 2) == [900, 900]


def test_c46_a_gate_that_was_kept_busy_is_warm(bench: Bench) -> None:
    rule = FlowRule(
        resource="r", count=900, control_behavior=ControlBehavior.WARM_UP, warm_up_period_sec=10
    )
    bench.sentinel.flow.load([rule])
    for second in range(30):
        for tenth in range(10):
            bench.at(second * 1000 + tenth * 100)
            bench.passes(40)
    passed = 0
    for tenth in range(10):
        bench.at(30_000 + tenth * 100)
        passed += bench.passes(200)
    assert passed == pytest.approx(900, rel=0.1)


def test_a_time_of_day_that_is_set_back_freezes_no_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = {"day_ns": 1_764_579_240 * NANOSECONDS_PER_S, "up_ns": 5 * NANOSECONDS_PER_S}
    monkeypatch.setattr(time, "time_ns", lambda: machine["day_ns"])
    monkeypatch.setattr(time, "monotonic_ns", lambda: machine["up_ns"])
    monkeypatch.setattr(time, "monotonic", lambda: machine["up_ns"] / NANOSECONDS_PER_S)
    sentinel = Sentinel()
    sentinel.flow.load([FlowRule(resource="r", count=5)])

    def passes() -> int:
        return sum(isinstance(sentinel.try_entry("r"), Entry) for _ in range(9))

    assert passes() == 5
    # A time server corrects the machine by an hour, and a second goes by.
    machine["day_ns"] -= 3_600 * NANOSECONDS_PER_S
    machine["up_ns"] += NANOSECONDS_PER_S + NANOSECONDS_PER_MS
    assert passes() == 5
    assert sentinel.clock.now_ms() == 1_764_579_241_001


class SteppingClock:
    """A clock that has gone on by a little at every reading."""

    def __init__(self, start_ns: int, step_ns: int) -> None:
        self.ns = start_ns
        self.step_ns = step_ns

    def now_ns(self) -> int:
        self.ns += self.step_ns
        return self.ns

    def now_ms(self) -> int:
        return self.now_ns() // NANOSECONDS_PER_MS


def test_c47_the_second_may_change_inside_a_call_and_no_count_is_lost() -> None:
    clock = SteppingClock(1_764_579_240_999 * NANOSECONDS_PER_MS, 1_000)
    sentinel = Sentinel(clock=clock)
    sentinel.flow.load([FlowRule(resource="r", count=600)])
    passed = 0
    for number in range(1000):
        outcome = sentinel.try_entry("r")
        if isinstance(outcome, Entry):
            passed += 1
            if number % 10 == 0:
                outcome.set_error(ValueError())
            outcome.exit()
    clock.step_ns = 0
    assert clock.now_ns() // NANOSECONDS_PER_S > 1_764_579_240, "the second did change"
    node = sentinel.node("r")
    minute = node.minute(clock.ns)
    seconds = list(node.seconds(clock.ns))
    assert passed == 600
    assert len(seconds) == 2
    assert minute.passed == sum(one.passed for one in seconds) == 600
    assert minute.blocked == sum(one.blocked for one in seconds) == 400
    assert minute.exceptions == sum(one.exceptions for one in seconds)
    assert minute.success == 600
    assert node.window_passed + node.window_blocked == 1000


def test_no_window_around_an_edge_passes_more_than_its_rule(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", count=10)])
    bench.at(499)
    assert bench.passes(50) == 10
    bench.at(1000)
    assert bench.passes(50) == 0
    bench.at(1499)
    assert bench.passes(50) == 10


def test_the_guard_taken_out_shows_the_fault(benches: Callable[..., Bench]) -> None:
    """The control: without the sliding window twice the threshold passes within 501 ms."""
    it = benches(undone=frozenset({Difference.SLIDING_WINDOW}))
    it.sentinel.flow.load([FlowRule(resource="r", count=10)])
    it.at(499)
    passed = it.passes(50)
    it.at(1000)
    assert passed + it.passes(50) == 20
