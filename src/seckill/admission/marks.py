"""The highest ``seq`` that each web process has acknowledged, kept where it survives a kill.

Each slot of a host (``web-0``, ``web-1``, …) has one small memory-mapped file. A process writes
its mark *before* it tells a buyer yes; what is written to the mapping survives ``kill -9``, since
the pages belong to the kernel. After a crash of Redis the fence compares these marks with what came
back: told yes and not there any more is a loss, and must be known.
Source: rules 5 and 6 of the fence, docs/concepts.md.

A file is locked by its process for as long as that lives, so a reader can tell a mark that may
still be waiting for a reply (in flight) from one of a dead process, which waits for nothing.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId

__all__ = [
    "ENTRIES_MAX",
    "Mark",
    "MarkWriter",
    "folder_id",
    "living_slots",
    "make_folder_id",
    "read_marks",
]

ENTRIES_MAX: Final = 4096
_ID_FILE: Final = "folder-id"
_MAGIC: Final = b"SECKMARK"
_HEADER_BYTES: Final = 64
_LOCK_WAIT_S: Final = 5.0
_LOCK_RETRY_S: Final = 0.005
_ENTRY: Final = struct.Struct("<QIIQQ")  # sale, bucket, in flight, epoch, seq
_SEQ_AT: Final = 24
_IN_FLIGHT_AT: Final = 12
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_FILE_BYTES: Final = _HEADER_BYTES + ENTRIES_MAX * _ENTRY.size


@dataclass(frozen=True, slots=True)
class Mark:
    """What one slot knows of one epoch of one bucket.

    Attributes:
        seq: the highest seq that the slot has acknowledged to a buyer, or is about to.
        in_flight: a living process of the slot waits for a reply of this epoch.
    """

    slot: str
    bucket_id: BucketId
    epoch: int
    seq: int
    in_flight: bool


class MarkWriter:
    """The marks of this process. One writer per slot; a second one is refused.

    Args:
        folder: where the files of this host are.
        slot: name of the slot; a process that takes the place of a dead one has the same.

    Raises:
        BlockingIOError: another living process has this slot.
    """

    def __init__(self, folder: Path, slot: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / f"{slot}.marks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._file)
            if os.fstat(self._file).st_size != _FILE_BYTES:
                os.ftruncate(self._file, _FILE_BYTES)
            self._map = mmap.mmap(self._file, _FILE_BYTES)
        except BaseException:
            os.close(self._file)
            raise
        self._map[: len(_MAGIC)] = _MAGIC
        self._offsets: dict[tuple[BucketId, int], int] = {}
        self._free: list[int] = []
        for offset in range(_FILE_BYTES - _ENTRY.size, _HEADER_BYTES - 1, -_ENTRY.size):
            sale_id, bucket, _, epoch, _ = _ENTRY.unpack_from(self._map, offset)
            if sale_id == 0:
                self._free.append(offset)
            else:
                self._offsets[BucketId(SaleId(sale_id), bucket), epoch] = offset
                # The process that waited for it is dead: this one waits for nothing yet.
                _U32.pack_into(self._map, offset + _IN_FLIGHT_AT, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the slot back. The marks stay."""
        self._map.close()
        os.close(self._file)

    def _offset(self, bucket_id: BucketId, epoch: int) -> int:
        known = self._offsets.get((bucket_id, epoch))
        if known is not None:
            return known
        if not self._free:
            self._forget_oldest()
        offset = self._free.pop()
        # The sale id makes an entry valid, so it is written last.
        _ENTRY.pack_into(self._map, offset, 0, bucket_id.bucket, 0, epoch, 0)
        _U64.pack_into(self._map, offset, bucket_id.sale_id)
        self._offsets[bucket_id, epoch] = offset
        return offset

    def _forget_oldest(self) -> None:
        """Make room: an epoch that has a successor is judged, and so needs no mark any more."""
        newest: dict[BucketId, int] = {}
        for bucket_id, epoch in self._offsets:
            newest[bucket_id] = max(epoch, newest.get(bucket_id, 0))
        old = [key for key in self._offsets if key[1] < newest[key[0]]]
        # Without such an epoch the sales with the lowest numbers go: they are the oldest.
        for key in old or sorted(self._offsets)[: ENTRIES_MAX // 8]:
            offset = self._offsets.pop(key)
            _U64.pack_into(self._map, offset, 0)
            self._free.append(offset)

    def sending(self, bucket_id: BucketId, epoch: int) -> None:
        """A batch of this epoch is about to be sent."""
        _U32.pack_into(self._map, self._offset(bucket_id, epoch) + _IN_FLIGHT_AT, 1)

    def settled(self, bucket_id: BucketId, epoch: int) -> None:
        """No reply of this epoch will be believed any more: it has come, or it is given up."""
        _U32.pack_into(self._map, self._offset(bucket_id, epoch) + _IN_FLIGHT_AT, 0)

    def acknowledge(self, bucket_id: BucketId, epoch: int, seq: int) -> None:
        """Raise the mark. To be called before any buyer is told of a seq up to this one."""
        at = self._offset(bucket_id, epoch) + _SEQ_AT
        if seq > _U64.unpack_from(self._map, at)[0]:
            _U64.pack_into(self._map, at, seq)

    def acknowledged(self, bucket_id: BucketId, epoch: int) -> int:
        """The mark of this slot: what this process, or one before it, has acknowledged."""
        known = self._offsets.get((bucket_id, epoch))
        return 0 if known is None else int(_U64.unpack_from(self._map, known + _SEQ_AT)[0])


def make_folder_id(folder: Path) -> str:
    """The name of a folder of marks, drawn once: under it web processes register in the ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    known = folder_id(folder)
    if known is not None:
        return known
    drawn = folder / f".{uuid.uuid4().hex}"
    drawn.write_text(uuid.uuid4().hex, encoding="ascii")
    with contextlib.suppress(FileExistsError):
        (folder / _ID_FILE).hardlink_to(drawn)  # whole or not at all, and never over another one
    drawn.unlink()
    return (folder / _ID_FILE).read_text(encoding="ascii")


def folder_id(folder: Path) -> str | None:
    """The name of a folder of marks; None when no web process ever kept its marks there."""
    try:
        return (folder / _ID_FILE).read_text(encoding="ascii")
    except FileNotFoundError:
        return None


def read_marks(folder: Path) -> Iterator[Mark]:
    """All marks of this host, of living and of dead processes. Files of other kinds are skipped."""
    for path in sorted(folder.glob("*.marks")):
        with path.open("rb") as file:
            alive = not _lockable(file.fileno())
            content = file.read(_FILE_BYTES)
        if len(content) != _FILE_BYTES or not content.startswith(_MAGIC):
            continue
        for offset in range(_HEADER_BYTES, _FILE_BYTES, _ENTRY.size):
            sale_id, bucket, in_flight, epoch, seq = _ENTRY.unpack_from(content, offset)
            if sale_id:
                yield Mark(
                    path.stem,
                    BucketId(SaleId(sale_id), bucket),
                    epoch,
                    seq,
                    alive and in_flight == 1,
                )


def living_slots(folder: Path) -> set[str]:
    """The slots of this host whose processes live."""
    living = set()
    for path in folder.glob("*.marks"):
        with path.open("rb") as file:
            if not _lockable(file.fileno()):
                living.add(path.stem)
    return living


def _lock(file: int) -> None:
    """Take the slot. A reader may hold the lock for a moment, to see whether anybody lives here.

    The wait is counted in tries, not by a clock: a machine that stood still has let nobody go on.
    """
    for _ in range(round(_LOCK_WAIT_S / _LOCK_RETRY_S)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_RETRY_S)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lockable(file: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
        return True
    return False
