"""An event loop for tests whose clock stands still while the machine does.

A machine that runs the tests may stop any process for seconds. Where a test gives the product 50 ms,
it means "a while in which things happen", not 50 ms of a wall clock in which nothing could: a stall
there would turn a right answer into "took too long". So the time of this loop, which is what
``asyncio.timeout``, ``call_later`` and ``sleep`` go by, counts

* of a wait, what it was to last at most, and
* of a round of callbacks, a few milliseconds at most.

Who waits for another process (a real Redis, say) still waits in real time: give those waits room.
"""

import asyncio
import selectors
import time
from typing import Any

import pytest

from seckill.domain.clock import SystemClock

__all__ = ["PatientClock", "PatientLoop"]

_ROUND_S = 0.005
"""What a round of callbacks counts at most; an unhurried one of the tests takes less."""


class _PatientSelector(selectors.DefaultSelector):
    """Notices how long the loop stood still: in its callbacks, or longer in a wait than it asked."""

    def __init__(self) -> None:
        super().__init__()
        self._stalled_s = 0.0
        self._back_at_s = time.monotonic()

    def stalled_s(self, now_s: float) -> float:
        """How long it stood still until now, the running round of callbacks included.

        Without that, time would go back after a callback that was held up and looked at it.
        """
        return self._stalled_s + max(now_s - self._back_at_s - _ROUND_S, 0.0)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        began_s = time.monotonic()
        self._count(began_s - self._back_at_s)
        ready = super().select(timeout)
        self._back_at_s = time.monotonic()
        if timeout is not None:
            self._count(self._back_at_s - began_s - max(timeout, 0.0))
        return ready

    def _count(self, spent_s: float) -> None:
        self._stalled_s += max(spent_s - _ROUND_S, 0.0)


class PatientLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, but for its clock."""

    def __init__(self) -> None:
        self._patient = _PatientSelector()
        super().__init__(self._patient)

    def time(self) -> float:
        """Seconds that this loop was not kept from running."""
        now_s = super().time()
        return now_s - self._patient.stalled_s(now_s)

    def run_forever(self) -> None:
        """As ever; but a test that is ended because it hangs shows what each task waits for."""
        try:
            super().run_forever()
        except pytest.fail.Exception:
            for task in asyncio.all_tasks(self):
                task.print_stack()
            raise


class PatientClock(SystemClock):
    """The clock of such a loop, for the parts of the product that are handed one."""

    def monotonic_ms(self) -> float:
        """Milliseconds of the running loop's time; of the machine's where none runs."""
        try:
            return asyncio.get_running_loop().time() * 1000
        except RuntimeError:
            return super().monotonic_ms()
