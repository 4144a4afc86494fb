"""What is done once before the parts of a run start, in a process of its own.

The supervisor lives as long as the run and should be small. The stores' libraries are large, and
are needed here for a second: so a child does this, and the supervisor never loads them.
"""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable

from seckill.runtime.errors import PrepareFailed
from seckill.runtime.program import program_command
from seckill.runtime.settings import Settings
from seckill.runtime.settings_report import settings_environment

__all__ = ["prepare_in_child"]


async def prepare_in_child(
    settings: Settings, *, demo: bool, pass_on: Callable[[bytes], None]
) -> None:
    """Make the schema, check the durability, open the buckets; with ``demo`` the sample sale.

    Args:
        pass_on: takes what the child writes.

    Raises:
        PrepareFailed: with the sentence that the child ended with.
    """
    process = await asyncio.create_subprocess_exec(
        *program_command("prepare", 0),
        *(["--demo"] if demo else []),
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        env={**os.environ, **settings_environment(settings)},
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    *lines, last = said.splitlines(keepends=True) or [b""]
    if process.returncode == 0:
        pass_on(said)
        return
    pass_on(b"".join(lines))
    sentence = last.decode("utf-8", "replace").strip().removeprefix("seckill: ")
    raise PrepareFailed(sentence or f"preparing the run ended with code {process.returncode}")
