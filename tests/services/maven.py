"""Builds the small Java programs of the tests, beside which the original is looked at."""

import shutil
import subprocess
from pathlib import Path

__all__ = ["OriginalMissingError", "build_jar"]

_TIMEOUT_S = 300


class OriginalMissingError(Exception):
    """The original cannot be built or run on this machine; the text says why."""


def build_jar(project: Path, jar: str) -> None:
    """Build a Maven project unless its jar, in ``target``, is newer than its sources.

    Raises:
        OriginalMissingError: no JDK, no Maven, or the build failed.
    """
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise OriginalMissingError(f"{tool} is not installed")
    built = project / "target" / jar
    sources = [project / "pom.xml", *project.glob("src/**/*.java")]
    if built.exists() and built.stat().st_mtime >= max(one.stat().st_mtime for one in sources):
        return
    made = subprocess.run(
        ["mvn", "-q", "-B", "-DskipTests", "package"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if made.returncode:
        raise OriginalMissingError(f"the build failed:\n{made.stdout}{made.stderr}")
