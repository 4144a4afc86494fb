"""The tests' own scheduler: a process of the run may die, and the run goes on and ends."""

from pathlib import Path

import pytest

from unit.services.inner_run import run_pytest

_CONFTEST = """
from services.by_module import ByModule

def pytest_xdist_make_scheduler(config, log):
    return ByModule(config, log, groups={"test_g": "dear"}, alone=["test_alone.py"])
"""

_DIES = """
import os, time

def test_before(): pass

def test_deadly():
    time.sleep({wait_s})
    os._exit(3)

def test_after(): pass
"""

_WELL = """
import time

def test_one(): time.sleep(0.2)

def test_two(): time.sleep(0.2)

def test_three(worker_id):
    print("ran on", worker_id)
"""


def _run(folder: Path) -> str:
    (folder / "conftest.py").write_text(_CONFTEST)
    return run_pytest(
        folder, "-p xdist -n 2 --dist loadscope --no-loadscope-reorder -rA --max-worker-restart 3"
    )


@pytest.mark.parametrize("last", [True, False], ids=["with_the_last_module", "with_the_first"])
def test_a_run_ends_whichever_module_kills_its_process(tmp_path: Path, last: bool) -> None:
    """And the deadly test is not run again."""
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(_WELL)
    deadly = tmp_path / ("test_9.py" if last else "test_00.py")
    deadly.write_text(_DIES.format(wait_s=1.0 if last else 0))
    told = _run(tmp_path)
    assert "1 failed, 14 passed" in told, told
    assert f"crashed while running '{deadly.name}::test_deadly'" in told


def test_a_run_ends_that_dies_of_its_only_test(tmp_path: Path) -> None:
    """Then nothing is left for the process that takes its place."""
    (tmp_path / "test_only.py").write_text("import os\n\ndef test_deadly(): os._exit(3)\n")
    assert "1 failed" in _run(tmp_path)


def test_modules_of_which_a_single_test_is_left_are_run(tmp_path: Path) -> None:
    """A process keeps its last test until it knows what follows."""
    (tmp_path / "test_1.py").write_text(_WELL)
    (tmp_path / "test_2.py").write_text(_DIES.format(wait_s=2.0))
    for number in (3, 4):
        (tmp_path / f"test_{number}.py").write_text("def test_it(): pass")
    told = _run(tmp_path)
    assert "1 failed, 7 passed" in told, told


def test_what_shares_something_dear_goes_to_one_process(tmp_path: Path) -> None:
    """However many modules it is; the others do not wait for it."""
    for name in ("g1", "g2", "g3", "other"):
        (tmp_path / f"test_{name}.py").write_text(_WELL)
    told = _run(tmp_path)
    assert "12 passed" in told, told
    ran = [line for line in told.splitlines() if line.startswith("ran on")]
    assert sorted(ran.count(line) for line in set(ran)) == [1, 3]
