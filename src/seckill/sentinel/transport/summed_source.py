"""Several sources, shown as one machine."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from seckill.sentinel.transport.counts import (
    Counts,
    MachineLoad,
    MetricRow,
    TreeRow,
    summed,
    summed_rows,
    summed_trees,
)
from seckill.sentinel.words import RESOURCE_INBOUND

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from seckill.sentinel.transport.sources import StatisticsSource

ANSWER_TIMEOUT_S: Final = 1.0
UNKNOWN: Final = -1.0

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")


class SummedSource:
    """A ``StatisticsSource`` over those of several processes of one machine.

    A source that fails or is too slow is left out of the answer, which the log says once until it
    answers again: a dying process must not hide the others.

    Args:
        sources: gives those there are now; asked at each question, as processes come and go.
        now_ms: the clock that all of them go by.
        timeout_s: how long a source may take.

    Attributes:
        left_out: answers that missed a source, since the start; for metrics.
    """

    def __init__(
        self,
        sources: Callable[[], Sequence[StatisticsSource]],
        *,
        now_ms: Callable[[], int],
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self._sources = sources
        self._now_ms = now_ms
        self._timeout_s = timeout_s
        self._silent: set[int] = set()
        self.left_out = 0

    def now_ms(self) -> int:
        """The common clock."""
        return self._now_ms()

    async def resources(self) -> list[Counts]:
        """Every resource, added up over the processes."""
        return summed(await self._ask(lambda source: source.resources()))

    async def tree(self) -> list[TreeRow]:
        """The call trees of all processes laid over each other."""
        return summed_trees(await self._ask(lambda source: source.tree()))

    async def origins(self, resource: str) -> list[Counts]:
        """The callers of one resource, added up over the processes."""
        return summed(await self._ask(lambda source: source.origins(resource)))

    async def inbound(self) -> Counts:
        """All entries of type ``IN`` of all processes."""
        total = Counts(name=RESOURCE_INBOUND)
        for counts in await self._ask(lambda source: source.inbound()):
            total = total.plus(counts)
        return total

    async def machine(self) -> MachineLoad:
        """How busy the machine is: it is the same for all, so the highest reading counts."""
        found = await self._ask(lambda source: source.machine())
        return MachineLoad(
            max((one.load for one in found), default=UNKNOWN),
            max((one.cpu_usage for one in found), default=UNKNOWN),
        )

    async def finished_seconds(self, after_ms: int) -> list[MetricRow]:
        """The seconds that are over, added up over the processes."""
        return summed_rows(await self._ask(lambda source: source.finished_seconds(after_ms)))

    async def _ask(
        self, question: Callable[[StatisticsSource], Coroutine[object, object, T]]
    ) -> list[T]:
        sources = self._sources()
        answers = await asyncio.gather(*(self._ask_one(one, question) for one in sources))
        return [answer[0] for answer in answers if answer is not None]

    async def _ask_one(
        self,
        source: StatisticsSource,
        question: Callable[[StatisticsSource], Coroutine[object, object, T]],
    ) -> tuple[T] | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await question(source)
        except Exception as error:  # noqa: BLE001  whatever ails one process, the others count
            self.left_out += 1
            if id(source) not in self._silent:
                self._silent.add(id(source))
                _LOG.warning("a process is left out of the sum: %r: %r", source, error)
            return None
        self._silent.discard(id(source))
        return (answer,)
