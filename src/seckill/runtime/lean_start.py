"""What a process of a run does not load at its start, since nothing in it needs that."""

import sys

__all__ = ["load_log_library"]


def load_log_library() -> None:
    """Load structlog without rich, which it takes along for tracebacks of many colours.

    Ours are plain text before they are shown (`logs`), and rich was the larger part of what the
    log cost at the start of each process. A command that wants rich can load it afterwards.
    """
    if "rich" in sys.modules or "structlog" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # how Python is told: not here
    try:
        import structlog  # noqa: F401, PLC0415
    finally:
        del sys.modules["rich"]
