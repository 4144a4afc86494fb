"""The garbage collector, told when to work, so that it does not stop a rush of buyers.

Python's cyclic collector starts by counting new objects, that is, exactly when many requests come
at once; and it walks everything that has survived, again and again. With its usual setting that was
the tail of the latency: the 99th percentile of a full house was 45 ms, and 13 ms without.

Four measures, each with its bound:

* the bounds hold from the very start, which makes much that stays;
* what the start has made stays for ever, so it is frozen: no later collection walks it;
* the young generation is collected only after :data:`YOUNG_OBJECTS_MAX` new objects, the middle one
  after :data:`MIDDLE_AFTER` of those. So garbage in cycles is bounded also in a rush without end:
  50,000 small objects are some 4 MB, and one run over them took 9 ms. (Nearly all garbage is in no
  cycle and goes at once anyway);
* in a quiet moment everything is collected, so that such an automatic run is rare.
"""

import asyncio
import atexit
import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from seckill.runtime.telemetry import Metrics

__all__ = [
    "YOUNG_OBJECTS_MAX",
    "GarbageWatch",
    "bound_collections",
    "collect_when_idle",
    "settle_after_start",
]

YOUNG_OBJECTS_MAX: Final = 50_000
MIDDLE_AFTER: Final = 10
OLD_AFTER: Final = 10

_LOOK_EVERY_S: Final = 0.5
# Share of one core below which the process counts as idle. Not the number of new objects: what is
# freed at once does not show in it, so a busy process looks the same as one that does nothing.
_IDLE_CPU_SHARE: Final = 0.1
_YOUNG_WORTH_IT: Final = 2_000
_FULL_EVERY_S: Final = 30.0


def bound_collections() -> None:
    """To be called first: set the bounds.

    A start makes some 200,000 objects that stay. Counting from 700 of them on, as is usual, and
    walking them again and again was a quarter of the processor time of a start. An end walks them
    twice more, only to find that all of it goes anyway.
    """
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    gc.set_threshold(YOUNG_OBJECTS_MAX, MIDDLE_AFTER, OLD_AFTER)


def settle_after_start() -> None:
    """To be called once the process is ready: freeze what is there, and set the bounds."""
    gc.collect()
    gc.freeze()
    bound_collections()


async def collect_when_idle(is_busy: Callable[[], bool] = lambda: False) -> None:
    """Collect in quiet moments, until cancelled.

    Young and middle objects are collected in each quiet moment in which there is something to do,
    all of them twice a minute at most.

    Args:
        is_busy: says whether requests are under way, where the process knows.
    """
    full_at = time.monotonic() + _FULL_EVERY_S
    looked_at, cpu_s = time.monotonic(), time.process_time()
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        now, cpu_now_s = time.monotonic(), time.process_time()
        if not is_busy() and cpu_now_s - cpu_s < _IDLE_CPU_SHARE * (now - looked_at):
            if now >= full_at:
                gc.collect()
                full_at = time.monotonic() + _FULL_EVERY_S
            elif gc.get_count()[0] > _YOUNG_WORTH_IT:
                gc.collect(1)
        looked_at, cpu_s = time.monotonic(), time.process_time()


class GarbageWatch:
    """Counts the runs of the collector and the time they took, in the metrics."""

    def __init__(self, metrics: "Metrics") -> None:
        self._runs = [
            metrics.counter("seckill_gc_collections_total", generation)
            for generation in ("0", "1", "2")
        ]
        self._pause = metrics.counter("seckill_gc_pause_seconds_total")
        self._began = 0.0

    def start(self) -> None:
        """Begin to count."""
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """No longer count."""
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._pause.inc(time.perf_counter() - self._began)
            self._runs[min(info["generation"], 2)].inc()
