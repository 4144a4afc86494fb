"""Time as a value that is passed in, so that tests can move it."""

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Two clocks: one that people read, and one that only ever moves forward."""

    def now_ms(self) -> int:
        """UTC epoch milliseconds."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds since some fixed instant; never steps back."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now_ms(self) -> int:
        """UTC epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds since some fixed instant; never steps back."""
        return time.monotonic_ns() / 1e6
