"""Grade QPS, behaviour 0: each value has a bucket of tokens that is refilled after its duration.

Source: ParamFlowChecker of sentinel-parameter-flow-control 1.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.hotparam.limiter import BLOCKED, PASS, RecentValues
from seckill.sentinel.settings import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Hashable

    from seckill.sentinel.entry import Entry
    from seckill.sentinel.hotparam.rule import ParamFlowRule


class TokenBuckets:
    """One bucket per value: ``count`` tokens and the burst on top.

    Args:
        rule: the rule.
        most: values to remember.
    """

    __slots__ = ("_burst", "_duration_ms", "_values")

    def __init__(self, rule: ParamFlowRule, most: int) -> None:
        self._burst = rule.burst_count
        self._duration_ms = rule.duration_in_sec * MS_PER_S
        # Of each value: when it was refilled last, ms, the tokens left, and the tokens of a full
        # one.
        self._values: RecentValues[tuple[int, int, int]] = RecentValues(most)

    def decide(self, entry: Entry, key: Hashable, threshold: int, now_ns: int) -> int:
        """Take the tokens, or refuse. Refilled once *more* than the duration is over."""
        count = entry.count
        if self.refuses(threshold, count):
            return BLOCKED
        most = threshold + self._burst
        now_ms = now_ns // NANOSECONDS_PER_MS
        state = self._values.get(key)
        if state is None:
            self._values.put(key, (now_ms, most - count, most))
            return PASS
        filled_ms, left, _ = state
        passed_ms = now_ms - filled_ms
        if passed_ms > self._duration_ms:
            left = min(most, left + passed_ms * threshold // self._duration_ms)
            filled_ms = now_ms
        if left < count:
            return BLOCKED
        self._values.put(key, (filled_ms, left - count, most))
        return PASS

    def refuses(self, threshold: int, count: int) -> bool:
        """No bucket is large enough."""
        return threshold == 0 or count > threshold + self._burst

    def measured(self, key: Hashable) -> float:
        """Tokens taken since the last refill."""
        state = self._values.get(key)
        return 0.0 if state is None else float(state[2] - state[1])
