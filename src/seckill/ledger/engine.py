"""The way to the database: transactions, each in a task of its own, whatever the database.

What differs between the two stands in `sqlite_engine` and `postgresql_engine`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import exc
from sqlalchemy.engine import URL, Engine as SyncEngine, make_url
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.errors import InvalidValue
from seckill.ledger.errors import LedgerUnavailable, translate
from seckill.ledger.options import LedgerOptions
from seckill.ledger.postgresql_engine import PostgresqlEngine
from seckill.ledger.sqlite_engine import SqliteEngine

__all__ = ["Database"]

_T = TypeVar("_T")

_DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}


class Engine(Protocol):
    """The connections of one database: at most `LedgerOptions.pool_size` of them.

    Its errors are those of the driver; `Database` translates them.
    """

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What its drivers raise."""
        ...

    @property
    def sync_engine(self) -> SyncEngine:
        """SQLAlchemy's engine underneath."""
        ...

    async def write(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """Run ``work`` in one transaction that writes."""
        ...

    async def read(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """Run ``work``, which only reads; what it reads need not be of one instant."""
        ...

    def snapshot(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection that sees one instant."""
        ...

    async def dispose(self) -> None:
        """Close the connections that nobody uses, and lend out no more."""
        ...


class Database:
    """Runs work in transactions, each in a task of its own.

    Cancelling a task in the middle of a driver's call leaks or breaks its connection. So a caller
    that is cancelled stops waiting at once, and its transaction still runs to its end, bounded by
    the time limits of `LedgerOptions`; `dispose` waits for what is under way.
    """

    def __init__(self, options: LedgerOptions) -> None:
        """Prepare; connects nothing. Raises InvalidValue for a url that is no ledger."""
        url = _ledger_url(options.url)
        self.options = options
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._engine: Engine = (SqliteEngine if self.is_sqlite else PostgresqlEngine)(url, options)
        self._running: set[asyncio.Task[Any]] = set()
        self._disposed = False

    @property
    def location(self) -> str:
        """Where the ledger is, fit to be shown: without the password."""
        return self._engine.sync_engine.url.render_as_string(hide_password=True)

    async def write(self, doing: str, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """Run ``work`` in one transaction that writes: committed when it returns, or nothing.

        Args:
            doing: what is tried, for the error: "write 12 events".
            work: gets the connection; must not commit and must not keep it.

        Raises:
            LedgerUnavailable: nothing was written; see there for the one exception.
            LedgerBroken: the database refused a statement that must never fail.
        """
        return await self._run(doing, self._engine.write(work))

    async def read(self, doing: str, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """Run ``work``, which only reads; what it reads need not be of one instant.

        Raises as `write` does.
        """
        return await self._run(doing, self._engine.read(work))

    @asynccontextmanager
    async def snapshot(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """A connection that sees the books as they were at one instant, for as long as it is open.

        It runs in the caller's own task: for programs that read much (the audit), not for requests.
        Raises as `write` does.
        """
        try:
            async with self._engine.snapshot() as connection:
                yield connection
        except self._engine.errors as error:
            raise translate(error, doing) from error

    async def dispose(self) -> None:
        """Let what is under way finish, then close every connection. Safe to call twice."""
        self._disposed = True
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=self.options.dispose_timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._engine.dispose()

    @property
    def connections_in_use(self) -> int:
        """Connections that are lent out now; 0 when nothing is under way."""
        return int(self._engine.sync_engine.pool.checkedout())  # type: ignore[attr-defined]  # a queue pool

    async def _run(self, doing: str, work: Coroutine[Any, Any, _T]) -> _T:
        if self._disposed:
            work.close()
            raise LedgerUnavailable(f"the ledger cannot {doing}: it has been closed")
        task = asyncio.create_task(self._translated(doing, work))
        self._running.add(task)
        task.add_done_callback(self._forget)
        # Unlike awaiting the task, this leaves it running when the caller is cancelled.
        await asyncio.wait((task,))
        return task.result()

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen by the caller, or nobody waits for it any more

    async def _translated(self, doing: str, work: Coroutine[Any, Any, _T]) -> _T:
        """Run, with drivers' errors turned into this room's."""
        try:
            return await work
        except self._engine.errors as error:
            raise translate(error, doing) from error


def _ledger_url(text: str) -> URL:
    try:
        url = make_url(text)
    except exc.ArgumentError:
        raise InvalidValue("ledger_url", "must be a database URL") from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise InvalidValue("ledger_url", "must begin with sqlite:// or postgresql://")
    if driver == "sqlite+pysqlite" and (url.database or ":memory:") == ":memory:":
        raise InvalidValue("ledger_url", "must name a file: the ledger is shared by processes")
    return url.set(drivername=driver)
