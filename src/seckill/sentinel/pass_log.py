"""The passes of the last second, each with its time, and the counters that every call touches.

Kept together in one base class, first in the node's memory, because they are what a call needs: of
6,000 resources called in turn none is in the processor's cache, and each line fetched costs.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from heapq import merge
from typing import TYPE_CHECKING, Final

from seckill.sentinel.clock import NANOSECONDS_PER_MS, NANOSECONDS_PER_S

if TYPE_CHECKING:
    from seckill.sentinel.present import Present

PLACES_AT_FIRST: Final = 4
PLACES_OF_A_SHORT_LIST: Final = 64
"""Up to here half a list is free once old places are forgotten, or it grows fourfold: making room
costs as much as several calls. A longer one doubles."""
PLACES_TO_SPARE: Final = 16
"""So many places of a longer list are free once old ones are forgotten, or it grows."""

CEILING_MAX: Final = 2**30 - 1
"""No threshold at all. The largest number that the interpreter compares in one step."""
NOT_BY_CEILING: Final = -1
NO_PLACE_NS: Final = -1


class PassLog:
    """A window without an edge: it forgets each pass one second after it.

    Buckets forget half a second at once, so that twice the threshold fits around the seam. Here
    passes within one millisecond of the clock share a *place* and count as late as its end (a pass
    at a whole millisecond: as late as that), so the error is below 1 ms and on the strict side.

    The log is lazy. ``passed`` may still hold what is over a second old: it is an upper bound.
    While even that fits under the threshold nothing has to be forgotten; only a call that seems not
    to fit, a full list or a new bucket makes it exact.

    Attributes:
        passed: units that passed: of the log if there is one, else of the second window.
        ceiling: a pass that leaves ``passed`` at or below this may be let in without any other
            question; ``NOT_BY_CEILING`` when there are other questions. See ``Entry``.
        concurrency: calls in flight.
        limit: the threshold behind the ceiling, or ``NOT_BY_CEILING``.
        place_ns: the time of the open place, as the object that ``Present`` had then.
        places: two items for each place, oldest first: how many units passed at the place *before*
            it, and its own time. A list without length limits of its own, filled up to
            ``places_end``; None while no log is kept.
        places_size: length of the list.
        bucket_end_ns, bucket_min_rt_ms, window_success: see ``StatisticNode``.

    Complexity: O(1) per pass. At most 1,001 places (2,001 if some passes come at whole
        milliseconds).
    """

    __slots__ = (
        "_promised",
        "_promised_units",
        "bucket_end_ns",
        "bucket_min_rt_ms",
        "ceiling",
        "concurrency",
        "limit",
        "passed",
        "place_base",
        "place_ns",
        "places",
        "places_end",
        "places_size",
        "window_success",
    )

    def __init__(self) -> None:
        self.bucket_end_ns = 0
        self.bucket_min_rt_ms = 0
        self.ceiling = NOT_BY_CEILING
        self.concurrency = 0
        self.passed = 0
        self.place_ns = NO_PLACE_NS
        self.places: list[int] | None = None
        self.places_end = 0
        self.places_size = 0
        self.window_success = 0
        # What ``passed`` stood at when the open place was opened.
        self.place_base = 0
        # Passes that are promised for later, by time; and the sum of their units.
        self._promised: list[tuple[int, int]] | None = None
        self._promised_units = 0
        self.limit = NOT_BY_CEILING

    @property
    def logs(self) -> bool:
        """Whether the log is kept."""
        return self.places is not None

    def logged(self, now_ns: int) -> int:
        """Units that passed in the second that ends now, and those promised for later."""
        places = self.places
        if places is not None and self.places_end and places[1] <= now_ns - NANOSECONDS_PER_S:
            self._forget(now_ns)
        if self._promised is not None:
            self._forget_promised(now_ns)
        return self.passed + self._promised_units

    def earliest_ns(self, now_ns: int, count: int, limit: float) -> int | None:
        """When this many units would fit if nothing else came; None if they never will."""
        used = self.logged(now_ns)
        if used + count <= limit:
            return now_ns
        for time_ns, passed in merge(self._closed_places(), self._promised or ()):
            used -= passed
            if used + count <= limit:
                return time_ns + NANOSECONDS_PER_S
        return None

    def reserve(self, at_ns: int, count: int) -> None:
        """Count a pass that is promised for later."""
        if self._promised is None:
            self._promised = []
        insort(self._promised, (at_ns, count))
        self._promised_units += count
        self._aim()

    def _aim(self) -> None:
        """Set the ceiling by the limit and by what ``passed`` does not hold."""
        left = self.limit
        if self._promised_units:
            left -= self._promised_units
        self.ceiling = left if left >= 0 else NOT_BY_CEILING

    def _log_pass(self, now_ns: int, count: int, present: Present | None) -> None:
        """Count a pass in the log."""
        places = self.places
        assert places is not None
        inside_ns = now_ns % NANOSECONDS_PER_MS
        time_ns = now_ns - inside_ns + NANOSECONDS_PER_MS if inside_ns else now_ns
        if present is not None and present.place_ns == time_ns:
            time_ns = present.place_ns
        self.place_ns = time_ns
        end = self.places_end
        if not end or places[end - 1] < time_ns:
            if end == self.places_size:
                self._make_room(now_ns)
                end = self.places_end
            places[end] = self.passed - self.place_base
            places[end + 1] = time_ns
            self.place_base = self.passed
            self.places_end = end + 2
        self.passed += count

    def _begin_log(self, passes: list[tuple[int, int]]) -> None:
        """Keep a log from here on, of these passes at first: times and units, oldest first."""
        self.places = [0] * (2 * PLACES_AT_FIRST)
        self.places_size = 2 * PLACES_AT_FIRST
        self.places_end = 0
        self.passed = self.place_base = 0
        self.place_ns = NO_PLACE_NS
        for time_ns, count in passes:
            self._log_pass(time_ns, count, None)
        self._aim()

    def _closed_places(self) -> list[tuple[int, int]]:
        """Time and units of each place, the open one included."""
        places, end = self.places, self.places_end
        if places is None or not end:
            return []
        counts = [*places[2:end:2], self.passed - self.place_base]
        return list(zip(places[1:end:2], counts, strict=True))

    def _forget(self, now_ns: int) -> None:
        """Forget what passed a second ago or earlier."""
        places, end = self.places, self.places_end
        if places is None or not end:
            return
        gone = 2 * bisect_right(places[1:end:2], now_ns - NANOSECONDS_PER_S)
        if not gone:
            return
        if gone == end:
            self.places_end = 0
            self._shift(self.passed)
            if self.places_size > 2 * PLACES_AT_FIRST:
                # Silent for a second: what a rush needed is given back.
                del places[2 * PLACES_AT_FIRST :]
                self.places_size = 2 * PLACES_AT_FIRST
            return
        # Units stand one place behind their time, so those of the places gone begin at the second.
        self._shift(sum(places[2 : gone + 2 : 2]))
        left = end - gone
        places[:left] = places[gone:end]
        self.places_end = left

    def _forget_promised(self, now_ns: int) -> None:
        promised = self._promised
        if promised and promised[0][0] <= now_ns - NANOSECONDS_PER_S:
            kept = [one for one in promised if one[0] > now_ns - NANOSECONDS_PER_S]
            self._promised = kept
            self._promised_units = sum(count for _, count in kept)
            self._aim()

    def _shift(self, units: int) -> None:
        """Take units off ``passed``, and off all that was read from it."""
        self.passed -= units
        self.place_base -= units

    def _make_room(self, now_ns: int) -> None:
        """Make sure that another place fits into the list."""
        places = self.places
        assert places is not None
        self._forget(now_ns)
        size = self.places_size
        if size > 2 * PLACES_OF_A_SHORT_LIST:
            spare, more = 2 * PLACES_TO_SPARE, size
        else:
            spare, more = size // 2, 3 * size
        if size - self.places_end < spare:
            places.extend([0] * more)
            self.places_size = size + more
