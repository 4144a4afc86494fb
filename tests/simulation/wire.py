"""The wire between the processes and their stores: the only part of it all that is not real.

A call is sent, arrives, and is answered, at moments that somebody else chooses; it may be lost on
the way there or on the way back. What it does when it arrives is done at once, by the real store.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from sqlalchemy import Engine, exc

from seckill.admission.scripts import Scripts
from seckill.ledger.errors import LedgerUnavailable, translate
from seckill.ledger.sqlite_engine import answering_at_once, transact
from seckill.pipeline.errors import ChannelUnavailable

__all__ = ["Call", "Process", "Store", "WireDatabase", "WireRedis"]


class Store(StrEnum):
    """What a call is for."""

    REDIS = "redis"
    LEDGER = "ledger"
    KAFKA = "kafka"

    def away(self) -> Exception:
        """How a caller learns that its call was lost."""
        match self:
            case Store.REDIS:
                return RedisConnectionError("lost on the wire")
            case Store.LEDGER:
                return LedgerUnavailable("lost on the wire")
            case Store.KAFKA:
                return ChannelUnavailable("lost on the wire")


@dataclass(eq=False)
class Call:
    """One call on its way.

    Attributes:
        arrived: the store has done it and the answer is under way.
        patience: how often others are still preferred to it; None until it is first looked at.
    """

    process: "Process"
    store: Store
    what: str
    do: Callable[[], Any]
    answer: asyncio.Future[Any]
    sent_at_s: float
    arrived: bool = False
    patience: int | None = None
    result: Any = None
    error: Exception | None = None

    def arrive(self) -> None:
        assert not self.arrived
        self.arrived = True
        try:
            self.result = self.do()
        except Exception as error:  # noqa: BLE001  -- it is the caller's, wherever that is
            self.error = error

    def deliver(self) -> None:
        if self.answer.done():
            return
        if self.error is None:
            self.answer.set_result(self.result)
        else:
            self.answer.set_exception(self.error)

    def lose(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(self.store.away())


@dataclass(eq=False)
class Process:
    """One process: what it has in memory is gone when it dies."""

    name: str
    calls: list[Call]
    dead: bool = False
    tasks: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    _born: int = 0

    async def call(self, store: Store, what: str, do: Callable[[], Any]) -> Any:
        if self.dead:  # what is left of it winds up, and reaches nobody
            raise store.away()
        loop = asyncio.get_running_loop()
        call = Call(self, store, what, do, loop.create_future(), loop.time())
        self.calls.append(call)
        return await call.answer

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run something in this process. A name that is busy gets a number."""
        self._born += 1
        key = name if name not in self.tasks else f"{name}-{self._born}"
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name} {key}")
        self.tasks[key] = task
        task.add_done_callback(lambda _: self.tasks.pop(key, None))
        return task

    def runs(self, name: str) -> bool:
        return name in self.tasks

    def die(self) -> None:
        self.dead = True
        for task in list(self.tasks.values()):
            task.cancel()


class WireRedis:
    """A Redis client of one process, as far as this service uses one."""

    def __init__(
        self,
        process: Process,
        redis: Redis,
        execute: Callable[[tuple[Any, ...]], Any],
        idle_ms: Callable[[], int],
    ) -> None:
        self._process = process
        self._redis = redis
        self._execute = execute
        self._idle_ms = idle_ms
        self.connection_pool = redis.connection_pool

    async def execute_command(self, *command: Any) -> Any:
        return await self._process.call(
            Store.REDIS, " ".join(map(str, command[:2])), lambda: self._execute(command)
        )

    async def xreadgroup(self, *args: Any, **options: Any) -> Any:
        options["block"] = None  # nobody waits inside of a store here
        return await self._process.call(
            Store.REDIS, "xreadgroup", lambda: self._redis.xreadgroup(*args, **options)
        )

    async def xautoclaim(
        self, stream: Any, group: str, consumer: str, _idle_ms: int, **options: Any
    ) -> Any:
        """Whether something was held for too long is not for Redis' own clock to say here."""
        return await self._process.call(
            Store.REDIS,
            "xautoclaim",
            lambda: self._redis.xautoclaim(stream, group, consumer, self._idle_ms(), **options),
        )

    def pipeline(self, *, transaction: bool) -> "_WirePipeline":
        return _WirePipeline(self._process, self._redis.pipeline(transaction=transaction))

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._redis, name)

        async def ask(*args: Any, **options: Any) -> Any:
            return await self._process.call(Store.REDIS, name, lambda: method(*args, **options))

        return ask


class WireScripts(Scripts):
    """The scripts over the one wire of the simulation; the lines of the batches are sockets."""

    _send_durably = Scripts._send


class _WirePipeline:
    def __init__(self, process: Process, pipeline: Any) -> None:
        self._process = process
        self._pipeline = pipeline

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pipeline.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    async def watch(self, *names: str) -> Any:
        return await self._process.call(Store.REDIS, "watch", lambda: self._pipeline.watch(*names))

    async def execute(self, raise_on_error: bool = True) -> Any:
        names = " ".join(str(command[0][0]) for command in self._pipeline.command_stack)
        return await self._process.call(
            Store.REDIS, names, lambda: self._pipeline.execute(raise_on_error=raise_on_error)
        )


class WireDatabase:
    """Takes the place of `ledger.Database`: the same statements, each transaction one step."""

    is_sqlite = True

    def __init__(self, process: Process, engine: Engine) -> None:
        self._process = process
        self._writer = engine.execution_options(seckill_begin="BEGIN IMMEDIATE")
        self._reader = engine

    async def write(self, doing: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await self._process.call(
            Store.LEDGER, doing, lambda: self._run(self._writer, doing, work)
        )

    async def read(self, doing: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await self._process.call(
            Store.LEDGER, doing, lambda: self._run(self._reader, doing, work)
        )

    @staticmethod
    def _run(engine: Engine, doing: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            return transact(engine, work)
        except exc.SQLAlchemyError as error:
            raise translate(error, doing) from error

    @asynccontextmanager
    async def snapshot(self, _doing: str) -> Any:
        """For the audit, which comes when all is quiet."""
        with self._reader.begin() as connection:
            yield answering_at_once(connection)
