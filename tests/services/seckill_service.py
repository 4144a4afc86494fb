"""The real service, as a user starts it: `seckill serve` in a folder of the test's own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from seckill.runtime.bootstrap import Stores, open_stores
from seckill.runtime.free_ports import choose_port
from seckill.runtime.settings import load_settings
from seckill.runtime.settings_report import with_run_settings

__all__ = ["PATIENT", "SeckillService", "wait_until"]

PATIENT: Final = {
    "SECKILL_REDIS_TIMEOUT_MS": "30000",
    "SECKILL_QUEUE_WAIT_MS_MAX": "60000",
    "SECKILL_BODY_TIMEOUT_MS": "60000",
}
"""Settings for tests in which nothing is away: no stall of the machine is taken for an outage."""

_END_TIMEOUT_S = 120


def wait_until(what: str, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for a condition of another process; fail with its name when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:.0f} s in vain: {what}")
        time.sleep(0.02)


class SeckillService:
    """One `seckill serve` and the commands that a user would type beside it."""

    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 180,
    ) -> None:
        self.data_dir = data_dir
        self._start_timeout_s = start_timeout_s
        self._flags = flags
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log = data_dir.with_name(data_dir.name + ".log")
        self.bind = ""

    def start(self) -> "SeckillService":
        assert self._process is None
        # The port of the first start is kept, so that clients find the service again; one that
        # no client's own end can be given meanwhile.
        bind = self.bind or f"127.0.0.1:{choose_port()}"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "seckill", "serve",
                    "--data-dir", str(self.data_dir), "--bind", bind, *self._flags,
                ],
                stdout=log,
                stderr=log,
                env=self._environment,
            )  # fmt: skip
        wait_until("all parts are healthy", self.healthy, self._start_timeout_s)
        self.bind = self.status()["bind"]
        return self

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def url(self) -> str:
        return f"http://{self.bind}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def status(self) -> dict[str, Any]:
        """The status file as it is; empty while there is none."""
        try:
            found: dict[str, Any] = json.loads((self.data_dir / "run" / "status.json").read_bytes())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found

    def healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the service ended:\n{self.log()[-3000:]}"
        processes = self.status().get("processes", [])
        roles = {process["role"] for process in processes}
        wanted = {"supervisor", "worker", "web"}
        if "SECKILL_REDIS_URL" not in self._environment:
            wanted.add("redis")
        if self._environment.get("SECKILL_CHANNEL") == "kafka":
            wanted.add("relay")
        return wanted <= roles and all(process["healthy"] for process in processes)

    def pids(self, role: str) -> list[int]:
        return [
            process["pid"]
            for process in self.status().get("processes", [])
            if process["role"] == role and process["pid"]
        ]

    def kill(self, role: str, which: int = 0) -> int:
        """kill -9 one process of a role; returns its pid, 0 when there is none just now."""
        pids = self.pids(role)
        if not pids:
            return 0
        pid = pids[which % len(pids)]
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return 0
        return pid

    def kill_supervisor(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(_END_TIMEOUT_S)
        self._process = None

    def stop(self) -> int:
        """Ctrl-C, as it were; returns the exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(_END_TIMEOUT_S)
        self._process = None
        return code

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "seckill", *arguments, "--data-dir", str(self.data_dir)],
            capture_output=True,
            text=True,
            timeout=300,
            env=self._environment,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done

    def cli_json(self, *arguments: str, check: bool = True) -> Any:
        return json.loads(self.cli(*arguments, "--json", check=check).stdout)

    def with_stores(self, work: Callable[[Stores], Awaitable[Any]]) -> Any:
        """Run work on the service's own stores, in this process: cheaper than a command."""
        loaded = load_settings({"data_dir": self.data_dir, "redis_timeout_ms": 30_000})
        settings = with_run_settings(loaded).settings

        async def run() -> Any:
            async with open_stores(settings) as stores:
                return await work(stores)

        return asyncio.run(run())
