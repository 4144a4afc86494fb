"""The folder that a run keeps its data in, and the lock that makes one supervisor its owner.

::

    .seckill/                     0700, as everything below it that holds data
    ├── seckill.toml              settings of this installation, if you write one
    ├── ledger.db                 the order ledger (SQLite)
    ├── sandbox.db                the books of the sandbox that stands in for a payment provider
    ├── redis/                    append-only file, configuration and log of the embedded Redis
    ├── kafka/                    data, configuration and log of the embedded Kafka, if there is one
    ├── postgres/                 cluster, password and port of the embedded PostgreSQL, likewise
    ├── marks/                    highest acknowledged seq of each web slot: survive kill -9
    ├── sentinel/
    │   ├── rules/                the rules of flow control, with their history
    │   ├── blocks/               who was refused what, by which rule, in each second
    │   └── metrics/              what each second brought, for a Sentinel dashboard
    └── run/
        ├── lock                  held by the supervisor as long as it lives
        ├── web-0.lock …          held by the one process of each role and number
        ├── status.json           which process does what; rewritten at each change
        ├── setup-link            how the set-up link of this start ends, until it was printed
        ├── settings.json         what the other commands must know to find this run
        ├── flow/                 what flow control counts in each web process, told each second
        │   └── command-port          where a Sentinel dashboard's commands are taken at present
        └── metrics/              one file for each process slot
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from seckill.runtime.errors import DataDirInUse, DataDirUnusable, RunError, SlotTaken

__all__ = ["DataDir", "number_in", "write_atomically"]

_PRIVATE_DIR: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_PID_BYTES_MAX: Final = 20
_OWN_NAMES: Final = frozenset(
    {
        "seckill.toml",
        "ledger.db",
        "ledger.db-wal",
        "ledger.db-shm",
        "redis",
        "kafka",
        "postgres",
        "marks",
        "run",
        "sentinel",
    }
    | {"sandbox.db", "sandbox.db-wal", "sandbox.db-shm"}
)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a reader sees the old content or the new, never a part.

    Not flushed to the disk: what is written this way is about running processes, and they do not
    outlive the machine either.

    Raises:
        OSError: the file keeps its old content.
    """
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(
            os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE_FILE),
            "wb",
        ) as file:
            file.write(content)
        staged.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise


def number_in(path: Path) -> int:
    """The number that a small file holds; 0 when there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text().strip())
    return 0


@dataclass(frozen=True, slots=True)
class DataDir:
    """Where everything of one installation lies.

    Attributes:
        root: absolute path.
    """

    root: Path

    @property
    def ledger(self) -> Path:
        """The SQLite ledger."""
        return self.root / "ledger.db"

    @property
    def sandbox(self) -> Path:
        """The books of the sandbox payment provider."""
        return self.root / "sandbox.db"

    @property
    def redis(self) -> Path:
        """What the embedded Redis owns."""
        return self.root / "redis"

    @property
    def kafka(self) -> Path:
        """What the embedded Kafka owns; made when there is one."""
        return self.root / "kafka"

    @property
    def postgres(self) -> Path:
        """What the embedded PostgreSQL owns; made when there is one."""
        return self.root / "postgres"

    @property
    def marks(self) -> Path:
        """The acknowledged marks of the web slots."""
        return self.root / "marks"

    @property
    def run(self) -> Path:
        """What is about running processes."""
        return self.root / "run"

    @property
    def status(self) -> Path:
        """Which process does what."""
        return self.run / "status.json"

    @property
    def setup_link(self) -> Path:
        """How the set-up link of this start ends; only there until it was printed."""
        return self.run / "setup-link"

    @property
    def run_settings(self) -> Path:
        """What the other commands must know to find the run."""
        return self.run / "settings.json"

    @property
    def metrics(self) -> Path:
        """The metrics of each process slot."""
        return self.run / "metrics"

    @property
    def rules(self) -> Path:
        """The rules of flow control."""
        return self.root / "sentinel" / "rules"

    @property
    def flow_seconds(self) -> Path:
        """What each second brought, as a Sentinel dashboard reads it."""
        return self.root / "sentinel" / "metrics"

    @property
    def flow_blocks(self) -> Path:
        """What each second's refusals were, one log for each web process."""
        return self.root / "sentinel" / "blocks"

    @property
    def flow(self) -> Path:
        """What flow control counts in each web process."""
        return self.run / "flow"

    @property
    def command_port(self) -> Path:
        """The address that takes a Sentinel dashboard's commands; no file while none does."""
        return self.flow / "command-port"

    def create(self) -> None:
        """Make what is missing, private to this user. Safe to call again.

        A root folder that was there before keeps its mode when it is empty, or holds things of
        others as well: it may be a mounted volume, or somebody's home. One that holds nothing but
        ours is made private, and so is the ledger in it.

        Raises:
            DataDirUnusable: a folder cannot be made, belongs to somebody else, or is no folder.
        """
        folder = self.root
        try:
            self.root.mkdir(mode=_PRIVATE_DIR, parents=True, exist_ok=True)
            self._make_private()
            for folder in (
                self.redis,
                self.marks,
                self.rules.parent,
                self.run,
                self.metrics,
                self.flow,
            ):
                folder.mkdir(mode=_PRIVATE_DIR, exist_ok=True)
                if stat.S_IMODE(folder.stat().st_mode) != _PRIVATE_DIR:
                    folder.chmod(_PRIVATE_DIR)
        except OSError as error:
            raise DataDirUnusable(
                f"the data directory {self.root} cannot be used: "
                f"{error.strerror or error} ({error.filename or folder})"
            ) from error

    def _make_private(self) -> None:
        """Take away from others what an earlier version, or another umask, had left open to them.

        What belongs to somebody else is left as it is.
        """
        found = {path.name for path in self.root.iterdir()}
        wanted = {self.root: _PRIVATE_DIR} if found and found <= _OWN_NAMES else {}
        wanted |= dict.fromkeys(
            (self.root / name for name in found & _OWN_NAMES if ".db" in name),
            _PRIVATE_FILE,
        )
        for path, mode in wanted.items():
            before = path.stat()
            if before.st_uid == os.geteuid() and stat.S_IMODE(before.st_mode) != mode:
                path.chmod(mode)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Own the directory as its one supervisor. The kernel gives the lock back at any death.

        Raises:
            DataDirInUse: another process owns it.
            DataDirUnusable: the lock file cannot be opened, or the file system has no locks.
        """
        with self._locked(self.run / "lock", taken=lambda pid: DataDirInUse(str(self.root), pid)):
            yield

    @contextlib.contextmanager
    def slot_locked(self, role: str, slot: int) -> Iterator[None]:
        """Be the one process of this role and number: two would undo each other's work.

        They would share the marks or the place in the outbox, and the metrics, that belong to a
        number. The kernel gives the lock back at any death.

        Raises:
            SlotTaken: another process has the role and number.
            DataDirUnusable: as :meth:`locked`.
        """
        try:
            self.run.mkdir(mode=_PRIVATE_DIR, parents=True, exist_ok=True)
        except OSError as error:
            raise DataDirUnusable(
                f"the data directory {self.root} cannot be used: {error.strerror} ({self.run})"
            ) from error
        with self._locked(
            self.run / f"{role}-{slot}.lock",
            taken=lambda pid: SlotTaken(role, slot, str(self.root), pid),
        ):
            yield

    @contextlib.contextmanager
    def _locked(self, path: Path, *, taken: Callable[[int], RunError]) -> Iterator[None]:
        """Hold a lock file; ``taken`` makes the error when the process with this id holds it."""
        try:
            # Close-on-exec is what keeps a child of ours from holding the lock after our death.
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        except OSError as error:
            raise DataDirUnusable(
                f"the lock file {path} cannot be opened: {error.strerror}"
            ) from error
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise taken(_pid_in(file)) from None
            except OSError as error:
                raise DataDirUnusable(
                    f"the file system of {self.root} cannot lock files "
                    f"({errno.errorcode.get(error.errno or 0, 'error')}), so two runs could damage "
                    "each other's data: choose another --data-dir"
                ) from error
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
            yield
            # The file stays: removing it would let two starts lock two different files.
            os.ftruncate(file, 0)
        finally:
            os.close(file)


def _pid_in(file: int) -> int:
    text = os.pread(file, _PID_BYTES_MAX, 0).strip()
    return int(text) if text.isdigit() else 0
