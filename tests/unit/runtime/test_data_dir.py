"""The data directory: private, and owned by one supervisor at a time."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from seckill.runtime.data_dir import DataDir, write_atomically
from seckill.runtime.errors import DataDirInUse, DataDirUnusable, SlotTaken


def test_everything_in_it_is_private_to_this_user(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "a" / "b")
    data.create()
    data.create()
    for folder in (data.root, data.redis, data.marks, data.run, data.metrics):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    data.redis.chmod(0o755)
    data.create()
    assert stat.S_IMODE(data.redis.stat().st_mode) == 0o700
    write_atomically(data.status, b"{}")
    assert stat.S_IMODE(data.status.stat().st_mode) == 0o600


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    DataDir(tmp_path).create()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750


def test_a_folder_that_holds_nothing_but_ours_is_made_private_with_the_ledger_in_it(
    tmp_path: Path,
) -> None:
    """An earlier version, or another umask, had left it open to everybody on the machine."""
    data = DataDir(tmp_path)
    data.create()
    data.ledger.write_bytes(b"names of buyers")
    (tmp_path / "ledger.db-wal").write_bytes(b"more of them")
    for path in (data.root, data.ledger, tmp_path / "ledger.db-wal"):
        path.chmod(0o755)
    data.create()
    assert stat.S_IMODE(data.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(data.ledger.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ledger.db-wal").stat().st_mode) == 0o600


def test_a_folder_with_things_of_others_keeps_its_mode_and_the_ledger_in_it_is_private(
    tmp_path: Path,
) -> None:
    data = DataDir(tmp_path)
    data.create()
    data.ledger.touch(0o644)
    (tmp_path / "shop.html").touch()
    tmp_path.chmod(0o755)
    data.create()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert stat.S_IMODE(data.ledger.stat().st_mode) == 0o600


def test_two_processes_cannot_have_one_role_and_number(tmp_path: Path) -> None:
    """They would take each other's entries out of the outbox, and write one file of metrics."""
    data = DataDir(tmp_path / "made for it")
    with data.slot_locked("worker", 0):
        with pytest.raises(SlotTaken) as caught, data.slot_locked("worker", 0):
            pass
        assert caught.value.pid == os.getpid()
        assert str(caught.value).startswith(f"process {os.getpid()} already is worker 0 of ")
        with data.slot_locked("worker", 1), data.slot_locked("web", 0):
            pass
    with data.slot_locked("worker", 0):
        pass


def test_a_file_in_its_place_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirUnusable, match="cannot be used: File exists"):
        DataDir(tmp_path / "file").create()
    with pytest.raises(DataDirUnusable, match="cannot be used: Not a directory"):
        DataDir(tmp_path / "file" / "below").create()


def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.create()
    with data.locked():
        with pytest.raises(DataDirInUse) as caught, data.locked():
            pass
        assert caught.value.pid == os.getpid()
        assert f"process {os.getpid()} already runs" in str(caught.value)
    with data.locked():
        pass


def test_the_lock_is_not_inherited_by_children_and_ends_with_its_owner(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.create()
    program = (
        "import os, subprocess, sys, pathlib\n"
        "from seckill.runtime.data_dir import DataDir\n"
        "with DataDir(pathlib.Path(sys.argv[1])).locked():\n"
        "    child = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "    print(child.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    child = int(done.stdout.split()[0])
    try:
        with data.locked():
            pass
    finally:
        os.kill(child, 9)


def test_a_replaced_file_is_old_or_new_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "folder", b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "status.json"]
