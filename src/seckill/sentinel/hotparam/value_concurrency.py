"""Grade thread: so many calls in flight per value.

Source: ParamFlowChecker of sentinel-parameter-flow-control 1.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seckill.sentinel.hotparam.limiter import BLOCKED, PASS, RecentValues

if TYPE_CHECKING:
    from collections.abc import Hashable

    from seckill.sentinel.entry import Entry


class ValuesInFlight:
    """Calls in flight per value of one argument of one resource; shared by all rules on it.

    Args:
        most: values to remember.
    """

    __slots__ = ("_values",)

    def __init__(self, most: int) -> None:
        self._values: RecentValues[int] = RecentValues(most)

    def decide(self, _entry: Entry, key: Hashable, threshold: int, _now_ns: int) -> int:
        """Pass or refuse. Counted only once the whole call is let in, by ``begin``."""
        return PASS if (self._values.get(key) or 0) + 1 <= threshold else BLOCKED

    def refuses(self, _threshold: int, _count: int) -> bool:
        """Nothing is refused for good: the calls in flight decide."""
        return False

    def measured(self, key: Hashable) -> float:
        """Calls in flight."""
        return float(self._values.get(key) or 0)

    def begin(self, key: Hashable) -> None:
        """Count a call that was let in."""
        self._values.put(key, (self._values.get(key) or 0) + 1)

    def end(self, key: Hashable) -> None:
        """Count a call that ended; one whose value was forgotten meanwhile is not missed."""
        running = self._values.get(key)
        if running is None:
            return
        if running <= 1:
            self._values.drop(key)
        else:
            self._values.put(key, running - 1)
