"""How a paced call waits for its turn.

Pacing decides at once how long a call has to wait and then waits outside the engine's lock. Which
way it waits is a seam: a thread sleeps, a coroutine yields to its loop, a test moves its clock.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from seckill.sentinel.clock import NANOSECONDS_PER_S

if TYPE_CHECKING:
    from seckill.sentinel.clock import VirtualClock


class Waiter(Protocol):
    """The two ways to let time pass."""

    def wait(self, span_ns: int) -> None:
        """Hold the calling thread for the span. Nanoseconds, above 0."""
        ...

    async def wait_async(self, span_ns: int) -> None:
        """Hold the calling task for the span and let others run. Nanoseconds, above 0."""
        ...


class SystemWaiter:
    """Real time: ``time.sleep`` in a thread, ``asyncio.sleep`` in a task."""

    __slots__ = ()

    def wait(self, span_ns: int) -> None:
        """Hold the calling thread for the span."""
        time.sleep(span_ns / NANOSECONDS_PER_S)

    async def wait_async(self, span_ns: int) -> None:
        """Hold the calling task for the span and let others run."""
        await asyncio.sleep(span_ns / NANOSECONDS_PER_S)


class VirtualWaiter:
    """Waiting that moves a virtual clock instead, and remembers each wait.

    Args:
        clock: the clock to move.
        advance: False leaves the clock where it is, as if many callers waited side by side.
    """

    __slots__ = ("_advance", "_clock", "waits_ns")

    def __init__(self, clock: VirtualClock, *, advance: bool = True) -> None:
        self._clock = clock
        self._advance = advance
        self.waits_ns: list[int] = []

    def wait(self, span_ns: int) -> None:
        """Let the span pass on the virtual clock."""
        self.waits_ns.append(span_ns)
        if self._advance:
            self._clock.advance_ns(span_ns)

    async def wait_async(self, span_ns: int) -> None:
        """Let the span pass on the virtual clock, and yield to the loop once."""
        self.wait(span_ns)
        await asyncio.sleep(0)
