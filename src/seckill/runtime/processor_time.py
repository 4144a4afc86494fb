"""What this process has had of the processors, as Linux counts it."""

import time
from pathlib import Path
from typing import Final

from seckill.pipeline.giving_way import ProcessorTime

__all__ = ["counts_processor_time", "read_processor_time"]

_SCHEDSTAT: Final = Path("/proc/self/schedstat")
"""Of the main thread, which runs the event loop: ns on a processor, ns in the queue for one, and
how often it came on (Linux' Documentation/scheduler/sched-stats.rst)."""


def read_processor_time() -> ProcessorTime:
    """The times now. Raises OSError or ValueError where the system does not count them."""
    ran_ns, queued_ns, _times = map(int, _SCHEDSTAT.read_bytes().split())
    return ProcessorTime(time.process_time(), ran_ns / 1e9, queued_ns / 1e9)


def counts_processor_time() -> bool:
    """Whether the system counts them: no system but Linux does, and not every sandbox."""
    try:
        return read_processor_time().ran_s > 0
    except (OSError, ValueError):
        return False
