"""Processes of this machine, told apart for certain: a number alone is used again."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped,unused-ignore]

__all__ = ["created_at", "ended_by", "ended_within", "is_same", "send_signal", "works_in"]

# The kernel counts a process's age from the boot, and the wall clock of the boot moves when the
# clock of the machine is set. Two seconds cover that; a number is never used again so soon.
_CREATED_TOLERANCE_S: Final = 2.0
_POLL_S: Final = 0.01


def created_at(pid: int) -> float:
    """Seconds since the epoch at which this process was made; 0 when there is none to be seen.

    One that has ended and waits for its parent to notice (a zombie) is not to be seen.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return 0.0
            return float(process.create_time())
    except psutil.Error:
        return 0.0


def is_same(pid: int, created_s: float) -> bool:
    """Whether the process that was made at this time still runs under this number."""
    found = created_at(pid)
    return found > 0 and abs(found - created_s) <= _CREATED_TOLERANCE_S


def works_in(pid: int, folder: Path, names: tuple[str, ...]) -> bool:
    """Whether a living process has this working folder, and one of the names in its command.

    False also for a process that may not be looked at: it belongs to somebody else.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or not process.cmdline():
            return False
        command = process.cmdline()[0]
        return Path(process.cwd()) == folder.resolve() and any(name in command for name in names)
    except (psutil.Error, OSError):
        return False


def send_signal(pid: int, created_s: float, number: signal.Signals) -> None:
    """Signal the process that was made at this time; nothing happens when it is gone."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        # The object remembers which process it means and signals no other.
        if is_same(pid, created_s):
            process.send_signal(number)


async def ended_within(pid: int, created_s: float, timeout_ms: int) -> bool:
    """Wait for a process that is not a child of ours to end; False when it did not in time."""
    until = time.monotonic() + timeout_ms / 1000
    while is_same(pid, created_s):
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def ended_by(
    pid: int, created_s: float, signals: Iterable[signal.Signals], timeout_ms: int
) -> bool:
    """Signal a process that is not a child of ours, each time harder, until it has ended.

    Args:
        timeout_ms: how long to wait after each signal.

    Returns:
        False: it did not end even after the last.
    """
    for number in signals:
        send_signal(pid, created_s, number)
        if await ended_within(pid, created_s, timeout_ms):
            return True
    return False
