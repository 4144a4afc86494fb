"""A benchmark that somebody ends early leaves nothing running."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

_PARTS = 5
"""The supervisor, Redis, the order worker and two web processes."""

_IN_THE_BACKGROUND = ("/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""As a script starts what it does not wait for: Ctrl-C is not for it."""


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT])
def test_who_ends_a_benchmark_ends_what_it_has_started(
    tmp_path: Path, ended_by: signal.Signals
) -> None:
    bench = subprocess.Popen(
        [*_IN_THE_BACKGROUND, sys.executable, "-m", "seckill", "bench", "start"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        itself = psutil.Process(bench.pid)
        deadline = time.monotonic() + 60
        while len(parts := itself.children(recursive=True)) < _PARTS:
            assert bench.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline, "it did not start its set"
            time.sleep(0.05)
        bench.send_signal(ended_by)
        assert bench.wait(60) != 0
        _, left = psutil.wait_procs(parts, timeout=30)
        assert left == []
        assert list(tmp_path.iterdir()) == []
    finally:
        for process in (*children_of(bench.pid), bench):
            process.kill()
        bench.wait()


def children_of(pid: int) -> list[psutil.Process]:
    """Whatever it still runs."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
