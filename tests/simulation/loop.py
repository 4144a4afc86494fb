"""An event loop without a world outside: it stands still whenever nothing is left to do.

Time passes when it is told to, threads are calls, and nothing is ever read from the system. So the
same program takes the same turns each time it is run, and whoever drives it decides, between any
two of its turns, what happens next.
"""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

__all__ = ["SteppedLoop"]


class _Stillness(selectors.SelectSelector):
    """A selector that is asked when the loop has nothing to do, and never waits."""

    def __init__(self, still: Callable[[float | None], None]) -> None:
        super().__init__()
        self._still = still

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self._still(timeout)
        return []


class SteppedLoop(asyncio.SelectorEventLoop):
    """Runs what is ready; the driver awaits `stillness` and acts then."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._waiting: asyncio.Future[None] | None = None
        self.next_timer_s: float | None = None
        super().__init__(_Stillness(self._on_stillness))

    def time(self) -> float:
        return self._now_s

    def advance(self, span_s: float) -> None:
        """Let time pass."""
        self._now_s += span_s

    async def stillness(self) -> None:
        """Return when nothing but timers and replies is waited for."""
        assert self._waiting is None
        self._waiting = self.create_future()
        await self._waiting

    def _on_stillness(self, timeout: float | None) -> None:
        if self._waiting is not None:
            self.next_timer_s = timeout
            waiting, self._waiting = self._waiting, None
            waiting.set_result(None)
        elif timeout is None:
            raise AssertionError("everybody waits for somebody, and nobody drives")
        else:
            self.advance(timeout)

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        done = self.create_future()
        done.set_result(func(*args))
        return done
