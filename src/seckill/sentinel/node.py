"""The counters: what passed, was blocked, failed and finished, and how fast.

One ``StatisticNode`` holds two views of the same counts: the last second (a few buckets, for
decisions) and the last minute (60 whole seconds, for charts). Only the open bucket is counted into;
when it is closed its counts are handed to the minute. So the views cannot disagree.

A node is not locked. Whoever touches one holds the engine's lock.

Source: LeapArray and StatisticNode of sentinel-core 1.8: buckets are aligned to the epoch, and a
bucket's counts leave the window as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from seckill.sentinel.clock import NANOSECONDS_PER_S
from seckill.sentinel.pass_log import CEILING_MAX, NOT_BY_CEILING, PassLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from seckill.sentinel.entry import Entry
    from seckill.sentinel.errors import BlockException
    from seckill.sentinel.present import Present
    from seckill.sentinel.slot import Links

MINUTE_SECONDS: Final = 60

_Bucket: TypeAlias = tuple[int, int, int, int, int, int, int]
_Counts: TypeAlias = tuple[int, int, int, int, int, int, int, int]
# What a node in one context takes from the resource's: the rest is made for it.
_COPIED: Final = (
    "_base_blocked",
    "_base_exceptions",
    "_base_rt_ms",
    "_base_success",
    "_borrowed_now",
    "_buckets",
    "_second",
    "bucket_end_ns",
    "bucket_min_rt_ms",
    "concurrency",
    "window_blocked",
    "window_exceptions",
    "window_rt_ms",
    "window_success",
)


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


class StatisticNode(PassLog):
    """Counts of one thing: a resource, a resource in a context, a caller, or all inbound traffic.

    The ``window_`` counters are sums over the second window, the open bucket included.
    ``concurrency`` is the number of calls in flight.

    Args:
        sample_count: buckets per second, a divisor of 1,000.
        max_rt_ms: the shortest response time of a bucket without any.
        present: the engine's; without one numbers are not shared.
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
        "_present",
        "_sample_count",
        "_second",
        "_seconds",
        "_window_base",
        "bucket_ns",
        "window_blocked",
        "window_exceptions",
        "window_rt_ms",
    )

    def __init__(self, sample_count: int, max_rt_ms: int, present: Present | None = None) -> None:
        super().__init__()
        self._sample_count = sample_count
        self._max_rt_ms = max_rt_ms
        self._present = present
        self.bucket_ns = NANOSECONDS_PER_S // sample_count
        self.bucket_min_rt_ms = max_rt_ms
        self.window_blocked = self.window_exceptions = 0
        self.window_success = self.window_rt_ms = 0
        # What ``passed`` stood at, so to speak, when the window began.
        self._window_base = 0
        # What the counters stood at when the open bucket was opened.
        self._base_passed = self._base_blocked = self._base_exceptions = 0
        self._base_success = self._base_rt_ms = 0
        # The closed buckets of the window: start, passed, blocked, exceptions, success, rt_ms,
        # min_rt_ms.
        self._buckets: tuple[_Bucket, ...] = ()
        # What is borrowed from buckets to come, by their start.
        self._borrowed: dict[int, int] | None = None
        self._borrowed_now = 0
        # The running second so far, closed buckets only: as in ``Second``.
        self._second: _Counts = (0, 0, 0, 0, 0, 0, 0, max_rt_ms)
        # The seconds before it in which something happened, oldest first; at most a minute of them.
        self._seconds: list[_Counts] | None = None

    @property
    def window_passed(self) -> int:
        """Units that passed in the second window."""
        return self.passed - self._window_base

    # Counting. Each method takes the time of the decision, and the acquired units.

    def add_pass(self, now_ns: int, count: int) -> None:
        """Count a call that was let in, and one more in flight."""
        self.concurrency += 1
        if now_ns >= self.bucket_end_ns:
            self.roll(now_ns)
        if self.places is None:
            self.passed += count
        else:
            self._log_pass(now_ns, count, self._present)

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
        if rt_ms < self.bucket_min_rt_ms:  # noqa: PLR1730  three times as fast as min
            self.bucket_min_rt_ms = rt_ms
        self.concurrency -= 1
        if failed:
            self.window_exceptions += count

    def add_completes(
        self, now_ns: int, count: int, rts_ms: Sequence[int], *, failed_count: int
    ) -> None:
        """Count calls that ended together: ``count`` units, each call with its response time."""
        if now_ns >= self.bucket_end_ns:
            self.roll(now_ns)
        self.window_success += count
        self.window_rt_ms += sum(rts_ms)
        self.bucket_min_rt_ms = min(self.bucket_min_rt_ms, *rts_ms)
        self.concurrency -= len(rts_ms)
        self.window_exceptions += failed_count

    def roll(self, now_ns: int) -> None:
        """Close the open bucket and open the one ``now`` is in; nothing while it is open."""
        if now_ns < self.bucket_end_ns:
            return
        start_ns = now_ns - now_ns % self.bucket_ns
        if self.bucket_end_ns:
            self._close_bucket(start_ns)
        second_ns = start_ns - start_ns % NANOSECONDS_PER_S
        if second_ns != self._second[0]:
            self._close_second(second_ns)
        end_ns = start_ns + self.bucket_ns
        present = self._present
        if present is not None and present.bucket_end_ns == end_ns:
            end_ns = present.bucket_end_ns
        self.bucket_end_ns = end_ns
        self.bucket_min_rt_ms = self._max_rt_ms
        if self._borrowed:
            self._borrowed_now = self._borrowed.pop(start_ns, 0)
            self._borrowed = {at: n for at, n in self._borrowed.items() if at > start_ns} or None
            self._window_base -= self._borrowed_now
        elif self._borrowed_now:
            self._borrowed_now = 0
        if self.places is not None:
            self._forget(now_ns)
            if self._promised is not None:
                self._forget_promised(now_ns)
        else:
            # Without a log the window itself is what counts: begin it at 0.
            self._shift(self._window_base)

    def _close_bucket(self, start_ns: int) -> None:
        at_ns, passed_before, blocked_before, failed_before, ended_before, rt, occupied, best = (
            self._second
        )
        passed = self.passed - self._base_passed
        blocked = self.window_blocked - self._base_blocked
        exceptions = self.window_exceptions - self._base_exceptions
        success = self.window_success - self._base_success
        rt_ms = self.window_rt_ms - self._base_rt_ms
        shortest = self.bucket_min_rt_ms
        self._second = (
            at_ns,
            # What was borrowed stands in the minute since the moment it was promised.
            passed_before + passed,
            blocked_before + blocked,
            failed_before + exceptions,
            ended_before + success,
            rt + rt_ms,
            occupied,
            min(best, shortest),
        )
        passed += self._borrowed_now
        closed_ns = self.bucket_end_ns - self.bucket_ns
        oldest_ns = start_ns - NANOSECONDS_PER_S + self.bucket_ns
        if closed_ns < oldest_ns:
            self._buckets = ()
            passed = blocked = exceptions = success = rt_ms = 0
        elif self._sample_count == 2:  # noqa: PLR2004  the usual: of two buckets one is closed
            self._buckets = ((closed_ns, passed, blocked, exceptions, success, rt_ms, shortest),)
        else:
            bucket = (closed_ns, passed, blocked, exceptions, success, rt_ms, shortest)
            self._buckets = buckets = (
                *(one for one in self._buckets if one[0] >= oldest_ns),
                bucket,
            )
            passed = sum(one[1] for one in buckets)
            blocked = sum(one[2] for one in buckets)
            exceptions = sum(one[3] for one in buckets)
            success = sum(one[4] for one in buckets)
            rt_ms = sum(one[5] for one in buckets)
        self._base_passed = self.passed
        self._window_base = self.passed - passed
        self.window_blocked = self._base_blocked = blocked
        self.window_exceptions = self._base_exceptions = exceptions
        self.window_success = self._base_success = success
        self.window_rt_ms = self._base_rt_ms = rt_ms

    def _close_second(self, second_ns: int) -> None:
        second = self._second
        _, passed, blocked, exceptions, success, _, occupied, _ = second
        if passed or blocked or exceptions or success or occupied:
            if self._seconds is None:
                self._seconds = []
            self._seconds.append(second)
            if len(self._seconds) > MINUTE_SECONDS:
                del self._seconds[0]
        self._second = (second_ns, 0, 0, 0, 0, 0, 0, self._max_rt_ms)

    def _shift(self, units: int) -> None:
        super()._shift(units)
        self._base_passed -= units
        self._window_base -= units

    # Reading. Each method rolls first, so that an idle node forgets too.

    def used(self, now_ns: int) -> int:
        """Units that count against a QPS threshold now: of the sliding log if there is one."""
        if self.places is not None:
            return self.logged(now_ns)
        if now_ns >= self.bucket_end_ns:
            self.roll(now_ns)
        return self.passed - self._window_base

    def previous_passed(self, now_ns: int) -> int:
        """Units that passed in the whole second before the present one."""
        self.roll(now_ns)
        if not self._seconds:
            return 0
        last_ns, passed = self._seconds[-1][:2]
        previous_ns = now_ns - now_ns % NANOSECONDS_PER_S - NANOSECONDS_PER_S
        return passed if last_ns == previous_ns else 0

    def average_rt_ms(self, now_ns: int) -> float:
        """Milliseconds per finished unit over the second window; 0 when none finished."""
        self.roll(now_ns)
        return self.window_rt_ms / self.window_success if self.window_success else 0.0

    def max_success_qps(self, now_ns: int) -> float:
        """Finished units per second at the pace of the best bucket, which is at least 1."""
        self.roll(now_ns)
        best = max((bucket[4] for bucket in self._buckets), default=0)
        best = max(best, self.window_success - self._base_success, 1)
        return float(best * self._sample_count)

    def min_rt_ms(self, now_ns: int) -> int:
        """The shortest response time of the second window, at least 1 ms."""
        self.roll(now_ns)
        shortest = min((bucket[6] for bucket in self._buckets), default=self._max_rt_ms)
        return max(1, min(shortest, self.bucket_min_rt_ms))

    def seconds(self, now_ns: int) -> Iterator[Second]:
        """The seconds of the last minute in which something happened, the running one last."""
        self.roll(now_ns)
        oldest_ns = now_ns - now_ns % NANOSECONDS_PER_S - (MINUTE_SECONDS - 1) * NANOSECONDS_PER_S
        for second in self._seconds or ():
            if second[0] >= oldest_ns:
                yield Second(*second)
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
        for second in reversed(self._seconds or ()):
            if second[0] <= after_ns:
                break
            # Another may have rolled this node on while the caller still holds an older reading.
            if second[0] < running_ns:
                found.append(Second(*second))
        found.reverse()
        return found

    def running_second(self, now_ns: int) -> Second:
        """The counts of the second that has not ended yet."""
        self.roll(now_ns)
        second = Second(*self._second)
        return Second(
            second.start_ns,
            second.passed + self.passed - self._base_passed,
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
        borrowed = sum(self._borrowed.values()) if self._borrowed else 0
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
        if self._borrowed is None:
            self._borrowed = {}
        self._borrowed[start_ns] = self._borrowed.get(start_ns, 0) + count
        self.occupied(now_ns, count)

    def occupied(self, now_ns: int, count: int) -> None:
        """Count units let in ahead of time in the minute's view."""
        self.roll(now_ns)
        at_ns, passed, blocked, exceptions, success, rt_ms, occupied, best = self._second
        self._second = (
            at_ns,
            passed + count,
            blocked,
            exceptions,
            success,
            rt_ms,
            occupied + count,
            best,
        )

    def _passed_at(self, start_ns: int) -> int:
        if start_ns == self.bucket_end_ns - self.bucket_ns:
            return self.passed - self._base_passed + self._borrowed_now
        return next((bucket[1] for bucket in self._buckets if bucket[0] == start_ns), 0)

    # Kinship.

    def start_log(self, now_ns: int) -> None:
        """Begin to keep a log; what passed counts as of its bucket's last instant."""
        if self.places is not None:
            return
        self.roll(now_ns)
        passes = [
            (min(now_ns, bucket[0] + self.bucket_ns - 1), bucket[1])
            for bucket in self._buckets
            if bucket[1]
        ]
        if running := self.passed - self._base_passed + self._borrowed_now:
            passes.append((now_ns, running))
        since_base, window = self.passed - self._base_passed, self.window_passed
        self._begin_log(passes)
        self._base_passed = self.passed - since_base
        self._window_base = self.passed - window

    def copy(self) -> StatisticNode:
        """A node with the same past that counts for itself from now on, without a log."""
        twin = StatisticNode(self._sample_count, self._max_rt_ms, self._present)
        for name in _COPIED:
            setattr(twin, name, getattr(self, name))
        twin._borrowed = None if self._borrowed is None else dict(self._borrowed)
        twin._seconds = None if self._seconds is None else list(self._seconds)
        twin.passed = self.window_passed
        twin._base_passed = self._base_passed - self._window_base
        return twin


class ClusterNode(StatisticNode):
    """All traffic of one resource, whichever context it comes from; and the way through its slots.

    Attributes:
        name: of the resource.
        resource_type: what it stands for, as at its first entry.
        slides: whether thresholds are for a sliding window.
        checks: the questions a call has to pass, in slot order; see ``slot.py``.
        on_pass, on_exit: what is told of a call that was let in, and of one that ends.
        origins: counters per caller, for callers that give their name.
        contexts: the contexts in which it was entered, by name.
        shared: whether these are several, so that each counts for itself as well.
    """

    __slots__ = (
        "_plain",
        "_slides",
        "checks",
        "contexts",
        "name",
        "on_exit",
        "on_pass",
        "origins",
        "resource_type",
        "shared",
    )

    def __init__(
        self,
        name: str,
        resource_type: int,
        sample_count: int,
        max_rt_ms: int,
        present: Present | None = None,
        *,
        slides: bool = True,
    ) -> None:
        super().__init__(sample_count, max_rt_ms, present)
        self.name = name
        self.resource_type = resource_type
        self.checks: tuple[Callable[[Entry, int], BlockException | int | None], ...] = ()
        self.on_pass: tuple[Callable[[Entry], None], ...] = ()
        self.on_exit: tuple[Callable[[Entry, int], None], ...] = ()
        self.origins: dict[str, StatisticNode] = {}
        self.contexts: dict[str, DefaultNode] = {}
        self._plain = CEILING_MAX
        self._slides = slides
        self.shared = False

    def link(self, links: list[Links]) -> None:
        """Take what the slots have to say, in their order."""
        self.checks = tuple(check for link in links for check in link.checks)
        self.on_pass = tuple(told for link in links for told in link.on_pass)
        self.on_exit = tuple(told for link in links for told in link.on_exit)
        ceilings = [link.ceiling for link in links if link.checks]
        self._plain = CEILING_MAX
        for ceiling in ceilings:
            self._plain = NOT_BY_CEILING if ceiling is None else min(self._plain, ceiling)
            if ceiling is None:
                break
        if self.on_pass or self.on_exit:
            self._plain = NOT_BY_CEILING
        self.aim()

    def aim(self) -> None:
        """Decide whether a call may be let in by the ceiling alone, and by which."""
        self.shared = len(self.contexts) > 1
        without_log = bool(self.checks) and self._slides and self.places is None
        self.limit = NOT_BY_CEILING if self.shared or without_log else self._plain
        if self.limit < 0 and self._present is not None:
            # Calls in flight may have come the short way, and have to end the long one.
            self._present.close_short_ends()
        self._aim()

    def renew(self, now_ns: int) -> None:
        """Open the bucket of the present, and have room for another place in the log."""
        if now_ns >= self.bucket_end_ns:
            self.roll(now_ns)
        if self.places is not None and self.places_end == self.places_size:
            self._make_room(now_ns)

    def start_log(self, now_ns: int) -> None:
        """Begin to keep a log; from here on its ceiling may decide."""
        super().start_log(now_ns)
        self.aim()


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
        known: the resources that a call of it may find without looking at its place in the tree:
            those counted once for all, by a call without a caller's name. Emptied when the engine
            is switched off.
    """

    __slots__ = ("children", "known", "name", "nodes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: dict[str, DefaultNode] = {}
        self.children: dict[str, DefaultNode] = {}
        self.known: dict[str, ClusterNode] = {}
