"""What a run tells while it goes on."""

from pathlib import Path

from unit.services.inner_run import run_pytest

_CONFTEST = """
import pytest
from services.failures_at_once import tell_failures_at_once

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    tell_failures_at_once(config)
"""

_FAILS = """
import pytest

@pytest.fixture
def fragile():
    yield
    assert "torn" == "down"

def test_one(fragile): assert 6 * 7 == 43

def test_two(): pass
"""


def test_a_failure_is_told_when_it_happens_by_one_process_or_many(tmp_path: Path) -> None:
    """So that it is known of a run that never comes to its summary."""
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_it.py").write_text(_FAILS)
    for options in ("-p no:xdist", "-p xdist -n 2"):
        told = run_pytest(tmp_path, options)
        early, _, summary = told.partition("= ERRORS =")
        assert summary, told
        assert "call of test_it.py::test_one failed" in early
        assert "assert (6 * 7) == 43" in early
        assert "teardown of test_it.py::test_one failed" in early
        assert "assert 'torn' == 'down'" in early
