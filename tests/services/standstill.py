"""Transactions that stand still in the middle, whatever runs them."""

import asyncio
import threading

from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["Standstill"]

_WAIT_S = 60


class Standstill:
    """A place in a transaction where it stops until it is told to go on.

    A transaction of SQLite runs in a thread and stops there; one of PostgreSQL runs in its loop.
    """

    def __init__(self) -> None:
        self._reached = threading.Semaphore(0)
        self._go_on = threading.Event()

    async def stop_here(self, connection: AsyncConnection) -> None:
        """To be called in the transaction."""
        self._reached.release()
        if connection.dialect.name == "sqlite":
            self._go_on.wait(_WAIT_S)
        else:
            await asyncio.to_thread(self._go_on.wait, _WAIT_S)

    async def reached(self, transactions: int = 1) -> None:
        """Wait until so many more transactions stand here."""
        for _ in range(transactions):
            assert await asyncio.to_thread(self._reached.acquire, timeout=_WAIT_S), "none came"

    def go_on(self) -> None:
        """Let all go on, and who still comes pass."""
        self._go_on.set()

    @property
    def is_over(self) -> bool:
        """Whether they may go on."""
        return self._go_on.is_set()
