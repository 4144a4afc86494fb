"""The counters: what passed, was blocked, failed and finished, and how fast.

One ``StatisticNode`` holds two views of the same counts: the last second (a few buckets, for
decisions) and the last minute (60 whole seconds, for charts). Only the open bucket is counted into;
when it is closed its counts are handed to the minute. So the views cannot disagree.

A node is not locked. Whoever touches one holds the engine's lock.

Source: LeapArray and StatisticNode of sentinel-core 1.8: buckets are aligned to the epoch, and a
bucket's counts leave the window as a whole.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Final, NamedTuple

from seckill.sentinel.clock import NANOSECONDS_PER_MS, NANOSECONDS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from seckill.sentinel.entry import Entry
    from seckill.sentinel.errors import BlockException

MINUTE_SECONDS: Final = 60
LOG_PLACE_NS: Final = NANOSECONDS_PER_MS
"""Passes less than this apart share one place in the sliding log: at most 1,001 places."""


class Second(NamedTuple):
    """The counts of one whole second.

    Attributes:
        start_ns: when the second began, nanoseconds since the epoch.
        passed: acquired units that were let in (calls, unless a call acquires several).
        blocked: acquired units that were refused.
        exceptions: acquired units whose call raised.
        success: acquired units whose call ended, raised or not.
        rt_ms: sum of the response times of the calls that ended.
        occupied: units let in ahead of time, at the expense of a later bucket.
        min_rt_ms: the shortest response time.
    """

    start_ns: int
    passed: int
    blocked: int
    exceptions: int
    success: int
    rt_ms: int
    occupied: int
    min_rt_ms: int

    @property
    def average_rt_ms(self) -> int:
        """Whole milliseconds per finished unit; the sum when none finished, as in the original."""
        return self.rt_ms // self.success if self.success else self.rt_ms

    @property
    def idle(self) -> bool:
        """Whether nothing happened in it."""
        return not (self.passed or self.blocked or self.exceptions or self.success or self.occupied)


class _Bucket(NamedTuple):
    """A closed bucket of the second window."""

    start_ns: int
    passed: int
    blocked: int
    exceptions: int
    success: int
    rt_ms: int
    min_rt_ms: int


class SlidingLog:
    """The passes of the last 1,000 ms, each with its time: a window without an edge.

    Buckets forget half a second at once, so that twice the threshold fits around the seam. The log
    forgets each pass exactly one second after it. Passes within a millisecond share a place and
    count as late as the latest of them, so the error is on the strict side.

    Complexity: O(1) per pass; at most once a millisecond the places are moved up, at most 1,001.
    """

    __slots__ = (
        "_counts",
        "_times_ns",
        "expiry_ns",
        "open_count",
        "open_end_ns",
        "open_ns",
        "total",
    )

    def __init__(self) -> None:
        # The closed places, oldest first: the time of the latest pass in each, and how many.
        # Lists, because an empty deque is ten times as large and most resources are called rarely.
        self._times_ns: list[int] = []
        self._counts: list[int] = []
        # The open place: passes before its end are added to it. Entry does that without calling us.
        self.open_ns = 0
        self.open_count = 0
        self.open_end_ns = 0
        self.total = 0
        # Before this time nothing has to be forgotten.
        self.expiry_ns = 0

    def used(self, now_ns: int) -> int:
        """Units that passed in the second that ends now, and those promised for later."""
        if self.expiry_ns <= now_ns:
            self._forget(now_ns)
        return self.total

    def add(self, now_ns: int, count: int) -> None:
        """Count a pass."""
        self.total += count
        if now_ns >= self.open_end_ns:
            if self.open_count:
                self._close_place()
            if self._times_ns and self._times_ns[-1] > now_ns:
                self._insert(now_ns, count)
                return
            self.open_end_ns = now_ns + LOG_PLACE_NS
            if self.expiry_ns <= now_ns:
                self._forget(now_ns)
        self.open_count += count
        self.open_ns = now_ns

    def earliest_ns(self, now_ns: int, count: int, limit: float) -> int | None:
        """When this many units would fit if nothing else came; None if they never will."""
        used = self.used(now_ns)
        if used + count <= limit:
            return now_ns
        self._close_place()
        for time_ns, passed in zip(self._times_ns, self._counts, strict=True):
            used -= passed
            if used + count <= limit:
                return time_ns + NANOSECONDS_PER_S
        return None

    def reserve(self, at_ns: int, count: int) -> None:
        """Count a pass that is promised for later."""
        self.total += count
        self._close_place()
        self._insert(at_ns, count)

    def _close_place(self) -> None:
        if self.open_count:
            if self._times_ns and self._times_ns[-1] > self.open_ns:
                self._insert(self.open_ns, self.open_count)
            else:
                self._times_ns.append(self.open_ns)
                self._counts.append(self.open_count)
        self.open_count = 0
        self.open_end_ns = 0

    def _insert(self, at_ns: int, count: int) -> None:
        places = list(zip(self._times_ns, self._counts, strict=True))
        insort(places, (at_ns, count))
        self._times_ns = [time_ns for time_ns, _ in places]
        self._counts = [passed for _, passed in places]
        self.expiry_ns = min(self.expiry_ns, self._times_ns[0] + NANOSECONDS_PER_S)

    def _forget(self, now_ns: int) -> None:
        times_ns = self._times_ns
        border_ns = now_ns - NANOSECONDS_PER_S
        if self.open_count and self.open_ns <= border_ns:
            self._close_place()
        if times_ns and times_ns[0] <= border_ns:
            old = bisect_right(times_ns, border_ns)
            self.total -= sum(self._counts[:old])
            del times_ns[:old]
            del self._counts[:old]
        oldest_ns = times_ns[0] if times_ns else self.open_ns if self.open_count else now_ns
        self.expiry_ns = oldest_ns + NANOSECONDS_PER_S


class StatisticNode:
    """Counts of one thing: a resource, a resource in a context, a caller, or all inbound traffic.

    The ``window_`` counters are sums over the second window, the open bucket included.
    ``concurrency`` is the number of calls in flight.

    Args:
        sample_count: buckets per second, a divisor of 1,000.
        max_rt_ms: the shortest response time of a bucket without any.
    """

    __slots__ = (
        "_base_blocked",
        "_base_exceptions",
        "_base_passed",
        "_base_rt_ms",
        "_base_success",
        "_borrowed",
        "_borrowed_now",
        "_buckets",
        "_max_rt_ms",
        "_open_occupied",
        "_open_second",
        "_sample_count",
        "_seconds",
        "bucket_end_ns",
        "bucket_min_rt_ms",
        "bucket_ns",
        "concurrency",
        "log",
        "window_blocked",
        "window_exceptions",
        "window_passed",
        "window_rt_ms",
        "window_success",
    )

    def __init__(self, sample_count: int, max_rt_ms: int) -> None:
        self._sample_count = sample_count
        self._max_rt_ms = max_rt_ms
        self.bucket_ns = NANOSECONDS_PER_S // sample_count
        self.bucket_end_ns = 0
        self.bucket_min_rt_ms = max_rt_ms
        self.concurrency = 0
        self.window_passed = self.window_blocked = self.window_exceptions = 0
        self.window_success = self.window_rt_ms = 0
        # What the window's counters stood at when the open bucket was opened.
        self._base_passed = self._base_blocked = self._base_exceptions = 0
        self._base_success = self._base_rt_ms = 0
        self._buckets: list[_Bucket] = []
        self._borrowed: dict[int, int] = {}
        self._borrowed_now = 0
        # The closed seconds in which something happened, oldest first; at most a minute of them.
        self._seconds: list[Second] = []
        self._open_second = Second(0, 0, 0, 0, 0, 0, 0, max_rt_ms)
        self._open_occupied = 0
        self.log: SlidingLog | None = None

    # Counting. Each method takes the time of the decision, and the acquired units.

    def add_pass(self, now_ns: int, count: int) -> None:
        """Count a call that was let in, and one more in flight."""
        if now_ns >= self.bucket_end_ns:
            self.roll(now_ns)
        self.window_passed += count
        self.concurrency += 1
        if self.log is not None:
            self.log.add(now_ns, count)

    def add_block(self, now_ns: int, count: int) -> None:
        """Count a call that was refused."""
        if now_ns >= self.bucket_end_ns:
            self.roll(now_ns)
        self.window_blocked += count

    def add_complete(self, now_ns: int, count: int, rt_ms: int, *, failed: bool) -> None:
        """Count a call that ended. ``rt_ms`` counts once, however many units it had."""
        if now_ns >= self.bucket_end_ns:
            self.roll(now_ns)
        self.window_success += count
        self.window_rt_ms += rt_ms
        self.bucket_min_rt_ms = min(self.bucket_min_rt_ms, rt_ms)
        self.concurrency -= 1
        if failed:
            self.window_exceptions += count

    def roll(self, now_ns: int) -> None:
        """Close the open bucket and open the one ``now`` is in; nothing while it is open."""
        if now_ns < self.bucket_end_ns:
            return
        start_ns = now_ns - now_ns % self.bucket_ns
        if self.bucket_end_ns:
            self._close_bucket(start_ns)
        second_ns = start_ns - start_ns % NANOSECONDS_PER_S
        if second_ns != self._open_second.start_ns:
            self._close_second(second_ns)
        self.bucket_end_ns = start_ns + self.bucket_ns
        self.bucket_min_rt_ms = self._max_rt_ms
        self._borrowed_now = self._borrowed.pop(start_ns, 0)
        if self._borrowed:
            self._borrowed = {at: n for at, n in self._borrowed.items() if at > start_ns}
        self.window_passed += self._borrowed_now

    def _close_bucket(self, start_ns: int) -> None:
        closed = _Bucket(
            self.bucket_end_ns - self.bucket_ns,
            self.window_passed - self._base_passed,
            self.window_blocked - self._base_blocked,
            self.window_exceptions - self._base_exceptions,
            self.window_success - self._base_success,
            self.window_rt_ms - self._base_rt_ms,
            self.bucket_min_rt_ms,
        )
        second = self._open_second
        self._open_second = Second(
            second.start_ns,
            # What was borrowed stands in the minute since the moment it was promised.
            second.passed + closed.passed - self._borrowed_now,
            second.blocked + closed.blocked,
            second.exceptions + closed.exceptions,
            second.success + closed.success,
            second.rt_ms + closed.rt_ms,
            second.occupied,
            min(second.min_rt_ms, closed.min_rt_ms),
        )
        oldest_ns = start_ns - (self._sample_count - 1) * self.bucket_ns
        buckets = [bucket for bucket in self._buckets if bucket.start_ns >= oldest_ns]
        if closed.start_ns >= oldest_ns:
            buckets.append(closed)
        self._buckets = buckets
        self.window_passed = self._base_passed = sum(bucket.passed for bucket in buckets)
        self.window_blocked = self._base_blocked = sum(bucket.blocked for bucket in buckets)
        self.window_exceptions = self._base_exceptions = sum(b.exceptions for b in buckets)
        self.window_success = self._base_success = sum(bucket.success for bucket in buckets)
        self.window_rt_ms = self._base_rt_ms = sum(bucket.rt_ms for bucket in buckets)

    def _close_second(self, second_ns: int) -> None:
        if not self._open_second.idle:
            self._seconds.append(self._open_second)
            if len(self._seconds) > MINUTE_SECONDS:
                del self._seconds[0]
        self._open_second = Second(second_ns, 0, 0, 0, 0, 0, 0, self._max_rt_ms)

    # Reading. Each method rolls first, so that an idle node forgets too.

    def used(self, now_ns: int) -> int:
        """Units that count against a QPS threshold now: of the sliding log if there is one."""
        if self.log is not None:
            return self.log.used(now_ns)
        if now_ns >= self.bucket_end_ns:
            self.roll(now_ns)
        return self.window_passed

    def previous_passed(self, now_ns: int) -> int:
        """Units that passed in the whole second before the present one."""
        self.roll(now_ns)
        if not self._seconds:
            return 0
        last = self._seconds[-1]
        previous_ns = now_ns - now_ns % NANOSECONDS_PER_S - NANOSECONDS_PER_S
        return last.passed if last.start_ns == previous_ns else 0

    def average_rt_ms(self, now_ns: int) -> float:
        """Milliseconds per finished unit over the second window; 0 when none finished."""
        self.roll(now_ns)
        return self.window_rt_ms / self.window_success if self.window_success else 0.0

    def max_success_qps(self, now_ns: int) -> float:
        """Finished units per second at the pace of the best bucket, which is at least 1."""
        self.roll(now_ns)
        best = max(
            (bucket.success for bucket in self._buckets),
            default=0,
        )
        best = max(best, self.window_success - self._base_success, 1)
        return float(best * self._sample_count)

    def min_rt_ms(self, now_ns: int) -> int:
        """The shortest response time of the second window, at least 1 ms."""
        self.roll(now_ns)
        shortest = min((bucket.min_rt_ms for bucket in self._buckets), default=self._max_rt_ms)
        return max(1, min(shortest, self.bucket_min_rt_ms))

    def seconds(self, now_ns: int) -> Iterator[Second]:
        """The seconds of the last minute in which something happened, the running one last."""
        self.roll(now_ns)
        oldest_ns = now_ns - now_ns % NANOSECONDS_PER_S - (MINUTE_SECONDS - 1) * NANOSECONDS_PER_S
        for second in self._seconds:
            if second.start_ns >= oldest_ns:
                yield second
        running = self.running_second(now_ns)
        if not running.idle:
            yield running

    def finished_since(self, after_ns: int, now_ns: int) -> list[Second]:
        """The seconds, oldest first, that began after an instant and are over now.

        Complexity: linear in what it returns, however much the minute holds.
        """
        self.roll(now_ns)
        running_ns = now_ns - now_ns % NANOSECONDS_PER_S
        found = []
        for second in reversed(self._seconds):
            if second.start_ns <= after_ns:
                break
            # Another may have rolled this node on while the caller still holds an older reading.
            if second.start_ns < running_ns:
                found.append(second)
        found.reverse()
        return found

    def running_second(self, now_ns: int) -> Second:
        """The counts of the second that has not ended yet."""
        self.roll(now_ns)
        second = self._open_second
        return Second(
            second.start_ns,
            second.passed + self.window_passed - self._base_passed - self._borrowed_now,
            second.blocked + self.window_blocked - self._base_blocked,
            second.exceptions + self.window_exceptions - self._base_exceptions,
            second.success + self.window_success - self._base_success,
            second.rt_ms + self.window_rt_ms - self._base_rt_ms,
            second.occupied,
            min(second.min_rt_ms, self.bucket_min_rt_ms),
        )

    def minute(self, now_ns: int) -> Second:
        """The counts of the last 60 seconds as one; ``start_ns`` is that of the first of them."""
        rows = list(self.seconds(now_ns))
        return Second(
            now_ns - now_ns % NANOSECONDS_PER_S - (MINUTE_SECONDS - 1) * NANOSECONDS_PER_S,
            sum(row.passed for row in rows),
            sum(row.blocked for row in rows),
            sum(row.exceptions for row in rows),
            sum(row.success for row in rows),
            sum(row.rt_ms for row in rows),
            sum(row.occupied for row in rows),
            min((row.min_rt_ms for row in rows), default=self._max_rt_ms),
        )

    # Borrowing ahead, for prioritised calls.

    def occupy_wait_ns(
        self, now_ns: int, count: int, threshold: float, timeout_ns: int
    ) -> int | None:
        """How long a call must wait until old buckets make room for it; None if too long.

        Source: StatisticNode.tryOccupyNext of sentinel-core 1.8.
        """
        self.roll(now_ns)
        borrowed = sum(self._borrowed.values())
        if borrowed >= threshold:
            return None
        span_ns = self.bucket_ns
        bucket_at_ns = now_ns - now_ns % span_ns + span_ns - NANOSECONDS_PER_S
        wait_ns = span_ns - now_ns % span_ns
        passed = self.window_passed
        while bucket_at_ns < now_ns and wait_ns < timeout_ns:
            bucket_passed = self._passed_at(bucket_at_ns)
            if passed + borrowed + count - bucket_passed <= threshold:
                return wait_ns
            bucket_at_ns += span_ns
            passed -= bucket_passed
            wait_ns += span_ns
        return None

    def occupy(self, now_ns: int, wait_ns: int, count: int) -> None:
        """Promise units of the bucket after the wait, and count them as passed now."""
        at_ns = now_ns + wait_ns
        start_ns = at_ns - at_ns % self.bucket_ns
        self._borrowed[start_ns] = self._borrowed.get(start_ns, 0) + count
        self.occupied(now_ns, count)

    def occupied(self, now_ns: int, count: int) -> None:
        """Count units let in ahead of time in the minute's view."""
        self.roll(now_ns)
        second = self._open_second
        self._open_second = second._replace(
            passed=second.passed + count, occupied=second.occupied + count
        )

    def _passed_at(self, start_ns: int) -> int:
        if start_ns == self.bucket_end_ns - self.bucket_ns:
            return self.window_passed - self._base_passed
        return next((b.passed for b in self._buckets if b.start_ns == start_ns), 0)

    # Kinship.

    def start_log(self, now_ns: int) -> SlidingLog:
        """Begin to keep a sliding log; what passed counts as of its bucket's last instant."""
        if self.log is not None:
            return self.log
        self.roll(now_ns)
        log = SlidingLog()
        for bucket in self._buckets:
            if bucket.passed:
                log.add(min(now_ns, bucket.start_ns + self.bucket_ns - 1), bucket.passed)
        if running := self.window_passed - self._base_passed:
            log.add(now_ns, running)
        self.log = log
        return log

    def copy(self) -> StatisticNode:
        """A node with the same past that counts for itself from now on, without a log."""
        twin = StatisticNode(self._sample_count, self._max_rt_ms)
        for name in StatisticNode.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._buckets = list(self._buckets)
        twin._borrowed = dict(self._borrowed)
        twin._seconds = list(self._seconds)
        twin.log = None
        return twin


class ClusterNode(StatisticNode):
    """All traffic of one resource, whichever context it comes from; and the way through its slots.

    Attributes:
        name: of the resource.
        resource_type: what it stands for, as at its first entry.
        checks: the questions a call has to pass, in slot order; see ``slot.py``.
        on_pass, on_exit: what is told of a call that was let in, and of one that ends.
        origins: counters per caller, for callers that give their name.
        contexts: the contexts in which it was entered, by name.
    """

    __slots__ = ("checks", "contexts", "name", "on_exit", "on_pass", "origins", "resource_type")

    def __init__(self, name: str, resource_type: int, sample_count: int, max_rt_ms: int) -> None:
        super().__init__(sample_count, max_rt_ms)
        self.name = name
        self.resource_type = resource_type
        self.checks: tuple[Callable[[Entry, int], BlockException | int | None], ...] = ()
        self.on_pass: tuple[Callable[[Entry], None], ...] = ()
        self.on_exit: tuple[Callable[[Entry, int], None], ...] = ()
        self.origins: dict[str, StatisticNode] = {}
        self.contexts: dict[str, DefaultNode] = {}


class DefaultNode:
    """One resource in one context: a place in the call tree.

    While a resource is entered in one context only, that context's counts *are* the resource's, and
    are
    kept once: ``own`` is None. From the second context on each counts for itself as well.
    """

    __slots__ = ("children", "cluster", "context_name", "own")

    def __init__(self, cluster: ClusterNode, context_name: str) -> None:
        self.cluster = cluster
        self.context_name = context_name
        self.own: StatisticNode | None = None
        self.children: dict[str, DefaultNode] = {}

    @property
    def name(self) -> str:
        """Name of the resource."""
        return self.cluster.name

    @property
    def statistic(self) -> StatisticNode:
        """The counters of this place."""
        return self.cluster if self.own is None else self.own


class EntranceNode:
    """A context: where its traffic comes in. Its numbers are the sums of its children's.

    Attributes:
        name: of the context.
        nodes: every resource entered in it, at whatever depth, by name.
        children: the resources entered first, before any other.
    """

    __slots__ = ("children", "name", "nodes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: dict[str, DefaultNode] = {}
        self.children: dict[str, DefaultNode] = {}
