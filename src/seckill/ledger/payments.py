"""Payments: started by buyers, finished by their provider's news, in whatever order it comes.

The order's row decides. Money moves it from awaiting payment to paid, if nobody has moved it
elsewhere before; money that finds it elsewhere is late, or too much, and is never lost: the payment
says where it stands and what is to be done with it, and the reaper does that until it is done.

Locks are taken in this order: the sale (where units may be given back), the payment, the order.
"""

from collections.abc import Sequence
from typing import Any, Final

import structlog
from sqlalchemy import ColumnElement, Row, Select, func, insert, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.clock import Clock
from seckill.domain.ids import AttemptId, ReservationId, UserId
from seckill.domain.order import Order, OrderState
from seckill.domain.payment import (
    CURRENCY,
    Money,
    NewsKind,
    NewsOutcome,
    Payment,
    PaymentId,
    PaymentNews,
    PaymentState,
)
from seckill.domain.reservation import BucketId
from seckill.domain.sale import LatePayment
from seckill.ledger import statements
from seckill.ledger.engine import Database
from seckill.ledger.errors import DeadlinePassed, EventIdReused, TooManyPayments, WrongState
from seckill.ledger.moves import MovingOrder, lock_with_sale, move_orders, read_order
from seckill.ledger.records import check_actor, check_reason, record_order_action
from seckill.ledger.tables import orders, payment_events, payments, sales
from seckill.pipeline.ports import DuePayment, LateVerdict

__all__ = ["PAYMENTS_PER_ORDER_MAX", "PROVIDER", "PaymentBook", "late_attempt"]

PAYMENTS_PER_ORDER_MAX: Final = 20
PROVIDER: Final = "provider"
"""The actor of what the payment provider's news brings about."""

_REAPER: Final = "reaper"
_CLAIM_MS: Final = 10_000
"""How long a payment that a reaper works on is left alone by the others: longer than one call."""

_PAID_LATE: Final = (
    "Your payment came after the deadline, and the item was back on sale. We look whether one is"
    " left; if not, the money goes back to you."
)
_PAID_TOO_LATE: Final = (
    "Your payment came after the deadline, when the item was back on sale. The money goes back to"
    " you."
)
_PAID_GONE: Final = {
    OrderState.EXPIRED: _PAID_TOO_LATE,
    OrderState.CANCELLED: "Your payment came after the order was cancelled. The money goes back to"
    " you.",
    OrderState.COMPENSATED: "Your payment came for an order that could not be made. The money goes"
    " back to you.",
}
_REFUNDED: Final = "The money has gone back to you."
_TAKEN_LATE: Final = (
    "Your payment came after the deadline and has bought another item, in the order"
)

_log = structlog.get_logger(__name__)

_PAYMENTS: Final[Select[Any]] = select(
    payments.c.payment_id,
    payments.c.reservation_id,
    payments.c.attempt,
    payments.c.amount_fen,
    payments.c.currency,
    payments.c.state,
    payments.c.deadline_ms,
    payments.c.page_url,
    payments.c.received_fen,
    payments.c.received_currency,
    payments.c.received_at_ms,
    payments.c.pays,
    payments.c.reason,
    payments.c.refunds,
)


def late_attempt(payment_id: PaymentId) -> AttemptId:
    """The attempt that money which came late buys with: the same however often it is tried.

    It is longer than any attempt of a buyer's request, so none of those can be taken for it.
    """
    return AttemptId(f"late-{payment_id}")


def _payment(row: Row[Any]) -> Payment:
    received = None
    if row.received_fen is not None:
        received = Money(row.received_fen, row.received_currency)
    return Payment(
        payment_id=row.payment_id,
        reservation_id=row.reservation_id,
        attempt=row.attempt,
        money=Money(row.amount_fen, row.currency),
        state=PaymentState(row.state),
        deadline_ms=row.deadline_ms,
        page_url=row.page_url,
        received=received,
        reason=row.reason,
        refunds=row.refunds,
    )


class PaymentBook:
    """The payments of the ledger.

    Every method raises LedgerUnavailable when the database cannot be asked now; nothing was
    changed then, and the same call may be made again.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    # What buyers do

    async def start(
        self, reservation_id: ReservationId, user_id: UserId, *, new_id: PaymentId
    ) -> tuple[Order, Payment | None] | None:
        """Start to pay an order, or go on with the payment that is open already.

        Args:
            reservation_id: the order.
            user_id: whose it is.
            new_id: names the payment, if one has to be made.

        Returns:
            The order and its open payment, which may have no page yet; no payment when the order
            is paid. None when this user has no such order in the ledger.

        Raises:
            WrongState: it is expired, cancelled or compensated.
            DeadlinePassed: it is about to expire.
            TooManyPayments: twenty have failed.
        """
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> tuple[Order, Payment | None] | None:
            # The row is locked: two clicks make one payment.
            locked = await connection.execute(
                select(orders.c.reservation_id)
                .where(orders.c.reservation_id == reservation_id, orders.c.user_id == user_id)
                .with_for_update()
            )
            if locked.one_or_none() is None:
                return None
            order = await read_order(connection, reservation_id)
            if order.state is OrderState.PAID:
                return order, None
            if order.state is not OrderState.AWAITING_PAYMENT:
                raise WrongState(order, OrderState.PAID)
            assert order.pay_by_ms is not None, "an order in the ledger has a deadline"
            if now_ms >= order.pay_by_ms:
                raise DeadlinePassed(order)
            latest = await self._latest_of(connection, reservation_id)
            if latest is not None and latest.state is PaymentState.STARTED:
                return order, latest
            attempt = 1 if latest is None else latest.attempt + 1
            if attempt > PAYMENTS_PER_ORDER_MAX:
                raise TooManyPayments(order, PAYMENTS_PER_ORDER_MAX)
            await connection.execute(
                insert(payments),
                {
                    "payment_id": new_id,
                    "reservation_id": reservation_id,
                    "attempt": attempt,
                    "amount_fen": order.price_fen * order.quantity,
                    "currency": CURRENCY,
                    "state": PaymentState.STARTED.value,
                    "started_at_ms": now_ms,
                    "deadline_ms": order.pay_by_ms,
                    "refunds": 0,
                    "tries": 0,
                },
            )
            return order, await self._latest_of(connection, reservation_id)

        return await self._database.write(f"start to pay order {reservation_id}", work)

    async def page_made(self, payment_id: PaymentId, page_url: str) -> str:
        """Record where a payment is made; returns the address that counts: the first one."""

        async def work(connection: AsyncConnection) -> str:
            result = await connection.execute(
                update(payments)
                .where(payments.c.payment_id == payment_id)
                .values(page_url=func.coalesce(payments.c.page_url, page_url))
                .returning(payments.c.page_url)
            )
            return str(result.scalar_one())

        return await self._database.write(f"record the page of payment {payment_id}", work)

    async def of_order(self, reservation_id: ReservationId) -> list[Payment]:
        """The payments of an order, and those that paid it from another one; oldest first."""

        async def work(connection: AsyncConnection) -> list[Payment]:
            result = await connection.execute(
                _PAYMENTS.where(_concerns(reservation_id)).order_by(
                    payments.c.started_at_ms, payments.c.payment_id
                )
            )
            return [_payment(row) for row in result]

        return await self._database.read(f"read the payments of order {reservation_id}", work)

    # What the provider tells

    async def take(self, news: PaymentNews) -> tuple[NewsOutcome, str | None]:
        """Take one event of the provider, each once.

        Returns:
            What became of it, and why when it was ignored.

        Raises:
            EventIdReused: another event came under this name before.
        """
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> tuple[NewsOutcome, str | None]:
            inserted = await connection.execute(
                statements.INSERTS[connection.dialect.name].payment_event,
                {
                    "event_id": news.event_id,
                    "payment_id": news.payment_id,
                    "kind": news.kind.value,
                    "amount_fen": None if news.money is None else news.money.amount_fen,
                    "currency": None if news.money is None else news.money.currency,
                    "at_ms": news.at_ms,
                    "received_at_ms": now_ms,
                    "content_hash": news.content_hash,
                    "outcome": NewsOutcome.APPLIED.value,
                },
            )
            if inserted.one_or_none() is None:
                known = await connection.scalar(
                    select(payment_events.c.content_hash).where(
                        payment_events.c.event_id == news.event_id
                    )
                )
                if known != news.content_hash:
                    raise EventIdReused(news.event_id)
                return NewsOutcome.KNOWN, None
            ignored = await self._apply(connection, news, now_ms)
            if ignored is None:
                return NewsOutcome.APPLIED, None
            await connection.execute(
                update(payment_events)
                .where(payment_events.c.event_id == news.event_id)
                .values(outcome=NewsOutcome.IGNORED.value, reason=ignored)
            )
            return NewsOutcome.IGNORED, ignored

        return await self._database.write(f"take the payment event {news.event_id}", work)

    async def _apply(  # noqa: PLR0911  -- one for each reason
        self, connection: AsyncConnection, news: PaymentNews, now_ms: int
    ) -> str | None:
        """Apply an event; returns why it was ignored, or None."""
        found = await self._concerned(connection, news.payment_id)
        if found is None:
            _log.error("news of an unknown payment", payment_id=news.payment_id, kind=news.kind)
            return "there is no such payment"
        if news.kind in {NewsKind.REFUNDED, NewsKind.REFUND_FAILED}:
            # It may give units back: the sale comes before payment and order.
            await connection.execute(statements.LOCK_SALES, {"sale_ids": [found.sale_id]})
        payment = await _locked(connection, news.payment_id)
        match news.kind:
            case NewsKind.PAID:
                return await self._take_money(connection, payment, news, now_ms)
            case NewsKind.FAILED | NewsKind.EXPIRED:
                if payment.state is not PaymentState.STARTED:
                    return f"the payment is {payment.state} already"
                await _set(
                    connection,
                    payment,
                    PaymentState.FAILED,
                    now_ms,
                    reason=news.reason or news.kind.value,
                )
                return None
            case NewsKind.REFUNDED:
                return await self._take_refund(connection, payment, news, now_ms)
            case NewsKind.REFUND_FAILED:
                if payment.state is not PaymentState.REFUND_DUE:
                    return f"the payment is {payment.state}, not about to be refunded"
                # Another name: the provider would answer to the old one what it has answered.
                await _set(
                    connection,
                    payment,
                    PaymentState.REFUND_DUE,
                    now_ms,
                    refunds=payment.refunds + 1,
                    next_try_at_ms=now_ms + _CLAIM_MS,
                )
                _log.error("a refund failed", payment_id=payment.payment_id, reason=news.reason)
                return None

    async def _take_money(
        self, connection: AsyncConnection, payment: Payment, news: PaymentNews, now_ms: int
    ) -> str | None:
        if payment.state not in {PaymentState.STARTED, PaymentState.FAILED}:
            return f"the payment is {payment.state} already"
        assert news.money is not None, "the reader of the webhook lets no money through unnamed"
        received = {
            "received_fen": news.money.amount_fen,
            "received_currency": news.money.currency,
            "received_at_ms": now_ms,
        }
        if await _has_gone_back(connection, payment.payment_id):
            await _set(
                connection,
                payment,
                PaymentState.REFUNDED,
                now_ms,
                reason="the provider gave it back before it told of it",
                **received,
            )
            return None
        if news.money != payment.money:
            _log.error(
                "a payment of a wrong amount",
                payment_id=payment.payment_id,
                asked=str(payment.money),
                received=str(news.money),
            )
            reason = f"{news.money} came instead of {payment.money}"
            await _give_money_back(connection, payment, now_ms, reason, **received)
            return None
        moving = (
            await connection.execute(
                statements.MOVING_ORDERS.where(orders.c.reservation_id == payment.reservation_id)
            )
        ).one()
        if await move_orders(
            connection,
            [moving],
            OrderState.AWAITING_PAYMENT,
            OrderState.PAID,
            at_ms=now_ms,
            actor=PROVIDER,
            reason=None,
            paid_at_ms=now_ms,
        ):
            await _set(
                connection,
                payment,
                PaymentState.PAID,
                now_ms,
                pays=payment.reservation_id,
                reason=None,
                **received,
            )
            return None
        order = await read_order(connection, payment.reservation_id)
        if order.state is OrderState.EXPIRED and await _takes_free_unit(connection, order):
            await _set(
                connection,
                payment,
                PaymentState.LATE,
                now_ms,
                reason="the order had expired",
                next_try_at_ms=now_ms,
                **received,
            )
            await connection.execute(
                update(orders)
                .where(orders.c.reservation_id == order.reservation_id)
                .values(reason=_PAID_LATE)
            )
            return None
        reason = f"the order was {order.state} already"
        await _give_money_back(connection, payment, now_ms, reason, **received)
        if order.state in _PAID_GONE:
            await move_orders(
                connection,
                [moving],
                order.state,
                OrderState.REFUND_DUE,
                at_ms=now_ms,
                actor=PROVIDER,
                reason=_PAID_GONE[order.state],
            )
        return None

    async def _take_refund(
        self, connection: AsyncConnection, payment: Payment, news: PaymentNews, now_ms: int
    ) -> str | None:
        if payment.received is None:
            # Its own news is still under way; `_has_gone_back` finds this event then.
            return f"the payment is {payment.state}: its money has not come yet"
        if payment.state is PaymentState.REFUNDED:
            return "the payment is refunded already"
        if news.money is not None and news.money != payment.received:
            _log.error(
                "a refund of another amount",
                payment_id=payment.payment_id,
                received=str(payment.received),
                refunded=str(news.money),
            )
            return f"{news.money} went back, {payment.received} had come"
        await self._refunded(connection, payment, now_ms, by=PROVIDER)
        return None

    async def _refunded(
        self, connection: AsyncConnection, payment: Payment, now_ms: int, *, by: str
    ) -> None:
        """The money of a payment is back. Under the locks of sale and payment."""
        concerned = await connection.scalar(
            select(func.coalesce(payments.c.pays, payments.c.reservation_id)).where(
                payments.c.payment_id == payment.payment_id
            )
        )
        moving = (
            await connection.execute(
                statements.MOVING_ORDERS.where(orders.c.reservation_id == concerned)
            )
        ).one()
        # What the provider gives back of its own accord: the order loses its money, so its units.
        for start in (OrderState.PAID, OrderState.EXPIRED):
            if (payment.state, start) in {
                (PaymentState.PAID, OrderState.PAID),
                (PaymentState.LATE, OrderState.EXPIRED),
            }:
                await move_orders(
                    connection,
                    [moving],
                    start,
                    OrderState.REFUND_DUE,
                    at_ms=now_ms,
                    actor=by,
                    reason="The payment provider gave the money back.",
                )
        await _set(connection, payment, PaymentState.REFUNDED, now_ms)
        others = await connection.scalar(
            select(func.count())
            .select_from(payments)
            .where(_concerns(ReservationId(concerned)), payments.c.state == "refund_due")
        )
        if not others:
            await move_orders(
                connection,
                [moving],
                OrderState.REFUND_DUE,
                OrderState.REFUNDED,
                at_ms=now_ms,
                actor=by,
                reason=_REFUNDED,
            )

    # What operators do

    async def refund(
        self, reservation_id: ReservationId, *, actor: str, reason: str
    ) -> Order | None:
        """Give the money of a paid order back, and its units to the sale.

        Refunding again changes nothing.

        Returns:
            The order as it is now; None when there is none.

        Raises:
            WrongState: it is not paid.
            InvalidValue: naming ``actor`` or ``reason``.
        """
        check_actor(actor)
        check_reason(reason)
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> Order | None:
            found = await lock_with_sale(connection, reservation_id, true())
            if found is None:
                return None
            paid_by = (
                await connection.execute(
                    _PAYMENTS.where(
                        payments.c.pays == reservation_id, payments.c.state == "paid"
                    ).with_for_update()
                )
            ).one_or_none()
            moved = await move_orders(
                connection,
                [found],
                OrderState.PAID,
                OrderState.REFUND_DUE,
                at_ms=now_ms,
                actor=actor,
                reason=reason or "The money goes back to you.",
            )
            order = await read_order(connection, reservation_id)
            if not moved:
                if order.state in {OrderState.REFUND_DUE, OrderState.REFUNDED}:
                    return order
                raise WrongState(order, OrderState.REFUND_DUE)
            assert paid_by is not None, "a paid order has the payment that paid it"
            await _set(
                connection,
                _payment(paid_by),
                PaymentState.REFUND_DUE,
                now_ms,
                reason=reason or f"refunded by {actor}",
                next_try_at_ms=now_ms,
            )
            await record_order_action(
                connection,
                order,
                OrderState.PAID,
                at_ms=now_ms,
                actor=actor,
                action="refund_order",
                reason=reason,
            )
            return order

        return await self._database.write(f"refund order {reservation_id}", work)

    # What the reaper does: implements `pipeline.ports.PaymentLedger`

    async def claim(self, payments_max: int) -> list[DuePayment]:
        """Payments with something to be done, the longest due first; left to the caller for 10 s.

        A reaper that dies with them leaves them to the others when that time is over.
        """
        now_ms = self._clock.now_ms()
        due = (
            select(payments.c.payment_id)
            .where(payments.c.next_try_at_ms <= now_ms)
            .order_by(payments.c.next_try_at_ms, payments.c.payment_id)
            .limit(payments_max)
            .with_for_update(skip_locked=True)
        )

        async def work(connection: AsyncConnection) -> list[DuePayment]:
            ids = (await connection.execute(due)).scalars().all()
            if not ids:
                return []
            await connection.execute(
                update(payments)
                .where(payments.c.payment_id.in_(ids))
                .values(next_try_at_ms=now_ms + _CLAIM_MS, tries=payments.c.tries + 1)
            )
            result = await connection.execute(
                select(
                    payments.c.payment_id,
                    payments.c.state,
                    payments.c.received_fen,
                    payments.c.received_currency,
                    payments.c.received_at_ms,
                    payments.c.refunds,
                    payments.c.tries,
                    orders.c.sale_id,
                    orders.c.bucket,
                    orders.c.user_id,
                    orders.c.quantity,
                )
                .join(orders, orders.c.reservation_id == payments.c.reservation_id)
                .where(payments.c.payment_id.in_(ids))
                .order_by(payments.c.next_try_at_ms, payments.c.payment_id)
            )
            return [
                DuePayment(
                    payment_id=row.payment_id,
                    state=PaymentState(row.state),
                    money=Money(row.received_fen, row.received_currency),
                    received_at_ms=row.received_at_ms,
                    refund_id=f"{row.payment_id}-r{row.refunds + 1}",
                    tries=row.tries,
                    bucket_id=BucketId(row.sale_id, row.bucket),
                    user_id=row.user_id,
                    quantity=row.quantity,
                    attempt_id=late_attempt(row.payment_id),
                )
                for row in result
            ]

        return await self._database.write("claim due payments", work)

    async def settle_late(self, payment_id: PaymentId) -> LateVerdict:
        """Let money that came late pay the order that it has bought, if that is written by now.

        Returns:
            ``SETTLED`` when nothing is left to be done; ``WANTING`` when it has bought nothing
            that is in the books yet; ``MISSED`` when what it had bought was refused, or expired.
        """
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> LateVerdict:
            payment = await _locked(connection, payment_id)
            if payment.state is not PaymentState.LATE:
                return LateVerdict.SETTLED
            bought = await self._bought_by(connection, payment)
            waiting = [row for row in bought if row.state == OrderState.AWAITING_PAYMENT.value]
            if not bought:
                return LateVerdict.WANTING
            for row in waiting:
                if row.price_fen * row.quantity != payment.money.amount_fen:
                    continue
                if await move_orders(
                    connection,
                    [row],
                    OrderState.AWAITING_PAYMENT,
                    OrderState.PAID,
                    at_ms=now_ms,
                    actor=_REAPER,
                    reason=f"Paid by the late payment of order {payment.reservation_id}.",
                    paid_at_ms=now_ms,
                ):
                    await _set(
                        connection,
                        payment,
                        PaymentState.PAID,
                        now_ms,
                        pays=row.reservation_id,
                        reason="it came late and took a free unit",
                    )
                    await connection.execute(
                        update(orders)
                        .where(orders.c.reservation_id == payment.reservation_id)
                        .values(
                            continued_as=row.reservation_id,
                            reason=f"{_TAKEN_LATE} {row.reservation_id}.",
                        )
                    )
                    return LateVerdict.SETTLED
            return LateVerdict.MISSED

        return await self._database.write(f"settle the late payment {payment_id}", work)

    async def give_up_late(self, payment_id: PaymentId, reason: str) -> bool:
        """Let money that found no free unit go back; False when it has bought one after all."""
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> bool:
            payment = await _locked(connection, payment_id)
            if payment.state is not PaymentState.LATE:
                return False
            bought = await self._bought_by(connection, payment)
            if any(row.state == OrderState.AWAITING_PAYMENT.value for row in bought):
                return False
            await _give_money_back(connection, payment, now_ms, reason)
            moving = (
                await connection.execute(
                    statements.MOVING_ORDERS.where(
                        orders.c.reservation_id == payment.reservation_id
                    )
                )
            ).one()
            await move_orders(
                connection,
                [moving],
                OrderState.EXPIRED,
                OrderState.REFUND_DUE,
                at_ms=now_ms,
                actor=_REAPER,
                reason=_PAID_TOO_LATE,
            )
            return True

        return await self._database.write(f"give the late payment {payment_id} back", work)

    async def refunded(self, payment_id: PaymentId) -> None:
        """Record that the money of a payment is back. Twice is as good as once."""
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            found = await self._concerned(connection, payment_id)
            assert found is not None, "only a payment of these books is refunded"
            await connection.execute(statements.LOCK_SALES, {"sale_ids": [found.sale_id]})
            payment = await _locked(connection, payment_id)
            if payment.state is PaymentState.REFUND_DUE:
                await self._refunded(connection, payment, now_ms, by=_REAPER)

        await self._database.write(f"record the refund of payment {payment_id}", work)

    async def postpone(self, payment_id: PaymentId, pause_ms: int, why: str) -> None:
        """Look at a payment again later."""
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(
                update(payments)
                .where(payments.c.payment_id == payment_id, payments.c.next_try_at_ms.is_not(None))
                .values(next_try_at_ms=now_ms + pause_ms)
            )

        await self._database.write(f"postpone payment {payment_id} ({why})", work)

    # Small things

    async def _latest_of(
        self, connection: AsyncConnection, reservation_id: ReservationId
    ) -> Payment | None:
        row = (
            await connection.execute(
                _PAYMENTS.where(payments.c.reservation_id == reservation_id)
                .order_by(payments.c.attempt.desc())
                .limit(1)
            )
        ).one_or_none()
        return None if row is None else _payment(row)

    async def _concerned(
        self, connection: AsyncConnection, payment_id: PaymentId
    ) -> MovingOrder | None:
        """The order that a payment was started for; None when there is no such payment."""
        row: MovingOrder | None = (
            await connection.execute(
                statements.MOVING_ORDERS.join(
                    payments, payments.c.reservation_id == orders.c.reservation_id
                ).where(payments.c.payment_id == payment_id)
            )
        ).one_or_none()
        return row

    async def _bought_by(
        self, connection: AsyncConnection, payment: Payment
    ) -> Sequence[MovingOrder]:
        """The orders that late money has bought: one, unless it had to buy again."""
        old = (
            await connection.execute(
                statements.MOVING_ORDERS.where(orders.c.reservation_id == payment.reservation_id)
            )
        ).one()
        bought: Sequence[MovingOrder] = (
            await connection.execute(
                statements.MOVING_ORDERS.where(
                    orders.c.user_id == old.user_id,
                    orders.c.sale_id == old.sale_id,
                    orders.c.attempt_id == late_attempt(payment.payment_id),
                )
            )
        ).all()
        return bought


def _concerns(reservation_id: ReservationId) -> ColumnElement[bool]:
    """The payments whose money this order has, or had."""
    return or_(
        payments.c.pays == reservation_id,
        (payments.c.reservation_id == reservation_id) & payments.c.pays.is_(None),
    )


async def _locked(connection: AsyncConnection, payment_id: PaymentId) -> Payment:
    row = (
        await connection.execute(
            _PAYMENTS.where(payments.c.payment_id == payment_id).with_for_update()
        )
    ).one()
    return _payment(row)


async def _set(
    connection: AsyncConnection,
    payment: Payment,
    state: PaymentState,
    now_ms: int,
    **changes: Any,
) -> None:
    """Bring a payment that this transaction has locked into a state."""
    ended = state in {PaymentState.FAILED, PaymentState.PAID, PaymentState.REFUNDED}
    values: dict[str, Any] = {
        "state": state.value,
        "tries": 0,
        "next_try_at_ms": None,
        "ended_at_ms": now_ms if ended else None,
    }
    changed = await connection.execute(
        update(payments)
        .where(payments.c.payment_id == payment.payment_id, payments.c.state == payment.state.value)
        .values(**values | changes)
        .returning(payments.c.payment_id)
    )
    assert changed.one_or_none() is not None, "a payment that is locked stays as it was read"


async def _give_money_back(
    connection: AsyncConnection, payment: Payment, now_ms: int, reason: str, **received: Any
) -> None:
    """Let the money of a payment go back: the reaper asks the provider for that."""
    await _set(
        connection,
        payment,
        PaymentState.REFUND_DUE,
        now_ms,
        reason=reason,
        next_try_at_ms=now_ms,
        **received,
    )


async def _has_gone_back(connection: AsyncConnection, payment_id: PaymentId) -> bool:
    """Whether the provider told of the refund of a payment before it told of its money."""
    found = await connection.scalar(
        select(payment_events.c.event_id)
        .where(
            payment_events.c.payment_id == payment_id,
            payment_events.c.kind == NewsKind.REFUNDED.value,
        )
        .limit(1)
    )
    return found is not None


async def _takes_free_unit(connection: AsyncConnection, order: Order) -> bool:
    rule, may_buy_again = (
        await connection.execute(
            select(sales.c.late_payment, sales.c.may_buy_again).where(
                sales.c.sale_id == order.sale_id
            )
        )
    ).one()
    return bool(may_buy_again and rule == LatePayment.TAKE_FREE_UNIT.value)
