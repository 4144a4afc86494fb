"""The engine's lock, and the millisecond that it is in.

Every decision and every change happens under one lock, so that threads cannot overshoot together.
The usual call does without taking it, and is safe all the same. It rests on two facts:

1. In CPython with its global lock, another thread can run only where the interpreter looks whether
   it should let go: at the start of a Python function, at a jump backward, and after a call. A
   stretch of code with none of these (attributes, arithmetic, comparisons, list items) is one step
   to every other thread. ``Entry`` has two such stretches, one on the way in and one on the way
   out; a test reads their byte code and fails if a call or a loop gets into them, another lets
   threads race through them, with a control that shows the race.
2. Whoever holds the lock has set ``Present.end`` to 0 before it reads anything, and sets it back
   after its last write. A stretch begins by comparing the time with ``end``, so it never
   runs in the middle of what somebody does under the lock; it goes the long way and waits.

Where the first fact does not hold, the short way is shut for good, and every call takes the lock:
in builds without the global lock, in other interpreters, in versions of CPython that nobody has
looked at yet, and while a debugger or a coverage tool runs code of its own between lines.
"""

from __future__ import annotations

import math
import sys
import sysconfig
import threading
from typing import TYPE_CHECKING, Final

from seckill.sentinel.clock import NANOSECONDS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from seckill.sentinel.context import Context
    from seckill.sentinel.engine import Sentinel
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.node import StatisticNode

VERSIONS_LOOKED_AT: Final = ((3, 11), (3, 14))
"""The first and the last version of CPython whose interpreter is known to be as said above."""
SLACK_NS: Final = 100


def one_step_stretches() -> bool:
    """Whether code without calls and loops is one step to other threads, here and now."""
    first, last = VERSIONS_LOOKED_AT
    return (
        sys.implementation.name == "cpython"
        and first <= sys.version_info[:2] <= last
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and not _runs_code_between_lines()
    )


def _runs_code_between_lines() -> bool:
    """Whether a debugger or a coverage tool is at work in this process."""
    if sys.gettrace() is not None or threading.gettrace() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(
        monitoring.get_tool(number) is not None for number in range(6)
    )


class Present:
    """The engine's lock, and what all resources have in common at one moment.

    Used like a re-entrant lock by all that do not know more. The numbers that many resources keep
    (the end of a bucket, the time of a place) are taken from here as the same objects: that saves
    memory, makes "still the same millisecond" a comparison of identities, and keeps what a call
    touches in the processor's cache.

    Args:
        engine: whose.
        tick_ns: reads the clock, in nanoseconds, never going back: the *raw* time.
        offset_ns: what to add to the raw time to have that of the epoch.
        tick: reads the same clock in a number that is quicker to have, or None if there is none.
        per_ns: what a nanosecond is in that number.
        bucket_ns: the length of a bucket.
        find, put: read and set the innermost entry, or else the context, of the running code.
        locks_always: shut the short way.

    Attributes:
        inbound: the counters of all entries of type ``IN``.
        begin: since when what stands here is true, as ``tick`` counts: what began before does not
            end the short way.
        end: until when what stands here is true, as ``tick`` counts; 0 while somebody holds the
            lock.
        after: what ``end`` is when they give it back.
        next_raw_ns: the same for those who hold it, as ``tick_ns`` counts.
        depth: how often it is held.
        take, give: the lock beneath. ``Entry`` does what ``acquire`` and ``release`` do itself: two
            calls are a tenth of a decision.
        place_ns: the time under which a pass of this millisecond is remembered: its end, or the
            present itself if it is a whole millisecond.
        bucket_end_ns: when the open buckets end.
    """

    __slots__ = (
        "_bucket_ns",
        "_slack",
        "after",
        "begin",
        "bucket_end_ns",
        "depth",
        "end",
        "engine",
        "find",
        "give",
        "inbound",
        "locks_always",
        "next_raw_ns",
        "offset_ns",
        "per_ns",
        "place_ns",
        "put",
        "take",
        "tick",
        "tick_ns",
    )

    def __init__(
        self,
        engine: Sentinel,
        *,
        tick_ns: Callable[[], int],
        offset_ns: int,
        tick: Callable[[], float] | None,
        per_ns: float,
        bucket_ns: int,
        find: Callable[[], Context | Entry],
        put: Callable[[Context | Entry], object],
        locks_always: bool,
    ) -> None:
        self.engine = engine
        self.tick_ns = tick_ns
        self.offset_ns = offset_ns
        self.tick: Callable[[], float] = tick_ns if tick is None else tick
        self.per_ns: float = 1 if tick is None else per_ns
        # Far more than what a float leaves out of a reading, far less than a millisecond.
        self._slack = 0 if tick is None else SLACK_NS * per_ns
        self.find = find
        self.put = put
        self.locks_always = locks_always
        self.inbound: StatisticNode
        self.begin: float = 0
        self.end: float = 0
        self.place_ns = 0
        self.bucket_end_ns = 0
        self._bucket_ns = bucket_ns
        self.next_raw_ns = 0
        self.after: float = 0
        self.depth = 0
        # Re-entrant, because a key of a hot parameter may run code of the caller.
        lock = threading.RLock()
        self.take = lock.acquire
        self.give = lock.release

    def acquire(self) -> None:
        """Take the lock, and shut the short way while it is held."""
        self.take()
        self.depth += 1
        self.end = 0

    def release(self) -> None:
        """Give the lock back."""
        self.depth -= 1
        if not self.depth and not self.locks_always:
            self.end = self.after
        self.give()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def close_short_ends(self) -> None:
        """Have all that is in flight end the long way. Called under the lock."""
        # The next millisecond sets it back, and everything that runs now began before that.
        self.begin = math.inf

    def turn(self) -> None:
        """Move on to the millisecond that it is, so that the short way is open in it."""
        if self.locks_always:
            return
        self.acquire()
        try:
            self.read_ns()
        finally:
            self.release()

    def turn_locked(self, raw_ns: int) -> None:
        """Move on to the millisecond of a reading that was made under the lock."""
        now_ns = raw_ns + self.offset_ns
        inside_ns = now_ns % NANOSECONDS_PER_MS
        span_ns = NANOSECONDS_PER_MS - inside_ns if inside_ns else 0
        self.place_ns = now_ns + span_ns
        if now_ns >= self.bucket_end_ns:
            self.bucket_end_ns = now_ns - now_ns % self._bucket_ns + self._bucket_ns
        self.next_raw_ns = raw_ns + (span_ns or 1)
        # A whole millisecond is a present of its own, and the rest of it begins behind it.
        self.begin = (raw_ns - inside_ns + 1 if inside_ns else raw_ns) * self.per_ns
        self.after = self.next_raw_ns * self.per_ns - self._slack

    def read_ns(self) -> int:
        """The time of the epoch, read under the lock."""
        raw_ns = self.tick_ns()
        if raw_ns >= self.next_raw_ns:
            self.turn_locked(raw_ns)
        return raw_ns + self.offset_ns

    def epoch_ns(self, ticked: float) -> int:
        """A reading of ``tick`` as nanoseconds since the epoch."""
        # A whole number is nanoseconds already, and too large for a float.
        raw_ns = ticked if isinstance(ticked, int) else round(ticked / self.per_ns)
        return raw_ns + self.offset_ns
