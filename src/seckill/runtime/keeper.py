"""Keeps one part of the run alive: starts it, starts it again when it dies, gives up at a bound."""

import asyncio
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from seckill.domain.errors import SeckillError
from seckill.runtime.launching import Child
from seckill.runtime.parts import Part, part_failed

__all__ = ["Keeper", "PartObserver", "RestartPolicy"]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a part that died is started again, and when no more.

    A death counts as one in a row unless the part had done its work for ``stable_after_ms``.

    Attributes:
        delay_ms_min: wait after the first death; doubled with each one in a row.
        delay_ms_max: longest wait.
        stable_after_ms: how long a part must have been ready to count as well again.
        deaths_max: deaths in a row that end the run.
        first_start_deaths_max: the same before it was ready for the first time: what is wrong
            then is seldom cured by waiting.
        start_timeout_ms: how long it may take to become ready.
    """

    delay_ms_min: int = 50
    delay_ms_max: int = 5_000
    stable_after_ms: int = 2_000
    deaths_max: int = 10
    first_start_deaths_max: int = 3
    start_timeout_ms: int = 60_000

    def delay_ms(self, deaths: int, chance: float) -> float:
        """Wait after this many deaths in a row: at least half of the bound, so never none.

        Args:
            deaths: at least 1.
            chance: 0 to 1, drawn anew each time: parts that died together return one by one.
        """
        bound = min(self.delay_ms_max, self.delay_ms_min * 2 ** min(deaths - 1, 30))
        return float(bound * (0.5 + chance / 2))


class PartObserver(Protocol):
    """Is told of each change, at once."""

    def started(self, part: Part, pid: int) -> None:
        """It runs, and does not do its work yet."""
        ...

    def ready(self, part: Part, pid: int) -> None:
        """It does its work."""
        ...

    def ended(self, part: Part) -> None:
        """It runs no more."""
        ...


@dataclass(frozen=True, slots=True)
class _Life:
    """One life of the part: how it ended, and how long it had done its work."""

    end: str
    ready_ms: float | None
    worth_another: bool = True


class Keeper:
    """Keeps one part alive.

    Args:
        part: what to keep.
        policy: when to start it again.
        observer: is told of each change.
        chance: draws a number from 0 to 1 for the waits.
    """

    def __init__(
        self,
        part: Part,
        *,
        policy: RestartPolicy,
        observer: PartObserver,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.part: Final = part
        self.is_ready: Final = asyncio.Event()
        self._policy = policy
        self._observer = observer
        self._chance = chance
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._process: Child | None = None
        self._was_ready = False
        self._log = structlog.get_logger(__name__).bind(part=part.role, part_slot=part.slot)

    def begin(self) -> "asyncio.Task[None]":
        """Start the part and keep it until :meth:`stop`.

        Returns:
            The task of this keeper, which ends with PartFailed when the part dies again and again,
            or will not become ready. Whoever began it must look at it.
        """
        assert self._task is None
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.part.role}")
        return self._task

    async def _keep(self) -> None:
        policy = self._policy
        deaths = 0
        while not self._stopping.is_set():
            life = await self._live()
            if self._stopping.is_set():
                return
            stable = life.ready_ms is not None and life.ready_ms >= policy.stable_after_ms
            deaths = 1 if stable else deaths + 1
            if not life.worth_another:
                raise part_failed(self.part, life.end)
            bound = policy.deaths_max if self._was_ready else policy.first_start_deaths_max
            if deaths >= bound:
                verb = "cannot stay up" if self._was_ready else "cannot start"
                times = "once" if deaths == 1 else f"{deaths} times in a row"
                raise part_failed(
                    self.part, f"{verb}: it died {times}, the last time it {life.end}"
                )
            wait_ms = policy.delay_ms(deaths, self._chance())
            self._log.warning(
                "a part died",
                how=life.end,
                deaths_in_a_row=deaths,
                again_in_ms=round(wait_ms),
                last_words=self.part.last_words(),
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_ms / 1000)

    async def _live(self) -> _Life:
        """One life of the part, from its start to its end."""
        try:
            process = await self.part.start()
        except OSError as error:
            return _Life(f"could not be started ({error.strerror or error})", None)
        self._process = process
        self._observer.started(self.part, process.pid)
        if self._stopping.is_set():  # asked to stop while it was being started
            _kill(process)
        exited = asyncio.create_task(process.wait())
        try:
            return await self._watch(process, exited)
        finally:
            if not exited.done():  # this keeper itself was cut short
                _kill(process)
                await asyncio.wait({exited})
            await self.part.clear_up()
            self._process = None
            self.is_ready.clear()
            self._observer.ended(self.part)

    async def _watch(self, process: Child, exited: "asyncio.Task[int]") -> _Life:
        ready = asyncio.create_task(self.part.wait_ready(process))
        ready_at: float | None = None
        try:
            await asyncio.wait(
                {ready, exited},
                timeout=self._policy.start_timeout_ms / 1000,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not exited.done() and not ready.done():
                await self._kill_and_wait(process, exited)
                end = f"was not ready {self._policy.start_timeout_ms} ms after its start"
                return _Life(end, None, worth_another=self._was_ready)
            if not exited.done():
                try:
                    ready.result()
                except SeckillError as error:
                    await self._kill_and_wait(process, exited)
                    return _Life(f"will not do: {error}", None, worth_another=False)
                ready_at = time.monotonic()
                self._was_ready = True
                self.is_ready.set()
                self._observer.ready(self.part, process.pid)
            code = await exited
        finally:
            ready.cancel()
            await asyncio.wait({ready})
            if not ready.cancelled():
                ready.exception()  # whoever died first has the word; nobody else will look at it
        ready_ms = None if ready_at is None else (time.monotonic() - ready_at) * 1000
        return _Life(_how(code), ready_ms)

    async def _kill_and_wait(self, process: Child, exited: "asyncio.Task[int]") -> None:
        _kill(process)
        await asyncio.wait({exited})

    async def stop(self, *, grace_ms: int, hurry: asyncio.Event, hurry_ms: int = 0) -> None:
        """End the part for good: ask it, wait, and kill it at the end of the grace.

        Args:
            grace_ms: how long its orderly end may take.
            hurry: shortens that to ``hurry_ms`` from the moment it is set.
            hurry_ms: as above.
        """
        self._stopping.set()
        if self._task is None:
            return
        if (process := self._process) is not None:
            await self.part.ask_to_stop(process)
            if not await self._ends_within(grace_ms, hurry) and not (
                hurry.is_set() and hurry_ms and await self._ends_within(hurry_ms, asyncio.Event())
            ):
                self._log.warning("killed a part that did not end in time", grace_ms=grace_ms)
                _kill(process)
        await asyncio.wait({self._task})

    async def _ends_within(self, timeout_ms: int, hurry: asyncio.Event) -> bool:
        assert self._task is not None
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait(
            {self._task, hurried},
            timeout=timeout_ms / 1000,
            return_when=asyncio.FIRST_COMPLETED,
        )
        hurried.cancel()
        return self._task.done()


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _kill(process: Child) -> None:
    with suppress(ProcessLookupError):
        process.kill()
