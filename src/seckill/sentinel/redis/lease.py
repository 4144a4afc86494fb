"""The tokens of one rule, or of one value of a hot-parameter rule, in the hand of one worker."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from seckill.sentinel.clock import NANOSECONDS_PER_MS, NANOSECONDS_PER_S

if TYPE_CHECKING:
    from seckill.sentinel.redis.exchange import Answer, Exchange

BLOCK_PARTS: Final = 10
"""All blocks together are at most this part of the threshold, but at least one token for each."""

CREDIT_WORKERS_MIN: Final = 4
"""A flow rule's threshold gives credit if it is at least so many units for each worker."""

HEARTBEAT_NS: Final = 200 * NANOSECONDS_PER_MS
"""The longest between two exchanges."""

SPAN_MIN_NS: Final = 25 * NANOSECONDS_PER_MS
"""A rate over less than this says nothing."""

HORIZON_S: Final = 0.25
"""Tokens in hand are to last for so long."""

IDLE_NS: Final = 2 * NANOSECONDS_PER_S
"""A rule that nobody asked about for so long gives its tokens back."""

PREFETCH_PART: Final = 4
"""Asking before the hand is empty is worth it if what is left lasts this part of the way."""

FADING: Final = 0.5
"""How much of a falling rate is forgotten at each exchange."""

SHARE_SLICES: Final = 50
"""Parts of a window in which what was used of a share is counted."""

ROUNDING: Final = 1e-6
"""A threshold of 0.29 per second for 100 s is 29, whatever floating point makes of it."""


class Lease:
    """The tokens of one rule, or of one value of a hot-parameter rule.

    Attributes:
        key: in Redis.
        count: threshold for one window, units.
        each: whether that is meant for each worker.
        window_ns: the window.
        is_value: whether it is for one value.
        shut_ns: until then there is nothing to be had, and nothing to be asked for.
    """

    __slots__ = (
        "_credit_from_ns",
        "_dated_ms",
        "_flight_ns",
        "_good_until_ns",
        "_had_ns",
        "_hold",
        "_need",
        "_owed",
        "_owed_in_flight",
        "_rate",
        "_room",
        "_told_ns",
        "asked",
        "asked_ns",
        "block",
        "count",
        "each",
        "is_value",
        "key",
        "retry_ns",
        "shared",
        "shut_ns",
        "window_ns",
    )

    def __init__(
        self, key: str, *, count: float, each: bool, window_ns: int, is_value: bool, now_ns: int
    ) -> None:
        self.key = key
        self.count = count
        self.each = each
        self.window_ns = window_ns
        self.is_value = is_value
        self.block = 1
        self.asked = 0
        self.asked_ns = now_ns
        self.retry_ns = now_ns
        self.shut_ns = now_ns
        self.shared: deque[tuple[int, int]] = deque()
        self._hold = 0
        self._good_until_ns = 0
        self._dated_ms = 0
        self._flight_ns = 0
        self._had_ns: int | None = None
        self._owed = 0
        self._owed_in_flight = 0
        self._need = 0
        self._rate = 0.0
        self._room = True
        self._told_ns = now_ns
        self._credit_from_ns = now_ns

    def total(self, workers: int) -> int:
        """The whole threshold for a window, units."""
        return math.floor(self.count * (workers if self.each else 1) + ROUNDING)

    def change(self, *, count: float, each: bool, window_ns: int) -> None:
        """Go by another rule. What is more in hand than a block of it is not used any more."""
        self.count, self.each, self.window_ns = count, each, window_ns
        self._hold = min(self._hold, max(1, math.floor(count) // BLOCK_PARTS))

    # Being asked.

    def take_fast(self, units: int, now_ns: int) -> bool | None:
        """The two usual cases in a few steps: enough in hand, or shut. None: it is another case."""
        if now_ns < self.shut_ns:
            self._need = max(self._need, units)
        elif now_ns >= self._good_until_ns or 2 * (self._hold - units) < self.block:
            return None
        else:
            self._hold -= units
        self.asked += units
        self.asked_ns = now_ns
        return now_ns >= self.shut_ns

    def shut(self, now_ns: int) -> None:
        """Note that nothing is to be had until Redis may be asked again."""
        if not self.in_hand(now_ns) and not self._owed:
            self.shut_ns = min(self.retry_ns, max(self._credit_from_ns, now_ns))

    def in_hand(self, now_ns: int) -> int:
        """Tokens that may still be used."""
        if now_ns >= self._good_until_ns:
            self._hold = 0
        return self._hold

    def has(self, units: int, workers: int, now_ns: int) -> bool:
        """Whether so many can be taken, from the hand or (``workers`` > 0) on credit."""
        self._need = max(self._need, units)
        return self.in_hand(now_ns) >= units or self._credit(workers, now_ns) >= units

    def take(self, units: int, now_ns: int) -> None:
        """Take tokens; ``has`` was true."""
        if self.in_hand(now_ns) >= units:
            self._hold -= units
        else:
            self._owed += units

    def give_back(self, units: int, now_ns: int) -> None:
        """Undo a ``take``. Tokens whose window is over are not saved up."""
        self.shut_ns = now_ns
        if self._owed >= units:
            self._owed -= units
        elif now_ns < self._good_until_ns:
            self._hold += units

    def runs_low(self, now_ns: int) -> bool:
        """Whether it is time for an exchange."""
        if self._owed:
            return True
        hold, wanted = self.in_hand(now_ns), self._wanted(now_ns)
        if hold < min(self._need, wanted):
            return True
        if 2 * hold >= min(self.block, wanted):
            return False
        # What is kept counts against the block. If it is used up long before the answer comes,
        # asking a moment later, with an empty hand, brings more.
        return hold * NANOSECONDS_PER_S * PREFETCH_PART >= self._rate * self._flight_ns

    def _credit(self, workers: int, now_ns: int) -> int:
        if not workers or now_ns < self._credit_from_ns or not self._room:
            return 0
        total = self.total(workers)
        if total < (1 if self.is_value else CREDIT_WORKERS_MIN * workers):
            return 0
        return max(1, total // (BLOCK_PARTS * workers)) - self._owed

    def _wanted(self, now_ns: int) -> int:
        """Tokens that would be good to have in hand."""
        if now_ns - self.asked_ns > IDLE_NS:
            return 0
        # What was asked for since the last exchange is a rate too, if there was time to see one.
        span_ns = max(now_ns - self._told_ns, SPAN_MIN_NS)
        rate = max(self._rate, self.asked * NANOSECONDS_PER_S / span_ns)
        return max(math.ceil(rate * HORIZON_S), self._need, 1)

    # Living on a share.

    def use_share(self, units: int, most: int, now_ns: int) -> None:
        """Note what the engine may let in while it lives on its share of ``most``.

        Rather too much than too little: a slice no longer counts here as soon as its first instant
        has left the window, and is told as if all of it had been used at its last.
        """
        slice_ns = self._slice_ns
        self._forget_share(now_ns)
        used = sum(count for start, count in self.shared if now_ns - start < self.window_ns)
        if used + units > most:
            return
        start_ns = now_ns - now_ns % slice_ns
        if self.shared and self.shared[-1][0] == start_ns:
            units += self.shared.pop()[1]
        self.shared.append((start_ns, units))

    @property
    def _slice_ns(self) -> int:
        return max(1, self.window_ns // SHARE_SLICES)

    def _forget_share(self, now_ns: int) -> None:
        while self.shared and now_ns - self.shared[0][0] > self.window_ns + self._slice_ns:
            self.shared.popleft()

    def _told_share(self, now_ns: int) -> list[int]:
        """What was used of the share: age in milliseconds, units, and so on."""
        slice_ns = self._slice_ns
        return [
            number
            for start_ns, units in self.shared
            for number in (max(0, now_ns - start_ns - slice_ns) // NANOSECONDS_PER_MS, units)
        ]

    # Exchanging.

    def ask(self, *, leasing: bool, leaving: bool, now_ns: int) -> dict[str, object]:
        """What to tell Redis of it (``lua/lease.lua``). ``answered`` or ``unanswered`` follows."""
        self._forget_share(now_ns)
        span_ns = max(now_ns - self._told_ns, SPAN_MIN_NS)
        rate = self.asked * NANOSECONDS_PER_S / span_ns
        self._rate = rate if rate > self._rate else self._rate + (rate - self._rate) * FADING
        wanted = 0 if leaving or not leasing else self._wanted(now_ns)
        need, owed, hold = self._need, self._owed, self.in_hand(now_ns)
        self.asked, self._need, self._owed, self._told_ns = 0, 0, 0, now_ns
        # Others may have come since the hand was filled, and the block be smaller.
        self._hold = keep = min(hold, wanted, max(self.block, need))
        self._owed_in_flight = owed
        had = self._had_ns is not None and now_ns - self._had_ns < self.window_ns
        if owed:
            self._credit_from_ns = now_ns + 2 * self.window_ns
            self._had_ns = now_ns
        return {
            "count": self.count,
            "each": int(self.each),
            "window_ms": max(1, self.window_ns // NANOSECONDS_PER_MS),
            "keep": keep,
            "drop": hold - keep,
            "dated": self._dated_ms,
            "owed": owed,
            "want": max(0, wanted - keep),
            "need": need,
            "had": int(had),
            "shared": self._told_share(now_ns) if leasing else [],
        }

    def answered(self, answer: Answer, exchange: Exchange, now_ns: int) -> None:
        """Take up what Redis said."""
        kept = self.in_hand(now_ns)
        self._hold = kept + answer.granted
        self._dated_ms = answer.dated_ms
        self._good_until_ns = exchange.sent_ns + self.window_ns
        self.block = answer.block
        self._room = answer.room
        self.shut_ns = now_ns
        self.retry_ns = now_ns + answer.retry_ms * NANOSECONDS_PER_MS
        self._owed_in_flight = 0
        self._flight_ns = now_ns - exchange.sent_ns
        if answer.granted or kept:
            self._had_ns = now_ns
        if answer.granted or kept or self.shared:
            # It was not quiet.
            self._credit_from_ns = now_ns + 2 * self.window_ns
        if exchange.leasing:
            self.shared.clear()

    @property
    def owes(self) -> bool:
        """Whether tokens were used that Redis does not know of."""
        return self._owed > 0

    def unanswered(self) -> None:
        """Nothing is known of what was asked: owe it once more."""
        self._owed += self._owed_in_flight
        self._owed_in_flight = 0

    def is_idle(self, now_ns: int) -> bool:
        """Whether nothing would be lost by forgetting it."""
        return (
            now_ns - self.asked_ns > max(IDLE_NS, 2 * self.window_ns)
            and not self.in_hand(now_ns)
            and not (self._owed or self._owed_in_flight or self.shared)
        )
