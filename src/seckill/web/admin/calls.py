"""Calls of operators: few at a time, never long in a queue, and their errors as HTTP says them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from seckill.domain.errors import InvalidValue, SeckillError
from seckill.ledger.errors import (
    ChangeIdReused,
    LastAdmin,
    NoSuchGoods,
    NoSuchOrder,
    NoSuchSale,
    NoSuchToken,
    NoSuchUser,
    SaleClosed,
    SaleExists,
    SaleStarted,
    SetupLinkDead,
    UserExists,
    WrongState,
)
from seckill.pipeline.errors import LetterGone
from seckill.web.batches import Lanes, TooManyWaiting
from seckill.web.limits import WebLimits
from seckill.web.ports import WebMetrics
from seckill.web.problems import Forbidden, HTTPProblem, NotFound, RuleBroken, Unavailable

__all__ = ["AdminCalls", "problem_of"]

T = TypeVar("T")

_BUSY: Final = "This cannot be answered right now. Please ask again: nothing is done twice."
_RETRY_AFTER_S: Final = 2

_UNKNOWN: Final = (NoSuchGoods, NoSuchSale, NoSuchOrder, NoSuchUser, NoSuchToken, LetterGone)
_IN_THE_WAY: Final = (SaleExists, SaleClosed, SaleStarted, WrongState, UserExists, LastAdmin)


class AdminCalls:
    """Makes the calls of operators in lanes of their own.

    An operator who leaves cuts nothing: what has begun is done to its end.
    """

    def __init__(self, limits: WebLimits, metrics: WebMetrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._lanes = Lanes(lanes=limits.admin_call_lanes, waiting_max=limits.admin_calls_max)
        # One at a time is done beside; the others are told so, and need no lane for long.
        self._long = Lanes(lanes=2, waiting_max=limits.admin_call_lanes)

    async def run(self) -> None:
        """Make the calls until cancelled."""
        async with asyncio.TaskGroup() as lanes:
            lanes.create_task(self._lanes.run())
            lanes.create_task(self._long.run())

    async def make(self, call: Callable[[], Awaitable[T]], *, long: bool = False) -> T:
        """Make one call.

        Args:
            call: what is to be done.
            long: it is done beside this process and may take a minute.

        Raises:
            HTTPProblem: what was refused, or 503: too many wait, a part is away, or the wait was
                too long. A change may have been made then; asking again is safe.
        """
        begun = asyncio.Event()
        wait_ms = self._limits.admin_long_wait_ms if long else self._limits.admin_wait_ms

        async def begin() -> T:
            begun.set()
            return await call()

        try:
            future = (self._long if long else self._lanes).call(begin)
            await self._begun(begun, future)
            async with asyncio.timeout(wait_ms / 1000):
                return await future
        except (TimeoutError, TooManyWaiting):
            self._metrics.bound_met("admin_calls")
            raise Unavailable(_BUSY, _RETRY_AFTER_S) from None
        except SeckillError as error:
            raise problem_of(error) from error

    async def _begun(self, begun: asyncio.Event, future: asyncio.Future[T]) -> None:
        """Wait for a lane; who waits no longer takes none."""
        try:
            async with asyncio.timeout(self._limits.admin_begin_ms / 1000):
                await begun.wait()
        finally:
            if not begun.is_set():
                future.cancel()


def problem_of(error: SeckillError) -> HTTPProblem:
    """The answer to an error of the other rooms."""
    problem: HTTPProblem
    match error:
        case HTTPProblem():
            problem = error
        case InvalidValue():
            problem = RuleBroken(error.field, error.rule)
        case ChangeIdReused():
            problem = RuleBroken("Idempotency-Key", "was used before, for another change")
        case SetupLinkDead():
            problem = Forbidden(_sentence(error))
        case _ if isinstance(error, _UNKNOWN):
            problem = NotFound(_sentence(error))
        case _ if isinstance(error, _IN_THE_WAY):
            problem = HTTPProblem(409, _sentence(error))
        case _:
            problem = Unavailable(_BUSY, _RETRY_AFTER_S)
    return problem


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
