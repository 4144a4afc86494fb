"""Connections and transactions of PostgreSQL. Nothing connects until first used.

READ COMMITTED, with time limits on connecting, on statements, on locks and on idling in a
transaction. The statements of this room take the row of the sale first (`statements.LOCK_SALES`),
and what they read after that is current.

A buyer's look at an order is one way to PostgreSQL and back: reads have no transaction around them
(READ COMMITTED would give every statement a snapshot of its own anyway), statements are prepared
once for each connection, and a connection that was in use a moment ago is not asked whether it
still lives. With a database that is 20 ms away, five ways would be a tenth of a second each time.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, event, exc
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from seckill.ledger.options import LedgerOptions

__all__ = ["PostgresqlEngine"]

_T = TypeVar("_T")

_POOL_RECYCLE_S: Final = 1800
_PING_AFTER_IDLE_S: Final = 1.0
_USED_AT_S: Final = "seckill_used_at_s"


class PostgresqlEngine:
    """Implements `engine.Engine`.

    Args:
        url: with the driver's name in it.
    """

    def __init__(self, url: URL, options: LedgerOptions) -> None:
        import asyncpg  # noqa: PLC0415  -- the embedded set runs without it

        self._engine = _create(url, options)
        self._reader = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._snapshot = self._engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        self.errors: tuple[type[Exception], ...] = (
            exc.SQLAlchemyError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError,
        )  # fmt: skip

    @property
    def sync_engine(self) -> Engine:
        """See Engine."""
        return self._engine.sync_engine

    async def write(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """See Engine."""
        async with self._engine.begin() as connection:
            return await work(connection)

    async def read(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """See Engine."""
        async with self._reader.begin() as connection:
            return await work(connection)

    def snapshot(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """See Engine."""
        return self._snapshot.begin()

    async def dispose(self) -> None:
        """See Engine."""
        await self._engine.dispose()


def _create(url: URL, options: LedgerOptions) -> AsyncEngine:
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
