"""Orders: written from bucket events, cancelled by buyers, their units given back."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.clock import Clock
from seckill.domain.errors import InvalidValue
from seckill.domain.events import BucketEvent
from seckill.domain.ids import ReservationId, UserId
from seckill.domain.order import Order, OrderState
from seckill.domain.reservation import BucketId, Place
from seckill.ledger import statements
from seckill.ledger.batch import Batch
from seckill.ledger.engine import Database
from seckill.ledger.errors import KeyTaken, WrongState
from seckill.ledger.moves import lock_with_sale, move_orders, read_order
from seckill.ledger.records import check_actor, check_reason, record_order_action
from seckill.ledger.tables import orders, releases
from seckill.pipeline.ports import PendingRelease, WriteReport

__all__ = ["RELEASES_MAX", "OrderBook"]

RELEASES_MAX: Final = 10_000
"""Releases read at once, at most."""


class OrderBook:
    """The orders of the ledger, as the order worker and the buyers' calls change them."""

    def __init__(self, database: Database, reservation_ids: ReservationIds, clock: Clock) -> None:
        self._database = database
        self._reservation_ids = reservation_ids
        self._clock = clock
        self._careful = False

    async def write(self, events: Sequence[BucketEvent]) -> WriteReport:
        """Write events in one transaction: all of them, or none when it raises.

        Writing an event again changes nothing. What may not become an order becomes a
        compensation: its epoch is over (nothing to release: a rebuild has counted it), the
        buyer's limit or the stock would be exceeded (with a pending release, valid in the
        bucket's current epoch). An event that claims the place or the reservation id of
        something else is recorded as a collision and never taken for it.

        Raises:
            UnknownSale: naming every event of a sale that these books never had; nothing was
                written, and the others can be written without them.
            LedgerUnavailable: nothing was written; call again with the same events.
            LedgerBroken: nothing was written; the database refused what must never fail.
        """
        if not events:
            return WriteReport()
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection, *, careful: bool) -> WriteReport:
            batch = Batch(connection, self._reservation_ids, now_ms, careful=careful)
            return await batch.write(events)

        doing = f"write {len(events)} events"
        try:
            report = await self._database.write(doing, partial(work, careful=self._careful))
        except KeyTaken:
            if self._careful:
                raise
            report = await self._database.write(doing, partial(work, careful=True))
        # Where one batch comes again, the next may too: after a crash, or a topic read anew.
        self._careful = report.known > 0 or bool(report.collided)
        return report

    async def cancel(
        self, reservation_id: ReservationId, user_id: UserId, *, actor: str, reason: str
    ) -> Order | None:
        """Cancel a user's own order that awaits its payment and give its units back.

        Pay, cancel and expire race on the order's row: one wins. Cancelling a cancelled order
        again changes nothing.

        Args:
            reservation_id: the order.
            user_id: whose it is.
            actor: who cancels: 1 to 64 characters.
            reason: why, at most 500 characters.

        Returns:
            The order as it is now; None when this user has no such order in the ledger.

        Raises:
            WrongState: it is paid, expired or compensated.
            InvalidValue: naming ``actor`` or ``reason``.
            LedgerUnavailable: nothing was changed; call again.
        """
        return await self._cancel(
            reservation_id, orders.c.user_id == user_id, actor, reason, by_operator=False
        )

    async def cancel_for(
        self, reservation_id: ReservationId, *, actor: str, reason: str
    ) -> Order | None:
        """Cancel anybody's unpaid order, as an operator; it stands in the action log.

        Returns and raises as `cancel`.
        """
        return await self._cancel(reservation_id, true(), actor, reason, by_operator=True)

    async def _cancel(
        self,
        reservation_id: ReservationId,
        whose: ColumnElement[bool],
        actor: str,
        reason: str,
        *,
        by_operator: bool,
    ) -> Order | None:
        check_actor(actor)
        check_reason(reason)
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> Order | None:
            found = await lock_with_sale(connection, reservation_id, whose)
            if found is None:
                return None
            moved = await move_orders(
                connection,
                [found],
                OrderState.AWAITING_PAYMENT,
                OrderState.CANCELLED,
                at_ms=now_ms,
                actor=actor,
                reason=reason or None,
                given_up=not by_operator,
            )
            order = await read_order(connection, reservation_id)
            if not moved and order.state != OrderState.CANCELLED:
                raise WrongState(order, OrderState.CANCELLED)
            if moved and by_operator:
                await record_order_action(
                    connection,
                    order,
                    OrderState.AWAITING_PAYMENT,
                    at_ms=now_ms,
                    actor=actor,
                    action="cancel_order",
                    reason=reason,
                )
            return order

        return await self._database.write(f"cancel order {reservation_id}", work)

    async def pending_releases(
        self, releases_max: int, *, except_buckets: Collection[BucketId] = ()
    ) -> list[PendingRelease]:
        """The oldest releases that Redis has not confirmed.

        Args:
            releases_max: 1 to 10,000.
            except_buckets: buckets that take no release now (fenced), so that theirs do not
                stand in the way of the others.

        Raises:
            LedgerUnavailable: call again.
        """
        if not 1 <= releases_max <= RELEASES_MAX:
            raise InvalidValue("releases_max", f"must be from 1 to {RELEASES_MAX}")
        query = (
            select(
                releases.c.reservation_id,
                releases.c.sale_id,
                releases.c.r_epoch,
                releases.c.bucket,
                releases.c.r_seq,
                releases.c.epoch,
                releases.c.user_id,
                releases.c.units,
                releases.c.spent,
            )
            .where(releases.c.state == "pending")
            .order_by(releases.c.decided_at_ms, releases.c.reservation_id)
            .limit(releases_max)
        )
        for bucket_id in except_buckets:
            query = query.where(~statements.in_bucket(releases, bucket_id))

        async def work(connection: AsyncConnection) -> list[PendingRelease]:
            return [
                PendingRelease(row[0], Place(*row[1:5]), *row[5:])
                for row in await connection.execute(query)
            ]

        return await self._database.read("read the pending releases", work)

    async def confirm_releases(
        self, done: Sequence[tuple[ReservationId, int]], *, epoch: int
    ) -> None:
        """Record that Redis made these releases, each at the given ``seq`` (0: not known there).

        Confirming again changes nothing, and so does confirming what a rebuild has counted, or
        what was carried on into another epoch meanwhile: that bucket was judged without this
        word, so the Redis that gave it may be gone. It is asked again in the new epoch.

        Raises:
            LedgerUnavailable: nothing was recorded; call again.
        """
        if not done:
            return
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            await _lock_sales_of(connection, [reservation_id for reservation_id, _ in done])
            parameters: list[dict[str, Any]] = [
                {
                    "of_reservation_id": reservation_id,
                    "in_epoch": epoch,
                    "at_seq": seq,
                    "now_ms": now_ms,
                }
                for reservation_id, seq in done
            ]
            await connection.execute(statements.CONFIRM_RELEASE, parameters)

        await self._database.write(f"confirm {len(done)} releases", work)


async def _lock_sales_of(
    connection: AsyncConnection, reservation_ids: Sequence[ReservationId]
) -> None:
    sale_ids: set[int] = set()
    for some in statements.chunks(reservation_ids):
        result = await connection.execute(
            select(releases.c.sale_id).where(releases.c.reservation_id.in_(some)).distinct()
        )
        sale_ids.update(result.scalars())
    await connection.execute(statements.LOCK_SALES, {"sale_ids": sorted(sale_ids)})
