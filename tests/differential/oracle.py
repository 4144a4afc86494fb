"""The original engine as a process that plays schedules."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.maven import OriginalMissingError, build_jar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from differential.schedules import Schedule

PROJECT = Path(__file__).parent / "oracle"
TARGET = PROJECT / "target"
PLAY_TIMEOUT_S = 500


def build() -> None:
    """Build the oracle unless it is newer than its sources.

    Raises:
        OriginalMissingError: no JDK, no Maven, or the build failed.
    """
    build_jar(PROJECT, "sentinel-oracle-1.jar")


def play(played: Iterable[Schedule]) -> list[dict[str, Any]]:
    """The original's answers to each schedule, in order. Build first."""
    lines = "\n".join(json.dumps(schedule.line()) for schedule in played)
    # The bare classes stand first: among them the clock that replaces the original's.
    class_path = os.pathsep.join((str(TARGET / "classes"), str(TARGET / "lib" / "*")))
    with tempfile.TemporaryDirectory() as logs:
        ran = subprocess.run(
            [
                "java",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                class_path,
                f"-Dcsp.sentinel.log.dir={logs}",
                "-Dcsp.sentinel.log.level=OFF",
                "-Dcsp.sentinel.metric.flush.interval=0",
                "seckill.oracle.Oracle",
            ],
            input=lines + "\n",
            capture_output=True,
            text=True,
            timeout=PLAY_TIMEOUT_S,
            check=False,
        )
    if ran.returncode:
        raise OriginalMissingError(f"the oracle stopped:\n{ran.stderr[-4000:]}")
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
