"""A PostgreSQL of the tests' own: free port, own folder, ended by pid.

``postgres_server`` is a session fixture. Where PostgreSQL is not
installed the tests that ask for it are skipped with one line that says so; with CI=true they fail.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seckill.runtime.free_ports import choose_port
from services.missing import skip_without
from services.names import own_name
from services.server_process import ServerProcess

__all__ = ["PostgresServer", "find_postgres", "postgres_server"]

_START_TIMEOUT_S = 120
_SUPERUSER = "postgres"


def find_postgres() -> Path | None:
    """The folder of the newest installed server's programs."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3])
    )
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


class PostgresServer(ServerProcess):
    """One cluster. Nothing in it survives the session, so it does not wait for the disk."""

    def __init__(self, programs: Path) -> None:
        super().__init__()
        self._programs = programs
        # Not below pytest's own folder: only root may enter that, and PostgreSQL refuses root.
        self.folder = Path(tempfile.mkdtemp(prefix="seckill-postgres-"))
        self.port = choose_port()
        if os.getuid() == 0:
            shutil.chown(self.folder, _SUPERUSER, _SUPERUSER)
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", _SUPERUSER, "-E", "UTF8",
                  "--locale=C.UTF-8", "--no-sync")  # fmt: skip

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> "PostgresServer":
        log = (self.folder / "postgres.log").open("ab")
        self._process = subprocess.Popen(
            [
                *_as_superuser("--pdeathsig", "INT"),
                str(self._programs / "postgres"), "-D", str(self._data),
                "-c", f"port={self.port}", "-c", "listen_addresses=127.0.0.1",
                "-c", f"unix_socket_directories={self.folder}",
                "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "shared_buffers=64MB",
                "-c", "max_connections=200", "-c", "autovacuum=off", "-c", "log_lock_waits=on",
            ],
            cwd=self.folder, stdout=log, stderr=log,
        )  # fmt: skip
        log.close()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while subprocess.run(
            [self._programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)],
            check=False,
        ).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "postgres.log").read_text())
            time.sleep(0.05)
        return self

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends every connection and shuts down in order; SIGQUIT is a crash."""
        super().stop(how)

    def create_database(self, template: str = "template0") -> str:
        """Make a database, empty or as a copy of another; returns its URL."""
        name = own_name().replace("-", "_")
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql://{_SUPERUSER}@127.0.0.1:{self.port}/{name}"

    def execute(self, statement: str, database: str = "postgres") -> str:
        """Run one statement as the superuser; returns what psql prints."""
        return subprocess.run(
            [self._programs / "psql", "-X", "-q", "-A", "-t", "-h", "127.0.0.1",
             "-p", str(self.port), "-U", _SUPERUSER, "-d", database, "-c", statement],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)  # nothing in it is worth a checkpoint
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*_as_superuser(), str(self._programs / program), *arguments],
            cwd=self.folder, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def _as_superuser(*options: str) -> list[str]:
    """PostgreSQL refuses to run as root: step down to its own user then."""
    if os.getuid() != 0:
        return []
    return ["setpriv", f"--reuid={_SUPERUSER}", f"--regid={_SUPERUSER}", "--clear-groups", *options]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for the session; every test makes its own database in it."""
    programs = find_postgres()
    if programs is None:
        skip_without("PostgreSQL is not installed (no initdb): the PostgreSQL half is NOT TESTED")
    server = PostgresServer(programs)
    try:
        server.start()
        yield server
    finally:
        server.remove()
