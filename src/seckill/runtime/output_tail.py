"""What a child of the supervisor writes: passed on, and its end remembered."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["OutputTail"]

_TAIL_LINES: Final = 5
_LINE_BYTES_MAX: Final = 8_192
_CHUNK_BYTES: Final = 65_536
_LAST_LINES_S: Final = 0.2


class OutputTail:
    """Passes on what a child writes, line by line, and remembers the end of it.

    Args:
        pass_on: takes whole lines, as bytes with their line end.
    """

    def __init__(self, pass_on: Callable[[bytes], None]) -> None:
        self._pass_on = pass_on
        self._lines: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._task: asyncio.Task[None] | None = None
        self._pipe: asyncio.ReadTransport | None = None

    async def begin_pipe(self) -> int:
        """Make a pipe and carry what comes out of it.

        Returns:
            Its other end, for a child; the caller closes it.
        """
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader()
        read, write = os.pipe()
        self._pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(read, "rb", buffering=0)
        )
        self.begin(stream)
        return write

    def begin(self, stream: asyncio.StreamReader | None) -> None:
        """Carry until the child has closed its side."""
        assert stream is not None
        self._lines.clear()
        self._task = asyncio.create_task(self._carry(stream), name="carry output")

    async def end(self) -> None:
        """Take in the last lines of a child that has died.

        Does not wait for ever: a process that it started may still hold the pipe.
        """
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_LAST_LINES_S)
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    async def _carry(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stream.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:  # a line without end must not grow here
                lines, rest = [*lines, rest], b""
            self._take(lines)
        if rest:
            self._take([rest])

    def _take(self, lines: Sequence[bytes]) -> None:
        if lines:
            self._lines.extend(line for line in lines if line.strip())
            self._pass_on(b"\n".join(lines) + b"\n")

    def text(self) -> str:
        """The last lines as one."""
        return " / ".join(line.decode("utf-8", "replace").strip() for line in self._lines)
