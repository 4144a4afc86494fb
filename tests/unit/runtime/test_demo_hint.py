"""What the sample sale tells its user to type: it has to work where they stand."""

import sys
from pathlib import Path

import pytest

from seckill.runtime.demo_hint import demo_hint, own_command
from seckill.runtime.settings import load_settings


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program in a virtual environment that nobody has activated, as scripts/run makes it."""
    path = tmp_path / "my shop" / ".venv" / "bin" / "seckill"
    path.parent.mkdir(parents=True)
    path.touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(path), "serve", "--demo"])
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.chdir(tmp_path)
    return path


def test_a_program_that_is_on_the_path_goes_by_its_name(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(program.parent))
    assert own_command() == "seckill"


def test_a_program_that_is_not_on_the_path_goes_by_where_it_lies(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert own_command() == "'./my shop/.venv/bin/seckill'"
    monkeypatch.chdir(program.parents[2])
    assert own_command() == "./.venv/bin/seckill"
    monkeypatch.chdir("/")
    assert own_command() == f"'./{program.relative_to('/')}'"
    other = tmp_path / "other"
    other.mkdir()
    (other / "seckill").touch(0o755)
    monkeypatch.setenv("PATH", str(other))
    monkeypatch.chdir(program.parents[2])
    assert own_command() == "./.venv/bin/seckill"


def test_a_module_goes_by_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/seckill/__main__.py"])
    assert own_command() == f"{sys.executable} -m seckill"


def test_the_hint_names_the_data_directory_where_it_is_not_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = demo_hint("127.0.0.1:8000", load_settings().settings, "seckill")
    assert "seckill stress --buyers 10000 --stock 100 --clicks 3\n" in usual
    assert "Ctrl-C" not in usual
    other = load_settings({"data_dir": tmp_path / "a b"}).settings
    assert f"seckill sale show 1 --data-dir '{tmp_path}/a b'" in demo_hint("h:1", other, "seckill")
