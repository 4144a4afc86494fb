"""Time as a machine with nothing else to do would have measured it.

A promise such as "open again within 2 s" is about a machine whose cores are there for the service. A
test run shares them with other tests, so a bound on the clock would decide by the neighbours. Here
each moment counts for the share of a core that a process could have had in it: with six processes
ready to run on two cores, one second counts for a third. And a moment in which not even the stopwatch
was let run, because the whole machine stood still, counts for a few of its own steps.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Stopwatch", "stopwatch"]

_STEP_S = 0.02
_STEP_S_MAX = 5 * _STEP_S


class Stopwatch:
    """Runs from its making until it is stopped.

    Attributes:
        seconds: what has been counted so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._cores = len(os.sched_getaffinity(0))
        self._stopped = threading.Event()
        self._counting = threading.Thread(target=self._count, name="stopwatch", daemon=True)
        self._counting.start()

    def stop(self) -> None:
        self._stopped.set()
        self._counting.join()

    def _count(self) -> None:
        last_s = time.monotonic()
        over = False
        while not over:
            over = self._stopped.wait(_STEP_S)
            now_s = time.monotonic()
            step_s = min(now_s - last_s, _STEP_S_MAX)
            self.seconds += step_s / max(1.0, _wanting() / self._cores)
            last_s = now_s


def _wanting() -> int:
    """How many processes of the machine would run, or wait for a disk, at this moment."""
    facts = dict(
        line.split(maxsplit=1)
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("procs_")
    )
    return int(facts["procs_running"]) + int(facts["procs_blocked"])


@contextlib.contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """A stopwatch that is stopped when the block is left."""
    watch = Stopwatch()
    try:
        yield watch
    finally:
        watch.stop()
