"""What holds for every schedule of calls."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings, strategies as st

from seckill.sentinel import (
    AS_ORIGINAL,
    BlockException,
    Difference,
    Entry,
    FlowRule,
    ParamFlowRule,
    Settings,
    SystemRule,
)
from seckill.sentinel.words import ControlBehavior, EntryType, FlowGrade

if TYPE_CHECKING:
    from collections.abc import Callable

    from unit.sentinel.engines import Bench


SECOND_NS = 1_000_000_000

# Pauses, in ms, that like the seams of milliseconds, buckets and seconds.
pauses = st.sampled_from(
    [0, 0, 0.000001, 0.3, 0.999999, 1, 3, 99, 249.5, 250, 499, 500, 501, 999.7, 1000, 1001, 60_000]
)
steps = st.lists(st.tuples(pauses, st.integers(1, 12), st.integers(1, 3)), max_size=60)


def worst_window(passes: list[tuple[int, int]]) -> int:
    """The most units that passed in any second, wherever it begins; times in nanoseconds."""
    window: deque[tuple[int, int]] = deque()
    used = worst = 0
    for at_ns, count in passes:
        window.append((at_ns, count))
        used += count
        while window[0][0] <= at_ns - SECOND_NS:
            used -= window.popleft()[1]
        worst = max(worst, used)
    return worst


@settings(max_examples=120, deadline=None)
@given(count=st.integers(0, 20), schedule=steps, prioritized=st.booleans(), warm=st.booleans())
# At the end of a millisecond, and again within the second that begins there: the long way in, and
# the short one.
@example(count=10, schedule=[(0.999999, 12, 1), (999.7, 12, 1)], prioritized=False, warm=False)
@example(
    count=10,
    schedule=[(0, 1, 1), (1000.999999, 12, 1), (999.7, 12, 1)],
    prioritized=False,
    warm=False,
)
def test_no_window_passes_more_than_its_rule(
    benches: Callable[..., Bench], count: Any, schedule: Any, prioritized: Any, warm: Any
) -> None:
    it = benches()
    behavior = ControlBehavior.WARM_UP if warm else ControlBehavior.REJECT
    it.sentinel.flow.load([FlowRule(resource="r", count=count, control_behavior=behavior)])
    passed = []
    for pause_ms, calls, units in schedule:
        it.clock.advance_ms(pause_ms)
        for number in range(calls):
            outcome = it.sentinel.try_entry(
                "r", count=units, prioritized=prioritized and number % 2 == 0
            )
            if isinstance(outcome, Entry):
                outcome.exit()
                passed.append((it.clock.now_ns(), units))
    assert worst_window(passed) <= count


def test_the_control_the_originals_window_does_pass_more(benches: Callable[..., Bench]) -> None:
    it = benches(undone=frozenset({Difference.SLIDING_WINDOW}))
    it.sentinel.flow.load([FlowRule(resource="r", count=10)])
    passed = []
    for at_ms in (499, 1000):
        it.at(at_ms)
        passed.append((at_ms * 1_000_000, it.passes(20)))
    assert worst_window(passed) == 20


@settings(max_examples=60, deadline=None)
@given(schedule=steps, sample_count=st.sampled_from([1, 2, 4, 10]), undone=st.booleans())
def test_the_views_of_a_second_and_of_a_minute_add_up(
    benches: Callable[..., Bench], schedule: Any, sample_count: Any, undone: Any
) -> None:
    it = benches(
        settings=Settings(sample_count=sample_count, undone=AS_ORIGINAL if undone else frozenset())
    )
    it.sentinel.flow.load([FlowRule(resource="r", count=9)])
    counted = {"passed": 0, "blocked": 0, "exceptions": 0, "success": 0}
    for pause_ms, calls, units in schedule:
        it.clock.advance_ms(min(pause_ms, 400))
        for number in range(calls):
            outcome = it.sentinel.try_entry("r", count=units, entry_type=EntryType.IN)
            if isinstance(outcome, BlockException):
                counted["blocked"] += units
                continue
            counted["passed"] += units
            counted["success"] += units
            if number % 3 == 0:
                outcome.set_error(ValueError())
                counted["exceptions"] += units
            outcome.exit()
    now_ns = it.clock.now_ns()
    for node in (it.sentinel.node("r"), it.sentinel.inbound):
        if node is None:
            continue
        minute = node.minute(now_ns)
        rows = list(node.seconds(now_ns))
        for name, number in counted.items():
            assert getattr(minute, name) == number
            assert sum(getattr(row, name) for row in rows) == number
        # The second window is never more than what those seconds saw in which it lies.
        assert node.window_passed <= sum(row.passed for row in rows[-2:])
        assert node.concurrency == 0


@settings(max_examples=60, deadline=None)
@given(schedule=steps, limit=st.integers(0, 5), grade=st.sampled_from(["flow", "value", "system"]))
def test_never_more_calls_in_flight_than_the_rule(
    benches: Callable[..., Bench], schedule: Any, limit: Any, grade: Any
) -> None:
    it = benches()
    thread = FlowGrade.THREAD
    if grade == "flow":
        it.sentinel.flow.load([FlowRule(resource="r", count=limit, grade=thread)])
    elif grade == "value":
        it.sentinel.param_flow.load(
            [ParamFlowRule(resource="r", param_idx=0, count=limit, grade=thread)]
        )
    else:
        it.sentinel.system.load([SystemRule(max_thread=limit)])
    most = limit + 1 if grade == "system" else limit
    running: deque[Entry] = deque()
    for pause_ms, calls, ends in schedule:
        it.clock.advance_ms(pause_ms)
        for _ in range(calls):
            try:
                running.append(it.enter("r", "value", entry_type=EntryType.IN))
            except AssertionError:
                assert len(running) >= most
        assert len(running) <= most
        for _ in range(min(ends, len(running))):
            running.popleft().exit()


@settings(max_examples=40, deadline=None)
@given(
    count=st.floats(0.5, 5000, allow_nan=False),
    gaps_ms=st.lists(st.integers(0, 40), max_size=80),
    queue_ms=st.integers(1, 1000),
)
def test_paced_turns_are_apart_and_no_wait_is_too_long(
    benches: Callable[..., Bench], count: Any, gaps_ms: Any, queue_ms: Any
) -> None:
    it = benches(advance=False)
    rule = FlowRule(
        resource="r",
        count=count,
        control_behavior=ControlBehavior.RATE_LIMITER,
        max_queueing_time_ms=queue_ms,
    )
    it.sentinel.flow.load([rule])
    turns = []
    for gap_ms in gaps_ms:
        it.clock.advance_ms(gap_ms)
        before = len(it.waiter.waits_ns)
        if it.passes_one():
            wait_ns = sum(it.waiter.waits_ns[before:])
            assert wait_ns <= queue_ms * 1_000_000
            turns.append(it.clock.now_ns() + wait_ns)
    apart_ns = 1e9 / count
    assert all(later - earlier >= apart_ns - 1 for earlier, later in itertools.pairwise(turns))


def test_the_same_schedule_gives_the_same_answers(benches: Callable[..., Bench]) -> None:
    def play() -> list[bool]:
        it = benches()
        it.sentinel.flow.load([FlowRule(resource="r", count=7)])
        found = []
        for at_ms in range(0, 3000, 37):
            it.at(at_ms)
            found.append(it.passes_one())
        return found

    assert play() == play()
    assert sum(play()[: 1000 // 37 + 1]) == pytest.approx(7)
