"""Kills this process at an exact point of the code, for the chaos tests.

Python imports a module of this name by itself when its folder is on PYTHONPATH; only the chaos
tests put it there, so nothing of this is in the product. SECKILL_TEST_KILL names points, each with
the number of passages that a process survives at most: ``web.after_decision:150``. A point without
a number kills one process, whichever comes first, each time that the test has put a file of its
name into the folder SECKILL_TEST_ARMED; the file is gone then.
SECKILL_TEST_CLOCK moves the clock of one process by milliseconds: ``web-1:-5000``.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

# point: module, class, method; the process dies just before the method would begin, or, where the
# method is in _AFTER, when it has ended and before anybody knows.
_POINTS = {
    # Redis has decided, the mark is written; no buyer of the batch has an answer yet.
    "web.after_decision": ("seckill.admission.batcher", "Batcher", "_answer"),
    # The ledger has committed; the outbox does not know it yet.
    "worker.after_commit": ("seckill.pipeline.direct", "DirectChannel", "acknowledge"),
    # The outbox was read; nothing of it is in Kafka yet.
    "relay.before_produce": ("seckill.pipeline.relay", "Relay", "_publish"),
    # Kafka has it; the relay does not know it yet.
    "relay.after_produce": ("seckill.pipeline.kafka.producer", "_Job", "end"),
    # The relay knows it; the outbox does not know it yet.
    "relay.before_acknowledge": ("seckill.pipeline.direct", "DirectChannel", "acknowledge"),
    # The ledger has committed; Kafka does not know it yet.
    "worker.before_offset_commit": (
        "seckill.pipeline.kafka.channel",
        "KafkaChannel",
        "acknowledge",
    ),
    # The outbox was read; nothing is written yet.
    "worker.before_commit": ("seckill.pipeline.worker", "OrderWorker", "_carry"),
    # Due orders were found; none has expired.
    "reaper.before_expiry": ("seckill.ledger.expiry", "ExpiryBook", "expire"),
    # Orders have expired; Redis knows nothing of it.
    "reaper.after_expiry": ("seckill.runtime.observers", "ReaperMetrics", "expired"),
    # Redis has given units back; the ledger does not know it.
    "sweep.after_release": ("seckill.ledger.sql_ledger", "SQLLedger", "confirm_releases"),
    # Late money has taken a unit, or a refund was asked for; nothing is written down.
    "reaper.after_call": ("seckill.ledger.payments", "PaymentBook", "postpone"),
    # The provider has the payment; its page is not written down.
    "web.after_start": ("seckill.ledger.payments", "PaymentBook", "page_made"),
    # Redis has changed the stock; the ledger does not know it.
    "sweep.after_stock_change": (
        "seckill.ledger.sql_ledger",
        "SQLLedger",
        "confirm_stock_change",
    ),
    # The ledger has made the epoch under which a bucket goes on; Redis is still under the old one.
    "keeper.before_carry_on": ("seckill.admission.bucket", "Buckets", "carry_on"),
    # The ledger has planned a bucket anew; Redis has not opened it.
    "keeper.before_open": ("seckill.admission.bucket", "Buckets", "open"),
    # The books of a sale are closed; its keys are still there.
    "clean_up.before_forget": ("seckill.admission.bucket", "Buckets", "forget"),
    # The keys are gone; the ledger does not know it.
    "clean_up.before_cleaned": ("seckill.ledger.retirement", "RetirementBook", "cleaned"),
    # News of the provider has come and was read; it is not written.
    "web.before_news": ("seckill.ledger.payments", "PaymentBook", "take"),
    # The news is written; the provider has no 204 yet, and will tell it again.
    "web.after_news": ("seckill.ledger.payments", "PaymentBook", "take"),
}
_AFTER = {"web.after_news"}


def _after_passages(point: str, passages_max: int) -> Callable[[], bool]:
    """Says after a number of passages that it is time to die."""

    @cache
    def passages(pid: int) -> Iterator[int]:
        # Each life of a process draws its own number: one that is forked off, too.
        drawn = random.Random(f"{os.environ.get('SECKILL_TEST_SEED', '0')}/{pid}/{point}")
        return iter(range(drawn.randint(passages_max // 4, passages_max)))

    return lambda: next(passages(os.getpid()), None) is None


def _when_armed(point: str) -> Callable[[], bool]:
    """Says to one process that it is time to die, each time that the test has armed the point."""
    armed = Path(os.environ["SECKILL_TEST_ARMED"]) / point

    def now() -> bool:
        try:
            armed.unlink()  # of several processes one alone succeeds
        except FileNotFoundError:
            return False
        return True

    return now


_Wanted = tuple[str, str, Callable[[], bool], bool]


def _wanted() -> dict[str, list[_Wanted]]:
    found: dict[str, list[_Wanted]] = {}
    for item in filter(None, os.environ.get("SECKILL_TEST_KILL", "").split(",")):
        point, _, passages_max = item.partition(":")
        module, owner, method = _POINTS[point]
        is_time = _after_passages(point, int(passages_max)) if passages_max else _when_armed(point)
        found.setdefault(module, []).append((owner, method, is_time, point in _AFTER))
    return found


_WANTED = _wanted()


def _arm(module: ModuleType) -> None:
    for owner, method, is_time, is_after in _WANTED[module.__name__]:
        target = getattr(module, owner)
        original = getattr(target, method)

        def deadly(*args: Any, _original: Any = original, _time: Any = is_time, **kw: Any) -> Any:
            if _time():
                os.kill(os.getpid(), signal.SIGKILL)
            return _original(*args, **kw)

        async def deadly_after(
            *args: Any, _original: Any = original, _time: Any = is_time, **kw: Any
        ) -> Any:
            result = await _original(*args, **kw)
            if _time():
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(target, method, deadly_after if is_after else deadly)


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _arm(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _WANTED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


_CLOCKS = dict(
    item.rsplit(":", 1) for item in os.environ.get("SECKILL_TEST_CLOCK", "").split(",") if item
)


def _clock_off_ns() -> int:
    """By how much the clock of this very process is to be wrong: its words are ROLE SLOT."""
    return int(_CLOCKS.get("-".join(sys.argv[1:3]), 0)) * 1_000_000


if _CLOCKS:
    _real_ns = time.time_ns
    time.time_ns = lambda: _real_ns() + _clock_off_ns()
if _WANTED:
    sys.meta_path.insert(0, _Finder())
