"""Expiry: unpaid orders whose deadline has passed, found by index and ended in bounded batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import delete, func, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.clock import Clock
from seckill.domain.ids import ReservationId
from seckill.domain.order import OrderState
from seckill.domain.payment import PaymentId
from seckill.ledger import statements
from seckill.ledger.engine import Database
from seckill.ledger.errors import ExpiryRefused, LedgerBroken
from seckill.ledger.moves import MovingOrder, move_orders
from seckill.ledger.payments import late_attempt
from seckill.ledger.tables import expiry_setbacks, orders, payments
from seckill.pipeline.ports import ExpiryLag

__all__ = ["EXPIRED_REASON", "REAPER", "ExpiryBook", "Setback"]

REAPER: Final = "reaper"
"""The actor of what happens by itself, in time."""

EXPIRED_REASON: Final = "The order was not paid in time."

_SETBACK_MS_MIN: Final = 1_000
_SETBACK_MS_MAX: Final = 300_000
_SETBACKS_SHOWN_MAX: Final = 100

# A reaper that is frozen in the middle of its transaction must not keep the rows of a sale for
# longer than this: PostgreSQL ends its session, and another one goes on.
_LEASE_MS: Final = 5_000

# What late money has bought is as good as paid: the reaper is about to write that down, and one
# that was away for longer than the pay window must not expire it instead. In front of the payment
# id stands what `ledger.payments.late_attempt` puts there.
_HAS_LATE_MONEY: Final = (
    select(payments.c.payment_id)
    .where(
        payments.c.payment_id
        == func.substr(orders.c.attempt_id, len(late_attempt(PaymentId(""))) + 1),
        payments.c.state == "late",
    )
    .exists()
)

# One that was paid or cancelled after all is a setback no more.
_STILL_UNPAID: Final = expiry_setbacks.join(
    orders,
    (orders.c.reservation_id == expiry_setbacks.c.reservation_id)
    & (orders.c.state == "awaiting_payment"),
)


@dataclass(frozen=True, slots=True)
class Setback:
    """An order that could not be expired."""

    reservation_id: ReservationId
    tries: int
    first_at_ms: int
    next_try_at_ms: int
    error: str


class ExpiryBook:
    """Ends orders that nobody paid. Implements `pipeline.ports.ExpiryLedger`.

    Every method raises LedgerUnavailable when the database cannot be asked now; nothing was
    changed then.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def due(self, orders_max: int) -> list[ReservationId]:
        """The orders that are longest past their deadline; those set aside are left out.

        Complexity: O(orders_max + set aside) by the partial index of unpaid orders.
        """
        now_ms = self._clock.now_ms()
        query = (
            select(orders.c.reservation_id)
            .outerjoin(expiry_setbacks, expiry_setbacks.c.reservation_id == orders.c.reservation_id)
            .where(
                orders.c.state == "awaiting_payment",
                orders.c.pay_by_ms <= now_ms,
                ~_HAS_LATE_MONEY,
                or_(
                    expiry_setbacks.c.next_try_at_ms.is_(None),
                    expiry_setbacks.c.next_try_at_ms <= now_ms,
                ),
            )
            .order_by(orders.c.pay_by_ms, orders.c.reservation_id)
            .limit(orders_max)
        )

        async def work(connection: AsyncConnection) -> list[ReservationId]:
            return [ReservationId(name) for name in (await connection.execute(query)).scalars()]

        return await self._database.read("look for orders that are due", work)

    async def expire(self, reservation_ids: Sequence[ReservationId]) -> int:
        """Expire those that still await their payment and are due; returns how many.

        Several reapers may be given the same orders: each order is expired by one of them. On
        PostgreSQL what is being paid at this very moment is skipped, and found again if it is
        not paid in the end.

        Raises:
            ExpiryRefused: the books refuse it for one of them at least; nothing was changed.
        """
        now_ms = self._clock.now_ms()
        still_due = statements.MOVING_ORDERS.where(
            orders.c.reservation_id.in_(reservation_ids),
            orders.c.state == "awaiting_payment",
            orders.c.pay_by_ms <= now_ms,
            ~_HAS_LATE_MONEY,
        )

        async def work(connection: AsyncConnection) -> int:
            if connection.dialect.name == "postgresql":
                await connection.execute(
                    text(f"SET LOCAL idle_in_transaction_session_timeout = {_LEASE_MS}")
                )
            sale_ids = select(orders.c.sale_id).where(orders.c.reservation_id.in_(reservation_ids))
            of = sorted(set((await connection.execute(sale_ids)).scalars()))
            await connection.execute(statements.LOCK_SALES, {"sale_ids": of})
            found: Sequence[MovingOrder] = (
                await connection.execute(
                    still_due.with_for_update(skip_locked=True).order_by(orders.c.reservation_id)
                )
            ).all()
            moved = await move_orders(
                connection,
                found,
                OrderState.AWAITING_PAYMENT,
                OrderState.EXPIRED,
                at_ms=now_ms,
                actor=REAPER,
                reason=EXPIRED_REASON,
                given_up=True,
            )
            await connection.execute(
                delete(expiry_setbacks).where(
                    expiry_setbacks.c.reservation_id.in_(reservation_ids),
                    ~select(orders.c.reservation_id)
                    .where(
                        orders.c.reservation_id == expiry_setbacks.c.reservation_id,
                        orders.c.state == "awaiting_payment",
                    )
                    .exists(),
                )
            )
            return len(moved)

        try:
            return await self._database.write(f"expire {len(reservation_ids)} orders", work)
        except LedgerBroken as broken:
            raise ExpiryRefused(str(broken)) from broken

    async def set_aside(self, reservation_id: ReservationId, error: str) -> None:
        """Leave an order alone for a while, longer each time: it must not hold up the others."""
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            inserted = await connection.execute(
                statements.INSERTS[connection.dialect.name].setback,
                {
                    "reservation_id": reservation_id,
                    "tries": 1,
                    "first_at_ms": now_ms,
                    "next_try_at_ms": now_ms + _SETBACK_MS_MIN,
                    "error": error,
                },
            )
            if inserted.one_or_none() is not None:
                return
            tries = await connection.scalar(
                update(expiry_setbacks)
                .where(expiry_setbacks.c.reservation_id == reservation_id)
                .values(tries=expiry_setbacks.c.tries + 1, error=error)
                .returning(expiry_setbacks.c.tries)
            )
            pause_ms = min(_SETBACK_MS_MIN * 2 ** min(int(tries or 2) - 1, 20), _SETBACK_MS_MAX)
            await connection.execute(
                update(expiry_setbacks)
                .where(expiry_setbacks.c.reservation_id == reservation_id)
                .values(next_try_at_ms=now_ms + pause_ms)
            )

        await self._database.write(f"set order {reservation_id} aside", work)

    async def lag(self) -> ExpiryLag:
        """How far the expiry is behind."""
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> ExpiryLag:
            oldest: Any = await connection.scalar(
                select(func.min(orders.c.pay_by_ms)).where(
                    orders.c.state == "awaiting_payment", orders.c.pay_by_ms <= now_ms
                )
            )
            aside = await connection.scalar(select(func.count()).select_from(_STILL_UNPAID))
            return ExpiryLag(0 if oldest is None else now_ms - oldest, int(aside or 0))

        return await self._database.read("measure how late orders expire", work)

    async def setbacks(self) -> list[Setback]:
        """The orders that are set aside, the oldest first, at most 100."""
        query = (
            select(
                expiry_setbacks.c.reservation_id,
                expiry_setbacks.c.tries,
                expiry_setbacks.c.first_at_ms,
                expiry_setbacks.c.next_try_at_ms,
                expiry_setbacks.c.error,
            )
            .select_from(_STILL_UNPAID)
            .order_by(expiry_setbacks.c.first_at_ms, expiry_setbacks.c.reservation_id)
            .limit(_SETBACKS_SHOWN_MAX)
        )

        async def work(connection: AsyncConnection) -> list[Setback]:
            return [Setback(*row) for row in await connection.execute(query)]

        return await self._database.read("read what was set aside", work)
