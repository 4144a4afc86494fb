"""The block log: who was refused what, by which rule, in each second. For people with a shell.

::

    2025-12-01 10:00:00|1|seckill-jk,FlowException,default,app-1,7|42,0

One line per second and kind of refusal: the time in words, a constant, then resource, exception,
the rule's limitApp, the caller and the rule's id (both may be empty), and how many units. It is the
line of the original's ``sentinel-block.log``, so its tools read ours.

A refusal costs its caller a look into a table, never a write: lines are written once a second, by
``run``. Everything has a bound: the kinds of a second (the rest of it is counted in a line without
a resource), the seconds that wait to be written, the size of the file, the number of old files.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, Final

from seckill.sentinel.transport.counts import MS_PER_S
from seckill.sentinel.transport.metric_line import in_line

if TYPE_CHECKING:
    from datetime import tzinfo
    from pathlib import Path

    from seckill.sentinel.engine import Sentinel
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.errors import BlockException

FILE_NAME: Final = "sentinel-block.log"
KINDS_PER_SECOND_MAX: Final = 6_000
SECONDS_WAITING_MAX: Final = 60
FILE_BYTES_MAX: Final = 300 * 1024 * 1024
OLD_FILES_MAX: Final = 3
TAIL_BYTES: Final = 65_536
"""More than the longest line."""

_Kind = tuple[str, str, str, str, str]
_LOG: Final = logging.getLogger(__name__)


class BlockLog:
    """Counts the refusals of an engine by the second, and writes them to a file that rolls.

    Use it by ``run`` in a task, or call ``flush`` in your own time.

    Args:
        sentinel: whose refusals; listened to until ``close``.
        folder: where the file is; made if need be. A process that finds the file taken by another
            writes to one with its number behind the name.
        file_name: give each process that shares a folder one of its own, and none gets a number.
        file_bytes_max: a file that has grown so large becomes ``.1``, the one before ``.2``, ….
        old_files_max: such files that are kept.
        kinds_per_second_max: kinds of refusal that are told apart in one second.
        zone: of the time in words; default here.

    Raises:
        OSError: the folder cannot be made.

    Attributes:
        lost: units of refusals that no line will tell of, because the file could not be written.
    """

    def __init__(
        self,
        sentinel: Sentinel,
        folder: Path,
        *,
        file_name: str = FILE_NAME,
        file_bytes_max: int = FILE_BYTES_MAX,
        old_files_max: int = OLD_FILES_MAX,
        kinds_per_second_max: int = KINDS_PER_SECOND_MAX,
        zone: tzinfo | None = None,
    ) -> None:
        if file_bytes_max < 1 or old_files_max < 0 or kinds_per_second_max < 1:
            raise ValueError("a block log needs at least 1 byte, 0 old files and 1 kind a second")
        folder.mkdir(parents=True, exist_ok=True)
        self._sentinel = sentinel
        self._folder = folder
        self._name = file_name
        self._path = folder / file_name
        self._file_bytes_max = file_bytes_max
        self._old_files_max = old_files_max
        self._kinds_max = kinds_per_second_max
        self._zone = zone
        self._file: BinaryIO | None = None
        self._fails = False
        # Held briefly by callers; writing goes on without it.
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._seconds: dict[int, dict[_Kind, int]] = {}
        self.lost = 0
        # One object, so that it can be taken out again.
        self._listener = self._count
        sentinel.block_listeners.append(self._listener)

    async def run(self) -> None:
        """Write each second as it ends, until cancelled; then write what there is, and close."""
        try:
            while True:
                now_ms = self._sentinel.clock.now_ms()
                await asyncio.sleep((MS_PER_S - now_ms % MS_PER_S) / MS_PER_S)
                await asyncio.to_thread(self.flush)
        finally:
            self.close()

    def flush(self, *, running: bool = False) -> None:
        """Write the seconds that are over. Never fails: what cannot be written is counted.

        Args:
            running: write the running second as well, because there will be no other time.
        """
        with self._turn:
            with self._lock:
                border_s = self._sentinel.clock.now_ms() // MS_PER_S
                due = {at: self._seconds[at] for at in sorted(self._seconds)}
                if not running:
                    due = {at: kinds for at, kinds in due.items() if at < border_s}
                for at_s in due:
                    del self._seconds[at_s]
            for at_s, kinds in due.items():
                self._write(at_s, kinds)

    def close(self) -> None:
        """Listen no more, write what there is, and let go of the file."""
        if self._listener in self._sentinel.block_listeners:
            self._sentinel.block_listeners.remove(self._listener)
        self.flush(running=True)
        with self._turn:
            self._let_go()

    def _count(self, entry: Entry, block: BlockException) -> None:
        rule = block.rule
        number = getattr(rule, "id", None)
        kind = (
            block.resource,
            type(block).__name__,
            block.rule_limit_app,
            entry.context.origin,
            "" if number is None else str(number),
        )
        at_s = self._sentinel.clock.now_ms() // MS_PER_S
        with self._lock:
            kinds = self._seconds.get(at_s)
            if kinds is None:
                if len(self._seconds) >= SECONDS_WAITING_MAX:
                    # Nobody writes: the oldest second makes room.
                    self.lost += sum(self._seconds.pop(min(self._seconds)).values())
                kinds = self._seconds[at_s] = {}
            if kind not in kinds and len(kinds) >= self._kinds_max:
                kind = ("", kind[1], "", "", "")
            kinds[kind] = kinds.get(kind, 0) + entry.count

    def _write(self, at_s: int, kinds: dict[_Kind, int]) -> None:
        words = f"{datetime.fromtimestamp(at_s, self._zone):%Y-%m-%d %H:%M:%S}"
        text = "".join(
            f"{words}|1|{','.join(map(_in_field, kind))}|{count},0\n"
            for kind, count in kinds.items()
        )
        raw = text.encode(errors="replace")
        try:
            self._append(raw)
        except OSError as error:
            self.lost += sum(kinds.values())
            self._let_go()
            if not self._fails:
                _LOG.warning("refusals cannot be written to %s: %s", self._path, error)
            self._fails = True
        else:
            self._fails = False

    def _append(self, raw: bytes) -> None:
        file = self._file
        if file is not None and file.tell() and file.tell() + len(raw) > self._file_bytes_max:
            self._roll()
            file = None
        if file is None:
            file = self._file = self._opened()
            if file.tell() and file.tell() + len(raw) > self._file_bytes_max:
                self._roll()
                file = self._file = self._opened()
        rest = memoryview(raw)
        while rest:
            rest = rest[file.write(rest) :]

    def _opened(self) -> BinaryIO:
        """The file, locked; that of this process's own if another has it."""
        for path in (self._path, self._folder / f"{self._name}.pid{os.getpid()}"):
            file = path.open("ab", buffering=0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            except BaseException:
                file.close()
                raise
            self._path = path
            _cut_half_a_line_off(path, file)
            return file
        raise BlockingIOError(f"{self._path} is written by another block log of this process")

    def _roll(self) -> None:
        """Give the file a number, and the older ones the next; the oldest goes."""
        self._let_go()
        base = self._path.name
        for number in range(self._old_files_max, 0, -1):
            older = self._folder / (f"{base}.{number - 1}" if number > 1 else base)
            if older.exists():
                older.replace(self._folder / f"{base}.{number}")
        if not self._old_files_max:
            self._path.unlink(missing_ok=True)

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _in_field(text: str) -> str:
    """A name fit for a field: the original lets a comma through, and then no tool can read it."""
    return in_line(text).replace(",", "_")


def _cut_half_a_line_off(path: Path, file: BinaryIO) -> None:
    """What a kill or a full disk left half written would spoil the next line."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return
    with path.open("rb") as reader:
        reader.seek(max(0, size - TAIL_BYTES))
        tail = reader.read()
    half = len(tail) - (tail.rfind(b"\n") + 1)
    if half:
        os.ftruncate(file.fileno(), size - half)
        file.seek(0, os.SEEK_END)
