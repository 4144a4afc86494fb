"""Processes and counters of the benchmarks: started on free ports, ended by pid."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import hiredis
import psutil

from seckill.admission.keys import Keys
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId
from seckill.stress.bench.wrk import BenchUnavailable

__all__ = ["ProcessorTime", "RedisCounter", "started", "wait_for"]


class ProcessorTime:
    """Processor time of programs and of all processes that they have started."""

    def __init__(self, *pids: int) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]

    def used_us(self) -> float:
        """µs, user and system, of all that run now."""
        total_s = 0.0
        for root in self._roots:
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total_s += times.user + times.system
        return 1e6 * total_s


@contextmanager
def started(name: str, command: Sequence[str]) -> Iterator[int]:
    """Keep a program running inside the block; gives its process id.

    Raises:
        BenchUnavailable: it ended by itself; with its last words.
    """
    with TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)  # noqa: S603  -- our own words
        try:
            yield process.pid
        except BenchUnavailable as error:
            said.seek(0)
            words = said.read().decode(errors="replace").strip().splitlines()[-3:]
            raise BenchUnavailable(f"{name}: {error}; {' / '.join(words)}") from error
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(port: int, status_file: str | None = None, timeout_s: float = 20) -> None:
    """Wait until a port answers, and with ``status_file`` until all parts there are healthy.

    Raises:
        BenchUnavailable: it did not within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if status_file is None or _healthy(Path(status_file)):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                pass
            else:
                return
        time.sleep(0.05)
    raise BenchUnavailable(f"nothing answers on port {port} after {timeout_s:.0f} s")


def _healthy(status_file: Path) -> bool:
    try:
        processes = json.loads(status_file.read_bytes())["processes"]
    except (OSError, ValueError, KeyError):
        return False
    return len(processes) > 3 and all(process["healthy"] for process in processes)  # noqa: PLR2004  -- supervisor, redis, worker and web


class RedisCounter:
    """Asks a Redis how much processor it has used. A plain socket: nothing is measured by it."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("redis://").partition("/")[0].rpartition(":")
        self._connection = socket.create_connection((host, int(port)), timeout=30)
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace")

    def _ask(self, *words: str | bytes) -> Any:
        packed = hiredis.pack_command(words)  # type: ignore[arg-type]  # its types know 1-tuples
        self._connection.sendall(packed)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._connection.recv(65_536))
        if isinstance(reply, hiredis.ReplyError):
            raise BenchUnavailable(f"Redis: {reply}")
        return reply

    def used_us(self) -> float:
        """µs of processor, user and system, since the server was started."""
        lines = dict(
            line.split(":", 1) for line in self._ask("INFO", "cpu").splitlines() if ":" in line
        )
        return 1e6 * (float(lines["used_cpu_user"]) + float(lines["used_cpu_sys"]))

    def outbox_entries(self) -> int:
        """Batches that the order worker has not carried away, of the only sale."""
        return int(self._ask("XLEN", Keys().bucket(BucketId(SaleId(1), 0)).outbox))

    def prepare_peer(self, script: str, stock: int) -> str:
        """Load the peer's script and fill its stock; returns the script's digest."""
        self._ask("SET", "stock", str(stock))
        return self.load(script)

    def load(self, script: str) -> str:
        """Load a script; returns its digest."""
        return str(self._ask("SCRIPT", "LOAD", script))

    def run(self, sha: str, keys: Sequence[str], blob: bytes, *more: str) -> None:
        """Run a loaded script; its reply is not looked at."""
        self._ask("EVALSHA", sha, str(len(keys)), *keys, blob, *more)

    def forget_everything(self) -> None:
        """Empty this server, which is the benchmark's own."""
        self._ask("FLUSHALL", "SYNC")
