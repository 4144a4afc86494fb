"""Time, passed in.

The engine asks its clock once per decision and uses that one reading for every check and every
counter of the decision. So a call that begins just before a second ends cannot be checked in one
second and counted in the next.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

NANOSECONDS_PER_MS: Final = 1_000_000
NANOSECONDS_PER_S: Final = 1_000_000_000


class Clock(Protocol):
    """Where the engine gets its time. Both readings are of the same line of time."""

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, never going back."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since the epoch, never going back."""
        ...


class SystemClock:
    """The machine's time of day, taken once, carried on by its monotonic clock.

    A correction of the time of day (by hand, or by a time server) that steps back would freeze
    every window until the old time has come again; here it has no effect. The price: after such a
    step our seconds differ from the wall's by it, until the process is started anew.

    Attributes:
        offset_ns: what to add to ``time.monotonic_ns``. The engine adds it itself: a call less.
    """

    __slots__ = ("offset_ns",)

    def __init__(self) -> None:
        self.offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, never going back."""
        return time.monotonic_ns() + self.offset_ns

    def now_ms(self) -> int:
        """Milliseconds since the epoch, never going back."""
        return self.now_ns() // NANOSECONDS_PER_MS


class VirtualClock:
    """A clock that stands still until it is moved. For tests and for replay.

    Args:
        start_ms: the first reading, in milliseconds since the epoch. The default is a whole minute.
    """

    __slots__ = ("_now_ns",)

    def __init__(self, start_ms: int = 1_764_579_240_000) -> None:
        self._now_ns = start_ms * NANOSECONDS_PER_MS

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, as last set."""
        return self._now_ns

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as last set."""
        return self._now_ns // NANOSECONDS_PER_MS

    def advance_ms(self, span_ms: float) -> None:
        """Move on by a span that is not negative."""
        self.advance_ns(round(span_ms * NANOSECONDS_PER_MS))

    def advance_ns(self, span_ns: int) -> None:
        """Move on by a span that is not negative."""
        if span_ns < 0:
            msg = f"a clock does not go back: {span_ns} ns"
            raise ValueError(msg)
        self._now_ns += span_ns

    def set_ms(self, at_ms: int) -> None:
        """Move on to an instant that is not before the present one."""
        self.advance_ns(at_ms * NANOSECONDS_PER_MS - self._now_ns)
