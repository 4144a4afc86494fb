"""Connections and transactions of SQLite: each transaction is one way to a thread and back.

One file, WAL, ``synchronous=FULL`` (a commit is on the disk when it returns), and ``BEGIN
IMMEDIATE`` for every transaction that writes. With SQLite's own deferred BEGIN a transaction that
reads first and writes later fails at once with "database is locked" when another has written in
between, and no busy timeout helps; taking the write lock first makes it wait. Reads have no
transaction around them: each statement sees one instant by itself.

SQLite works in the calling thread, and so needs one that may wait for its disk and its locks. The
drivers that make it look like a server far away go to such a thread for every call: ten times for
one small read, and each time two threads wake. Here the thread runs the whole transaction, from
BEGIN to COMMIT. The work is the same coroutine that PostgreSQL gets; on a connection whose answers
are there at once it never waits, so it runs to its end in one step.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Connection, CursorResult, Engine, create_engine, event, exc
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.ledger.errors import LedgerUnavailable
from seckill.ledger.options import LedgerOptions

__all__ = ["SqliteEngine", "answering_at_once", "transact"]

_T = TypeVar("_T")

_BEGIN: Final = "seckill_begin"
_ASK_AGAIN_S: Final = 0.01


class SqliteEngine:
    """Implements `engine.Engine`.

    What is under way when the engine is disposed of still runs to its end in its thread.

    Args:
        url: with the driver's name in it.
    """

    errors: tuple[type[Exception], ...] = (exc.SQLAlchemyError, OSError, sqlite3.Error)

    def __init__(self, url: URL, options: LedgerOptions) -> None:
        self.sync_engine = _create(url, options)
        self._writer = self.sync_engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        self._snapshot = self.sync_engine.execution_options(**{_BEGIN: "BEGIN DEFERRED"})
        self._threads = ThreadPoolExecutor(options.pool_size, thread_name_prefix="ledger")
        self._free = asyncio.Semaphore(options.pool_size)
        self._pool_timeout_s = options.pool_timeout_s

    async def write(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """See Engine."""
        async with self._place():
            return await _call(self._threads, transact, self._writer, work)

    async def read(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """See Engine."""
        async with self._place():
            return await _call(self._threads, transact, self.sync_engine, work)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """See Engine. Each statement is a way of its own, to a thread that only this one has."""
        held: list[Connection] = []

        def begin() -> Connection:
            connection = self._snapshot.connect()
            held.append(connection)
            connection.begin()
            return connection

        def end() -> None:
            for connection in held:
                connection.close()

        thread = ThreadPoolExecutor(1, thread_name_prefix="snapshot")
        async with self._place():
            try:
                connection = await _call(thread, begin)
                by_thread = _Connection(connection, partial(_call, thread, _buffered))
                yield cast("AsyncConnection", by_thread)
            finally:
                # Behind what the thread still does for somebody who has stopped waiting for it.
                await asyncio.shield(_call(thread, end))
                thread.shutdown(wait=False)

    async def dispose(self) -> None:
        """See Engine."""
        self._threads.shutdown(wait=False)
        await asyncio.to_thread(self.sync_engine.dispose)  # the last one out writes the WAL back

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """A connection's place in the pool."""
        try:
            async with asyncio.timeout(self._pool_timeout_s):
                await self._free.acquire()
        except TimeoutError:
            raise exc.TimeoutError(f"no connection was free for {self._pool_timeout_s} s") from None
        try:
            yield
        finally:
            self._free.release()


async def _call(threads: Executor, function: Callable[..., _T], *args: Any) -> _T:
    """Call a function in a thread, with this task's context for what it logs."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, copy_context().run, function, *args)


def transact(engine: Engine, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
    """Run a work in one transaction, here and now.

    Raises:
        RuntimeError: it waits for something else than its connection.
    """
    with engine.begin() as connection:
        step = _awaited(work(answering_at_once(connection)))
        try:
            step.send(None)
        except StopIteration as end:
            return cast("_T", end.value)
        step.close()
        raise RuntimeError("a transaction waits for something that is not its database")


def answering_at_once(connection: Connection) -> AsyncConnection:
    """A plain connection, to be spoken to like SQLAlchemy's asynchronous one; it never waits."""
    return cast("AsyncConnection", _Connection(connection, _at_once))


async def _awaited(work: Awaitable[_T]) -> _T:
    return await work


async def _at_once(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _buffered(function: Callable[..., Any], *args: Any) -> Any:
    """Call, and read what it found while still in the thread of its connection."""
    found = function(*args)
    if isinstance(found, CursorResult) and found.returns_rows:
        return found.freeze()()
    return found


class _Connection:
    """What the works of this room ask of an `AsyncConnection`, over a plain one.

    Args:
        call: calls one of its functions.
    """

    def __init__(self, connection: Connection, call: Callable[..., Awaitable[Any]]) -> None:
        self._connection = connection
        self._call = call
        self.dialect = connection.dialect

    async def execute(self, *args: Any) -> Any:
        return await self._call(self._connection.execute, *args)

    async def exec_driver_sql(self, *args: Any) -> Any:
        return await self._call(self._connection.exec_driver_sql, *args)

    async def scalar(self, *args: Any) -> Any:
        return await self._call(self._connection.scalar, *args)

    async def scalars(self, *args: Any) -> Any:
        return (await self.execute(*args)).scalars()

    async def run_sync(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._call(function, self._connection, *args)


def _create(url: URL, options: LedgerOptions) -> Engine:
    engine = create_engine(
        url,
        # The driver must not begin transactions by itself: this module does, see the top.
        connect_args={"isolation_level": None, "timeout": options.lock_timeout_ms / 1000},
        pool_size=options.pool_size,
        max_overflow=0,
        # Who has a place needs not wait for a connection; the one used last has the warm cache.
        pool_use_lifo=True,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        try:
            mode = _journal_mode(cursor, options.lock_timeout_ms / 1000)
            if mode != "wal":
                raise LedgerUnavailable(
                    f"{url.database} cannot be used in WAL mode (it stays in {mode!r}):"
                    " put the ledger on a local disk"
                )
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA cache_size=-16000")
        finally:
            cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        statement = connection.get_execution_options().get(_BEGIN)
        if statement is not None:
            connection.exec_driver_sql(statement)

    return engine


def _journal_mode(cursor: sqlite3.Cursor, patience_s: float) -> str:
    """Ask for the WAL mode; returns the mode that the file has then.

    Where several processes make a new file at once, SQLite does not wait for the others here as it
    does everywhere else: it says at once that the file is locked.

    Args:
        patience_s: how long to ask again.
    """
    until_s = time.monotonic() + patience_s
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() >= until_s:
                raise
            time.sleep(_ASK_AGAIN_S)
        else:
            return str(cursor.fetchone()[0])
