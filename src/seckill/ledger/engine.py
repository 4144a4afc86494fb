"""The way to the database: engines, connections, transactions. Nothing connects until first used.

SQLite: one file, WAL, ``synchronous=FULL`` (a commit is on the disk when it returns), and
``BEGIN IMMEDIATE`` for every transaction that writes. With SQLite's own deferred BEGIN a
transaction that reads first and writes later fails at once with "database is locked" when another
has written in between, and no busy timeout helps; taking the write lock first makes it wait.
Reads have no transaction around them: each statement sees one instant by itself, and a BEGIN costs
as much as a small statement, because each call of the driver is a way to its thread and back.

PostgreSQL: READ COMMITTED, time limits on connecting, on statements, on locks and on idling in a
transaction. The statements of this room take the row of the sale first (`statements.LOCK_SALES`),
and what they read after that is current.

A buyer's look at an order is one way to PostgreSQL and back: reads have no transaction around them
(READ COMMITTED would give every statement a snapshot of its own anyway), statements are prepared
once for each connection, and a connection that was in use a moment ago is not asked whether it
still lives. With a database that is 20 ms away, five ways would be a tenth of a second each time.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from seckill.domain.errors import InvalidValue
from seckill.ledger.errors import LedgerUnavailable, translate

__all__ = ["Database", "LedgerOptions"]

_T = TypeVar("_T")

_DRIVERS: Final = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}
_POOL_RECYCLE_S: Final = 1800
_PING_AFTER_IDLE_S: Final = 1.0
_USED_AT_S: Final = "seckill_used_at_s"
_BEGIN: Final = "seckill_begin"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOptions:
    """Where the ledger is and how long anything may take.

    Attributes:
        url: ``sqlite:////absolute/path.db`` or ``postgresql://user:password@host:port/name``.
        pool_size: connections at most; there is no overflow.
        pool_timeout_s: longest wait for a free connection.
        connect_timeout_s: longest wait for a new connection.
        statement_timeout_ms: longest time for one statement (PostgreSQL).
        lock_timeout_ms: longest wait for a lock that somebody else holds (both databases).
        dispose_timeout_s: how long `Database.dispose` lets transactions under way finish.
    """

    url: str
    pool_size: int = 5
    pool_timeout_s: float = 2.0
    connect_timeout_s: float = 5.0
    statement_timeout_ms: int = 10_000
    lock_timeout_ms: int = 5_000
    dispose_timeout_s: float = 10.0


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
        self._errors: tuple[type[Exception], ...] = (exc.SQLAlchemyError, OSError, sqlite3.Error)
        if self.is_sqlite:
            self._engine = _sqlite_engine(url, options)
            writer: dict[str, Any] = {_BEGIN: "BEGIN IMMEDIATE"}
            reader: dict[str, Any] = {}
            snapshot: dict[str, Any] = {_BEGIN: "BEGIN DEFERRED"}
        else:
            self._engine = _postgresql_engine(url, options)
            self._errors += _asyncpg_errors()
            writer = {}
            reader = {"isolation_level": "AUTOCOMMIT"}
            snapshot = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._writer = self._engine.execution_options(**writer)
        self._reader = self._engine.execution_options(**reader)
        self._snapshot = self._engine.execution_options(**snapshot)
        self._running: set[asyncio.Task[Any]] = set()
        self._disposed = False

    @property
    def location(self) -> str:
        """Where the ledger is, fit to be shown: without the password."""
        return self._engine.url.render_as_string(hide_password=True)

    async def write(self, doing: str, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """Run ``work`` in one transaction that writes: committed when it returns, or nothing.

        Args:
            doing: what is tried, for the error: "write 12 events".
            work: gets the connection; must not commit and must not keep it.

        Raises:
            LedgerUnavailable: nothing was written; see there for the one exception.
            LedgerBroken: the database refused a statement that must never fail.
        """
        return await self._run(doing, self._in_transaction(self._writer, doing, work))

    async def read(self, doing: str, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """Run ``work``, which only reads; what it reads need not be of one instant.

        Raises as `write` does.
        """
        return await self._run(doing, self._in_transaction(self._reader, doing, work))

    @asynccontextmanager
    async def snapshot(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """A connection that sees the books as they were at one instant, for as long as it is open.

        It runs in the caller's own task: for programs that read much (the audit), not for requests.
        Raises as `write` does.
        """
        with self._translated(doing):
            async with self._snapshot.begin() as connection:
                yield connection

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
        return int(self._engine.pool.checkedout())  # type: ignore[attr-defined]  # a queue pool

    async def _run(self, doing: str, work: Coroutine[Any, Any, _T]) -> _T:
        if self._disposed:
            work.close()
            raise LedgerUnavailable(f"the ledger cannot {doing}: it has been closed")
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        # Unlike awaiting the task, this leaves it running when the caller is cancelled.
        await asyncio.wait((task,))
        return task.result()

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen by the caller, or nobody waits for it any more

    async def _in_transaction(
        self, engine: AsyncEngine, doing: str, work: Callable[[AsyncConnection], Awaitable[_T]]
    ) -> _T:
        with self._translated(doing):
            async with engine.begin() as connection:
                return await work(connection)

    def _translated(self, doing: str) -> "_Translated":
        return _Translated(self._errors, doing)


class _Translated:
    """Turns drivers' errors of the block into this room's errors."""

    def __init__(self, errors: tuple[type[Exception], ...], doing: str) -> None:
        self._errors = errors
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._errors):
            raise translate(error, self._doing) from error


def _ledger_url(text: str) -> URL:
    try:
        url = make_url(text)
    except exc.ArgumentError:
        raise InvalidValue("ledger_url", "must be a database URL") from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise InvalidValue("ledger_url", "must begin with sqlite:// or postgresql://")
    if driver == "sqlite+aiosqlite" and (url.database or ":memory:") == ":memory:":
        raise InvalidValue("ledger_url", "must name a file: the ledger is shared by processes")
    return url.set(drivername=driver)


def _sqlite_engine(url: URL, options: LedgerOptions) -> AsyncEngine:
    engine = create_async_engine(
        url,
        # The driver must not begin transactions by itself: this module does, see the top.
        connect_args={"isolation_level": None, "timeout": options.lock_timeout_ms / 1000},
        pool_size=options.pool_size,
        max_overflow=0,
        pool_timeout=options.pool_timeout_s,
    )

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            (mode,) = cursor.fetchone()
            if mode != "wal":
                raise LedgerUnavailable(
                    f"{url.database} cannot be used in WAL mode (it stays in {mode!r}):"
                    " put the ledger on a local disk"
                )
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA cache_size=-16000")
        finally:
            cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        statement = connection.get_execution_options().get(_BEGIN)
        if statement is not None:
            connection.exec_driver_sql(statement)

    return engine


def _postgresql_engine(url: URL, options: LedgerOptions) -> AsyncEngine:
    statement_ms = options.statement_timeout_ms
    engine = create_async_engine(
        url,
        isolation_level="READ COMMITTED",
        connect_args={
            "timeout": options.connect_timeout_s,
            # The server ends a statement by itself; this is for a server that does not answer.
            "command_timeout": statement_ms / 1000 + options.connect_timeout_s,
            "server_settings": {
                "application_name": "seckill",
                "statement_timeout": str(statement_ms),
                "lock_timeout": str(options.lock_timeout_ms),
                # Whoever stops in the middle of a transaction (a frozen process, a host that is
                # gone) holds the rows of its sales, and everybody else waits behind it.
                "idle_in_transaction_session_timeout": str(statement_ms),
                "timezone": "UTC",
                # Compiling a plan costs more than any statement of a batch.
                "jit": "off",
                # A plan made while a table was empty must not be kept when a rush has filled it.
                "plan_cache_mode": "force_custom_plan",
            },
        },
        pool_size=options.pool_size,
        max_overflow=0,
        pool_timeout=options.pool_timeout_s,
        pool_recycle=_POOL_RECYCLE_S,
    )
    dialect = engine.sync_engine.dialect

    @event.listens_for(engine.sync_engine, "checkout")
    def ping_after_idle(connection: Any, record: Any, _proxy: object) -> None:
        idle_s = time.monotonic() - record.info.get(_USED_AT_S, float("-inf"))
        if idle_s < _PING_AFTER_IDLE_S:
            return
        try:
            dialect.do_ping(connection)
        except Exception as error:
            if not dialect.is_disconnect(error, connection, None):  # type: ignore[arg-type]
                raise
            # The pool drops all it has and connects anew: the server was restarted, say.
            raise exc.InvalidatePoolError("the connection has died") from error

    @event.listens_for(engine.sync_engine, "connect")
    @event.listens_for(engine.sync_engine, "checkin")
    def note_use(_connection: object, record: Any) -> None:
        record.info[_USED_AT_S] = time.monotonic()

    return engine


def _asyncpg_errors() -> tuple[type[Exception], ...]:
    import asyncpg  # noqa: PLC0415  -- the embedded set runs without it

    return (asyncpg.PostgresError, asyncpg.InterfaceError)
