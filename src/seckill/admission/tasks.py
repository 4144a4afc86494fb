"""Ending tasks for good."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["end_tasks"]

_CANCEL_AGAIN_MS: Final = 20


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end.

    Again and again: on Python 3.11 a cancellation that meets a finished inner wait is lost
    (asyncio.wait_for, python/cpython#86296). Our Redis clients lose none (`redis_client`), other
    libraries may.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_MS / 1000)
