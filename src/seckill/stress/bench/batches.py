"""`seckill bench batches`: what one admission costs Redis, by how many are decided in one call.

The admission script as it is, on a Redis of its own without an append-only file, with newcomers
only. Sizes take turns in each round; the processor time of the server is what counts.
"""

import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from seckill.admission.scripts import ADMIT, OPEN_BUCKET
from seckill.runtime.free_ports import choose_port
from seckill.stress.bench.processes import RedisCounter, started, wait_for
from seckill.stress.bench.wrk import BenchUnavailable

__all__ = ["SIZES", "BatchBench", "bench_batches"]

SIZES: Final = (1, 8, 32, 128, 512)
_ADMISSIONS: Final = 4_096
_STOCK: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class BatchBench:
    """µs of Redis' processor for one admission, by the size of its batch; medians of the rounds."""

    rounds: int
    us_by_size: dict[int, float]

    def ratios(self) -> dict[int, float]:
        """Each size against one admission a call."""
        single = self.us_by_size[1]
        return {size: us / single for size, us in self.us_by_size.items()}

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {"rounds": self.rounds, "us": self.us_by_size, "ratio_to_single": self.ratios()}

    def to_text(self) -> str:
        """For people: one line a size."""
        lines = [f"{self.rounds} rounds; medians", f"{'batch':>6} {'µs each':>9} {'of one':>7}"]
        for size, ratio in self.ratios().items():
            lines.append(f"{size:>6} {self.us_by_size[size]:>9.1f} {ratio:>7.3f}")
        return "\n".join(lines)


def bench_batches(*, rounds: int, tell: Callable[[str], None]) -> BatchBench:
    """Run the benchmark.

    Args:
        rounds: turns of each size.
        tell: is told of each round, for people who wait.

    Raises:
        BenchUnavailable: redis-server is missing, or did not start.
    """
    server = shutil.which("redis-server")
    if server is None:
        raise BenchUnavailable("redis-server is missing: install it")
    found: dict[int, list[float]] = {size: [] for size in SIZES}
    with tempfile.TemporaryDirectory(prefix="seckill-bench-") as folder:
        port = choose_port()
        command = [
            server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(Path(folder)),
            "--save", "", "--appendonly", "no",
        ]  # fmt: skip
        with started("redis-server", command):
            wait_for(port)
            redis = RedisCounter(f"redis://127.0.0.1:{port}/0")
            sha = redis.load(ADMIT.text)
            for number in range(rounds):
                for size in SIZES:
                    _open(redis)
                    before = redis.used_us()
                    for first in range(0, _ADMISSIONS, size):
                        redis.run(sha, ("meta", "buyers", "outbox"), _batch(first, size))
                    found[size].append((redis.used_us() - before) / _ADMISSIONS)
                tell(f"round {number + 1}/{rounds}")
    return BatchBench(rounds, {size: statistics.median(each) for size, each in found.items()})


def _batch(first: int, size: int) -> bytes:
    request: list[Any] = [1, 0, 0]
    for number in range(first, first + size):
        request += (f"user-{number}", f"attempt-{number:08}", 1)
    return msgspec.msgpack.encode(request)


def _open(redis: RedisCounter) -> None:
    """A fresh bucket, open since ever and without end."""
    redis.forget_everything()
    keys = ("meta", "buyers", "outbox", "released", "changes", "staged")
    definition = (1, _STOCK, 0, 0, 1, 1, 0, 0, 1)
    redis.run(redis.load(OPEN_BUCKET.text), keys, msgspec.msgpack.encode(definition), "orders")
