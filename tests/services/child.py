"""The end of a child process whose output a test reads."""

import asyncio

__all__ = ["end_child"]


async def end_child(process: asyncio.subprocess.Process) -> None:
    """Kill a process unless it has ended, and read its pipes to their end.

    Waiting for the process alone leaves the pipes to chance: they close a moment later, or when the
    last grandchild that has them ends, and until then the transport counts as forgotten.
    """
    if process.returncode is None:
        process.kill()
    await process.communicate()
