"""The short way in and out answers and counts as the long one does, and nothing gets in between."""

from __future__ import annotations

import asyncio
import contextvars
import dis
import gc
import inspect
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from seckill.sentinel import (
    AS_ORIGINAL,
    BlockException,
    DegradeRule,
    Entry,
    EntryState,
    EntryType,
    ErrorEntryFreeException,
    FlowRule,
    Links,
    Sentinel,
    Settings,
    SlotOrder,
    SystemRule,
    VirtualClock,
)
from seckill.sentinel.rule_set import RESOURCE_LENGTH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from unit.sentinel.engines import Bench

# Where CPython looks whether another thread shall run: calls, jumps backward, the start of a
# function, and whatever may run somebody else's code.
LETTING_GO = (
    "CALL",
    "JUMP_BACKWARD",
    "RESUME",
    "SEND",
    "YIELD",
    "FOR_ITER",
    "BEFORE_WITH",
    "IMPORT",
)


def stretch(function: Any, first: str, last: str) -> list[dis.Instruction]:
    """The byte code of the lines from one text to another, the line of ``last`` left out."""
    lines, start = inspect.getsourcelines(function)
    texts = [line.strip() for line in lines]
    begin = start + next(at for at, text in enumerate(texts) if text.startswith(first))
    end = start + next(at for at, text in enumerate(texts) if text.startswith(last))
    assert begin < end
    found = []
    line = 0
    for instruction in dis.get_instructions(function):
        position = instruction.positions
        line = line if position is None or position.lineno is None else position.lineno
        if begin < line < end:
            found.append(instruction)
    return found


# What ends a stretch early: it goes the long way, and has written nothing yet.
GOING_AWAY = ("_enter_long", "_enter_renewed")


@pytest.mark.parametrize(
    ("function", "writes"),
    [
        (Entry._enter, {"passed", "concurrency", "places_end", "place_base", "place_ns", "state"}),
        (Entry.__exit__, {"window_success", "concurrency", "bucket_min_rt_ms", "state"}),
    ],
)
def test_no_other_thread_can_run_in_the_middle(function: Any, writes: Any) -> None:
    steps = stretch(function, "# One step to all other threads", "# To here.")
    away = False
    written = set()
    for step in steps:
        if step.argval in GOING_AWAY:
            away = True
        if step.opname == "RETURN_VALUE":
            away = False
        if step.opname == "STORE_ATTR" and not away:
            written.add(step.argval)
        if not away:
            assert not step.opname.startswith(LETTING_GO), step
    assert writes <= written, "the test looks at the wrong lines"


MS = 1_000_000
gaps_ns = st.sampled_from(
    [0, 0, 0, 1, 300, MS - 1, MS, MS + 1, 4_300_000, 500 * MS - 1, 500 * MS, 1000 * MS, 61_000 * MS]
)
calls = st.tuples(
    gaps_ns,
    st.sampled_from(["a", "b", "free"]),
    st.integers(0, 3),
    st.sampled_from(list(EntryType)),
    st.sampled_from(["at once", "later", "failed"]),
    gaps_ns,
)


@settings(max_examples=150, deadline=None)
@given(
    schedule=st.lists(calls, max_size=60),
    limit=st.integers(0, 6),
    undone=st.booleans(),
    start_ns=st.sampled_from([0, 1, 250_000, 999_999]),
    system=st.booleans(),
)
def test_both_ways_give_the_same_answers_and_counts(
    schedule: Any, limit: Any, undone: Any, start_ns: Any, system: Any
) -> None:
    engines = []
    for locks_always in (False, True):
        clock = VirtualClock()
        clock.advance_ns(start_ns)
        sentinel = Sentinel(
            clock=clock, settings=Settings(undone=AS_ORIGINAL if undone else frozenset())
        )
        sentinel.lock.locks_always |= locks_always
        sentinel.flow.load(
            [FlowRule(resource="a", count=limit), FlowRule(resource="b", count=limit + 0.5)]
        )
        if system:
            sentinel.system.load([SystemRule(qps=limit + 4)])
        engines.append((sentinel, clock))
    waiting: list[list[Entry]] = [[], []]
    for gap_ns, name, count, entry_type, end, span_ns in schedule:
        answers = []
        for (sentinel, clock), open_entries in zip(engines, waiting, strict=True):
            clock.advance_ns(gap_ns)
            outcome = sentinel.try_entry(name, count=count, entry_type=entry_type)
            answers.append(type(outcome))
            if isinstance(outcome, Entry):
                clock.advance_ns(span_ns)
                if end == "failed":
                    outcome.set_error(ValueError())
                if end == "later":
                    open_entries.append(outcome)
                else:
                    outcome.exit()
        assert answers[0] is answers[1]
        assert state_of(*engines[0]) == state_of(*engines[1])
    for open_entries in waiting:
        for entry in reversed(open_entries):
            entry.exit()
    assert state_of(*engines[0]) == state_of(*engines[1])
    assert all(node.concurrency == 0 for node in engines[0][0].resources.values())


def state_of(sentinel: Sentinel, clock: VirtualClock) -> list[Any]:
    """All that can be read of an engine."""
    now_ns = clock.now_ns()
    return [
        (
            node.concurrency,
            list(node.seconds(now_ns)),
            node.used(now_ns),
            node.window_passed,
            node.window_success,
            node.window_exceptions,
            node.window_rt_ms,
            node.min_rt_ms(now_ns),
        )
        for node in (*sentinel.resources.values(), sentinel.inbound)
    ]


class Ends:
    """A slot that wants to hear of the calls that end."""

    order = SlotOrder.DEGRADE + 1

    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    def links(self, _resource: object) -> Links:
        return Links(on_exit=(lambda entry, _now_ns: self.heard.append(entry.name),))


def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the entries that go the long way, from here on."""
    names: list[str] = []
    decide = Entry._decide

    def noted(self: Any) -> Any:
        names.append(self.name)
        return decide(self)

    monkeypatch.setattr(Entry, "_decide", noted)
    return names


def test_the_usual_call_goes_the_short_way(
    bench: Bench, original: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for it in (bench, original):
        if it.sentinel.lock.locks_always:
            pytest.skip("the short way is shut here")
        it.sentinel.flow.load([FlowRule(resource="r", count=3)])
        assert it.passes_one(entry_type=EntryType.IN)
        names = long_ways(monkeypatch)
        for at_ms in (1, 600):
            it.at(at_ms)
            assert it.passes_one()
        assert names == []
        it.at(601)
        assert it.passes(2, entry_type=EntryType.IN) < 2
        monkeypatch.undo()


@pytest.mark.parametrize("later_ns", [0, 1])
@pytest.mark.parametrize("inside_ns", [0, 1])
@pytest.mark.parametrize("how", ["breaker", "slot", "rule", "switch", "context", "lock"])
def test_a_change_counts_from_the_next_call_on(
    bench: Bench, how: Any, inside_ns: Any, later_ns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentinel = bench.sentinel
    bench.clock.advance_ns(inside_ns)
    sentinel.flow.load([FlowRule(resource="r", count=100)])
    assert bench.passes(3) == 3
    running = sentinel.entry("r")
    assert running.decide() is None
    node = sentinel.node("r")
    match how:
        case "breaker":
            # The call in flight began before the breaker was there; its failure counts.
            sentinel.degrade.load(
                [DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=9)]
            )
            bench.clock.advance_ns(later_ns)
            running.set_error(ValueError())
            running.exit()
            assert not bench.passes_one()
        case "slot":
            heard: list[str] = []
            sentinel.add_slot(Ends(heard))
            bench.clock.advance_ns(later_ns)
            # Another thread's call moves the engine on to the moment that it is.
            assert contextvars.Context().run(bench.passes_one, "other")
            running.exit()
            assert heard == ["other", "r"]
            with sentinel.entry("r"):
                pass
            assert heard == ["other", "r", "r"]
        case "rule":
            sentinel.flow.load([FlowRule(resource="r", count=0)])
            running.exit()
            assert not bench.passes_one()
        case "switch":
            sentinel.enabled = False
            assert bench.passes(500) == 500
            running.exit()
            assert (node.window_passed, node.window_success) == (4, 4)
        case "context":
            with sentinel.context("other"):
                assert bench.passes(2) == 2
            bench.clock.advance_ns(later_ns)
            running.exit()
            tree = node.contexts
            assert [tree[name].statistic.window_success for name in tree] == [4, 2]
            assert [tree[name].statistic.concurrency for name in tree] == [0, 0]
        case _:
            names = long_ways(monkeypatch)
            with sentinel.lock:
                assert bench.passes_one()
                running.exit()
            assert names == ["r"]
            assert bench.passes_one()
            assert names == ["r"] or sentinel.lock.locks_always
            assert (node.window_passed, node.window_success, node.concurrency) == (6, 6, 0)


def test_an_error_noted_before_the_entry_counts(bench: Bench) -> None:
    assert bench.passes_one()
    entry = bench.sentinel.entry("r")
    entry.set_error(ValueError())
    with entry:
        pass
    assert bench.sentinel.node("r").window_exceptions == 1


def test_an_entry_that_went_the_short_way_ends_once(bench: Bench) -> None:
    assert bench.passes_one()
    entry = bench.enter()
    entry.exit()
    with pytest.raises(ErrorEntryFreeException):
        entry.exit()
    with pytest.raises(ErrorEntryFreeException), entry:
        pytest.fail("must not run")
    assert (bench.sentinel.node("r").concurrency, bench.sentinel.node("r").window_success) == (0, 2)


def test_an_ended_entry_is_nobodys_parent(bench: Bench) -> None:
    sentinel = bench.sentinel
    for _ in range(2):
        with sentinel.entry("r"):
            pass
    with sentinel.entry("r") as outer, sentinel.entry("inner") as inner:
        assert inner.parent is outer
    with sentinel.entry("r") as alone:
        assert alone.parent is alone.context
        sentinel.trace(ValueError())
    sentinel.trace(ValueError("nobody is inside"))
    assert sentinel.node("r").window_exceptions == 1
    assert sentinel.node("inner").window_exceptions == 0


def test_what_was_given_to_a_call_is_not_kept_longer_than_it_lasts(bench: Bench) -> None:
    class Goods:
        pass

    assert bench.passes_one()
    goods = Goods()
    gone = weakref.ref(goods)
    with bench.sentinel.entry("r", goods):
        pass
    del goods
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("end", ["open", "ended", "failed"])
def test_place_and_start_can_be_asked_for_at_any_time(bench: Bench, known: Any, end: Any) -> None:
    if known:
        assert bench.passes_one()
    bench.clock.advance_ms(0.25)
    entry = bench.sentinel.entry("r")
    assert (entry.node, entry.start_ns) == (None, 0)
    began_ns = bench.clock.now_ns()
    assert entry.decide() is None
    match end:
        case "ended":
            entry.exit()
        case "failed":
            entry.__exit__(ValueError, ValueError(), None)
    bench.clock.advance_ms(7_000)
    assert entry.start_ns == began_ns
    assert entry.node is entry.context.nodes["r"]
    assert entry.node is entry.place


def test_a_caller_by_name_is_counted_at_its_end_too(bench: Bench) -> None:
    with bench.sentinel.context("web", "shop"):
        assert bench.passes(2) == 2
    (counted,) = bench.sentinel.node("r").origins.values()
    assert (counted.concurrency, counted.window_passed, counted.window_success) == (0, 2, 2)


def test_a_context_copied_inside_entries_that_have_ended_stands_alone(bench: Bench) -> None:
    assert bench.passes_one()
    with bench.sentinel.entry("r"), bench.sentinel.entry("r"):
        copied = contextvars.copy_context()

    def enter() -> None:
        with bench.sentinel.entry("r") as entry:
            assert entry.parent is entry.context

    copied.run(enter)


def test_ending_out_of_turn_is_told_on_the_short_way_too(bench: Bench) -> None:
    assert bench.passes_one()
    outer, inner = bench.sentinel.entry("r"), bench.sentinel.entry("r")
    assert outer.decide() is None
    assert inner.decide() is None
    with pytest.raises(ErrorEntryFreeException, match="1 inside it"):
        outer.exit()
    assert inner.state is EntryState.ENDED
    node = bench.sentinel.node("r")
    assert (node.concurrency, node.window_success) == (0, 3)


def test_place_and_start_of_a_call_that_was_not_let_in(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", count=0)])
    entry = bench.sentinel.entry("r")
    assert isinstance(entry.decide(), BlockException)
    assert entry.node is entry.context.nodes["r"]
    assert entry.start_ns == bench.clock.now_ns()


@pytest.mark.parametrize("why", ["switched off", "one resource too many"])
def test_a_call_let_in_unchecked_has_a_start_and_no_place(benches: Any, why: Any) -> None:
    it = benches(settings=Settings(resource_count_max=1))
    assert it.passes_one("first")
    if why == "switched off":
        it.sentinel.enabled = False
    with it.sentinel.entry("r") as entry:
        assert entry.state is EntryState.UNCHECKED
        assert (entry.node, entry.start_ns) == (None, it.clock.now_ns())
    assert (entry.node, entry.start_ns) == (None, it.clock.now_ns())


def test_the_place_of_a_long_name_and_of_one_place_too_many(benches: Any) -> None:
    it = benches(settings=Settings(node_count_max=2))
    long = "r" * (RESOURCE_LENGTH_MAX + 1)
    with it.sentinel.entry(long) as entry:
        assert entry.node is entry.context.nodes[long[:-1]]
    assert it.passes_one()
    with it.sentinel.context("web"), it.sentinel.entry("r") as entry:
        assert entry.node is it.sentinel.entrances["sentinel_default_context"].nodes["r"]


def test_the_start_by_the_systems_clock_is_exact() -> None:
    sentinel = Sentinel()
    for _ in range(3):
        before_ns = sentinel.clock.now_ns()
        with sentinel.entry("r") as entry:
            after_ns = sentinel.clock.now_ns()
        # What a number with a point leaves out of a reading.
        assert before_ns - 100 <= entry.start_ns <= after_ns + 100


def test_calls_of_another_context_and_calls_inside_another_end_the_short_way_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bench.sentinel.lock.locks_always:
        pytest.skip("the short way is shut here")
    assert bench.passes_one()
    complete: list[str] = []
    long = Entry._complete
    monkeypatch.setattr(
        Entry, "_complete", lambda self, error: (complete.append(self.name), long(self, error))
    )
    elsewhere = bench.enter()
    elsewhere.exit()
    assert complete == []
    for args in ((), (1,)):
        with bench.sentinel.entry("r") as around, bench.sentinel.entry("r", *args) as inside:
            assert inside.parent is around
        assert around.parent is around.context
    assert complete == []
    assert bench.sentinel.node("r").concurrency == 0


async def test_tasks_begun_in_an_entry_that_has_ended_stand_alone(
    benches: Callable[..., Bench],
) -> None:
    it = benches()
    assert it.passes_one()
    ended = asyncio.Event()
    found = []

    async def late() -> None:
        await ended.wait()
        with it.sentinel.entry("r") as entry:
            found.append(entry.parent is entry.context)

    with it.sentinel.entry("r"):
        task = asyncio.create_task(late())
        await asyncio.sleep(0)
    ended.set()
    await task
    assert found == [True]
    assert it.sentinel.node("r").concurrency == 0
