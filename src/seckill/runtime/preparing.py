"""What is done once before the parts of a run start, in a process of its own.

The supervisor lives as long as the run and should be small. The stores' libraries are large, and
are needed here for a second: so a child does this, and the supervisor never loads them.
"""

import os
from collections.abc import Callable

from seckill.runtime.errors import PrepareFailed
from seckill.runtime.launching import Launcher
from seckill.runtime.output_tail import OutputTail

__all__ = ["prepare_in_child"]


async def prepare_in_child(
    launcher: Launcher, *, demo: bool, pass_on: Callable[[bytes], None]
) -> None:
    """Make the schema, check the durability, open the buckets; with ``demo`` the sample sale.

    Args:
        launcher: starts the child.
        pass_on: takes what the child writes.

    Raises:
        PrepareFailed: with the sentence that the child ended with; or it could not be started.
    """
    said: list[bytes] = []
    output = OutputTail(said.append)
    write = await output.begin_pipe()
    try:
        child = await launcher.launch(("prepare", "0", *(["--demo"] if demo else [])), {}, write)
    except OSError as error:
        raise PrepareFailed(f"preparing could not be started: {error.strerror or error}") from error
    finally:
        os.close(write)
    try:
        code = await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        await output.end()
    *lines, last = b"".join(said).splitlines(keepends=True) or [b""]
    if code == 0:
        pass_on(b"".join(said))
        return
    pass_on(b"".join(lines))
    sentence = last.decode("utf-8", "replace").strip().removeprefix("seckill: ")
    raise PrepareFailed(sentence or f"preparing the run ended with code {code}")
