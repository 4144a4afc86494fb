"""Metric files: written as the original does, found again after anything."""

from __future__ import annotations

import asyncio
import struct
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from seckill.sentinel import Sentinel, VirtualClock
from seckill.sentinel.transport import (
    EngineSource,
    MetricFileReader,
    MetricFileWriter,
    MetricRecorder,
    MetricRow,
    metric_recorder,
)
from seckill.sentinel.transport.metric_line import MetricLine, thin

if TYPE_CHECKING:
    from pathlib import Path

# 2018-08-09 12:40:00 UTC.
START_S = 1_533_818_400
SHANGHAI = timezone(timedelta(hours=8))
NAME = "my-shop-metrics.log.2018-08-09"


def writer(folder: Path, **more: int) -> MetricFileWriter:
    bounds = {"file_bytes_max": 10_000, "file_count_max": 6} | more
    return MetricFileWriter(folder, "my.shop", zone=UTC, **bounds)


def second(offset: int, *names: str) -> list[MetricLine]:
    at_ms = (START_S + offset) * 1_000
    return [MetricLine(at_ms, name, 3, 1, 3, 0, 12, 0, 0, 1) for name in names or ("/seckill",)]


def read(folder: Path, start: int, end: int | None, **more: object) -> list[tuple[int, str]]:
    found = MetricFileReader(folder, "my.shop").read(
        (START_S + start) * 1_000 + 999,
        None if end is None else (START_S + end) * 1_000,
        **({"line_count_max": 1_000} | more),  # type: ignore[arg-type]
    )
    return [(line.at_ms // 1_000 - START_S, line.resource) for line in found]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_lines_and_index_are_those_of_the_original(tmp_path: Path) -> None:
    it = writer(tmp_path)
    it.write(second(0, "/seckill", "b|c"))
    it.write(second(2))
    it.close()
    assert names(tmp_path) == [NAME, f"{NAME}.idx"]
    first = (
        b"1533818400000|2018-08-09 12:40:00|/seckill|3|1|3|0|12|0|0|1\n"
        b"1533818400000|2018-08-09 12:40:00|b|c|3|1|3|0|12|0|0|1\n"
    )
    # Names are made fit for a line where lines are made from counts, not here.
    assert (tmp_path / NAME).read_bytes().startswith(first)
    assert (tmp_path / f"{NAME}.idx").read_bytes() == struct.pack(
        ">qqqq", START_S, 0, START_S + 2, len(first)
    )


def test_a_span_is_found_with_both_ends(tmp_path: Path) -> None:
    it = writer(tmp_path)
    for offset in range(10):
        it.write(second(offset, "a", "b"))
    assert read(tmp_path, 2, 4) == [(s, name) for s in (2, 3, 4) for name in "ab"]
    assert read(tmp_path, 8, None, identity="b") == [(8, "b"), (9, "b")]
    assert read(tmp_path, 20, 30) == []
    assert read(tmp_path, -20, -10) == []
    # Three lines are asked for; the second they end in is given whole.
    assert read(tmp_path, 0, None, line_count_max=3) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    it.close()


def test_files_roll_by_size_and_the_oldest_go(tmp_path: Path) -> None:
    it = writer(tmp_path, file_bytes_max=100, file_count_max=3)
    for offset in range(24):
        it.write(second(offset))
    it.close()
    # Two lines of 61 bytes fill a file: twelve of them, and .9 comes before .10.
    assert names(tmp_path) == sorted(
        f"{NAME}.{number}{ending}" for number in (9, 10, 11) for ending in ("", ".idx")
    )
    assert read(tmp_path, 0, None) == [(offset, "/seckill") for offset in range(18, 24)]


def test_files_roll_by_day_of_the_zone(tmp_path: Path) -> None:
    # 12:40 UTC is 20:40 in Shanghai: 3 h 20 min to midnight there.
    it = MetricFileWriter(
        tmp_path, "my.shop", file_bytes_max=10_000, file_count_max=6, zone=SHANGHAI
    )
    it.write(second(11_999))
    it.write(second(12_000))
    it.close()
    assert [one for one in names(tmp_path) if not one.endswith(".idx")] == [
        NAME,
        "my-shop-metrics.log.2018-08-10",
    ]
    assert read(tmp_path, 11_999, 12_000) == [(11_999, "/seckill"), (12_000, "/seckill")]


def test_a_restart_goes_on_with_the_same_file(tmp_path: Path) -> None:
    for offset in range(5):
        it = writer(tmp_path)
        it.write(second(offset))
        it.close()
    assert names(tmp_path) == [NAME, f"{NAME}.idx"]
    assert read(tmp_path, 0, None) == [(offset, "/seckill") for offset in range(5)]
    assert writer(tmp_path).last_ms() == (START_S + 4) * 1_000


@pytest.mark.parametrize("cut", range(1, 80, 6))
def test_a_crash_in_the_middle_of_a_line_costs_that_line_only(tmp_path: Path, cut: int) -> None:
    it = writer(tmp_path)
    it.write(second(0))
    it.write(second(1, "a", "b"))
    it.close()
    log = tmp_path / NAME
    log.write_bytes(log.read_bytes()[:-cut])
    after = writer(tmp_path)
    after.write(second(2, "c"))
    after.close()
    found = read(tmp_path, 0, None)
    assert found[0] == (0, "/seckill")
    assert found[-1] == (2, "c")
    assert (1, "a") in found or cut > 50
    assert len(found) == len(set(found))
    assert read(tmp_path, 2, 2) == [(2, "c")]


@pytest.mark.parametrize("cut", [1, 8, 15, 16, 17, 32])
def test_an_index_that_was_cut_short_is_mended(tmp_path: Path, cut: int) -> None:
    it = writer(tmp_path)
    for offset in range(3):
        it.write(second(offset))
    it.close()
    index = tmp_path / f"{NAME}.idx"
    whole = index.read_bytes()
    index.write_bytes(whole[:-cut])
    assert read(tmp_path, 2, None) == [(2, "/seckill")], "even before it is mended"
    after = writer(tmp_path)
    after.write(second(2, "late"))
    after.close()
    assert index.read_bytes() == whole
    assert read(tmp_path, 2, None) == [(2, "/seckill"), (2, "late")]


def test_without_an_index_everything_is_looked_at(tmp_path: Path) -> None:
    it = writer(tmp_path)
    for offset in range(3):
        it.write(second(offset))
    it.close()
    (tmp_path / f"{NAME}.idx").unlink()
    assert read(tmp_path, 1, 1) == [(1, "/seckill")]


def test_files_of_the_original_are_read(tmp_path: Path) -> None:
    # Of an old version (8 fields), of 1.8 (11), with a line that is none, and one being written.
    (
        tmp_path / f"my-shop-metrics.log.pid77.{datetime.fromtimestamp(START_S, UTC):%Y-%m-%d}"
    ).write_bytes(
        b"1533818400000|2018-08-09 20:40:00|old|3|1|3|0|12\n"
        b"what is this\n"
        b"1533818401000|2018-08-09 20:40:01|new|3|1|3|0|12|5|6|1\n"
        b"1533818402000|2018-08-09 20:40:02|half|3|1"
    )
    (tmp_path / "other-metrics.log.2018-08-09").write_bytes(b"1533818400000|x|other|3|1|3|0|12\n")
    assert read(tmp_path, 0, 9) == [(0, "old"), (1, "new")]


def test_the_first_second_of_a_file_of_the_original_is_found(tmp_path: Path) -> None:
    # The original's index begins with the second second, and its own search misses the first.
    it = writer(tmp_path)
    for offset in range(4):
        it.write(second(offset))
    it.close()
    index = tmp_path / f"{NAME}.idx"
    index.write_bytes(index.read_bytes()[16:])
    assert read(tmp_path, 0, 0) == [(0, "/seckill")]
    assert read(tmp_path, 0, 1) == [(0, "/seckill"), (1, "/seckill")]
    assert read(tmp_path, 3, None) == [(3, "/seckill")]


def test_a_clock_that_is_put_back_begins_a_new_file(tmp_path: Path) -> None:
    it = writer(tmp_path)
    it.write(second(100))
    it.write(second(50))
    it.close()
    after = writer(tmp_path)
    after.write(second(10))
    after.close()
    assert len([one for one in names(tmp_path) if not one.endswith(".idx")]) == 3
    assert read(tmp_path, 50, 50) == [(50, "/seckill")]
    assert read(tmp_path, 100, 100) == [(100, "/seckill")]


def test_two_processes_do_not_write_into_one_file(tmp_path: Path) -> None:
    first, other = writer(tmp_path), writer(tmp_path)
    first.write(second(0, "a"))
    other.write(second(0, "b"))
    first.write(second(1, "a"))
    first.close()
    other.close()
    assert (tmp_path / f"{NAME}.1").read_bytes().count(b"|b|") == 1
    assert sorted(read(tmp_path, 0, 1)) == [(0, "a"), (0, "b"), (1, "a")]


# The recorder.


class Shop:
    """An engine, its recorder, and a clock that is moved by hand."""

    def __init__(self, folder: Path | None, *, start_s: int = START_S) -> None:
        self.clock = VirtualClock(start_s * 1_000)
        self.sentinel = Sentinel(clock=self.clock)
        self.writer = None if folder is None else writer(folder, file_bytes_max=6_000)
        self.recorder = MetricRecorder(
            EngineSource(self.sentinel),
            writer=self.writer,
            reader=None if folder is None else MetricFileReader(folder, "my.shop"),
        )

    def sell(self, count: int = 1) -> None:
        for _ in range(count):
            with self.sentinel.entry("buy"):
                pass

    async def found(self, start: int, end: int | None, **more: object) -> list[tuple[int, int]]:
        lines = await self.recorder.lines(
            (START_S + start) * 1_000,
            None if end is None else (START_S + end) * 1_000,
            **({"line_count_max": 1_000} | more),  # type: ignore[arg-type]
        )
        return [(line.at_ms // 1_000 - START_S, line.passed) for line in lines]


async def test_a_second_can_be_read_the_moment_it_is_over_and_not_before() -> None:
    shop = Shop(None)
    shop.sell(3)
    shop.clock.advance_ms(999)
    assert await shop.found(0, 10) == []
    shop.clock.advance_ms(1)
    shop.sell(5)
    assert await shop.found(0, 10) == [(0, 3)]
    shop.clock.advance_ms(1_000)
    assert await shop.found(0, 10) == [(0, 3), (1, 5)]
    assert await shop.found(1, 1) == [(1, 5)]
    assert await shop.found(0, None, line_count_max=1) == [(0, 3)]
    assert await shop.found(0, 10, identity="nobody") == []


async def test_memory_holds_six_minutes_and_files_the_rest(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for offset in range(400):
        shop.sell(offset % 7 + 1)
        shop.clock.advance_ms(1_000)
        await shop.recorder.refresh()
    wanted = [(offset, offset % 7 + 1) for offset in range(400)]
    assert len(shop.recorder._rows) == 360
    assert await shop.found(380, 399) == wanted[380:]
    # Across the seam nothing stands twice and nothing is missing.
    assert await shop.found(30, 60) == wanted[30:61]
    assert await shop.found(350, None) == wanted[350:]
    shop.writer.close()  # type: ignore[union-attr]
    shop.recorder._reader = None
    assert await shop.found(0, 50) == wanted[40:51]


async def test_seconds_outlive_a_restart(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for offset in range(5):
        shop.sell(offset + 1)
        shop.clock.advance_ms(1_000)
    running = asyncio.create_task(shop.recorder.run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    again = Shop(tmp_path, start_s=START_S + 7)
    again.sell(9)
    again.clock.advance_ms(1_000)
    assert await again.found(0, None) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (7, 9)]
    again.writer.close()  # type: ignore[union-attr]


async def test_a_disk_that_cannot_be_written_costs_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(tmp_path)

    def full(_lines: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shop.writer, "write", full)
    for _ in range(3):
        shop.sell(2)
        shop.clock.advance_ms(1_000)
        await shop.recorder.refresh()
    assert await shop.found(0, 9) == [(0, 2), (1, 2), (2, 2)]
    assert shop.recorder.write_errors == 3
    assert caplog.text.count("cannot be written") == 1


class Late:
    """A source that learns of a second in two halves."""

    def __init__(self) -> None:
        self.at_ms = START_S * 1_000
        self.rows: list[MetricRow] = []

    def now_ms(self) -> int:
        return self.at_ms

    async def finished_seconds(self, after_ms: int) -> list[MetricRow]:
        return [row for row in self.rows if row.at_ms > after_ms]


async def test_a_second_that_comes_in_parts_is_written_once_and_whole(tmp_path: Path) -> None:
    late = Late()
    it = writer(tmp_path)
    recorder = MetricRecorder(late, writer=it, settle_s=2)  # type: ignore[arg-type]
    row = MetricRow(START_S * 1_000, "buy", 1, 0, 1, 0, 0, 0, 0, 0)
    late.rows = [row]
    late.at_ms += 1_000
    for passed in (1, 5, 5):
        late.rows = [row._replace(passed=passed)]
        lines = await recorder.lines(START_S * 1_000, None, line_count_max=10)
        assert [line.passed for line in lines] == [passed]
        late.at_ms += 1_000
    await recorder.refresh()
    it.close()
    assert [thin(line) for line in lines] == [
        thin(line)
        for line in MetricFileReader(tmp_path, "my.shop").read(0, None, line_count_max=10)
    ]


async def test_many_resources_push_old_seconds_out_but_never_the_last_twenty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metric_recorder, "MEMORY_ROWS_MAX", 50)
    shop = Shop(None)
    for _ in range(40):
        for name in ("a", "b", "c"):
            with shop.sentinel.entry(name):
                pass
        shop.clock.advance_ms(1_000)
        await shop.recorder.refresh()
    found = await shop.found(0, 40)
    assert len({at for at, _ in found}) == 20
    assert shop.recorder._row_count == 60
