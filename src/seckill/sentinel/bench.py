"""How much CPU the engine takes, beside other limiters in the same run.

Meant to be called by a command: ``measure`` returns rows, and somebody else prints them. Numbers of
two machines, or of two runs on a busy one, cannot be compared; the ratios of one run can.
"""

from __future__ import annotations

import gc
import importlib
import time
import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from seckill.sentinel.engine import Sentinel
from seckill.sentinel.errors import BlockException
from seckill.sentinel.flow.rule import FlowRule

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS_PER_ROUND: Final = 5_000
RESOURCE_COUNT: Final = 6_000
NEVER_REACHED: Final = 1_000_000_000
MEMORY_SAMPLE_COUNT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Row:
    """One measured thing.

    Attributes:
        name: what was done.
        value: how much; the least of all rounds.
        unit: of the value.
    """

    name: str
    value: float
    unit: str


def measure(rounds: int = 20) -> list[Row]:
    """CPU per call of the engine and of the peers that are installed, and memory per resource.

    Args:
        rounds: of ``CALLS_PER_ROUND`` calls each; the rounds of all take turns, the least counts.
    """
    subjects = {
        "entry + exit, one flow rule": _one_rule(),
        f"entry + exit, one of {RESOURCE_COUNT} resources": _many_resources(in_turn=False),
        f"entry + exit, {RESOURCE_COUNT} resources in turn": _many_resources(in_turn=True),
        "entry + exit, no rule": _no_rule(),
        "refused, as a value": _refused(),
    }
    for name, made in (("pyrate-limiter", _pyrate_limiter()), ("limits", _limits())):
        if made is not None:
            subjects[f"{name}, one limit"] = made
    least = dict.fromkeys(subjects, float("inf"))
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, run in subjects.items():
                began_ns = time.process_time_ns()
                run(CALLS_PER_ROUND)
                spent_ns = time.process_time_ns() - began_ns
                least[name] = min(least[name], spent_ns / CALLS_PER_ROUND)
    finally:
        if collecting:
            gc.enable()
    rows = [Row(name, round(value), "ns CPU per call") for name, value in least.items()]
    return [*rows, Row("memory per resource", _memory_per_resource(), "bytes")]


def _engine(*names: str, count: float = NEVER_REACHED) -> Sentinel:
    sentinel = Sentinel()
    sentinel.flow.load([FlowRule(resource=name, count=count) for name in names])
    return sentinel


def _one_rule() -> Callable[[int], None]:
    entry = _engine("r").entry

    def run(calls: int) -> None:
        for _ in range(calls):
            with entry("r"):
                pass

    return run


def _no_rule() -> Callable[[int], None]:
    entry = Sentinel().entry

    def run(calls: int) -> None:
        for _ in range(calls):
            with entry("r"):
                pass

    return run


def _many_resources(*, in_turn: bool) -> Callable[[int], None]:
    """Calls among so many resources: of one of them, or of each once (which no cache holds)."""
    names = [f"r{number}" for number in range(RESOURCE_COUNT)]
    entry = _engine(*names).entry
    for name in names:
        with entry(name):
            pass
    called = names if in_turn else [names[0]] * RESOURCE_COUNT

    def run(calls: int) -> None:
        for name in called[:calls]:
            with entry(name):
                pass

    return run


def _refused() -> Callable[[int], None]:
    try_entry = _engine("r", count=0).try_entry

    def run(calls: int) -> None:
        for _ in range(calls):
            assert isinstance(try_entry("r"), BlockException)

    return run


def _pyrate_limiter() -> Callable[[int], None] | None:
    """The peer, asked for one unit; None if it is not installed."""
    try:
        pyrate_limiter = importlib.import_module("pyrate_limiter")
    except ImportError:
        return None
    rate = pyrate_limiter.Rate(NEVER_REACHED, pyrate_limiter.Duration.SECOND)
    limiter = pyrate_limiter.Limiter(rate)

    def run(calls: int) -> None:
        for _ in range(calls):
            limiter.try_acquire("r", blocking=False)

    return run


def _limits() -> Callable[[int], None] | None:
    """The peer, asked for one unit of a moving window; None if it is not installed."""
    try:
        limits = importlib.import_module("limits")
        strategies = importlib.import_module("limits.strategies")
        storage = importlib.import_module("limits.storage")
    except ImportError:
        return None
    limiter = strategies.SlidingWindowCounterRateLimiter(storage.MemoryStorage())
    item = limits.RateLimitItemPerSecond(NEVER_REACHED)

    def run(calls: int) -> None:
        for _ in range(calls):
            limiter.hit(item, "r")

    return run


def _memory_per_resource() -> float:
    """Bytes that one resource costs that has one rule and was used for a while."""
    names = [f"r{number}" for number in range(MEMORY_SAMPLE_COUNT)]
    sentinel = _engine(*names)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for name in names:
            with sentinel.entry(name):
                pass
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return round((after - before) / MEMORY_SAMPLE_COUNT)
