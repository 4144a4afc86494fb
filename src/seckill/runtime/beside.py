"""Commands that need a processor for long, run beside the process that serves buyers.

An audit or the trace of a purchase through a deep outbox would hold the event loop that answers
the rush. So the command itself does it, in a child with the lowest priority, one at a time.
"""

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any, Final

from seckill.runtime.settings import Settings
from seckill.runtime.settings_report import settings_environment
from seckill.web.problems import Unavailable

__all__ = ["Beside"]

_NICENESS: Final = 19
_WORDS_MAX: Final = 500


class Beside:
    """Runs commands of this program that answer in JSON.

    Args:
        settings: what the child works on.
        wait_s: after so long it is ended. Every command that is run here may be cut and repeated.
    """

    def __init__(self, settings: Settings, *, wait_s: float = 120.0) -> None:
        self._settings = settings
        self._wait_s = wait_s
        self._busy = asyncio.Lock()

    async def run(self, *arguments: str) -> Any:
        """What the command answers, whatever its exit code. ``--json`` is among the arguments.

        Raises:
            Unavailable: another one runs, it took too long, or it could not answer; the text is
                what it said.
        """
        if self._busy.locked():
            raise Unavailable("Another one is under way. Please ask again.", 5)
        async with self._busy:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "seckill", *arguments),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                env={**os.environ, **settings_environment(self._settings)},
            )
            with contextlib.suppress(OSError):  # it may have ended
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            try:
                async with asyncio.timeout(self._wait_s):
                    said, complained = await process.communicate()
            except TimeoutError:
                raise Unavailable(f"It did not end within {self._wait_s:g} s.", 30) from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        try:
            return json.loads(said)
        except ValueError:
            lines = complained.decode("utf-8", "replace").strip().splitlines()
            why = lines[-1].removeprefix("seckill: ")[:_WORDS_MAX] if lines else "it said nothing"
            raise Unavailable(f"It could not be done: {why}", 5) from None
