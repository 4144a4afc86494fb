"""Entries: nesting, order, errors, coroutines, the call tree."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import (
    BlockException,
    DegradeRule,
    Entry,
    EntryState,
    EntryType,
    ErrorEntryFreeException,
    FlowException,
    FlowRule,
    Links,
    Sentinel,
    SlotOrder,
    VirtualClock,
)
from seckill.sentinel.words import ControlBehavior

if TYPE_CHECKING:
    from unit.sentinel.engines import Bench


def test_with_lets_in_and_counts(bench: Bench) -> None:
    with bench.sentinel.entry("r", entry_type=EntryType.IN) as entry:
        assert entry.state is EntryState.PASSED
        assert bench.sentinel.node("r").concurrency == 1
        bench.clock.advance_ms(30)
    node = bench.sentinel.node("r")
    assert (node.concurrency, node.window_passed, node.window_success, node.window_rt_ms) == (
        0,
        1,
        1,
        30,
    )
    assert bench.sentinel.inbound.window_passed == 1


def test_with_raises_the_refusal_and_runs_nothing(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", count=0)])
    with pytest.raises(FlowException) as raised, bench.sentinel.entry("r"):
        pytest.fail("must not run")
    assert raised.value.resource == "r"
    assert bench.sentinel.node("r").window_blocked == 1
    assert bench.sentinel.blocks == {("flow", "r", "default"): 1}


def test_an_error_is_counted_and_goes_on(bench: Bench) -> None:
    with pytest.raises(ValueError, match="mine"), bench.sentinel.entry("r"):
        raise ValueError("mine")
    assert bench.sentinel.node("r").window_exceptions == 1


def test_a_refusal_inside_is_no_error_outside(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="inner", count=0)])
    with (
        pytest.raises(BlockException),
        bench.sentinel.entry("outer"),
        bench.sentinel.entry("inner"),
    ):
        pass
    assert bench.sentinel.node("outer").window_exceptions == 0


def test_an_error_that_is_handled_can_be_traced(bench: Bench) -> None:
    with bench.sentinel.entry("r"):
        bench.sentinel.trace(ValueError())
    bench.sentinel.trace(ValueError())  # outside of any entry: nothing to count
    assert bench.sentinel.node("r").window_exceptions == 1


def test_which_errors_count_can_be_set(bench: Bench) -> None:
    bench.sentinel.traces = lambda error: not isinstance(error, KeyError)
    for error in (KeyError(), ValueError()):
        with pytest.raises(type(error)), bench.sentinel.entry("r"):
            raise error
    assert bench.sentinel.node("r").window_exceptions == 1


def test_an_entry_is_used_once(bench: Bench) -> None:
    entry = bench.sentinel.entry("r")
    with pytest.raises(ErrorEntryFreeException):
        entry.exit()
    with entry:
        pass
    with pytest.raises(ErrorEntryFreeException), entry:
        pass
    with pytest.raises(ErrorEntryFreeException):
        entry.exit()
    assert bench.sentinel.node("r").window_success == 1


def test_ending_out_of_turn_ends_what_is_inside_and_says_so(bench: Bench) -> None:
    outer = bench.sentinel.try_entry("outer")
    inner = bench.sentinel.try_entry("inner")
    with pytest.raises(ErrorEntryFreeException, match="inner"):
        outer.exit()
    assert inner.state is EntryState.ENDED
    assert all(bench.sentinel.node(name).concurrency == 0 for name in ("outer", "inner"))
    assert bench.passes_one("next")


def test_a_negative_count_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="-1"):
        bench.sentinel.entry("r", count=-1)


def test_the_call_tree(bench: Bench) -> None:
    with bench.sentinel.context("shop", "app"), bench.sentinel.entry("order"):
        with bench.sentinel.entry("pay"):
            pass
        with bench.sentinel.entry("send"):
            pass
    with bench.sentinel.entry("pay"):
        pass
    entrances = bench.sentinel.entrances
    assert list(entrances) == ["sentinel_default_context", "shop"]
    order = entrances["shop"].children["order"]
    assert list(order.children) == ["pay", "send"]
    assert list(entrances["sentinel_default_context"].children) == ["pay"]
    # One resource in two contexts: each counts for itself, the resource for both.
    assert order.children["pay"].statistic.window_passed == 1
    assert entrances["sentinel_default_context"].children["pay"].statistic.window_passed == 1
    assert bench.sentinel.node("pay").window_passed == 2
    assert bench.sentinel.node("order").origins["app"].window_passed == 1


def test_counts_part_when_a_second_context_comes(bench: Bench) -> None:
    with bench.sentinel.context("one"):
        running = bench.enter()
        bench.passes(2)
    with bench.sentinel.context("two"):
        bench.passes(4)
    running.exit()
    contexts = bench.sentinel.node("r").contexts
    assert [contexts[name].statistic.window_passed for name in ("one", "two")] == [3, 4]
    assert [contexts[name].statistic.concurrency for name in ("one", "two")] == [0, 0]
    assert bench.sentinel.node("r").window_passed == 7


def test_the_default_context_cannot_be_named(bench: Bench) -> None:
    with (
        pytest.raises(ValueError, match="default"),
        bench.sentinel.context("sentinel_default_context"),
    ):
        pass


async def test_coroutines_wait_without_holding_each_other_up(bench: Bench) -> None:
    rule = FlowRule(resource="r", count=10, control_behavior=ControlBehavior.RATE_LIMITER)
    bench.sentinel.flow.load([rule])

    async def one() -> None:
        async with bench.sentinel.entry("r"):
            await asyncio.sleep(0)

    await asyncio.gather(*(one() for _ in range(4)))
    assert len(bench.waiter.waits_ns) == 3
    assert bench.sentinel.node("r").concurrency == 0


async def test_tasks_have_their_own_innermost_entry(bench: Bench) -> None:
    async with bench.sentinel.entry("parent"):

        async def child(name: str) -> None:
            async with bench.sentinel.entry(name):
                await asyncio.sleep(0.001)
                bench.sentinel.trace(ValueError(name))

        await asyncio.gather(child("a"), child("b"))
    assert bench.sentinel.node("a").window_exceptions == 1
    assert bench.sentinel.node("b").window_exceptions == 1
    assert bench.sentinel.node("parent").window_exceptions == 0
    tree = bench.sentinel.entrances["sentinel_default_context"].children["parent"].children
    assert sorted(tree) == ["a", "b"]


async def test_a_task_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    sentinel = Sentinel(clock=VirtualClock())
    rule = FlowRule(
        resource="r",
        count=1,
        control_behavior=ControlBehavior.RATE_LIMITER,
        max_queueing_time_ms=9000,
    )
    sentinel.flow.load([rule])
    async with sentinel.entry("r"):
        pass

    async def waiting() -> None:
        async with sentinel.entry("r"):
            pytest.fail("must not run")

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    node = sentinel.node("r")
    assert (node.concurrency, node.window_passed) == (0, 1)


async def test_an_entry_may_end_in_another_task(bench: Bench) -> None:
    entry = bench.sentinel.entry("r")

    async def begin() -> None:
        assert entry.decide() is None

    await asyncio.create_task(begin())
    entry.exit()
    assert bench.sentinel.node("r").concurrency == 0


async def test_the_refusal_as_a_value(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", count=1)])
    first = await bench.sentinel.try_entry_async("r")
    assert isinstance(first, Entry)
    first.exit()
    assert isinstance(await bench.sentinel.try_entry_async("r"), FlowException)


def test_switched_off_everything_passes_uncounted(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", count=0)])
    bench.sentinel.enabled = False
    assert bench.passes(3) == 3
    bench.sentinel.enabled = True
    assert bench.passes(3) == 0
    assert bench.sentinel.node("r").window_passed == 0


class Refusing:
    """A slot of one's own, behind everything else."""

    order = 0

    def __init__(self) -> None:
        self.on = True

    def links(self, _resource: Any) -> Any:
        return Links((self.check,))

    def check(self, entry: Any, _now_ns: Any) -> Any:
        return BlockException(entry.name, None, "default", 1, 0) if self.on else None


def test_a_slot_of_ones_own_sends_the_probe_back(bench: Bench) -> None:
    rule = DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=2)
    bench.sentinel.degrade.load([rule])
    entry = bench.enter()
    entry.set_error(ValueError())
    entry.exit()
    slot = Refusing()
    bench.sentinel.add_slot(slot)
    bench.at(2000)
    assert not bench.passes_one()
    slot.on = False
    assert bench.passes_one(), "the probe may be sent again at once"


def test_a_slot_before_the_counting_is_refused(bench: Bench) -> None:
    slot = Refusing()
    slot.order = SlotOrder.STATISTIC
    with pytest.raises(ValueError, match="order"):
        bench.sentinel.add_slot(slot)


def test_a_fault_inside_never_stops_the_caller(bench: Bench) -> None:
    class Broken(Refusing):
        def check(self, _entry: Any, _now_ns: Any) -> None:
            raise ZeroDivisionError

    bench.sentinel.flow.load([FlowRule(resource="r", count=1)])
    bench.sentinel.add_slot(Broken())
    assert bench.passes(2) == 1
    assert bench.sentinel.alarms.internal_errors == 1
    assert isinstance(bench.sentinel.alarms.last_error, ZeroDivisionError)


def test_listeners_hear_of_refusals_and_cannot_break_anything(bench: Bench) -> None:
    heard = []
    bench.sentinel.block_listeners.append(
        lambda entry, block: heard.append((entry.name, block.kind))
    )
    bench.sentinel.block_listeners.append(lambda _entry, _block: 1 / 0)
    bench.sentinel.flow.load([FlowRule(resource="r", count=0)])
    bench.passes(2)
    assert heard == [("r", "flow")] * 2
    assert bench.sentinel.alarms.listener_errors == 2


def test_the_system_clock_goes_with_the_wall() -> None:
    sentinel = Sentinel()
    before_ms = time.time() * 1000
    now_ms = sentinel.clock.now_ms()
    assert before_ms - 1000 < now_ms < time.time() * 1000 + 1000
    with sentinel.entry("r"):
        pass
    # Of a minute, not of a second: a machine that stood still would have left that behind.
    assert sentinel.node("r").minute(sentinel.clock.now_ns()).passed == 1
