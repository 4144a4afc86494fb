"""Refusals, by the second, in a file that the original's tools can read."""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import UTC
from typing import TYPE_CHECKING

import pytest

from seckill.sentinel import AuthorityRule, FlowRule, Sentinel
from seckill.sentinel.transport import BlockLog

if TYPE_CHECKING:
    from pathlib import Path

    from unit.sentinel.engines import Bench

# The virtual clock's first instant.
START = "2025-12-01 08:54:00"


def log_of(bench: Bench, folder: Path, **bounds: int) -> BlockLog:
    return BlockLog(bench.sentinel, folder, zone=UTC, **bounds)


def lines(folder: Path, name: str = "sentinel-block.log") -> list[str]:
    return (folder / name).read_text().splitlines()


def test_a_line_says_when_what_by_whom_for_whom_and_how_often(bench: Bench, tmp_path: Path) -> None:
    log = log_of(bench, tmp_path)
    bench.sentinel.flow.load([FlowRule(resource="seckill-jk", count=2, id=7)])
    bench.sentinel.authority.load([AuthorityRule(resource="pay", limit_app="app-2", strategy=1)])
    assert bench.passes(5, "seckill-jk") == 2
    with bench.sentinel.context("shop", origin="app-2"):
        assert not bench.passes_one("pay", count=4)
    log.flush()
    assert not (tmp_path / "sentinel-block.log").exists(), "the second is not over"
    bench.at(1000)
    assert not bench.passes_one("seckill-jk", count=3)
    log.flush()
    expected = [
        f"{START}|1|seckill-jk,FlowException,default,,7|3,0",
        f"{START}|1|pay,AuthorityException,app-2,app-2,|4,0",
    ]
    assert lines(tmp_path) == expected
    log.close()
    later = START[:-2] + "01"
    assert lines(tmp_path) == [*expected, f"{later}|1|seckill-jk,FlowException,default,,7|3,0"]
    log.close()
    assert not bench.passes_one("seckill-jk", count=3)
    assert len(lines(tmp_path)) == 3, "it listens no more"


def test_names_cannot_break_a_line(bench: Bench, tmp_path: Path) -> None:
    log = log_of(bench, tmp_path)
    name = "a,b|c\nd"
    bench.sentinel.flow.load([FlowRule(resource=name, count=0)])
    assert not bench.passes_one(name)
    log.close()
    assert lines(tmp_path) == [f"{START}|1|a_b_c_d,FlowException,default,,|1,0"]


def test_the_kinds_of_a_second_are_bounded(bench: Bench, tmp_path: Path) -> None:
    log = log_of(bench, tmp_path, kinds_per_second_max=2)
    bench.sentinel.flow.load([FlowRule(resource=name, count=0) for name in "abcd"])
    for name in "abcda":
        assert not bench.passes_one(name)
    log.close()
    assert [line.split("|", 2)[2] for line in lines(tmp_path)] == [
        "a,FlowException,default,,|2,0",
        "b,FlowException,default,,|1,0",
        ",FlowException,,,|2,0",
    ]


def test_seconds_that_nobody_writes_are_bounded_and_counted(bench: Bench, tmp_path: Path) -> None:
    log = log_of(bench, tmp_path)
    bench.sentinel.flow.load([FlowRule(resource="r", count=0)])
    for second in range(63):
        bench.at(second * 1000)
        assert not bench.passes_one()
    assert log.lost == 3
    log.close()
    assert len(lines(tmp_path)) == 60


def test_the_file_rolls_and_the_oldest_goes(bench: Bench, tmp_path: Path) -> None:
    log = log_of(bench, tmp_path, file_bytes_max=120, old_files_max=2)
    bench.sentinel.flow.load([FlowRule(resource="r", count=0)])
    for second in range(9):
        bench.at(second * 1000)
        assert not bench.passes_one()
        log.flush(running=True)
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "sentinel-block.log",
        "sentinel-block.log.1",
        "sentinel-block.log.2",
    ]
    kept = [*lines(tmp_path, "sentinel-block.log.2"), *lines(tmp_path, "sentinel-block.log.1")]
    kept += lines(tmp_path)
    assert [line[17:19] for line in kept] == [f"{second:02}" for second in range(9 - len(kept), 9)]
    assert all(path.stat().st_size <= 120 for path in tmp_path.iterdir())


def test_half_a_line_of_a_killed_process_is_cut_off(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "sentinel-block.log").write_text("one whole line\nhalf a li")
    log = log_of(bench, tmp_path)
    bench.sentinel.flow.load([FlowRule(resource="r", count=0)])
    assert not bench.passes_one()
    log.close()
    assert lines(tmp_path) == ["one whole line", f"{START}|1|r,FlowException,default,,|1,0"]


def test_a_second_writer_takes_a_file_of_its_own(bench: Bench, tmp_path: Path) -> None:
    logs = [log_of(bench, tmp_path) for _ in range(2)]
    bench.sentinel.flow.load([FlowRule(resource="r", count=0)])
    assert not bench.passes_one()
    for log in logs:
        log.flush(running=True)
    for log in logs:
        log.close()
    assert lines(tmp_path) == lines(tmp_path, f"sentinel-block.log.pid{os.getpid()}")


def test_processes_that_share_a_folder_may_each_have_a_name(bench: Bench, tmp_path: Path) -> None:
    names = ["blocks.web-0", "blocks.web-1"]
    logs = [
        BlockLog(bench.sentinel, tmp_path, file_name=name, file_bytes_max=1, zone=UTC)
        for name in names
    ]
    bench.sentinel.flow.load([FlowRule(resource="r", count=0)])
    for second in range(2):
        bench.at(second * 1000)
        assert not bench.passes_one()
        for log in logs:
            log.flush(running=True)
    for log in logs:
        log.close()
    rolled = sorted(path.name for path in tmp_path.iterdir())
    assert rolled == sorted([*names, *(f"{name}.1" for name in names)])


def test_a_disk_that_cannot_be_written_stops_nobody(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sentinel-block.log").mkdir()
    log = log_of(bench, tmp_path)
    bench.sentinel.flow.load([FlowRule(resource="r", count=0)])
    for second in range(2):
        bench.at(second * 1000)
        assert bench.passes(3) == 0
        log.flush(running=True)
    assert log.lost == 6
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / "sentinel-block.log").rmdir()
    assert not bench.passes_one()
    log.close()
    assert len(lines(tmp_path)) == 1


async def test_the_task_writes_seconds_as_they_end_and_the_rest_when_it_is_stopped(
    tmp_path: Path,
) -> None:
    sentinel = Sentinel()
    sentinel.flow.load([FlowRule(resource="r", count=0)])
    log = BlockLog(sentinel, tmp_path)
    task = asyncio.create_task(log.run())
    path = tmp_path / "sentinel-block.log"
    assert sentinel.try_entry("r").kind == "flow"  # type: ignore[union-attr]
    while not path.exists():
        await asyncio.sleep(0.01)
    sentinel.try_entry("r")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert sum(int(line.rsplit("|", 1)[1].split(",")[0]) for line in lines(tmp_path)) == 2


@pytest.mark.parametrize("wrong", [{"file_bytes_max": 0}, {"kinds_per_second_max": 0}])
def test_bounds_are_checked(bench: Bench, tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        log_of(bench, tmp_path, **wrong)
