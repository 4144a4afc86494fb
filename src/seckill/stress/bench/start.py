"""`seckill bench start`: from the command to the first sale, and the memory of a set that idles.

The embedded set is started with the sample sale, on a folder of its own, and bought from as soon as
it says where it serves. The first start makes the ledger; the later ones find it.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from seckill.runtime.free_ports import choose_port
from seckill.stress.bench.processes import ProcessorTime
from seckill.stress.bench.wrk import BenchUnavailable

__all__ = ["Start", "StartBench", "bench_start"]

_START_TIMEOUT_S: Final = 120
_SETTLE_S: Final = 3.0
_ACCEPTED: Final = 202


@dataclass(frozen=True, slots=True)
class Start:
    """One start.

    Attributes:
        first_sale_s: from the command to the answer 202 to the first buyer.
        processor_s: of all processes by then, those that have done their work and ended included.
        memory_mb: of all processes when they have idled for three seconds; what several share
            counts once.
    """

    first_sale_s: float
    processor_s: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class StartBench:
    """The first start of an installation, and the later ones."""

    workers: int
    first: Start
    later: tuple[Start, ...]

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    def to_text(self) -> str:
        """For people."""
        lines = [f"{self.workers} web processes, one order worker, Redis; later starts: medians"]
        lines.append(f"{'start':<8} {'first sale':>11} {'processor':>10} {'idle memory':>12}")
        later = Start(
            *(
                statistics.median(values)
                for values in zip(
                    *((s.first_sale_s, s.processor_s, s.memory_mb) for s in self.later), strict=True
                )
            )
        )
        for name, start in (("first", self.first), ("later", later)):
            lines.append(
                f"{name:<8} {start.first_sale_s:>9.2f} s {start.processor_s:>8.2f} s"
                f" {start.memory_mb:>9.0f} MB"
            )
        return "\n".join(lines)


def bench_start(*, rounds: int, workers: int, tell: Callable[[str], None]) -> StartBench:
    """Start a set so many times, the first time on an empty folder.

    Args:
        rounds: starts, at least two.
        workers: web processes.
        tell: is told of each start, for people who wait.

    Raises:
        BenchUnavailable: the set did not start, or did not sell.
    """
    starts = []
    with tempfile.TemporaryDirectory(prefix="seckill-bench-") as folder:
        for number in range(rounds):
            start = _start(Path(folder), workers, buyer=f"buyer-{number}")
            starts.append(start)
            tell(
                f"start {number + 1}/{rounds}: first sale after {start.first_sale_s:.2f} s,"
                f" {start.processor_s:.2f} s of processor, {start.memory_mb:.0f} MB"
            )
    return StartBench(workers, starts[0], tuple(starts[1:]))


def _start(folder: Path, workers: int, *, buyer: str) -> Start:
    port = choose_port()
    command = [
        sys.executable, "-m", "seckill", "serve", "--demo", "--data-dir", str(folder),
        "--bind", f"127.0.0.1:{port}", "--workers", str(workers),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    begun = time.monotonic()
    with subprocess.Popen(  # noqa: S603  -- this program itself
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            said = _until_it_serves(process, begun)
            _buy(port, buyer, said)
            first_sale_s = time.monotonic() - begun
            ended = psutil.Process(process.pid).cpu_times()
            used_s = ProcessorTime(process.pid).used_us() / 1e6
            used_s += ended.children_user + ended.children_system
            time.sleep(_SETTLE_S)
            memory_mb = _memory_mb(process.pid)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)
            process.kill()
    return Start(first_sale_s, used_s, memory_mb)


def _until_it_serves(process: "subprocess.Popen[str]", begun: float) -> Sequence[str]:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line.strip())
        if " serves on " in line:
            return said
        if time.monotonic() - begun > _START_TIMEOUT_S:
            break
    raise BenchUnavailable(f"the set did not start: {' / '.join(said[-3:])}")


def _buy(port: int, buyer: str, said: Sequence[str]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/seckill/1", method="POST", headers={"X-User-Id": buyer}
    )
    try:
        with urllib.request.urlopen(request, timeout=_START_TIMEOUT_S) as answer:  # noqa: S310
            if answer.status == _ACCEPTED and json.load(answer)["reservation_id"]:
                return
            words = str(answer.status)
    except OSError as error:
        words = str(error)
    raise BenchUnavailable(f"the first buyer was not served: {words}; {' / '.join(said[-3:])}")


def _memory_mb(pid: int) -> float:
    """Memory of a process and its children: proportional where the system tells, else unshared."""
    root = psutil.Process(pid)
    total = 0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            found = process.memory_full_info()
            total += getattr(found, "pss", found.uss)
    return total / 1e6
