"""Giving way: buyers who wait for an answer come before orders that wait to be written.

In a rush every processor of the machine is wanted by those who answer buyers. An order that is
written just then makes many wait and gains one little: it is safe in the outbox, and is written
soon after. Low priority alone does not do it: such a process still runs whenever the others sleep
for an instant, and when they wake their processor is taken and its caches are cold.

So a worker that had to queue for its processor rests after each batch, and makes the next one
small. Its first one after it had nothing to do is small as well: that may be the beginning of a
rush. When it has to queue no longer, it goes on at once, and each batch may be twice as large as
the one before. It gives way for so long at most; then the orders have waited enough, and it takes
what its priority gives it until it has caught up.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from seckill.pipeline.worker import sleep_unless

__all__ = ["GivingWay", "ProcessorTime", "wait_until_calm"]

_SHARE: Final = 0.02
"""What a worker that gives way still takes of one processor."""

_SMALL_PART: Final = 32
"""A small batch is the largest divided by that: who writes for a tenth of a second is in the way
for as long, and has to rest for five seconds after it."""

_LOOK_EVERY_MS: Final = 200
"""How soon it sees that nobody queues any more."""

_JUDGED_BY_S: Final = 0.5
"""It judges by what it had of its processor for so long. In a rush of 128 connections one look of
200 ms in twenty found a free processor, and none of those over half a second did."""


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """What a process has had of the processors since it began.

    Attributes:
        used_s: seconds of processor that all its threads have used.
        ran_s: those of the thread of its event loop.
        queued_s: seconds in which that thread could have run and had no processor.
    """

    used_s: float
    ran_s: float
    queued_s: float

    def queued_since(self, earlier: "ProcessorTime") -> bool:
        """Whether the event loop stood in the queue for longer than it ran, since that look.

        In a rush on two cores it queued one to eleven times as long as it ran; while it wrote what
        was left of one, and when idle, half as long.
        """
        return self.queued_s - earlier.queued_s > self.ran_s - earlier.ran_s


class _Queue:
    """Whether this process has to queue for its processor, by the last half second."""

    def __init__(self, look: Callable[[], ProcessorTime], clock: Callable[[], float]) -> None:
        self._look = look
        self._clock = clock
        self._looks: deque[tuple[float, ProcessorTime]] = deque()
        self.look()

    def look(self) -> ProcessorTime:
        """Look now."""
        now_s, now = self._clock(), self._look()
        self._looks.append((now_s, now))
        while len(self._looks) > 1 and self._looks[1][0] <= now_s - _JUDGED_BY_S:
            self._looks.popleft()
        return now

    @property
    def is_long(self) -> bool:
        """Whether it queued, as of the last look."""
        return self._looks[-1][1].queued_since(self._looks[0][1])

    async def wait_until_short(self, longest_s: float, stop: asyncio.Event) -> None:
        """Look again and again until it does not queue, for so long at most, or until ``stop``."""
        now_s = self._clock()
        until_s = now_s + longest_s
        queues = True
        while queues and now_s < until_s and not stop.is_set():
            await sleep_unless(stop, min(_LOOK_EVERY_MS, (until_s - now_s) * 1000))
            self.look()
            queues = self.is_long
            now_s = self._clock()


class GivingWay:
    """Implements `pipeline.worker.Pace`: the pace of a worker that gives way to others.

    Args:
        look: gives the processor time of this process now.
        longest_s: how long it gives way at most before it has to catch up, in seconds.
        rested: is told of each rest, in seconds.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        *,
        look: Callable[[], ProcessorTime],
        longest_s: float,
        rested: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = _Queue(look, clock)
        self._longest_s = longest_s
        self._rested = rested
        self._clock = clock
        self._began = self._queue.look()
        self._since_s: float | None = None  # when it began to give way
        self._had_nothing = True
        self._most = 0  # deliveries in the last batch, at most

    def begin(self, deliveries_max: int) -> int:
        """A batch begins. See Pace."""
        self._began = self._queue.look()
        if self._had_nothing or self._gives_way():
            self._most = max(1, deliveries_max // _SMALL_PART)
        else:
            self._most = min(2 * self._most, deliveries_max)
        return self._most

    async def rest(self, stop: asyncio.Event, *, caught_up: bool) -> None:
        """A batch has ended. See Pace."""
        ended = self._queue.look()
        self._had_nothing = caught_up
        if caught_up or not self._queue.is_long:
            self._since_s = None
            return
        from_s = self._clock()
        if self._since_s is None:
            self._since_s = from_s
        rest_s = (ended.used_s - self._began.used_s) * (1 / _SHARE - 1)
        longest_s = min(rest_s, self._since_s + self._longest_s - from_s)
        await self._queue.wait_until_short(longest_s, stop)
        self._rested(self._clock() - from_s)

    def _gives_way(self) -> bool:
        return self._since_s is not None and self._clock() - self._since_s < self._longest_s


async def wait_until_calm(
    look: Callable[[], ProcessorTime],
    longest_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when this process queues for its processor no more, or after so many seconds.

    For work that takes long and has time: it does not begin in a rush.

    Args:
        look: gives the processor time of this process now.
        longest_s: at most; at once when it is not above 0.
        clock: monotonic, in seconds.
    """
    await _Queue(look, clock).wait_until_short(longest_s, asyncio.Event())
