"""After the rush: does everybody who was told yes have their order?"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from seckill.domain.order import OrderState
from seckill.stress.answers import Answer, read_order
from seckill.stress.connection import Connection
from seckill.stress.target import Target

__all__ = ["Followed", "OrderFate", "Reservation", "follow_orders", "judge_order"]

_LOOKS_AT_ONCE_MAX: Final = 64
_FIRST_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_OK: Final = 200
_NOT_FOUND: Final = 404
_STATES: Final = frozenset(state.value for state in OrderState)


class OrderFate(StrEnum):
    """What a reservation turned out to be."""

    ORDERED = "ordered"
    """There is an order of the buyer's, and it says what was bought."""
    COMPENSATED = "compensated"
    """The ledger refused it and recorded that."""
    QUEUED = "queued"
    """Still no order when the time was over."""
    MISSING = "missing"
    """The service denied knowing it, at least once."""
    WRONG = "wrong"
    """Its order names another buyer, other goods, another quantity, or is no order at all."""
    UNREACHABLE = "unreachable"
    """No answer about it came."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation to follow.

    Attributes:
        reservation_id: its id.
        user_id: who was told yes.
        buyer: that buyer's number.
        quantities: what its order may say about units: the one quantity that was asked for, or
            several when it is not known which click won it.
    """

    reservation_id: str
    user_id: str
    buyer: int
    quantities: frozenset[int]


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of one reservation.

    Attributes:
        reservation: which.
        fate: what it is.
        quantity: units that its order says, 0 without an order.
        state: the last state that was seen.
        detail: what is wrong, in one line.
    """

    reservation: Reservation
    fate: OrderFate
    quantity: int = 0
    state: str = ""
    detail: str = ""


class _Look:
    """One GET, as an exchange on a connection."""

    __slots__ = ("given_up", "result")

    def __init__(self) -> None:
        self.result: asyncio.Future[Answer | str] = asyncio.get_running_loop().create_future()
        self.given_up = False

    def sent(self, at_us: int) -> None:
        """Nothing to note: this is no measurement."""

    def answered(self, answer: Answer) -> None:
        """The answer is here."""
        self._set(answer)

    def misanswered(self, reason: str) -> None:
        """What came is not HTTP."""
        self._set(reason)

    def failed(self, reason: str) -> None:
        """There will be no answer."""
        self._set(reason)

    def _set(self, result: Answer | str) -> None:
        if not self.result.done():
            self.result.set_result(result)


async def follow_orders(
    target: Target,
    reservations: list[Reservation],
    connection_of: Callable[[int], Connection],
    *,
    within_s: float,
    look_timeout_s: float,
    tick: Callable[[int], None],
) -> list[Followed]:
    """Ask for every reservation until it has left ``queued`` or the time is over.

    Args:
        target: the service.
        reservations: what to follow.
        connection_of: buyer number to connection.
        within_s: bound of the whole.
        look_timeout_s: bound of one question.
        tick: called with the number of reservations that need no further question.

    Returns:
        One entry per reservation, in the given order.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + within_s
    found: dict[str, Followed] = {}
    asking = list(reservations)
    pause_s = _FIRST_PAUSE_S
    while asking:
        turn = iter(asking)

        async def look_at_some() -> None:
            for reservation in turn:  # noqa: B023  -- all are done before the next round
                timeout_s = min(look_timeout_s, ends_at - loop.time())
                if timeout_s <= 0:
                    return
                seen = await _look(target, reservation, connection_of(reservation.buyer), timeout_s)
                found[reservation.reservation_id] = seen

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_LOOKS_AT_ONCE_MAX, len(asking))):
                group.create_task(look_at_some())
        asking = [one for one in asking if _asks_again(found.get(one.reservation_id))]
        tick(len(reservations) - len(asking))
        if not asking or loop.time() + pause_s >= ends_at:
            break
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _PAUSE_S_MAX)
    return [
        found.get(one.reservation_id, Followed(one, OrderFate.UNREACHABLE, detail="no time left"))
        for one in reservations
    ]


def _asks_again(seen: Followed | None) -> bool:
    """Having been denied once stays the verdict: a buyer was shown a 404 for what they hold."""
    return seen is None or seen.fate in {OrderFate.QUEUED, OrderFate.UNREACHABLE}


async def _look(
    target: Target, reservation: Reservation, connection: Connection, timeout_s: float
) -> Followed:
    look = _Look()
    connection.leave_when_stuck()
    connection.submit(look, target.order_request(reservation.user_id, reservation.reservation_id))
    try:
        async with asyncio.timeout(timeout_s):
            result = await look.result
    except TimeoutError:
        look.given_up = True
        return Followed(reservation, OrderFate.UNREACHABLE, detail="no answer in time")
    if isinstance(result, str):
        return Followed(reservation, OrderFate.UNREACHABLE, detail=result)
    return judge_order(target.goods_id, reservation, result)


def judge_order(goods_id: str, reservation: Reservation, answer: Answer) -> Followed:
    """What one answer says about a reservation of ``goods_id``."""
    if answer.status == _NOT_FOUND:
        return Followed(reservation, OrderFate.MISSING, detail=answer.shown())
    if answer.status != _OK:
        return Followed(reservation, OrderFate.UNREACHABLE, detail=answer.shown())
    order = read_order(answer)
    if isinstance(order, str):
        return Followed(reservation, OrderFate.WRONG, detail=order)
    for name, said, right in (
        ("reservation_id", order.reservation_id, {reservation.reservation_id}),
        ("user_id", order.user_id, {reservation.user_id}),
        ("goods_id", order.goods_id, {goods_id}),
        ("quantity", order.quantity, reservation.quantities),
        ("state", order.state, _STATES),
    ):
        if said not in right:
            detail = f"{name} is {said!r}: {answer.shown()}"
            return Followed(reservation, OrderFate.WRONG, order.quantity, order.state, detail)
    match OrderState(order.state):
        case OrderState.QUEUED:
            fate = OrderFate.QUEUED
        case OrderState.COMPENSATED:
            fate = OrderFate.COMPENSATED
        case _:
            fate = OrderFate.ORDERED
    return Followed(reservation, fate, order.quantity, order.state)
