"""Numbers of one engine, and of several as one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from seckill.sentinel import EntryType, ResourceType, Sentinel, VirtualClock
from seckill.sentinel.transport import Counts, EngineSource, MetricRow, SummedSource, TreeRow
from seckill.sentinel.transport.counts import summed_trees
from seckill.sentinel.transport.engine_source import NODES_PER_HOLD

if TYPE_CHECKING:
    from unit.sentinel.engines import Bench


def work(sentinel: Sentinel, clock: VirtualClock, *, calls: int = 3, rt_ms: int = 10) -> None:
    """Calls from one caller into a shop, each with a store behind it."""
    with sentinel.context("shop", origin="app-1"):
        for _ in range(calls):
            with (
                sentinel.entry("buy", entry_type=EntryType.IN, resource_type=ResourceType.WEB),
                sentinel.entry("stock"),
            ):
                clock.advance_ms(rt_ms)


async def test_the_tree_has_the_root_contexts_and_resources(bench: Bench) -> None:
    work(bench.sentinel, bench.clock)
    rows = await EngineSource(bench.sentinel).tree()
    shown = [(row.counts.name, row.parent, row.entrance, row.counts.passed) for row in rows]
    assert shown == [
        ("machine-root", -1, True, 3),
        ("sentinel_default_context", 0, True, 0),
        ("shop", 0, True, 3),
        ("buy", 2, False, 3),
        ("stock", 3, False, 3),
    ]


async def test_a_resource_in_two_contexts_counts_for_each(bench: Bench) -> None:
    work(bench.sentinel, bench.clock)
    bench.passes(2, "buy")
    rows = await EngineSource(bench.sentinel).tree()
    passed = {(rows[row.parent].counts.name, row.counts.name): row.counts.passed for row in rows}
    assert passed["shop", "buy"] == 3
    assert passed["sentinel_default_context", "buy"] == 2
    assert rows[0].counts.passed == 5
    assert (await EngineSource(bench.sentinel).resources())[0].passed == 5


async def test_the_response_time_of_a_context_is_that_of_the_calls_that_ended(
    bench: Bench,
) -> None:
    slow, quick = bench.enter("slow"), bench.enter("quick")
    under_way = [bench.enter("slow") for _ in range(8)]
    quick.exit()
    bench.clock.advance_ms(100)
    slow.exit()
    rows = await EngineSource(bench.sentinel).tree()
    # By calls that were let in it would be 90: eight of them have not ended.
    assert {row.counts.name: row.counts.average_rt_ms for row in rows} == {
        "machine-root": 50,
        "sentinel_default_context": 50,
        "slow": 100,
        "quick": 0,
    }
    for entry in under_way:
        entry.exit()


async def test_a_deep_chain_of_calls_is_no_trouble(bench: Bench) -> None:
    entries = [bench.sentinel.try_entry(f"r{depth}") for depth in range(3_000)]
    rows = await EngineSource(bench.sentinel).tree()
    assert [row.parent for row in rows[2:5]] == [1, 2, 3]
    assert len(rows) == 3_002
    for entry in reversed(entries):
        entry.exit()  # type: ignore[union-attr]


async def test_callers_inbound_and_minutes(bench: Bench) -> None:
    work(bench.sentinel, bench.clock)
    bench.clock.advance_ms(2_000)
    source = EngineSource(bench.sentinel)
    (caller,) = await source.origins("buy")
    assert (caller.name, caller.passed, caller.minute_passed) == ("app-1", 0, 3)
    assert await source.origins("nobody") == []
    inbound = await source.inbound()
    assert (inbound.name, inbound.minute_total) == ("__total_inbound_traffic__", 3)


async def test_seconds_are_given_once_they_are_over(bench: Bench) -> None:
    source = EngineSource(bench.sentinel)
    work(bench.sentinel, bench.clock)
    assert await source.finished_seconds(0) == []
    bench.at(1_000)
    rows = await source.finished_seconds(0)
    start = bench.start_ms
    assert rows == [
        MetricRow(start, "buy", 3, 0, 3, 0, 30, 0, 0, 1),
        MetricRow(start, "stock", 3, 0, 3, 0, 30, 0, 0, 0),
        MetricRow(start, "__total_inbound_traffic__", 3, 0, 3, 0, 30, 0, 0, 0),
    ]
    assert await source.finished_seconds(start) == []
    assert await source.finished_seconds(start - 1) == rows


async def test_a_call_that_comes_in_between_does_not_bring_a_second_too_early(
    bench: Bench,
) -> None:
    # More nodes than are read at once, and time that moves on while the first are being read.
    for number in range(2 * NODES_PER_HOLD):
        bench.passes(1, f"r{number}")
    bench.at(999)
    source = EngineSource(bench.sentinel)
    asking = asyncio.create_task(source.finished_seconds(0))
    await asyncio.sleep(0)
    bench.at(1_000)
    bench.passes(1, f"r{2 * NODES_PER_HOLD - 1}")
    assert await asking == []


async def test_rules_go_to_the_engine(bench: Bench) -> None:
    source = EngineSource(bench.sentinel)
    report = await source.load_rules("flow", '[{"resource":"r","count":2}]', None)  # type: ignore[arg-type]
    assert report.in_force == 1
    assert bench.passes(5) == 2
    assert '"count":2' in await source.dump_rules("flow")
    await source.set_enabled(enabled=False)
    assert not await source.enabled()
    assert bench.passes(5) == 5


def summed(*benches: Bench) -> SummedSource:
    sources = [EngineSource(one.sentinel) for one in benches]
    return SummedSource(lambda: sources, now_ms=benches[0].clock.now_ms)


async def test_two_processes_are_one_machine(bench: Bench, original: Bench) -> None:
    for one, calls, rt_ms in ((bench, 3, 10), (original, 1, 50)):
        work(one.sentinel, one.clock, calls=calls, rt_ms=rt_ms)
    original.passes(1, "only-there")
    source = summed(bench, original)
    found = {counts.name: counts for counts in await source.resources()}
    assert list(found) == ["buy", "stock", "only-there"]
    assert (found["buy"].passed, found["buy"].average_rt_ms) == (4, 20.0)
    tree = await source.tree()
    assert [row.counts.name for row in tree].count("buy") == 1
    assert tree[0].counts.passed == 5
    assert (await source.inbound()).passed == 4
    assert [one.passed for one in await source.origins("buy")] == [4]
    for one in (bench, original):
        one.at(1_000)
    rows = {row.resource: row for row in await source.finished_seconds(0)}
    assert (rows["buy"].passed, rows["buy"].average_rt_ms) == (4, 20)


class Dying:
    """A process that is not there any more, or does not answer."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs

    async def resources(self) -> list[Counts]:
        if self.hangs:
            await asyncio.Event().wait()
        raise ConnectionResetError("gone")


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_process_that_dies_does_not_hide_the_others(
    bench: Bench, caplog: pytest.LogCaptureFixture, hangs: bool
) -> None:
    bench.passes(3)
    sources = [Dying(hangs=hangs), EngineSource(bench.sentinel)]
    source = SummedSource(lambda: sources, now_ms=bench.clock.now_ms, timeout_s=0.05)  # type: ignore[arg-type,return-value]
    for _ in range(3):
        assert [counts.passed for counts in await source.resources()] == [3]
    assert source.left_out == 3
    assert caplog.text.count("left out") == 1


def row(parent: int, name: str, passed: int) -> TreeRow:
    return TreeRow(parent=parent, entrance=False, counts=Counts(name=name, passed=passed))


def test_trees_are_laid_over_each_other_by_the_way_to_each_place() -> None:
    one = [row(-1, "root", 1), row(0, "a", 1), row(1, "x", 1)]
    two = [row(-1, "root", 10), row(0, "b", 10), row(1, "x", 10), row(0, "a", 10)]
    merged = [(one.parent, one.counts.name, one.counts.passed) for one in summed_trees([one, two])]
    assert merged == [
        (-1, "root", 11),
        (0, "a", 11),
        (1, "x", 1),
        (0, "b", 10),
        (3, "x", 10),
    ]
