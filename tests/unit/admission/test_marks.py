"""The marks of a process: what it acknowledged survives it, and is seen by whoever judges."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seckill.admission import marks as marks_module
from seckill.admission.marks import Mark, MarkWriter, read_marks
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId

BUCKET = BucketId(SaleId(1), 0)
OTHER = BucketId(SaleId(2), 3)


def test_a_mark_is_seen_at_once_and_only_rises(tmp_path: Path) -> None:
    with MarkWriter(tmp_path, "web-0") as writer:
        assert writer.acknowledged(BUCKET, 1) == 0
        for seq in (5, 3, 9, 9):
            writer.acknowledge(BUCKET, 1, seq)
        writer.acknowledge(OTHER, 7, 2**40)
        assert writer.acknowledged(BUCKET, 1) == 9
        assert sorted(read_marks(tmp_path), key=lambda m: m.bucket_id) == [
            Mark("web-0", BUCKET, 1, 9, in_flight=False),
            Mark("web-0", OTHER, 7, 2**40, in_flight=False),
        ]


def test_the_successor_of_a_process_knows_what_that_one_had_acknowledged(tmp_path: Path) -> None:
    with MarkWriter(tmp_path, "web-0") as writer:
        writer.acknowledge(BUCKET, 1, 9)
        writer.sending(BUCKET, 1)
    with MarkWriter(tmp_path, "web-0") as writer:
        assert writer.acknowledged(BUCKET, 1) == 9
        (mark,) = read_marks(tmp_path)
        assert not mark.in_flight, "the one that waited is gone"


def test_only_a_living_process_can_be_waiting(tmp_path: Path) -> None:
    with MarkWriter(tmp_path, "web-0") as writer:
        writer.sending(BUCKET, 1)
        assert [m.in_flight for m in read_marks(tmp_path)] == [True]
        writer.settled(BUCKET, 1)
        assert [m.in_flight for m in read_marks(tmp_path)] == [False]
        writer.sending(BUCKET, 1)
    assert [m.in_flight for m in read_marks(tmp_path)] == [False]


def test_a_slot_has_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks_module, "_LOCK_WAIT_S", 0.05)
    with MarkWriter(tmp_path, "web-0"):
        with pytest.raises(BlockingIOError):
            MarkWriter(tmp_path, "web-0")
        MarkWriter(tmp_path, "web-1").close()
    MarkWriter(tmp_path, "web-0").close()


def test_a_machine_that_stood_still_does_not_end_the_wait_for_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks at the marks holds the slot for a moment, and stood still with it."""
    MarkWriter(tmp_path, "web-0").close()
    reader = os.open(tmp_path / "web-0.marks", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    naps = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            fcntl.flock(reader, fcntl.LOCK_UN)

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: 60.0 * len(naps))
    MarkWriter(tmp_path, "web-0").close()
    assert len(naps) == 3
    os.close(reader)


def test_a_refused_slot_leaks_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks_module, "_LOCK_WAIT_S", 0)
    with MarkWriter(tmp_path, "web-0"):
        before = len(os.listdir("/dev/fd"))  # noqa: PTH208  -- no Path for what vanishes while it is listed
        for _ in range(20):
            with pytest.raises(BlockingIOError):
                MarkWriter(tmp_path, "web-0")
        assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208  -- no Path for what vanishes while it is listed


def test_files_of_another_kind_or_length_are_no_marks(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "short.marks").write_bytes(b"SECKMARK")
    (tmp_path / "alien.marks").write_bytes(bytes(marks_module._FILE_BYTES))
    assert list(read_marks(tmp_path)) == []
    assert list(read_marks(tmp_path / "missing")) == []


def test_a_full_file_forgets_judged_epochs_first_and_never_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks_module, "ENTRIES_MAX", 64)
    monkeypatch.setattr(marks_module, "_FILE_BYTES", 64 + 64 * 32)
    with MarkWriter(tmp_path, "web-0") as writer:
        for epoch in range(1, 1_000):
            writer.acknowledge(BUCKET, epoch, epoch)
            assert writer.acknowledged(BUCKET, epoch) == epoch
        assert writer.acknowledged(BUCKET, 1) == 0
        for sale in range(2, 500):
            writer.acknowledge(BucketId(SaleId(sale), 0), 1, sale)
            assert writer.acknowledged(BucketId(SaleId(sale), 0), 1) == sale
        found = list(read_marks(tmp_path))
        assert len(found) <= 64
        assert BucketId(SaleId(499), 0) in {m.bucket_id for m in found}


LIVES_ON = """
import sys
from pathlib import Path
from seckill.admission.marks import MarkWriter
from seckill.domain.reservation import BucketId
writer = MarkWriter(Path(sys.argv[1]), "web-0")
for seq in range(1, 100_000):
    writer.sending(BucketId(1, 0), 1)
    writer.acknowledge(BucketId(1, 0), 1, seq)
    print(seq, flush=True)
"""


def test_a_kill_at_any_moment_leaves_every_mark_that_was_told(tmp_path: Path) -> None:
    for lines in (1, 50, 500):
        with subprocess.Popen(
            [sys.executable, "-c", LIVES_ON, str(tmp_path)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            told = 0
            for _ in range(lines):
                told = int(process.stdout.readline())
            process.kill()
            process.wait(60)
        (mark,) = read_marks(tmp_path)
        assert mark.seq >= told
        assert not mark.in_flight
