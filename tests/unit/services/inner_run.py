"""A run of pytest inside a test, for what the tests' own machinery does when something goes wrong."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["run_pytest"]

_TESTS = Path(__file__).parents[2]


def run_pytest(folder: Path, options: str) -> str:
    """Run the tests of a folder; returns all that was told. Only the named plugins are loaded."""
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split()],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(_TESTS),
            # None of the others is needed, and loading them is what such a run would cost.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ended.stdout + ended.stderr
