"""Finding a purchase by its reservation id, wherever it is on its way.

The ledger is asked first, for many buyers at once. What it does not know yet may still be queued:
then Redis is asked whether this user holds that place. A purchase can enter the ledger between the
two questions, and can even be released by then, so a second "no" goes back to the ledger once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from seckill.domain.errors import SeckillError
from seckill.domain.ids import ReservationId, UserId
from seckill.domain.order import Order, OrderState
from seckill.domain.reservation import Place
from seckill.web.batches import Lanes, MicroBatches, TooManyWaiting
from seckill.web.limits import WebLimits
from seckill.web.ports import Catalogue, OrderBooks, QueuedPlaces, ReservationCodec, WebMetrics
from seckill.web.problems import HTTPProblem, Unavailable

__all__ = ["OrderBook"]

_BUSY: Final = "Orders cannot be looked up right now. Please ask again."

T = TypeVar("T")


class OrderBook:
    """What buyers may know of their purchases, and do with them.

    Args:
        books: the ledger.
        queued: what Redis knows of purchases on their way to the ledger.
        ids: reads reservation ids.
        catalogue: price and goods of purchases on their way.
        limits: bounds of queues and waits.
        metrics: counts bounds that were met.
    """

    def __init__(
        self,
        *,
        books: OrderBooks,
        queued: QueuedPlaces,
        ids: ReservationCodec,
        catalogue: Catalogue,
        limits: WebLimits,
        metrics: WebMetrics,
    ) -> None:
        self._books = books
        self._queued = queued
        self._ids = ids
        self._catalogue = catalogue
        self._limits = limits
        self._metrics = metrics
        self._ledger_reads: MicroBatches[ReservationId, Order] = MicroBatches(
            self._read_ledger,
            batch_max=limits.order_batch_max,
            waiting_max=limits.order_reads_max,
        )
        self._queued_reads: MicroBatches[tuple[Place, UserId], int] = MicroBatches(
            self._read_queued,
            batch_max=limits.queued_lookups_max,
            waiting_max=limits.order_reads_max,
        )
        self._lanes = Lanes(lanes=limits.order_call_lanes, waiting_max=limits.order_calls_max)

    async def run(self) -> None:
        """Serve look-ups and calls until cancelled."""
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._ledger_reads.run())
            parts.create_task(self._queued_reads.run())
            parts.create_task(self._lanes.run())

    async def find(self, reservation_id: ReservationId, user_id: UserId) -> Order | None:
        """The user's own purchase, or None: unknown, or somebody else's.

        An id that this installation never made is answered without asking anybody.

        Raises:
            Unavailable: too many wait, the wait was too long, or a part is away.
        """
        place = self._ids.decode(reservation_id)
        if place is None:
            return None
        order = await self._within_bounds(
            "order_reads", lambda: self._find(reservation_id, place, user_id)
        )
        return order if order is not None and order.user_id == user_id else None

    def is_known(self, reservation_id: ReservationId) -> bool:
        """Whether this installation can have made this id; nobody is asked."""
        return self._ids.decode(reservation_id) is not None

    async def _find(
        self, reservation_id: ReservationId, place: Place, user_id: UserId
    ) -> Order | None:
        order = await self._ledger_reads.get(reservation_id)
        if order is not None:
            return order
        quantity = await self._queued_reads.get((place, user_id))
        if quantity is None:
            order = await self._ledger_reads.get(reservation_id)
            return order or await self._lost(reservation_id, user_id)
        sale = self._catalogue.sale(place.sale_id)
        if sale is None:
            # Sold, and yet not known to this process: its catalogue is catching up.
            raise Unavailable(_BUSY)
        return Order(
            reservation_id=reservation_id,
            sale_id=place.sale_id,
            goods_id=sale.goods_id,
            user_id=user_id,
            quantity=quantity,
            price_fen=sale.price_fen,
            state=OrderState.QUEUED,
            admitted_at_ms=0,
        )

    async def _lost(self, reservation_id: ReservationId, user_id: UserId) -> Order | None:
        """A purchase that was lost and is named so belongs to whoever was told its id."""
        lost = await self._lanes.call(lambda: self._books.lost_orders([reservation_id]))
        return replace(lost[0], user_id=user_id) if lost else None

    async def states(self, reservation_ids: Sequence[ReservationId]) -> dict[ReservationId, Order]:
        """What the ledger knows of these purchases, whoever owns them. For the live feed.

        One that was lost comes without the name of its owner.

        Raises:
            SeckillError: the ledger is away.
        """
        known: dict[ReservationId, Order] = {}
        step = self._limits.order_batch_max
        for at in range(0, len(reservation_ids), step):
            some = reservation_ids[at : at + step]
            known |= await self._read_ledger(some)
            missing = [one for one in some if one not in known]
            if missing:
                lost = await self._books.lost_orders(missing)
                known |= {order.reservation_id: order for order in lost}
        return known

    async def page(
        self, user_id: UserId, orders_max: int, before: ReservationId | None
    ) -> list[Order]:
        """The user's orders, newest first. What is still queued is not among them.

        Raises:
            Unavailable: as with `find`.
        """
        if before is not None and self._ids.decode(before) is None:
            return []

        async def read() -> list[Order]:
            return list(
                await self._books.orders_of_user(user_id, orders_max=orders_max, before=before)
            )

        return await self._call(read)

    async def cancel(self, reservation_id: ReservationId, user_id: UserId) -> Order | None:
        """Cancel the user's own order; what it is afterwards, or None as with `find`.

        Raises:
            HTTPProblem: 409 while it is queued: there is no order yet that could be cancelled.
            Unavailable: as with `find`. It may have been cancelled; asking again is safe.
        """
        if not self.is_known(reservation_id):
            return None
        order = await self._call(lambda: self._books.cancel(reservation_id, user_id))
        if order is not None:
            return order if order.user_id == user_id else None
        await self.refuse_queued(reservation_id, user_id)
        return None

    async def refuse_queued(self, reservation_id: ReservationId, user_id: UserId) -> None:
        """Nothing, unless the user's purchase is still on its way to the ledger.

        Raises:
            HTTPProblem: 409: there is no order yet that anything could be done with.
            Unavailable: as with `find`.
        """
        if await self.find(reservation_id, user_id) is not None:
            raise HTTPProblem(
                409,
                "The order is still being created. Please try again in a moment.",
                headers=((b"retry-after", b"1"),),
            )

    async def _call(self, function: Callable[[], Awaitable[T]]) -> T:
        async def wait() -> T:
            return await self._lanes.call(function)

        return await self._within_bounds("order_calls", wait)

    async def _within_bounds(self, bound: str, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait, but not too long, and not in too long a queue."""
        try:
            async with asyncio.timeout(self._limits.order_wait_ms / 1000):
                return await wait()
        except (TimeoutError, TooManyWaiting):
            self._metrics.bound_met(bound)
            raise Unavailable(_BUSY) from None
        except HTTPProblem:
            raise
        except SeckillError as away:
            raise Unavailable(_BUSY) from away

    async def _read_ledger(
        self, reservation_ids: Sequence[ReservationId]
    ) -> dict[ReservationId, Order]:
        orders = await self._books.orders_by_ids(reservation_ids)
        return {order.reservation_id: order for order in orders}

    async def _read_queued(
        self, wanted: Sequence[tuple[Place, UserId]]
    ) -> Mapping[tuple[Place, UserId], int]:
        answers = await asyncio.gather(
            *(self._queued.holding(place, user_id) for place, user_id in wanted)
        )
        return {
            key: quantity
            for key, quantity in zip(wanted, answers, strict=True)
            if quantity is not None
        }
