"""What a process of a run is started by, and what it must not load: each run has half a dozen."""

import json
import subprocess
import sys

import pytest

_NOT_LOADED = {
    # A supervisor lives as long as the run and should be small: no store, no framework.
    "seckill.runtime.supervise": {"redis", "sqlalchemy", "fastapi", "typer", "confluent_kafka"},
    "seckill.runtime.roles": {"fastapi", "typer", "alembic", "confluent_kafka", "jwt"},
    "seckill.runtime.web_role": {"typer", "alembic", "confluent_kafka", "jwt"},
    # What the first words of every command wait for.
    "seckill.cli": {"pydantic", "redis", "sqlalchemy", "fastapi", "importlib.metadata"},
    "seckill.runtime.settings": {"seckill.sentinel", "redis", "sqlalchemy"},
}


@pytest.mark.parametrize("module", _NOT_LOADED)
def test_a_program_starts_without_what_it_does_not_need(module: str) -> None:
    asked = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True)
    assert not _NOT_LOADED[module] & set(json.loads(loaded.stdout))


@pytest.mark.parametrize("start", ["program", "command"])
def test_a_log_without_colours_loads_nothing_for_them_and_a_command_still_may(start: str) -> None:
    """By far the most of it is the library's own, which would come along unasked."""
    asked = f"""
import sys
from seckill.runtime.lean_start import load_log_library
load_log_library()
assert "structlog" in sys.modules
assert "rich" not in sys.modules
if {start!r} == "program":
    import seckill.runtime.roles
    assert "rich" not in sys.modules
else:
    import rich.progress
"""
    subprocess.run([sys.executable, "-c", asked], check=True)


@pytest.mark.parametrize("words", [["nobody", "0"], ["web", "256"]])
def test_a_program_that_is_asked_for_wrongly_says_so_in_one_sentence(words: list[str]) -> None:
    command = [sys.executable, "-m", "seckill.runtime.program", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("seckill: ")
    assert ended.stderr.count("\n") == 1
