"""Each deliberate difference from the original: ours, and theirs when it is undone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import (
    AuthorityRule,
    BlockException,
    DegradeRule,
    Difference,
    Entry,
    EntryType,
    FlowRule,
    ParamFlowRule,
    SystemRule,
)
from seckill.sentinel.words import ControlBehavior

if TYPE_CHECKING:
    from collections.abc import Callable

    from unit.sentinel.engines import Bench


DOCUMENT = Path(__file__).parents[3] / "docs" / "sentinel-differences.md"


@pytest.fixture
def both(benches: Callable[..., Bench]) -> Any:
    """Ours, and ours with one difference undone."""

    def make(difference: Difference) -> Any:
        return benches(), benches(undone=frozenset({difference}))

    return make


def test_every_difference_has_a_line_in_the_document_and_a_test_here() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    tests = Path(__file__).read_text(encoding="utf-8")
    elsewhere = {Difference.SLIDING_WINDOW, Difference.HOT_PARAMETER_TYPES}
    for difference in Difference:
        assert re.search(rf"^\| `{difference}` \|", text, re.MULTILINE), difference
        assert f"Difference.{difference.name})" in tests or difference in elsewhere, difference


@pytest.mark.parametrize("count", [1, 2, 2.9])
def test_a_cold_gate_below_the_cold_factor_opens(both: Any, count: Any) -> None:
    ours, theirs = both(Difference.WARM_UP_ADMITS_ONE)
    for it, first, late in ((ours, 1, int(count)), (theirs, 0, 0)):
        it.sentinel.flow.load(
            [FlowRule(resource="r", count=count, control_behavior=ControlBehavior.WARM_UP)]
        )
        passed = []
        for second in range(40):
            it.at(second * 1000)
            passed.append(it.passes(10))
        assert (passed[0], passed[-1]) == (first, late)


def test_a_warming_pace_of_nothing_refuses(both: Any) -> None:
    ours, theirs = both(Difference.WARM_UP_ZERO_BLOCKS)
    rule = FlowRule(resource="r", count=0, control_behavior=ControlBehavior.WARM_UP_RATE_LIMITER)
    for it, passed in ((ours, 0), (theirs, 5)):
        it.sentinel.flow.load([rule])
        assert it.passes(5) == passed


def test_a_pace_is_exact(both: Any) -> None:
    ours, theirs = both(Difference.PACING_IN_NANOSECONDS)
    rule = FlowRule(resource="r", count=2.4, control_behavior=ControlBehavior.RATE_LIMITER)
    for it, wait_ns in ((ours, 416_666_667), (theirs, 417_000_000)):
        it.sentinel.flow.load([rule])
        it.passes(2)
        assert it.waiter.waits_ns == [wait_ns]


def test_a_pace_below_one_half_can_be_loaded(bench: Bench) -> None:
    rule = FlowRule(
        resource="r",
        count=0.3,
        control_behavior=ControlBehavior.RATE_LIMITER,
        max_queueing_time_ms=4000,
    )
    assert bench.sentinel.flow.load([rule]).in_force == 1
    bench.passes(2)
    assert bench.waiter.waits_ns == [3_333_333_333]


def test_a_call_that_borrowed_is_still_asked_by_the_breaker(both: Any) -> None:
    # In both with the original's window, where borrowing is what the original knows.
    for difference, passes in ((None, False), (Difference.PRIORITY_WAIT_IS_CHECKED, True)):
        ours, theirs = both(Difference.PRIORITY_WAIT_IS_CHECKED)
        it = ours if difference is None else theirs
        it.sentinel.flow.load([FlowRule(resource="r", count=1)])
        it.sentinel.degrade.load(
            [DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=9)]
        )
        entry = it.enter()
        entry.set_error(ValueError())
        entry.exit()
        it.at(700)
        assert it.passes_one(prioritized=True) is passes


def test_a_prioritised_call_waits_for_the_sliding_window(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", count=2)])
    bench.passes(2)
    bench.at(400)
    assert not bench.passes_one(prioritized=True), "600 ms are too long to wait"
    bench.at(700)
    assert bench.passes_one(prioritized=True)
    assert bench.waiter.waits_ns == [300_000_000]
    assert bench.passes_one(), "the window has moved on"
    assert not bench.passes_one()


def test_an_unchanged_pace_does_not_start_anew_at_a_reload(both: Any) -> None:
    ours, theirs = both(Difference.UNCHANGED_RULES_KEEP_STATE)
    rule = FlowRule(
        resource="r", count=1, control_behavior=ControlBehavior.RATE_LIMITER, max_queueing_time_ms=1
    )
    for it, passed in ((ours, False), (theirs, True)):
        it.sentinel.flow.load([rule])
        it.passes(1)
        it.sentinel.flow.load([rule, FlowRule(resource="x", count=1)])
        assert it.passes_one() is passed


def opened(it: Bench, *rules: DegradeRule) -> None:
    """An engine whose breakers have just opened."""
    it.sentinel.degrade.load(list(rules))
    entry = it.enter()
    entry.set_error(ValueError())
    entry.exit()
    assert not it.passes_one()


def test_a_late_old_call_does_not_close_a_half_open_breaker(both: Any) -> None:
    rule = DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=2)
    ours, theirs = both(Difference.PROBE_IS_TAGGED)
    for it, closed in ((ours, False), (theirs, True)):
        old = it.enter()
        opened(it, rule)
        it.at(2000)
        probe = it.enter()
        old.exit()
        assert it.passes_one() is closed
        probe.exit()
        assert it.passes_one()


def test_a_lost_probe_is_replaced(both: Any) -> None:
    rule = DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=2)
    ours, theirs = both(Difference.PROBE_HAS_LEASE)
    for it, passes in ((ours, True), (theirs, False)):
        opened(it, rule)
        it.at(2000)
        lost = it.enter()
        it.at(3999)
        assert not it.passes_one()
        it.at(4000)
        assert it.passes_one() is passes
        lost.exit()


def test_a_cancelled_probe_is_given_back(bench: Bench) -> None:
    opened(bench, DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=2))
    bench.at(2000)
    with pytest.raises(KeyboardInterrupt), bench.sentinel.entry("r"):
        raise KeyboardInterrupt
    assert bench.passes_one(), "the next call is the probe"


def test_two_breakers_try_again_together(both: Any) -> None:
    quick = DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=1)
    slow = DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=3)
    ours, theirs = both(Difference.BREAKERS_PROBE_TOGETHER)
    for it, wasted in ((ours, 0), (theirs, 3)):
        changes = []
        opened(it, quick, slow)
        it.sentinel.degrade.observers.append(changes.append)
        for at_ms in (1000, 1500, 2000):
            it.at(at_ms)
            assert not it.passes_one()
        assert sum(one.current.value == "half-open" for one in changes) == wasted
        it.at(3000)
        assert it.passes_one()


def test_a_default_breaker_can_stand_in_the_list(both: Any) -> None:
    ours, theirs = both(Difference.DEFAULT_BREAKER_IN_LIST)
    rule = DegradeRule(resource="*", grade=2, count=0, min_request_amount=1, time_window=9)
    own = DegradeRule(resource="own", grade=2, count=99, min_request_amount=1, time_window=9)
    for it, passes in ((ours, False), (theirs, True)):
        it.sentinel.degrade.load([rule, own])
        for name in ("r", "own"):
            entry = it.enter(name)
            entry.set_error(ValueError())
            entry.exit()
        assert it.passes_one("r") is passes
        assert it.passes_one("own")


def test_an_empty_system_rule_at_the_end_switches_nothing_off(both: Any) -> None:
    ours, theirs = both(Difference.SYSTEM_RULES_ADD_UP)
    for it, passes in ((ours, False), (theirs, True)):
        it.sentinel.system.load([SystemRule(qps=0), SystemRule()])
        assert it.passes_one(entry_type=EntryType.IN) is passes
        it.sentinel.system.load([SystemRule(), SystemRule(qps=0)])
        assert not it.passes_one(entry_type=EntryType.IN)


def test_values_are_paced_exactly(both: Any) -> None:
    ours, theirs = both(Difference.HOT_PARAMETER_NANOSECONDS)
    rule = ParamFlowRule(
        resource="r",
        param_idx=0,
        count=900,
        control_behavior=ControlBehavior.RATE_LIMITER,
        max_queueing_time_ms=9,
    )
    for it, wait_ns in ((ours, 1_111_111), (theirs, 1_000_000)):
        it.sentinel.param_flow.load([rule])
        for _ in range(2):
            it.enter("r", "a")
        assert it.waiter.waits_ns == [wait_ns]


def test_a_null_element_does_not_switch_off_the_check(both: Any) -> None:
    ours, theirs = both(Difference.NULL_ELEMENT_IS_SKIPPED)
    for it, passes in ((ours, False), (theirs, True)):
        it.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=0, count=1)])
        it.enter("r", "a")
        outcome = it.sentinel.try_entry("r", [None, "a"])
        assert isinstance(outcome, Entry) is passes


def test_an_index_from_the_end_is_counted_for_each_call(both: Any) -> None:
    ours, theirs = both(Difference.NEGATIVE_INDEX_PER_CALL)
    for it, passes in ((ours, False), (theirs, True)):
        it.sentinel.param_flow.load([ParamFlowRule(resource="r", param_idx=-1, count=1)])
        it.enter("r", "a")
        outcome = it.sentinel.try_entry("r", "b", "a")
        assert isinstance(outcome, Entry) is passes


def test_spaces_around_a_callers_name_are_no_part_of_it(both: Any) -> None:
    ours, theirs = both(Difference.AUTHORITY_NAMES_TRIMMED)
    for it, passes in ((ours, False), (theirs, True)):
        it.sentinel.authority.load([AuthorityRule(resource="r", limit_app="one, two", strategy=1)])
        with it.sentinel.context("c", "two"):
            assert it.passes_one() is passes


def test_a_list_without_a_good_rule_leaves_the_old_ones(both: Any) -> None:
    ours, theirs = both(Difference.EMPTY_RESULT_KEEPS_RULES)
    for it, applied in ((ours, False), (theirs, True)):
        it.sentinel.flow.load([FlowRule(resource="r", count=0)])
        report = it.sentinel.flow.load([FlowRule(resource="r", count=-1)])
        assert report.applied is applied
        assert it.passes_one() is applied
        assert it.sentinel.flow.load([]).applied
        assert it.passes_one()


def test_a_second_authority_rule_of_a_resource_is_said_to_be_too_many(bench: Bench) -> None:
    report = bench.sentinel.authority.load(
        [AuthorityRule(resource="r", limit_app="a"), AuthorityRule(resource="r", limit_app="b")]
    )
    assert (report.in_force, report.refused[0].index) == (1, 1)


def test_authority(bench: Bench) -> None:
    bench.sentinel.authority.load(
        [
            AuthorityRule(resource="w", limit_app="a,b"),
            AuthorityRule(resource="b", limit_app="a,b", strategy=1),
        ]
    )
    for caller, white, black in (
        ("a", True, False),
        ("c", False, True),
        ("", True, True),
        ("a,b", False, True),
    ):
        with bench.sentinel.context("c", caller):
            assert (bench.passes_one("w"), bench.passes_one("b")) == (white, black), caller
    with bench.sentinel.context("c", "c"):
        block = bench.refusal("w")
    assert isinstance(block, BlockException)
    assert block.origin == "c"
