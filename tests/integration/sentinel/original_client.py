"""The original client as a process with a command port."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from services.child import end_child
from services.maven import OriginalMissingError, build_jar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROJECT = Path(__file__).parent / "original"
TARGET = PROJECT / "target"
SAY_TIMEOUT_S = 60


def build() -> None:
    """Build the client unless it is newer than its sources.

    Raises:
        OriginalMissingError: no JDK, no Maven, or the build failed.
    """
    build_jar(PROJECT, "sentinel-original-1.jar")


class Original:
    """A running client.

    Attributes:
        port: of its commands.
    """

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    async def call(self, count: int) -> int:
        """Have it make calls; how many were let in."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n".encode())
        return await said(self._process.stdout)


async def said(lines: asyncio.StreamReader) -> int:
    """The next number that it says, past the lines that the original prints of its own.

    Raises:
        OriginalMissingError: it says no more.
    """
    async with asyncio.timeout(SAY_TIMEOUT_S):
        async for line in lines:
            if line.startswith(b"> "):
                return int(line[2:])
    raise OriginalMissingError("the original stopped")


@contextlib.asynccontextmanager
async def running(folder: Path, port: int) -> AsyncIterator[Original]:
    """The client, with its logs in a folder. Build first.

    Args:
        folder: for its logs.
        port: to begin looking for a free one.

    Raises:
        OriginalMissingError: it does not start.
    """
    class_path = os.pathsep.join((str(TARGET / "classes"), str(TARGET / "lib" / "*")))
    process = await asyncio.create_subprocess_exec(
        "java",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        class_path,
        f"-Duser.home={folder}",
        f"-Dcsp.sentinel.log.dir={folder}",
        "-Dproject.name=shop",
        f"-Dcsp.sentinel.api.port={port}",
        "seckill.original.Shop",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        yield Original(process, await said(process.stdout))
    finally:
        await end_child(process)
