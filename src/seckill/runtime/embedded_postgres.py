"""A PostgreSQL of our own: found on this machine, made, started on our data, and stopped.

A real server with a cluster of its own, for a look at the scaled-out set, for a small
installation, and for the benchmarks. It listens on the loopback address alone and asks for a
password that only the data directory knows.
"""

import asyncio
import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from seckill.runtime.data_dir import number_in, write_atomically
from seckill.runtime.errors import PostgresMissing, PostgresUnusable
from seckill.runtime.free_ports import NoFreePort, choose_port
from seckill.runtime.log_tail import last_lines
from seckill.runtime.processes import created_at, ended_by, works_in

__all__ = ["EmbeddedPostgres", "PostgresPrograms", "as_account", "find_programs"]

_OLDEST: Final = 13
_DEBIAN_FOLDERS: Final = Path("/usr/lib/postgresql")
_ACCOUNTS: Final = ("postgres", "nobody")
_VERSION: Final = re.compile(r"\(PostgreSQL\) (\d+)")
_ROLE: Final = "seckill"
_VERSION_TIMEOUT_S: Final = 10
_INITDB_TIMEOUT_S: Final = 120
_TERMINATE_TIMEOUT_MS: Final = 10_000
_POLL_S: Final = 0.02
_LAST_WORDS_BYTES: Final = 4_096
_LAST_WORDS_LINES: Final = 3
_TROUBLE: Final = re.compile(r"\b(WARNING|ERROR|FATAL|PANIC):")
# Lines of postmaster.pid, from 0. Source: src/include/utils/pidfile.h.
_LINE_PID: Final = 0
_LINE_STATUS: Final = 7


@dataclass(frozen=True, slots=True)
class PostgresPrograms:
    """The programs of one installed version.

    Attributes:
        folder: holds ``postgres`` and ``initdb``.
        major: such as 15. Data of one major version is not read by another.
    """

    folder: Path
    major: int

    def __str__(self) -> str:
        return f"postgres {self.major} ({self.folder})"


def find_programs(major: int = 0) -> PostgresPrograms:
    """The newest PostgreSQL on this machine, or the one of a major version.

    Raises:
        PostgresMissing: there is none of version 13 or later; the sentence says what to do.
        PostgresUnusable: there are some, and none of the version that was asked for.
    """
    found: dict[int, PostgresPrograms] = {}
    on_path = shutil.which("initdb")
    folders = [path.parent for path in _DEBIAN_FOLDERS.glob("*/bin/initdb")]
    for folder in [*folders, *([Path(on_path).resolve().parent] if on_path else [])]:
        version = _major_of(folder / "postgres")
        if version >= _OLDEST:
            found.setdefault(version, PostgresPrograms(folder, version))
    if not found:
        raise PostgresMissing(
            f"no PostgreSQL {_OLDEST} or later was found (initdb is neither on the PATH nor below"
            f" {_DEBIAN_FOLDERS}): install one (such as `apt install postgresql`), or name a"
            " running one in SECKILL_DATABASE_URL"
        )
    if major and major not in found:
        raise PostgresUnusable(
            f"the data was made by PostgreSQL {major}, and this machine has"
            f" {', '.join(map(str, sorted(found)))}: install version {major} again, or move the"
            " data with pg_upgrade"
        )
    return found[major or max(found)]


def _major_of(program: Path) -> int:
    """The major version of a server program; 0 when it does not tell."""
    try:
        said = subprocess.run(  # noqa: S603  -- a program of the operator's own machine
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(said)
    return int(match[1]) if match else 0


class EmbeddedPostgres:
    """One cluster on a folder. One user of the folder at a time.

    Use: :meth:`prepare` once, then start :attr:`command` in ``/`` as :attr:`account` with
    :attr:`open_files` (again and again if need be), wait with :meth:`wait_ready`, end with SIGINT,
    and :meth:`close` at the end of it all.

    The server refuses to be root. Where we are, it runs as another account, which may well not
    enter the folders above its own (a home, our data directory): so it is handed its folder open,
    and knows it by the number of that file.

    Args:
        folder: exists; keeps data, password and port from run to run.
        start_timeout_ms: how long it may take to answer, with what it has to repair after a crash.
    """

    def __init__(self, folder: Path, *, start_timeout_ms: int = 60_000) -> None:
        self._folder = folder
        self.start_timeout_ms: Final = start_timeout_ms
        self._programs: PostgresPrograms | None = None
        self._port = 0
        self._open_data: int | None = None
        self._log_from: dict[Path, int] = {}
        self.account: Final = _account()

    @property
    def programs(self) -> PostgresPrograms:
        """What is used. Known after :meth:`prepare`."""
        assert self._programs is not None
        return self._programs

    @property
    def data(self) -> Path:
        """Where the cluster is."""
        return self._folder / "data"

    @property
    def url(self) -> str:
        """Where it answers, with the password; the same for the whole run."""
        assert self._port
        password = (self._folder / "password").read_text().strip()
        return f"postgresql://{_ROLE}:{password}@127.0.0.1:{self._port}/postgres"

    @property
    def command(self) -> list[str]:
        """What to start. Known after :meth:`prepare`."""
        options = {
            "port": str(self._port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "password_encryption": "scram-sha-256",
            # A file for each day of the week, so that the log stays bounded.
            "logging_collector": "on",
            "log_directory": "log",
            "log_filename": "postgresql-%a.log",
            "log_truncate_on_rotation": "on",
            "log_rotation_age": "1d",
            "log_rotation_size": "0",
            "log_checkpoints": "off",
            "log_lock_waits": "on",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        data = str(self.data) if self._open_data is None else _by_number(self._open_data)
        return [str(self.programs.folder / "postgres"), "-D", data, *words]

    @property
    def open_files(self) -> tuple[int, ...]:
        """Files that the server must be given open. Known after :meth:`prepare`."""
        return () if self._open_data is None else (self._open_data,)

    def close(self) -> None:
        """Close what is open for the server; safe to call again."""
        if self._open_data is not None:
            os.close(self._open_data)
            self._open_data = None

    async def prepare(self) -> None:
        """Find the programs, end what an earlier run left behind, make an empty cluster.

        Raises:
            PostgresMissing: there are no programs.
            PostgresUnusable: the data is of another version, no port is free, or a cluster cannot
                be made.
        """
        self._programs = find_programs(number_in(self.data / "PG_VERSION"))
        await self._stop_orphan()
        try:
            self._port = choose_port(number_in(self._folder / "port"))
        except NoFreePort as error:
            raise PostgresUnusable(f"it has nowhere to listen: {error}") from error
        write_atomically(self._folder / "port", f"{self._port}\n".encode())
        if not self.data.exists():
            await asyncio.to_thread(self._make_cluster)
        if self.account is not None:
            self.close()
            self._open_data = os.open(self.data, os.O_RDONLY | os.O_DIRECTORY)

    def _make_cluster(self) -> None:
        password = secrets.token_urlsafe(24)
        write_atomically(self._folder / "password", f"{password}\n".encode())
        made = self._folder / "data.new"
        # What was begun and never finished is worth nothing.
        shutil.rmtree(made, ignore_errors=True)
        try:
            made.mkdir(mode=0o700)
            with tempfile.NamedTemporaryFile() as word:
                word.write(password.encode())
                word.flush()
                if self.account is not None:
                    for path in (made, Path(word.name)):
                        shutil.chown(path, self.account, pwd.getpwnam(self.account).pw_gid)
                self._run_initdb(made, Path(word.name))
            made.rename(self.data)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PostgresUnusable(f"no cluster could be made in {made}: {error}") from error

    def _run_initdb(self, folder: Path, password_file: Path) -> None:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            done = subprocess.run(  # noqa: S603  -- as above
                [self.programs.folder / "initdb",
                 "-D", str(folder) if self.account is None else _by_number(opened),
                 "-U", _ROLE, "-A", "scram-sha-256", "--pwfile", str(password_file),
                 "-E", "UTF8", "--locale=C"],
                cwd="/", pass_fds=(opened,), **as_account(self.account),
                capture_output=True, text=True, timeout=_INITDB_TIMEOUT_S, check=False,
            )  # fmt: skip
        finally:
            os.close(opened)
        if done.returncode:
            said = " / ".join((done.stdout + done.stderr).strip().splitlines()[-2:])
            raise PostgresUnusable(f"no cluster could be made in {folder}: {said}")

    async def wait_ready(self, pid: int) -> None:
        """Wait until this very process takes connections. The caller watches for its death.

        Raises:
            PostgresUnusable: it did not in time.
        """
        until = time.monotonic() + self.start_timeout_ms / 1000
        while True:
            lines = self._pid_lines()
            ready = len(lines) > _LINE_STATUS and lines[_LINE_STATUS].strip() == "ready"
            if ready and lines[_LINE_PID].strip() == str(pid):
                return
            if time.monotonic() >= until:
                raise PostgresUnusable(
                    f"postgres was not ready {self.start_timeout_ms} ms after its start"
                )
            await asyncio.sleep(_POLL_S)

    def _pid_lines(self) -> list[str]:
        with contextlib.suppress(OSError):
            return (self.data / "postmaster.pid").read_text().splitlines()
        return []

    async def _stop_orphan(self) -> None:
        """End the server of an earlier run that was killed, if it is still there.

        Known by its process number, its working folder and its name together, so it is ours.

        Raises:
            PostgresUnusable: it does not end.
        """
        lines = self._pid_lines()
        pid = int(lines[_LINE_PID]) if lines and lines[_LINE_PID].strip().isdigit() else 0
        if not pid or not works_in(pid, self.data, ("postgres",)):
            return
        # Fast, immediate: never SIGKILL, which would leave the server's own children behind.
        ends = (signal.SIGINT, signal.SIGQUIT)
        if not await ended_by(pid, created_at(pid), ends, _TERMINATE_TIMEOUT_MS):
            raise PostgresUnusable(f"the PostgreSQL of an earlier run (process {pid}) does not end")

    def note_start(self) -> None:
        """To be called before each start: last words are looked for from here on."""
        self._log_from = {path: path.stat().st_size for path in self._logs()}

    def _logs(self) -> list[Path]:
        return list((self.data / "log").glob("*.log"))

    def last_words(self) -> str:
        """The last warnings, or else lines, of the log since :meth:`note_start`; may be empty."""
        try:
            newest = max(self._logs(), key=lambda path: path.stat().st_mtime)
        except (OSError, ValueError):
            return ""
        since = self._log_from.get(newest, 0)
        lines = last_lines(newest, bytes_max=_LAST_WORDS_BYTES, since=since)
        told = [line for line in lines if _TROUBLE.search(line)] or lines
        return " / ".join(line.strip() for line in told[-_LAST_WORDS_LINES:])


def _account() -> str | None:
    """Whom the server runs as: None is ourselves, for those who are not root.

    Raises:
        PostgresUnusable: we are root and there is nobody else.
    """
    if os.geteuid() != 0:
        return None
    for name in _ACCOUNTS:
        with contextlib.suppress(KeyError):
            pwd.getpwnam(name)
            return name
    raise PostgresUnusable(
        f"PostgreSQL refuses to run as root, and there is no account {' or '.join(_ACCOUNTS)}"
    )


def as_account(name: str | None) -> dict[str, Any]:
    """What makes a child run as somebody else, without any group of ours; None is us."""
    if name is None:
        return {}
    return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}


def _by_number(opened: int) -> str:
    """The name under which a child knows a file that it was given open."""
    return f"/proc/self/fd/{opened}"
