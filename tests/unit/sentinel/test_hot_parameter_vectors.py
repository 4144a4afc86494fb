"""The reference vectors of hot parameters."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import ParamFlowException, ParamFlowRule
from seckill.sentinel.words import ControlBehavior, FlowGrade

if TYPE_CHECKING:
    from unit.sentinel.engines import Bench


@pytest.fixture(params=["bench", "original"])
def either(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def passes(it: Bench, calls: Any, *args: object) -> Any:
    found = 0
    for _ in range(calls):
        entry = it.sentinel.try_entry("r", *args)
        if not isinstance(entry, ParamFlowException):
            entry.exit()
            found += 1
    return found


def test_five_and_three_seconds_later_five_again(either: Bench) -> None:
    either.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=0, count=5)])
    assert passes(either, 6, 1) == 5
    either.clock.advance_ms(3000)
    assert passes(either, 6, 1) == 5


def test_a_burst_comes_back_after_a_rest(either: Bench) -> None:
    either.sentinel.param_flow.load(
        [ParamFlowRule(resource="r", param_idx=0, count=5, burst_count=3)]
    )
    found = [passes(either, 9, 1)]
    for pause_ms in (1002, 1002, 2000, 1002):
        either.clock.advance_ms(pause_ms)
        found.append(passes(either, 9, 1))
    assert found == [8, 5, 5, 8, 5]


def test_a_minute_is_refilled_as_a_whole(either: Bench) -> None:
    either.sentinel.param_flow.load(
        [ParamFlowRule(resource="r", param_idx=0, count=5, duration_in_sec=60)]
    )
    found = []
    for at_s in (0, 1, 11, 41, 71):
        either.at(at_s * 1000)
        found.append(passes(either, 9, 1))
    assert found == [5, 0, 0, 0, 5]


def test_the_refill_comes_only_after_more_than_the_duration(either: Bench) -> None:
    either.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=0, count=5)])
    found = []
    for at_ms in (0, 1000, 1001):
        either.at(at_ms)
        found.append(passes(either, 9, 1))
    assert found == [5, 0, 5]


def test_pacing_without_a_queue_passes_one(either: Bench) -> None:
    either.sentinel.param_flow.load(
        [
            ParamFlowRule(
                resource="r", param_idx=0, count=5, control_behavior=ControlBehavior.RATE_LIMITER
            )
        ]
    )
    assert passes(either, 40, 1) == 1


def test_a_wait_as_long_as_the_limit_is_refused(either: Bench) -> None:
    rule = ParamFlowRule(
        resource="r",
        param_idx=0,
        count=5,
        control_behavior=ControlBehavior.RATE_LIMITER,
        max_queueing_time_ms=200,
    )
    either.sentinel.param_flow.load([rule])
    assert passes(either, 2, 1) == 1


def test_calls_in_flight_per_value(either: Bench) -> None:
    either.sentinel.param_flow.load(
        [ParamFlowRule(resource="r", param_idx=0, count=2, grade=FlowGrade.THREAD)]
    )
    held = [either.enter("r", "a"), either.enter("r", "a"), either.enter("r", "b")]
    block = either.refusal("r", "a")
    assert isinstance(block, ParamFlowException)
    assert (block.parameter, block.measured, block.limit) == ("a", 2, 2)
    held[0].exit()
    assert passes(either, 1, "a") == 1


def test_values_do_not_disturb_each_other(either: Bench) -> None:
    either.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=0, count=2)])
    assert [passes(either, 5, value) for value in ("a", "b", 1, 2.5)] == [2, 2, 2, 2]


def test_a_missing_or_null_argument_passes(either: Bench) -> None:
    either.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=1, count=0)])
    assert passes(either, 1) == 1
    assert passes(either, 1, "only one") == 1
    assert passes(either, 1, "a", None) == 1
    assert passes(either, 1, "a", "b") == 0


def test_each_element_of_a_list_is_checked(either: Bench) -> None:
    either.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=0, count=1)])
    assert passes(either, 1, ["a", "b"]) == 1
    assert passes(either, 1, ["c", "b"]) == 0


def test_the_values_of_a_list_wait_together_for_the_longest(bench: Bench) -> None:
    rule = ParamFlowRule(
        resource="r",
        param_idx=0,
        count=10,
        control_behavior=ControlBehavior.RATE_LIMITER,
        max_queueing_time_ms=1_000,
    )
    bench.sentinel.param_flow.load([rule])
    assert passes(bench, 3, "a") == 3
    assert passes(bench, 1, "b") == 1
    bench.waiter.waits_ns.clear()
    # The turn of "a" has come when its third call went on: both have to wait 100 ms, not 200.
    assert passes(bench, 1, "b") == passes(bench, 1, "a") == 1
    bench.waiter.waits_ns.clear()
    assert passes(bench, 1, ["a", "b"]) == 1
    assert sum(bench.waiter.waits_ns) == max(bench.waiter.waits_ns) <= 100_000_000


def test_an_argument_may_say_what_it_is_counted_by(bench: Bench) -> None:
    class Goods:
        def __init__(self, goods_id: Any) -> None:
            self.goods_id = goods_id

        def param_flow_key(self) -> Any:
            return self.goods_id

    bench.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=0, count=1)])
    assert passes(bench, 1, Goods(7)) == 1
    assert passes(bench, 1, Goods(7)) == 0
    assert passes(bench, 1, Goods(8)) == 1


def test_values_that_cannot_be_hashed_or_are_very_long(bench: Bench) -> None:
    bench.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=0, count=1)])
    for value in ({"a": 1}, "x" * 100_000, b"y" * 100_000):
        assert passes(bench, 2, value) == 1
    assert bench.sentinel.alarms.internal_errors == 0


@pytest.mark.parametrize("kind", [float, Decimal])
def test_what_is_no_number_is_one_value_and_no_way_around_the_rule(bench: Bench, kind: Any) -> None:
    bench.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=0, count=2)])
    assert sum(passes(bench, 1, kind("nan")) for _ in range(5)) == 2
    assert passes(bench, 3, kind("1.5")) == 2
    assert bench.sentinel.alarms.internal_errors == 0


def test_truth_is_not_the_number_one(bench: Bench) -> None:
    bench.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=0, count=1)])
    assert passes(bench, 1, 1) == 1
    assert passes(bench, 1, True) == 1
