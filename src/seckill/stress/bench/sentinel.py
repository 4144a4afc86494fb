"""`seckill bench sentinel`: what one decision costs, beside other limiters in the same run.

All take turns in each round, so that whatever else the machine does befalls all of them; the
processor time of the calling thread counts, which leaves out the peers' housekeeping threads, and
medians are compared. Each turn begins alike for all: garbage is collected, and one burst that does
not count brings code and data into the caches that the collection, and whoever had the turn before,
have emptied. The collector is off meanwhile, and the peers begin each burst of 1,000 calls with
nothing to look through: both are in their favour.

A limiter is compared with those that promise the same: never more than N in any second, whenever it
begins. Those that promise less (twice N around the edge of a second, or N by estimate) stand in the
table as well.
"""

import gc
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any, Final

from seckill.sentinel import (
    BlockException,
    EntryType,
    FlowRule,
    Sentinel,
    Settings,
    VirtualClock,
)
from seckill.stress.bench.wrk import BenchUnavailable

__all__ = ["BOUNDS", "Measured", "SentinelBench", "bench_sentinel"]

RESOURCES: Final = 6_000
"""As many as the engine keeps by default."""
_CALLS: Final = 1_000
_BURSTS: Final = 5
_PASSES: Final = 5
_NEVER_REACHED: Final = 1_000_000_000
_MEMORY_SAMPLE: Final = 1_000
_BUSY_SECONDS: Final = 61
_STRANGERS: Final = 10_000

ONE_RULE: Final = "entry + exit, one flow rule"
ONE_OF_MANY: Final = f"entry + exit, one of {RESOURCES:,} resources"
IN_TURN: Final = f"entry + exit, {RESOURCES:,} resources in turn"

BOUNDS: Final = {"us": 2.0, "better_peer": 3.0, "many_resources": 1.1}
"""What the project asks for: at most so many µs, at least so many times the better peer, at most so
many times one resource."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that decides.

    Attributes:
        name: what is done.
        run: does it so many times.
        calls: how many times in one burst; a turn has a few of them.
        begin: forgets what a limiter would look through; its time does not count.
        promise: what a limiter promises of a limit of N a second.
        ours: whether it is the product.
    """

    name: str
    run: Callable[[int], None]
    calls: int = _CALLS
    begin: Callable[[], object] = lambda: None
    promise: str = "N in any second"
    ours: bool = True

    @property
    def is_exact_peer(self) -> bool:
        """Whether it is a peer that promises what the product promises."""
        return not self.ours and self.promise == "N in any second"


@dataclass(frozen=True, slots=True)
class Measured:
    """What one subject took: nanoseconds of processor time a call, one number a turn."""

    name: str
    promise: str
    ours: bool
    exact_peer: bool
    turns_ns: list[float] = field(repr=False)

    @property
    def median_ns(self) -> float:
        """The middle of the turns."""
        return statistics.median(self.turns_ns)

    @property
    def least_ns(self) -> float:
        """The best of the turns."""
        return min(self.turns_ns)


@dataclass(frozen=True, slots=True)
class SentinelBench:
    """What was found."""

    rounds: int
    versions: dict[str, str]
    measured: list[Measured]
    memory_bytes: dict[str, int]

    def of(self, name: str) -> Measured:
        """What one subject took."""
        return next(one for one in self.measured if one.name == name)

    def ratios(self) -> dict[str, float]:
        """The medians against one another: what can be compared between machines."""
        one = self.of(ONE_RULE).median_ns
        exact = [peer.median_ns for peer in self.measured if peer.exact_peer]
        others = [peer.median_ns for peer in self.measured if not peer.ours and not peer.exact_peer]
        return {
            "better_peer_to_ours": min(exact) / one,
            "fastest_peer_of_a_lesser_promise_to_ours": min(others) / one,
            "one_of_many_to_one": self.of(ONE_OF_MANY).median_ns / one,
            "in_turn_to_one_of_many": self.of(IN_TURN).median_ns / self.of(ONE_OF_MANY).median_ns,
        }

    def kept(self) -> dict[str, bool]:
        """Which of ``BOUNDS`` are kept, by the medians of this run."""
        ratios = self.ratios()
        return {
            "us": self.of(ONE_RULE).median_ns / 1000 <= BOUNDS["us"],
            "better_peer": ratios["better_peer_to_ours"] >= BOUNDS["better_peer"],
            "many_resources": ratios["one_of_many_to_one"] <= BOUNDS["many_resources"],
            "many_resources_in_turn": ratios["in_turn_to_one_of_many"] <= BOUNDS["many_resources"],
        }

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "rounds": self.rounds,
            "versions": self.versions,
            "ns_per_call": {
                one.name: {
                    "median": round(one.median_ns),
                    "least": round(one.least_ns),
                    "promise": one.promise,
                    "ours": one.ours,
                }
                for one in self.measured
            },
            "ratios": {name: round(ratio, 3) for name, ratio in self.ratios().items()},
            "bounds": BOUNDS,
            "kept": self.kept(),
            "memory_bytes": self.memory_bytes,
        }

    def to_text(self) -> str:
        """For people."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [
            f"{self.rounds} rounds in turn; {versions}",
            "",
            f"{'':<44} {'median':>8} {'least':>8}  of a limit of N a second",
            *(
                f"{one.name:<44} {one.median_ns:>5,.0f} ns {one.least_ns:>5,.0f} ns  {one.promise}"
                for one in self.measured
            ),
            "",
            *(
                f"{name.replace('_', ' '):<44} {ratio:>7.2f} x"
                for name, ratio in self.ratios().items()
            ),
            "",
            *(f"{name:<44} {number:>7,} bytes" for name, number in self.memory_bytes.items()),
            "",
            "bounds: "
            + ", ".join(
                f"{name} {'kept' if kept else 'MISSED'}" for name, kept in self.kept().items()
            ),
        ]
        return "\n".join(lines)


def bench_sentinel(*, rounds: int, tell: Callable[[str], None]) -> SentinelBench:
    """Run the benchmark.

    Args:
        rounds: turns of each subject.
        tell: is told of each round, for people who wait.

    Raises:
        BenchUnavailable: a peer is not installed.
    """
    subjects = [*_ours(), *_peers()]
    turns: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    collects = gc.isenabled()
    gc.disable()
    try:
        for number in range(-1, rounds):
            for subject in subjects:
                spent_ns = 0
                gc.collect()
                for burst in range(-1, _BURSTS):
                    subject.begin()
                    began_ns = time.thread_time_ns()
                    subject.run(subject.calls)
                    if burst >= 0:
                        spent_ns += time.thread_time_ns() - began_ns
                # The first round warms up: the interpreter adapts to what it runs.
                if number >= 0:
                    turns[subject.name].append(spent_ns / subject.calls / _BURSTS)
            if number >= 0:
                tell(f"round {number + 1}/{rounds}")
    finally:
        if collects:
            gc.enable()
    return SentinelBench(
        rounds,
        {
            "Python": platform.python_version(),
            **{name: metadata.version(name) for name in ("limits", "pyrate-limiter")},
        },
        [
            Measured(one.name, one.promise, one.ours, one.is_exact_peer, turns[one.name])
            for one in subjects
        ],
        _memory(),
    )


def _ours() -> Iterable[Subject]:
    yield Subject(ONE_RULE, _entering(_engine("r"), ["r"]))
    yield Subject("the same, inbound", _entering(_engine("r"), ["r"], entry_type=EntryType.IN))
    yield Subject("the same, try_entry + exit", _trying(_engine("r")))
    yield Subject("entry + exit, no rule", _entering(Sentinel(), ["r"]), promise="counts only")
    names = [f"r{number}" for number in range(RESOURCES)]
    many = _engine(*names)
    for name, called in ((ONE_OF_MANY, [names[0]] * RESOURCES), (IN_TURN, names)):
        yield Subject(name, _entering(many, called), calls=RESOURCES * _PASSES)
    yield Subject("refused, as a value", _refused(_engine("r", count=0)))


def _engine(*names: str, count: float = _NEVER_REACHED) -> Sentinel:
    sentinel = Sentinel()
    sentinel.flow.load([FlowRule(resource=name, count=count) for name in names])
    return sentinel


def _entering(sentinel: Sentinel, names: list[str], **options: Any) -> Callable[[int], None]:
    """As users write it."""
    entry = sentinel.entry
    called = names * max(1, _CALLS // len(names))

    def run(calls: int) -> None:
        for _ in range(calls // len(called)):
            for name in called:
                with entry(name):
                    pass

    def run_with_options(calls: int) -> None:
        for _ in range(calls // len(called)):
            for name in called:
                with entry(name, **options):
                    pass

    return run_with_options if options else run


def _trying(sentinel: Sentinel) -> Callable[[int], None]:
    try_entry = sentinel.try_entry

    def run(calls: int) -> None:
        for _ in range(calls):
            entry = try_entry("r")
            if not isinstance(entry, BlockException):
                entry.exit()

    return run


def _refused(sentinel: Sentinel) -> Callable[[int], None]:
    try_entry = sentinel.try_entry

    def run(calls: int) -> None:
        for _ in range(calls):
            assert isinstance(try_entry("r"), BlockException)

    return run


def _peers() -> Iterable[Subject]:
    """Each in the fastest way that its documentation shows for a limit of one process."""
    try:
        pyrate_limiter: Any = import_module("pyrate_limiter")
        limits: Any = import_module("limits")
        storage: Any = import_module("limits.storage")
        strategies: Any = import_module("limits.strategies")
    except ImportError as error:
        raise BenchUnavailable(
            f"{error.name} is missing: pip install limits pyrate-limiter"
        ) from error
    bucket = pyrate_limiter.InMemoryBucket(
        [pyrate_limiter.Rate(_NEVER_REACHED, pyrate_limiter.Duration.SECOND)]
    )
    try_acquire = pyrate_limiter.Limiter(bucket).try_acquire

    def acquire(calls: int) -> None:
        for _ in range(calls):
            try_acquire("r", blocking=False)

    yield Subject("pyrate-limiter, in-memory bucket", acquire, begin=bucket.flush, ours=False)
    item = limits.RateLimitItemPerSecond(_NEVER_REACHED)
    for name, strategy, promise in (
        ("moving window", strategies.MovingWindowRateLimiter, "N in any second"),
        ("sliding window counter", strategies.SlidingWindowCounterRateLimiter, "N by estimate"),
        ("fixed window", strategies.FixedWindowRateLimiter, "2 N around an edge"),
    ):
        memory = storage.MemoryStorage()
        yield Subject(
            f"limits, {name}",
            _hitting(strategy(memory).hit, item),
            begin=memory.reset,
            promise=promise,
            ours=False,
        )


def _hitting(hit: Callable[..., bool], item: object) -> Callable[[int], None]:
    def run(calls: int) -> None:
        for _ in range(calls):
            hit(item, "r")

    return run


def _memory() -> dict[str, int]:
    """Bytes that a resource costs, its rule not counted, and a name beyond the bound."""
    names = [f"r{number}" for number in range(_MEMORY_SAMPLE)]
    sentinel = _engine(*names)
    called_once = _grown(lambda: _call_all(sentinel, names)) / len(names)
    clock = VirtualClock()
    busy = Sentinel(clock=clock)
    busy.flow.load([FlowRule(resource="r", count=_NEVER_REACHED)])

    def be_busy() -> None:
        for _ in range(_BUSY_SECONDS * 1000):
            clock.advance_ms(1)
            _call_all(busy, "r")

    always_busy = _grown(be_busy)
    full = Sentinel(settings=Settings(resource_count_max=_MEMORY_SAMPLE))
    _call_all(full, names)
    strangers = _grown(lambda: _call_all(full, (f"stranger {one}" for one in range(_STRANGERS))))
    return {
        "a resource, called once": round(called_once),
        "a resource, called each ms of a minute": round(always_busy),
        f"each of {_STRANGERS:,} names beyond the bound": round(strangers / _STRANGERS),
    }


def _call_all(sentinel: Sentinel, names: Iterable[str]) -> None:
    for name in names:
        with sentinel.entry(name):
            pass


def _grown(work: Callable[[], object]) -> float:
    """Bytes that are in use after some work and were not before."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before
