"""What the web processes of a host tell the one that speaks for it."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from seckill.runtime.flow_statistics import (
    NumbersMissing,
    PublishedStatistics,
    StatisticsPublisher,
)
from seckill.sentinel import EntryType, FlowRule, Sentinel, VirtualClock
from seckill.sentinel.transport import EngineSource, SummedSource


def busy_engine(clock: VirtualClock, calls: int, limit: int) -> Sentinel:
    sentinel = Sentinel(clock=clock)
    sentinel.flow.load([FlowRule(resource="sale", count=limit)])
    for number in range(calls):
        with sentinel.context("web", f"caller-{number % 2}"):
            entered = sentinel.try_entry("sale", entry_type=EntryType.IN)
            if not isinstance(entered, Exception):
                entered.exit()
    return sentinel


async def test_what_is_read_is_what_the_engine_says(tmp_path: Path) -> None:
    clock = VirtualClock()
    sentinel = busy_engine(clock, 7, 4)
    source = EngineSource(sentinel)
    clock.advance_ms(1_200)
    await StatisticsPublisher(sentinel, tmp_path / "web-0").publish()
    read = PublishedStatistics(tmp_path / "web-0", clock.now_ms)
    assert await read.resources() == await source.resources()
    assert await read.tree() == await source.tree()
    assert await read.origins("sale") == await source.origins("sale") != []
    assert await read.origins("else") == []
    assert await read.inbound() == await source.inbound()
    assert len(await read.machine()) == 2
    seconds = await read.finished_seconds(0)
    assert seconds == await source.finished_seconds(0)
    assert {(row.resource, row.passed, row.blocked) for row in seconds} == {
        ("sale", 4, 3),
        ("__total_inbound_traffic__", 4, 3),
    }
    assert await read.finished_seconds(seconds[-1].at_ms) == []


async def test_one_host_appears_as_one_machine_with_the_sum_of_its_processes(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    engines = [busy_engine(clock, 5, 2), busy_engine(clock, 9, 8)]
    paths = [tmp_path / f"web-{slot}" for slot in range(3)]
    for sentinel, path in zip(engines, paths, strict=False):
        await StatisticsPublisher(sentinel, path).publish()
    published = [PublishedStatistics(path, clock.now_ms) for path in paths]
    host = SummedSource(lambda: [one for one in published if one.is_there()], now_ms=clock.now_ms)
    (sale,) = await host.resources()
    assert (sale.passed, sale.blocked) == (10, 4)
    assert (await host.inbound()).total == 14
    assert [row.counts.name for row in await host.tree() if row.counts.total][:1] == [
        "machine-root"
    ]
    assert host.left_out == 0


async def test_numbers_of_a_process_that_is_gone_are_not_shown(tmp_path: Path) -> None:
    clock = VirtualClock()
    sentinel = busy_engine(clock, 1, 1)
    path = tmp_path / "web-0"
    read = PublishedStatistics(path, clock.now_ms)
    with pytest.raises(NumbersMissing, match="web-0"):
        await read.resources()
    await StatisticsPublisher(sentinel, path).publish()
    assert await read.resources()
    clock.advance_ms(3_001)
    with pytest.raises(NumbersMissing):
        await read.resources()
    assert await read.finished_seconds(0) == [], "the running second was not over"
    await StatisticsPublisher(sentinel, path).publish()
    assert await read.resources()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", json.dumps({"at_ms": 1}).encode()])
async def test_a_file_of_something_else_is_no_numbers(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "web-0"
    path.write_bytes(content)
    with pytest.raises(NumbersMissing):
        await PublishedStatistics(path, VirtualClock().now_ms).resources()


async def test_a_disk_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    publisher = StatisticsPublisher(Sentinel(clock=VirtualClock()), tmp_path / "none" / "web-0")
    with capture_logs() as log:
        await publisher.publish()
        await publisher.publish()
        (tmp_path / "none").mkdir()
        await publisher.publish()
    assert len(log) == 1
    assert (tmp_path / "none" / "web-0").exists()
