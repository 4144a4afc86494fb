"""Rules in a folder: one file per version, never written in place.

::

    rules/
      .lock                 held while something is written
      flow/
        00000011.json       one version: number, when, who, why, rules, checksum
        00000012.json       the highest number is what is in force
        00000010.json.damaged   could not be read, set aside

A version is written to a file of another name, brought to the disk, and renamed; then the folder is
brought to the disk. So a crash at any instant leaves the version before or the new one, whole.

Several processes may share a folder. Each reads at any time; writers take turns.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seckill.sentinel.rule_store import NOBODY, Change
from seckill.sentinel.rules import KINDS, kind_named
from seckill.sentinel.stores.errors import RuleStoreBusy, RuleStoreDamaged
from seckill.sentinel.stores.history import (
    HISTORY_COUNT_MAX,
    check_history_count,
    refuse_conflict,
    undone,
)
from seckill.sentinel.stores.rule_files import Seeds
from seckill.sentinel.stores.version import (
    FILE_BYTES_MAX,
    RuleVersion,
    Unreadable,
    read_version,
    write_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LOCK_WAIT_S: Final = 5.0
LOCK_RETRY_S: Final = 0.01
READ_TRIES_MAX: Final = 5
DAMAGED: Final = ".damaged"
TEMPORARY: Final = ".tmp"

_VERSION_NAME: Final = re.compile(r"(\d{8,15})\.json")
_KEPT_NAME: Final = re.compile(rf"(\d{{8,15}})\.json(?:{re.escape(DAMAGED)}(?:\.\d+)?)?")
_LOG: Final = logging.getLogger(__name__)


class FileRuleStore:
    """A ``RuleStore`` on disk, with a history.

    Args:
        folder: where; made if need be.
        seeds: rule files of other programs. Each counts for its kind for as long as nothing has
            been saved; its name says which kind it has (``kind_of_file``).
        history_count_max: versions of a kind that are kept, 2 to 1,000.
        now_ms: what stands in a version as its time.

    Raises:
        ValueError: too few or too many versions are to be kept, or a seed's name speaks of no kind.
        OSError: the folder cannot be made.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        seeds: Iterable[Path | str] = (),
        history_count_max: int = HISTORY_COUNT_MAX,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._folder = Path(folder)
        self._seeds = Seeds(seeds)
        self._history_count_max = check_history_count(history_count_max)
        self._now_ms = now_ms
        for kind in KINDS:
            (self._folder / kind).mkdir(parents=True, exist_ok=True)
        _sync_folder(self._folder)
        _sync_folder(self._folder.parent)

    # Reading.

    def load(self, kind: str) -> str | None:
        """The rules of a kind as they were saved last, else those of its seed; None without either.

        Raises:
            RuleStoreDamaged: rules were kept and none can be read any more.
            OSError: the disk cannot be read, or a seed is not there.
            ValueError: no kind of rules is called so, or a seed is too large or not UTF-8.
        """
        name = kind_named(kind)
        head = self.head(name)
        return self._seeds.load(name) if head is None else head.document

    def head(self, kind: str) -> RuleVersion | None:
        """The version in force; None if nothing has been saved yet.

        A file that cannot be read is set aside, the log says so, and the version before counts.

        Raises:
            RuleStoreDamaged: rules were kept and none can be read any more.
            OSError: the disk cannot be read.
            ValueError: no kind of rules is called so.
        """
        name = kind_named(kind)
        for _ in range(READ_TRIES_MAX):
            numbers = self._numbers(name)
            for number in reversed(numbers):
                version = self._read(name, number)
                if version is not None:
                    return version
            if numbers == self._numbers(name):
                break
            # They were trimmed or set aside while we looked: look again.
        self._refuse_if_damaged(name)
        return None

    def head_number(self, kind: str) -> int:
        """The number of the version in force, without reading it; 0 if there is none.

        For those who ask again and again whether another process has changed the rules.

        Raises:
            OSError: the disk cannot be read.
            ValueError: no kind of rules is called so.
        """
        return max(self._numbers(kind_named(kind)), default=0)

    def history(self, kind: str) -> tuple[RuleVersion, ...]:
        """The versions that are kept, oldest first.

        Raises:
            OSError: the disk cannot be read.
            ValueError: no kind of rules is called so.
        """
        name = kind_named(kind)
        found = (self._read(name, number) for number in self._numbers(name))
        return tuple(version for version in found if version is not None)

    # Writing.

    def save(self, kind: str, document: str, change: Change = NOBODY) -> None:
        """Keep rules as a new version. On return they are on the disk.

        Raises:
            RuleConflict: they were made from a version that is no longer in force.
            RuleStoreBusy: another process is writing for too long.
            OSError: the disk is full, or cannot be written.
            ValueError: the document is not a JSON list, or no kind of rules is called so.
        """
        name = kind_named(kind)
        with self._writing():
            self._append(name, document, change, restores=None)

    def undo(self, kind: str, change: Change = NOBODY, *, to: int | None = None) -> RuleVersion:
        """Go back to the version before, by saving its rules again as a new version.

        Undoing again goes back further; ``to`` goes back, or forward, to any version that is kept.
        Before the first version there were no rules. The engine takes the result up by
        ``restore_rules``.

        Returns:
            The new version.

        Raises:
            NothingToUndo: there is nothing before, or ``to`` is not kept (any more).
            RuleConflict: the undo was meant for a version that is no longer in force.
            RuleStoreBusy: another process is writing for too long.
            OSError: the disk is full, or cannot be written.
            ValueError: no kind of rules is called so.
        """
        name = kind_named(kind)
        with self._writing():
            kept = {version.number: version for version in self.history(name)}
            document, restores = undone(name, kept, to)
            return self._append(name, document, change, restores=restores)

    def adopt(self, kind: str, versions: Iterable[RuleVersion]) -> int:
        """Keep versions of another store under their own numbers, if they are newer than all here.

        Returns:
            How many were.

        Raises:
            RuleStoreBusy: another process is writing for too long.
            OSError: the disk is full, or cannot be written.
            ValueError: no kind of rules is called so.
        """
        name = kind_named(kind)
        adopted = 0
        with self._writing():
            for version in sorted(versions, key=lambda one: one.number):
                if version.number > self._last_number_ever(name):
                    self._write(version)
                    adopted += 1
            self._trim(name)
        return adopted

    def _append(
        self, kind: str, document: str, change: Change, *, restores: int | None
    ) -> RuleVersion:
        if change.made_from is not None:
            refuse_conflict(kind, change, self.head(kind))
        version = RuleVersion(
            kind=kind,
            number=self._last_number_ever(kind) + 1,
            at_ms=self._now_ms(),
            change=Change(change.who, change.why),
            document=document,
            restores=restores,
        )
        self._write(version)
        self._trim(kind)
        return version

    def _write(self, version: RuleVersion) -> None:
        folder = self._folder / version.kind
        for left in folder.glob(f"*{TEMPORARY}"):
            # Whoever wrote it was killed: we hold the lock.
            left.unlink(missing_ok=True)
        raw = write_version(version)
        target = self._path(version.kind, version.number)
        temporary = target.with_suffix(TEMPORARY)
        try:
            with temporary.open("xb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(folder)

    def _trim(self, kind: str) -> None:
        for number in self._numbers(kind)[: -self._history_count_max]:
            try:
                self._path(kind, number).unlink(missing_ok=True)
            except OSError as error:
                # The new version is kept; an old one too many harms nobody.
                _LOG.warning("cannot remove version %d of the %s rules: %s", number, kind, error)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Be the only writer, over all processes and threads."""
        with (self._folder / ".lock").open("ab") as file:
            # Tries are counted: on a machine that stood still nobody has held it for so long.
            for _ in range(round(LOCK_WAIT_S / LOCK_RETRY_S)):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(LOCK_RETRY_S)
            else:
                raise RuleStoreBusy(
                    f"another process has held {self._folder} for {LOCK_WAIT_S:g} s"
                )
            # Closing the file lets go of the lock; so does being killed.
            yield

    # Files.

    def _path(self, kind: str, number: int) -> Path:
        return self._folder / kind / f"{number:08d}.json"

    def _numbers(self, kind: str) -> list[int]:
        matches = (_VERSION_NAME.fullmatch(path.name) for path in (self._folder / kind).iterdir())
        return sorted(int(found[1]) for found in matches if found)

    def _last_number_ever(self, kind: str) -> int:
        matches = (_KEPT_NAME.fullmatch(path.name) for path in (self._folder / kind).iterdir())
        return max((int(found[1]) for found in matches if found), default=0)

    def _read(self, kind: str, number: int) -> RuleVersion | None:
        """A version from its file; None when it is gone, or cannot be read and was set aside."""
        path = self._path(kind, number)
        try:
            with path.open("rb") as file:
                raw = file.read(FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        try:
            # What is too large is cut, so it cannot be read either.
            return read_version(raw, kind, number)
        except Unreadable as error:
            self._set_aside(path, error)
            return None

    def _set_aside(self, path: Path, reason: Unreadable) -> None:
        aside = path.with_name(path.name + DAMAGED)
        copies = 1
        while aside.exists():
            copies += 1
            aside = path.with_name(f"{path.name}{DAMAGED}.{copies}")
        # Two processes may find it at once; then one of them finds it gone.
        with contextlib.suppress(FileNotFoundError):
            path.rename(aside)
            _LOG.error(
                "the rule file %s cannot be read: %s. It was set aside as %s, and the version "
                "before it counts; the rules that were saved last are NOT in force",
                path,
                reason,
                aside.name,
            )

    def _refuse_if_damaged(self, kind: str) -> None:
        folder = self._folder / kind
        damaged = sorted(path.name for path in folder.iterdir() if DAMAGED in path.name)
        if damaged:
            raise RuleStoreDamaged(
                f"{kind} rules were kept in {folder}, and none of them can be read: "
                f"{', '.join(damaged)}. To start without them, move these files away; to start "
                "with rules that you have elsewhere, save them (import) first"
            )


def _sync_folder(folder: Path) -> None:
    """Bring a rename to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
