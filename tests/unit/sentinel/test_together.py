"""Calls that end together are counted as if each had ended by itself at that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from seckill.sentinel import (
    BreakerState,
    Context,
    DegradeGrade,
    DegradeRule,
    Entry,
    EntryType,
    ErrorEntryFreeException,
    FlowGrade,
    FlowRule,
    Links,
    Sentinel,
    SlotOrder,
    StateChange,
)
from seckill.sentinel.together import end_together
from unit.sentinel.engines import make_bench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unit.sentinel.engines import Bench

# One call: its resource, the way of its traffic, its units, who sends it, where it comes in, how many
# µs ago, has it failed.
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(EntryType),
        st.integers(1, 3),
        st.sampled_from(["", "shop"]),
        st.sampled_from(["web", "rpc"]),
        st.sampled_from([0, 1, 300, 999, 1_000, 1_001, 700_000]),
        st.booleans(),
    ),
    max_size=12,
)
Call = tuple[str, EntryType, int, str, str, int, bool]


def opened(bench: Bench, calls: Sequence[Call]) -> list[Entry]:
    """The calls, each in a context of its own as a server has it, oldest first."""
    bench.sentinel.degrade.load(
        [
            DegradeRule(
                resource="b",
                grade=DegradeGrade.ERROR_RATIO,
                count=0.5,
                min_request_amount=3,
                time_window=1,
            )
        ]
    )
    bench.sentinel.flow.load([FlowRule(resource="a", grade=FlowGrade.THREAD, count=1_000)])
    entries = []
    bench.at(1_000)
    now_us = 701_400
    for name, way, units, origin, context, ago_us, failed in sorted(
        calls, key=lambda call: -call[5]
    ):
        bench.clock.advance_ns(max(0, now_us - ago_us - passed_us(bench)) * 1000)
        with bench.sentinel.context(context, origin):
            entry = bench.enter(name, count=units, entry_type=way)
        if failed:
            entry.set_error(ValueError())
        entries.append(entry)
    bench.clock.advance_ns((now_us - passed_us(bench)) * 1000)
    return entries


def passed_us(bench: Bench) -> int:
    """Since the first second of a bench."""
    return bench.clock.now_ns() // 1000 - (bench.start_ms + 1_000) * 1000


def counted(sentinel: Sentinel) -> list[Any]:
    nodes = [sentinel.inbound, *(sentinel.node(name) for name in ("a", "b"))]
    return [
        None
        if node is None
        else (
            node.concurrency,
            node.window_passed,
            node.window_success,
            node.window_exceptions,
            node.window_rt_ms,
            node.bucket_min_rt_ms,
            [
                (origin, own.concurrency, own.window_success)
                for origin, own in getattr(node, "origins", {}).items()
            ],
            [
                (context, place.statistic.concurrency, place.statistic.window_rt_ms)
                for context, place in getattr(node, "contexts", {}).items()
            ],
        )
        for node in nodes
    ]


@given(calls=CALLS)
def test_they_are_counted_as_by_exit_of_each(calls: list[Call]) -> None:
    together, each = make_bench(), make_bench()
    end_together(together.sentinel, opened(together, calls))
    for entry in opened(each, calls):
        entry.exit()
    assert counted(together.sentinel) == counted(each.sentinel)
    states = [
        [breaker.state for breaker in bench.sentinel.degrade.breakers_for("b")]
        for bench in (together, each)
    ]
    assert states[0] == states[1]


def test_enough_failures_that_end_together_open_the_breaker() -> None:
    bench = make_bench()
    calls: list[Call] = [("b", EntryType.IN, 1, "", "web", 5, True)] * 3
    end_together(bench.sentinel, opened(bench, calls))
    (breaker,) = bench.sentinel.degrade.breakers_for("b")
    assert breaker.state is BreakerState.OPEN


def test_whoever_asked_to_hear_of_a_breaker_hears_of_it_once_the_calls_have_ended() -> None:
    bench = make_bench()
    heard: list[tuple[BreakerState, int]] = []
    calls: list[Call] = [("b", EntryType.IN, 1, "", "web", 5, True)] * 4
    entries = opened(bench, calls)

    def hear(change: StateChange) -> None:
        assert bench.sentinel.lock.depth == 0, "told under the lock"
        node = bench.sentinel.node("b")
        assert node is not None
        heard.append((change.current, node.concurrency))

    bench.sentinel.degrade.observers.append(hear)
    end_together(bench.sentinel, entries)
    assert heard == [(BreakerState.OPEN, 0)]


class Ends:
    """A slot that notes whose call ends, and how deep in the lock, and then may fail."""

    order = SlotOrder.DEGRADE + 1

    def __init__(self, sentinel: Sentinel, faults: Sequence[str] = ()) -> None:
        self.sentinel = sentinel
        self.faults = faults
        self.seen: list[tuple[str, int]] = []

    def links(self, _resource: object) -> Links:
        return Links(on_exit=(self.told,))

    def told(self, entry: Entry, _now_ns: int) -> None:
        self.seen.append((entry.name, self.sentinel.lock.depth))
        if entry.name in self.faults:
            raise LookupError(entry.name)


def test_slots_are_told_of_each_end_under_the_lock() -> None:
    bench = make_bench()
    slot = Ends(bench.sentinel)
    bench.sentinel.add_slot(slot)
    end_together(bench.sentinel, [bench.enter("first"), bench.enter("second")])
    assert slot.seen == [("first", 1), ("second", 1)]


def test_a_slot_that_fails_at_one_end_is_counted_and_stops_none_of_the_others() -> None:
    bench = make_bench()
    slot = Ends(bench.sentinel, faults=["first"])
    bench.sentinel.add_slot(slot)
    end_together(bench.sentinel, [bench.enter("first"), bench.enter("second")])
    assert [name for name, _ in slot.seen] == ["first", "second"]
    assert bench.sentinel.alarms.internal_errors == 1
    assert isinstance(bench.sentinel.alarms.last_error, LookupError)
    assert all(node.concurrency == 0 for node in bench.sentinel.resources.values())


def test_of_several_that_had_ended_before_the_first_is_told() -> None:
    bench = make_bench()
    entries = [bench.enter("first"), bench.enter("second")]
    for entry in entries:
        entry.exit()
    with pytest.raises(ErrorEntryFreeException, match="'first'"):
        end_together(bench.sentinel, entries)


def test_one_that_has_ended_before_is_told_and_stops_none_of_the_others() -> None:
    bench = make_bench()
    first, again, last = (bench.enter() for _ in range(3))
    again.exit()
    with pytest.raises(ErrorEntryFreeException):
        end_together(bench.sentinel, [first, again, last])
    with pytest.raises(ErrorEntryFreeException):
        end_together(bench.sentinel, [first])
    node = bench.sentinel.node("r")
    assert node is not None
    assert (node.concurrency, node.window_success) == (0, 3)


def test_one_that_the_running_code_is_inside_of_is_left_as_by_exit() -> None:
    bench = make_bench()
    other = bench.enter("other")
    with bench.sentinel.context("web") as context:
        outer = bench.sentinel.entry("outer")
        assert outer.decide() is None
        end_together(bench.sentinel, [other, outer])
        assert isinstance(context, Context)
        assert bench.sentinel.current.get() is context
