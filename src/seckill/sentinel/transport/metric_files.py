"""Metric log files, as the original writes them: lines, and an index beside them.

::

    shop-metrics.log.2025-12-01          fat lines, in order of time
    shop-metrics.log.2025-12-01.idx      16 bytes per second: the second, and where its lines begin
    shop-metrics.log.2025-12-01.1        the next file of the day

The writer appends lines first and their index record after them, so an index never points at what
is not there. After a crash it cuts half a line off and adds the record that is missing, then goes
on with the same file; the original begins a new one at each start, and six starts wipe out its
history.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import struct
import threading
from bisect import bisect_left
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, BinaryIO, Final

from seckill.sentinel.transport.counts import MS_PER_S
from seckill.sentinel.transport.metric_line import MetricLine, fat, in_line, read_fat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import tzinfo
    from pathlib import Path

INDEX_RECORD: Final = struct.Struct(">qq")
INDEX: Final = ".idx"
TAIL_BYTES_MAX: Final = 4 * 1024 * 1024
"""A file with more than this behind its last index record is left alone, and another begun."""

FILES_A_DAY_MAX: Final = 100_000

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class _FileName:
    """A metric file's name, in the order in which files follow each other."""

    date: str
    length: int
    name: str
    number: int


class _Folder:
    """The metric files of one application."""

    def __init__(self, folder: Path, app: str) -> None:
        self.folder = folder
        self.base = f"{app.replace('.', '-')}-metrics.log"
        self._pattern = re.compile(
            rf"{re.escape(self.base)}(?:\.pid\d+)?\.(\d{{4}}-\d\d-\d\d)(?:\.(\d+))?"
        )

    def files(self) -> list[_FileName]:
        """All of them, oldest first: by date, then by length of the name, then by name."""
        found = []
        for path in self.folder.iterdir():
            match = self._pattern.fullmatch(path.name)
            if match:
                found.append(_FileName(match[1], len(path.name), path.name, int(match[2] or 0)))
        return sorted(found)

    def path(self, name: str) -> Path:
        return self.folder / name

    def index_path(self, name: str) -> Path:
        return self.folder / (name + INDEX)

    def new_name(self, date: str, number: int) -> str:
        return f"{self.base}.{date}.{number}" if number else f"{self.base}.{date}"


@dataclass(slots=True)
class _Open:
    """The file that is being written."""

    date: str
    log: BinaryIO
    index: BinaryIO
    size: int
    last_s: int

    def close(self) -> None:
        self.log.close()
        self.index.close()


class MetricFileWriter:
    """Writes seconds to files that roll by day and by size, and removes the oldest.

    Several processes never write to one file: each finds the files of the others locked, and begins
    its own.

    Args:
        folder: where; made if need be.
        app: the application; dots in it become ``-``.
        file_bytes_max: a file that has grown so large is followed by another.
        file_count_max: files that are kept, the one being written among them.
        zone: of days and of the time in words; default here.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        app: str,
        *,
        file_bytes_max: int,
        file_count_max: int,
        zone: tzinfo | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = _Folder(folder, app)
        self._file_bytes_max = file_bytes_max
        self._file_count_max = file_count_max
        self._zone = zone
        self._open: _Open | None = None
        # Writing happens in threads, and may still go on when somebody closes.
        self._turn = threading.Lock()

    def write(self, lines: Iterable[MetricLine]) -> None:
        """Append lines, in order of time. On return they are with the system, not on the disk.

        Raises:
            OSError: the disk is full, or cannot be written. The lines are lost.
        """
        with self._turn:
            for at_ms, group in groupby(lines, key=lambda line: line.at_ms):
                text = "".join(f"{fat(line, self._zone)}\n" for line in group)
                self._append(at_ms // MS_PER_S, text.encode(errors="replace"))

    def close(self) -> None:
        """Let go of the file. What is being written is written to its end first."""
        with self._turn:
            self._let_go()

    def _let_go(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def last_ms(self) -> int:
        """The last second that has been written, by whatever process; 0 if there is none.

        Raises:
            OSError: the disk cannot be read.
        """
        for name in reversed(self._folder.files()):
            with contextlib.suppress(FileNotFoundError):
                records = _read_index(self._folder.index_path(name.name))
                if records:
                    return records[-1][0] * MS_PER_S
        return 0

    def _append(self, second_s: int, raw: bytes) -> None:
        date = f"{datetime.fromtimestamp(second_s, self._zone):%Y-%m-%d}"
        current = self._open
        if current is None:
            current = self._open = self._resumed(date, second_s) or self._begun(date)
        elif (
            current.date != date
            or current.size >= self._file_bytes_max
            # The clock was put back: within a file time goes forward only, or no index can help.
            or second_s < current.last_s
        ):
            self._let_go()
            current = self._open = self._begun(date)
        try:
            _write_all(current.log, raw)
            if second_s > current.last_s:
                _write_all(current.index, INDEX_RECORD.pack(second_s, current.size))
        except OSError:
            # What was half written is cut off when the file is taken up again.
            self._let_go()
            raise
        current.last_s = second_s
        current.size += len(raw)

    def _resumed(self, date: str, second_s: int) -> _Open | None:
        """The newest file of the day, made whole; None if it is not fit to be gone on with."""
        names = [name for name in self._folder.files() if name.date == date]
        if not names:
            return None
        name = names[-1].name
        if name != self._folder.new_name(date, names[-1].number):
            # Of a process that wrote its number into the name.
            return None
        log = self._folder.path(name).open("r+b", buffering=0)
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = self._made_whole(date, log, self._folder.index_path(name))
        except (BlockingIOError, FileNotFoundError):
            found = None
        except BaseException:
            log.close()
            raise
        if found is None:
            log.close()
            return None
        if found.size >= self._file_bytes_max or second_s < found.last_s:
            found.close()
            return None
        return found

    @staticmethod
    def _made_whole(date: str, log: BinaryIO, index_path: Path) -> _Open | None:
        size = log.seek(0, os.SEEK_END)
        records = _read_index(index_path)
        while records and records[-1][1] >= size:
            # It points behind the end: somebody cut the log.
            records.pop()
        start = records[-1][1] if records else 0
        if size - start > TAIL_BYTES_MAX:
            return None
        log.seek(start)
        tail = log.read(size - start)
        tail = tail[: tail.rfind(b"\n") + 1]
        log.truncate(start + len(tail))
        log.seek(0, os.SEEK_END)
        last_s = records[-1][0] if records else 0
        missing = []
        place = start
        for raw in tail.splitlines(keepends=True):
            line = read_fat(raw.decode(errors="replace"))
            if line is not None and line.at_ms // MS_PER_S > last_s:
                last_s = line.at_ms // MS_PER_S
                missing.append((last_s, place))
            place += len(raw)
        index = index_path.open("r+b", buffering=0)
        try:
            index.truncate(len(records) * INDEX_RECORD.size)
            index.seek(0, os.SEEK_END)
            _write_all(index, b"".join(INDEX_RECORD.pack(*record) for record in missing))
        except BaseException:
            index.close()
            raise
        return _Open(date, log, index, start + len(tail), last_s)

    def _begun(self, date: str) -> _Open:
        """A new file, the next of the day."""
        names = [name for name in self._folder.files() if name.date == date]
        number = max((name.number for name in names), default=-1) + 1
        while True:
            name = self._folder.new_name(date, number)
            try:
                log = self._folder.path(name).open("xb", buffering=0)
                break
            except FileExistsError:
                # Another process was quicker.
                number += 1
                if number > FILES_A_DAY_MAX:
                    raise
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            index = self._folder.index_path(name).open("wb", buffering=0)
        except BaseException:
            log.close()
            raise
        self._remove_oldest()
        return _Open(date, log, index, 0, 0)

    def _remove_oldest(self) -> None:
        for name in self._folder.files()[: -self._file_count_max]:
            try:
                self._folder.path(name.name).unlink(missing_ok=True)
                self._folder.index_path(name.name).unlink(missing_ok=True)
            except OSError as error:
                _LOG.warning("cannot remove the metric file %s: %s", name.name, error)


class MetricFileReader:
    """Finds seconds in metric files, of ours and of the original.

    Args:
        folder: where they are.
        app: whose.
    """

    def __init__(self, folder: Path, app: str) -> None:
        self._folder = _Folder(folder, app)

    def read(
        self,
        start_ms: int,
        end_ms: int | None,
        *,
        identity: str = "",
        line_count_max: int,
    ) -> list[MetricLine]:
        """The lines of a span of whole seconds, both ends among them, in the order of the files.

        Args:
            start_ms: any instant of the first second.
            end_ms: any instant of the last; None for all that come.
            identity: one resource only; empty for all.
            line_count_max: after so many no further second is begun. None is cut in half.

        Raises:
            OSError: the disk cannot be read.
        """
        start_s = start_ms // MS_PER_S
        end_s = None if end_ms is None else end_ms // MS_PER_S
        found: list[MetricLine] = []
        wanted = in_line(identity)
        for name in self._folder.files():
            # A file may be removed while we look.
            with contextlib.suppress(FileNotFoundError):
                for line in self._lines(name.name, start_s, end_s):
                    if wanted and line.resource != wanted:
                        continue
                    if len(found) >= line_count_max and line.at_ms != found[-1].at_ms:
                        return found
                    found.append(line)
        return found

    def _lines(self, name: str, start_s: int, end_s: int | None) -> Iterator[MetricLine]:
        records: list[tuple[int, int]] = []
        # Without an index every line is looked at.
        with contextlib.suppress(FileNotFoundError):
            records = _read_index(self._folder.index_path(name))
        start = 0
        # Records may be missing: the last after a crash, and the original never writes that of a
        # file's first second. So we begin at the record before, or else at the beginning.
        place = bisect_left(records, (start_s, 0))
        if place:
            start = records[place - 1][1]
        with self._folder.path(name).open("rb") as log:
            log.seek(start)
            for raw in log:
                if not raw.endswith(b"\n"):
                    # It is still being written, or never was.
                    return
                line = read_fat(raw[:-1].decode(errors="replace"))
                if line is None or line.at_ms // MS_PER_S < start_s:
                    continue
                if end_s is not None and line.at_ms // MS_PER_S > end_s:
                    return
                yield line


def _write_all(file: BinaryIO, raw: bytes) -> None:
    """Write without a buffer in between. A full disk takes a part first and says so at the next."""
    rest = memoryview(raw)
    while rest:
        rest = rest[file.write(rest) :]


def _read_index(path: Path) -> list[tuple[int, int]]:
    """The records of an index: (second, place in the log). Half a record at the end is none."""
    raw = path.read_bytes()
    whole = len(raw) - len(raw) % INDEX_RECORD.size
    return [(second, place) for second, place in INDEX_RECORD.iter_unpack(raw[:whole])]
