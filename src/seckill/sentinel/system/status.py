"""Load and CPU of the machine, for system rules that ask for them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple, Protocol

SAMPLE_INTERVAL_S: Final = 1.0
UNKNOWN: Final = -1.0

_KERNEL_TIMES: Final = Path("/proc/stat")
_IDLE_FIELDS: Final = slice(3, 5)
"""Where the kernel's line has the time in which nothing ran: idle, and waiting for a disk."""

_COUNTED_FIELDS: Final = 8
"""The fields behind these repeat what guests of a virtual machine used, and would count twice."""


class SystemStatus(Protocol):
    """Where load and CPU come from. Asked under the engine's lock: must answer at once."""

    def load(self) -> float:
        """Load average of the last minute; below 0 if it cannot be told."""
        ...

    def cpu_usage(self) -> float:
        """CPU in use, 0 to 1, of machine or process, whichever is more; below 0 if unknown."""
        ...


class _Times(NamedTuple):
    """CPU time used since some fixed moment, and the time there was."""

    wall_s: float
    process_s: float
    machine_busy: int
    machine_total: int


class HostStatus:
    """This machine, looked at once a second at most, and only if somebody asks.

    A look reads one line that the kernel keeps in memory. Where there is no such line (not Linux),
    this process's own use stands for the machine's.
    """

    __slots__ = ("_cpu", "_last")

    def __init__(self) -> None:
        self._last: _Times | None = None
        self._cpu = UNKNOWN

    def load(self) -> float:
        """Load average of the last minute."""
        try:
            return os.getloadavg()[0]
        except OSError:
            return UNKNOWN

    def cpu_usage(self) -> float:
        """CPU in use between the last two looks; unknown at the first."""
        last = self._last
        if last is not None and time.monotonic() - last.wall_s < SAMPLE_INTERVAL_S:
            return self._cpu
        self._last = now = _look()
        if last is not None:
            process = (now.process_s - last.process_s) / (now.wall_s - last.wall_s)
            total = now.machine_total - last.machine_total
            busy = now.machine_busy - last.machine_busy
            self._cpu = max(process / (os.cpu_count() or 1), busy / total if total else 0.0)
        return self._cpu


def _look() -> _Times:
    busy = total = 0
    try:
        with _KERNEL_TIMES.open(encoding="ascii") as lines:
            ticks = [int(field) for field in lines.readline().split()[1 : 1 + _COUNTED_FIELDS]]
        total = sum(ticks)
        busy = total - sum(ticks[_IDLE_FIELDS])
    except (OSError, ValueError):
        # The process's own time is known everywhere.
        busy = total = 0
    return _Times(time.monotonic(), time.process_time(), busy, total)
