"""The end of another program's log: what it said last, for whoever asks why it is gone."""

import os
from pathlib import Path

__all__ = ["last_lines"]


def last_lines(log: Path, *, bytes_max: int, since: int = 0) -> list[str]:
    """The last lines of a log; none when it cannot be read.

    Args:
        bytes_max: how far back to look at most.
        since: where to begin at the earliest, in bytes from the beginning.
    """
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since, size - bytes_max, 0))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
