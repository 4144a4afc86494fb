"""A real Redis of the tests' own: free port, own folder, ended by pid."""

import shutil
import subprocess
import time
from pathlib import Path

import redis as redis_sync

from seckill.runtime.free_ports import choose_port
from services.server_process import ServerProcess

__all__ = ["RedisServer"]

_START_TIMEOUT_S = 120


class RedisServer(ServerProcess):
    """One redis-server process. Can be killed, frozen, restarted with the same data."""

    def __init__(self, folder: Path, *options: str, prefix: tuple[str, ...] = ()) -> None:
        found = shutil.which("redis-server") or shutil.which("valkey-server")
        super().__init__()
        assert found, "the tests need redis-server or valkey-server on the PATH"
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = choose_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [
            *prefix,
            found,
            "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder),
            "--save", "", "--daemonize", "no", "--logfile", str(folder / "redis.log"),
            "--enable-debug-command", "yes",
            # A replica gets its copy at once: a master waits five seconds for more of them else.
            "--repl-diskless-sync-delay", "0",
            *options,
        ]  # fmt: skip

    def client(self) -> redis_sync.Redis:
        return redis_sync.Redis.from_url(self.url, protocol=2)

    def start(self) -> "RedisServer":
        assert self._process is None
        self._process = subprocess.Popen(self._command)
        deadline = time.monotonic() + _START_TIMEOUT_S
        with self.client() as client:
            while time.monotonic() < deadline:
                try:
                    client.ping()
                except redis_sync.RedisError:
                    assert self._process.poll() is None, (self.folder / "redis.log").read_text()
                    # Nothing announces that the port is open: ask until it answers.
                    time.sleep(0.01)
                else:
                    return self
        raise AssertionError(f"redis-server did not answer within {_START_TIMEOUT_S} s")

    def remove(self) -> None:
        """End it for good: nothing in it is worth an orderly end, which may wait for replicas."""
        if self.running:
            self.kill()

    def restart(self) -> None:
        """End it the hard way and start it on what is on the disk."""
        self.kill()
        self.start()

    def copy_data(self, folder: Path) -> None:
        """Keep what is on the disk now. With ``appendfsync always`` that is all it was told."""
        shutil.copytree(self.folder, folder)

    def put_data_back(self, folder: Path) -> None:
        """What an operator does who restores a backup. The server must not run."""
        assert self._process is None
        shutil.rmtree(self.folder)
        shutil.copytree(folder, self.folder)
