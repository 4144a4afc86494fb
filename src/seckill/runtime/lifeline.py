"""What a child of the supervisor is given, and what it owes: the child's side of the contract.

==========================  =====================================================================
variable                    meaning
==========================  =====================================================================
``SECKILL_LISTEN_FD``       web only: the listening socket, shared by all web processes
``SECKILL_READY_FD``        a pipe to write one byte to once the part does its work
``SECKILL_LIFELINE_FD``     a pipe that ends when the supervisor is gone
``SECKILL_…``               every setting, as the supervisor has it
==========================  =====================================================================

A child that is started by hand has none of the three pipes; then the functions here do nothing.
Readiness is one byte in a pipe and not a question over HTTP: it needs no port and no guess of how
often to ask, a worker can give it as well as a web process, and the end of the pipe without the
byte says at once that the start has failed.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Final

__all__ = [
    "LIFELINE_FD_VARIABLE",
    "LISTEN_FD_VARIABLE",
    "READY_BYTE",
    "READY_FD_VARIABLE",
    "listen_fd",
    "report_ready",
    "watch_lifeline",
]

LISTEN_FD_VARIABLE: Final = "SECKILL_LISTEN_FD"
READY_FD_VARIABLE: Final = "SECKILL_READY_FD"
LIFELINE_FD_VARIABLE: Final = "SECKILL_LIFELINE_FD"
READY_BYTE: Final = b"1"
_ORPHAN_EXIT_CODE: Final = 75  # EX_TEMPFAIL: nothing is wrong with this process itself


def listen_fd() -> int | None:
    """The listening socket of this service: a file descriptor, or None when there is none."""
    return _inherited(LISTEN_FD_VARIABLE)


def report_ready() -> None:
    """Tell the supervisor that this part does its work now. Later calls do nothing."""
    fd = _inherited(READY_FD_VARIABLE)
    if fd is None:
        return
    # The number may mean another file soon, so nobody may find it again.
    del os.environ[READY_FD_VARIABLE]
    # The supervisor may have died meanwhile; the lifeline is what deals with that.
    with contextlib.suppress(OSError):
        os.write(fd, READY_BYTE)
    with contextlib.suppress(OSError):
        os.close(fd)


def watch_lifeline(on_cut: Callable[[], object], *, exit_after_ms: int = 1_500) -> None:
    """Have ``on_cut`` called once the supervisor is gone, and end this process soon afterwards.

    On Linux the kernel kills the children of a dead supervisor anyway; this is for systems where
    it does not, and for a child that was missed.

    Args:
        on_cut: begins an orderly end. Called in a thread of its own: an asyncio program passes
            ``lambda: loop.call_soon_threadsafe(stop.set)``.
        exit_after_ms: how long the orderly end may take before the process is ended at once.
    """
    fd = _inherited(LIFELINE_FD_VARIABLE)
    if fd is not None:
        threading.Thread(
            target=_watch, args=(fd, on_cut, exit_after_ms), name="lifeline", daemon=True
        ).start()


def _watch(fd: int, on_cut: Callable[[], object], exit_after_ms: int) -> None:
    # Nobody ever writes to this pipe: reading ends when the last writer is gone.
    with contextlib.suppress(OSError):
        while os.read(fd, 1):
            pass
    timer = threading.Timer(exit_after_ms / 1000, os._exit, (_ORPHAN_EXIT_CODE,))
    timer.daemon = True
    timer.start()
    on_cut()


def _inherited(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None
