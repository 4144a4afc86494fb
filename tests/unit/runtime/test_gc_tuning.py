"""The collector's bounds hold, and a quiet process collects."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from seckill.runtime import gc_tuning
from seckill.runtime.metric_table import LAYOUT
from seckill.runtime.telemetry import Metrics


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)


class Cycle:
    """Garbage that only the collector can free."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Cycle.alive += 1

    def __del__(self) -> None:
        Cycle.alive -= 1


def test_garbage_in_cycles_stays_bounded_in_a_rush_without_end() -> None:
    Cycle.alive = 0
    stays, frozen_before = [[] for _ in range(100)], gc.get_freeze_count()
    gc_tuning.settle_after_start()
    assert gc.get_freeze_count() >= frozen_before + len(stays)
    most = 0
    for _ in range(4 * gc_tuning.YOUNG_OBJECTS_MAX):
        Cycle()
        most = max(most, Cycle.alive)
    assert most <= 2 * gc_tuning.YOUNG_OBJECTS_MAX
    gc.collect()
    assert Cycle.alive == 0


async def test_a_quiet_process_collects_and_a_busy_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc_tuning, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(gc_tuning, "_YOUNG_WORTH_IT", 10)
    monkeypatch.setattr(gc_tuning, "_IDLE_CPU_SHARE", 1_000.0)
    Cycle.alive = 0
    gc_tuning.settle_after_start()
    busy, looks = True, 0

    def is_busy() -> bool:
        nonlocal looks
        looks += 1
        return busy

    collecting = asyncio.create_task(gc_tuning.collect_when_idle(is_busy))
    for _ in range(1_000):
        Cycle()
    async with asyncio.timeout(10):
        while looks < 3:
            await asyncio.sleep(0.01)
        assert Cycle.alive == 1_000
        busy = False
        while Cycle.alive:
            await asyncio.sleep(0.01)
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting


def test_runs_of_the_collector_are_counted(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, "web-0", LAYOUT)
    watch = gc_tuning.GarbageWatch(metrics)
    watch.start()
    gc.collect()
    watch.stop()
    gc.collect()
    assert metrics.counter("seckill_gc_collections_total", "2").value == 1
    assert metrics.counter("seckill_gc_pause_seconds_total").value > 0
