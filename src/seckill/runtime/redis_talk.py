"""The three things that the supervisor says to a Redis of our own: are you there, who are you, end.

Not by the client library that the service itself uses: loading that would take a third of the time
from the start to the first sale, and a quarter of the supervisor's memory. What reads the replies
is the same parser as there.
"""

import asyncio
import contextlib
import re
from typing import Final

import hiredis

__all__ = ["RedisRefused", "ask", "process_id", "shut_down"]

_TIMEOUT_S: Final = 1.0
_CHUNK_BYTES: Final = 65_536


class RedisRefused(Exception):  # noqa: N818  -- an answer that the two callers here expect
    """The server answered with an error, such as that it is still loading its data."""


async def ask(port: int, *command: str | int) -> bytes:
    """Ask the server at this port of this machine one question, on a connection of its own.

    Raises:
        OSError: it is not there, ended, or did not answer within a second.
        RedisRefused: it answered with an error.
    """
    async with asyncio.timeout(_TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(hiredis.pack_command(command))  # type: ignore[arg-type]
            replies = hiredis.Reader()
            while True:
                chunk = await reader.read(_CHUNK_BYTES)
                if not chunk:
                    raise ConnectionResetError("the server closed the connection")
                replies.feed(chunk)
                if (reply := replies.gets()) is not False:
                    break
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    if isinstance(reply, hiredis.ReplyError):
        raise RedisRefused(str(reply))
    assert isinstance(reply, bytes)
    return reply


async def process_id(port: int) -> int:
    """The process that answers there. Raises as :func:`ask`."""
    facts = (await ask(port, "INFO", "server")).decode("utf-8", "replace")
    match = re.search(r"^process_id:(\d+)", facts, re.MULTILINE)
    if match is None:
        raise RedisRefused("it does not tell its process id")
    return int(match[1])


async def shut_down(port: int) -> bool:
    """Have it write out everything and end. False when it refuses, is not there, or is stuck."""
    try:
        await ask(port, "SHUTDOWN")
    except ConnectionResetError:  # that is how it says yes
        return True
    except (OSError, RedisRefused):
        return False
    return False
