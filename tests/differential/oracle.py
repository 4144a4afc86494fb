"""The original engine as a process that plays schedules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from differential.schedules import Schedule

PROJECT = Path(__file__).parent / "oracle"
TARGET = PROJECT / "target"
BUILD_TIMEOUT_S = 300
PLAY_TIMEOUT_S = 120


class OracleMissingError(Exception):
    """The original cannot be built or run on this machine; the text says why."""


def build() -> None:
    """Build the oracle unless it is newer than its sources.

    Raises:
        OracleMissingError: no JDK, no Maven, or the build failed.
    """
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise OracleMissingError(f"{tool} is not installed")
    built = TARGET / "sentinel-oracle-1.jar"
    sources = [PROJECT / "pom.xml", *PROJECT.glob("src/**/*.java")]
    if built.exists() and built.stat().st_mtime >= max(one.stat().st_mtime for one in sources):
        return
    made = subprocess.run(
        ["mvn", "-q", "-B", "-DskipTests", "package"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if made.returncode:
        raise OracleMissingError(f"the build failed:\n{made.stdout}{made.stderr}")


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
        raise OracleMissingError(f"the oracle stopped:\n{ran.stderr[-4000:]}")
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
