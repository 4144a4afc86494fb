"""Workers, a wire and a Redis on one virtual clock: seeded, and seconds pass in milliseconds.

The workers are real engines with real lease books; the Redis is the model that
tests/contract/sentinel compares with the real one; only the carrying is simulated.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from contract.sentinel.lease_model import LeaseModel
from seckill.sentinel import (
    ClusterConfig,
    Entry,
    FlowRule,
    Sentinel,
    Settings,
    VirtualClock,
    VirtualWaiter,
)
from seckill.sentinel.clock import NANOSECONDS_PER_MS, NANOSECONDS_PER_S
from seckill.sentinel.redis.keys import SentinelKeys
from seckill.sentinel.redis.lease_book import LeaseBook, LeaseSettings
from seckill.sentinel.words import ThresholdType

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = ClusterConfig(flow_id=1, threshold_type=ThresholdType.GLOBAL)


class Wire:
    """The way to Redis and back."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.delay_ms = 1.0
        self.cut = False
        self.loses_replies = False

    def way_ns(self) -> int:
        return round(self.delay_ms * self.random.uniform(0.5, 1.5) * NANOSECONDS_PER_MS)


class SimulatedWorker:
    """One process: its engine, its book, and the task that carries exchanges."""

    def __init__(
        self, world: World, name: str, wire: Wire, *, expected: int | None, fallback: Any
    ) -> None:
        self.world = world
        self.wire = wire
        self.settings = LeaseSettings()
        # Each process's monotonic clock begins somewhere else.
        offset_ns = wire.random.randrange(10**12)
        self.book = LeaseBook(
            SentinelKeys("t"), worker_id=name, workers_expected=expected, settings=self.settings,
            now_ns=lambda: world.clock.now_ns() + offset_ns,
        )  # fmt: skip
        self.offset_ns = offset_ns
        self.sentinel = Sentinel(
            clock=world.clock, waiter=VirtualWaiter(world.clock), token_source=self.book,
            settings=Settings(cluster_fallback=fallback),
        )  # fmt: skip
        self.alive = True
        self._busy = False
        self._again = False
        self._turn = 0
        self.book.on_due = lambda: world.at(0, self.carry)

    def carry(self) -> None:
        """What ``run`` does between two waits."""
        if not self.alive:
            return
        if self._busy:
            self._again = True
            return
        self._again = False
        exchange = self.book.exchange()
        if exchange is None:
            self._sleep()
            return
        self._busy = True
        open_ = [True]

        def arrive() -> None:
            if not self.wire.cut:
                raw = self.world.redis.run(
                    list(exchange.keys), exchange.body, self.world.clock.now_ms()
                )
                self.world.at(self.wire.way_ns(), lambda: answer(raw))

        def answer(raw: str) -> None:
            if open_[0] and not self.wire.cut and not self.wire.loses_replies:
                open_[0] = False
                self.book.answered(exchange, raw)
                self._end()

        def give_up() -> None:
            if open_[0]:
                open_[0] = False
                self.book.unanswered(exchange, TimeoutError())
                self._end()

        self.world.at(self.wire.way_ns(), arrive)
        self.world.at(self.settings.timeout_ms * NANOSECONDS_PER_MS, give_up)

    def _end(self) -> None:
        self._busy = False
        if self._again:
            self.carry()
        else:
            self._sleep()

    def _sleep(self) -> None:
        self._turn += 1
        turn = self._turn
        wait_ns = self.book.next_ns() - self.offset_ns - self.world.clock.now_ns()
        self.world.at(max(0, wait_ns), lambda: self.carry() if turn == self._turn else None)

    def call(self, calls: int) -> int:
        """So many calls at once: how many pass."""
        passed = 0
        for _ in range(calls):
            entry = self.sentinel.try_entry("r")
            if isinstance(entry, Entry):
                passed += 1
                entry.exit()
        self.world.passed += [self.world.clock.now_ns()] * passed
        return passed


class World:
    """Everything, and its time."""

    def __init__(
        self, count: float, workers: int, *, seed: int = 1, expected: int | None = None,
        fallback: Any = "share", config: ClusterConfig = CONFIG,
    ) -> None:  # fmt: skip
        self.clock = VirtualClock()
        self.redis = LeaseModel()
        self.passed: list[int] = []
        self.rule = FlowRule(resource="r", count=count, cluster_mode=True, cluster_config=config)
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self.start_ns = self.clock.now_ns()
        self.workers: list[SimulatedWorker] = []
        for number in range(workers):
            self.join(f"w{number}", Wire(seed * 1_000 + number), expected, fallback)

    def join(
        self, name: str, wire: Wire, expected: int | None = None, fallback: Any = "share"
    ) -> SimulatedWorker:
        worker = SimulatedWorker(self, name, wire, expected=expected, fallback=fallback)
        worker.sentinel.flow.load([self.rule])
        self.workers.append(worker)
        self.at(0, worker.carry)
        return worker

    @property
    def now_ms(self) -> float:
        return (self.clock.now_ns() - self.start_ns) / NANOSECONDS_PER_MS

    def at(self, wait_ns: int, what: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.clock.now_ns() + wait_ns, next(self._numbers), what))

    def run(self, span_ms: float) -> None:
        """Let time pass."""
        end_ns = self.clock.now_ns() + round(span_ms * NANOSECONDS_PER_MS)
        while self._events and self._events[0][0] <= end_ns:
            at_ns, _, what = heapq.heappop(self._events)
            self.clock.advance_ns(max(0, at_ns - self.clock.now_ns()))
            what()
        self.clock.advance_ns(max(0, end_ns - self.clock.now_ns()))

    def offer(
        self, span_ms: int, rates: list[float], *, step_ms: int = 2, until: Any = None
    ) -> None:
        """Calls at so many per second to each worker, for a while."""
        owing = [0.0] * len(rates)
        for _ in range(0, span_ms, step_ms):
            for place, rate in enumerate(rates):
                owing[place] += rate * step_ms / 1000
                calls = int(owing[place])
                owing[place] -= calls
                if calls and self.workers[place].alive:
                    self.workers[place].call(calls)
            self.run(step_ms)
            if until is not None and until():
                return

    # Looking.

    def worst(self, window_ns: int = NANOSECONDS_PER_S, *, since_ms: float = 0) -> int:
        """The most that passed within any window."""
        since_ns = self.start_ns + round(since_ms * NANOSECONDS_PER_MS)
        times = self.passed[bisect.bisect_left(self.passed, since_ns) :]
        ends = (bisect.bisect_left(times, at_ns + window_ns) for at_ns in times)
        return max((end - place for place, end in enumerate(ends)), default=0)

    def per_second(self, since_ms: float) -> Counter[int]:
        """What passed in each whole second since then."""
        since_ns = self.start_ns + round(since_ms * NANOSECONDS_PER_MS)
        return Counter(
            (at_ns - since_ns) // NANOSECONDS_PER_S for at_ns in self.passed if at_ns >= since_ns
        )
