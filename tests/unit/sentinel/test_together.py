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
    Sentinel,
)
from seckill.sentinel.together import end_together
from unit.sentinel.engines import make_bench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unit.sentinel.engines import Bench

# One call: its resource, the way of its traffic, its units, where from, how long ago, has it failed.
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(EntryType),
        st.integers(1, 3),
        st.sampled_from(["", "shop"]),
        st.integers(0, 700),
        st.booleans(),
    ),
    max_size=12,
)
Call = tuple[str, EntryType, int, str, int, bool]


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
    for name, way, units, origin, ago_ms, failed in sorted(calls, key=lambda call: -call[4]):
        bench.at(1_000 - ago_ms)
        with bench.sentinel.context("web", origin) if origin else bench.sentinel.context("web"):
            entry = bench.enter(name, count=units, entry_type=way)
        if failed:
            entry.set_error(ValueError())
        entries.append(entry)
    bench.at(1_000)
    return entries


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
    calls: list[Call] = [("b", EntryType.IN, 1, "", 5, True)] * 3
    end_together(bench.sentinel, opened(bench, calls))
    (breaker,) = bench.sentinel.degrade.breakers_for("b")
    assert breaker.state is BreakerState.OPEN


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
