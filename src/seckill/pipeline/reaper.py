"""The reaper: what happens to orders and payments by themselves, in time.

Two works, independent of each other, so that a provider that is away delays no expiry:

* `Reaper.expire_due`: unpaid orders past their deadline end, in bounded batches. What the ledger
  refuses is found by halving, set aside, and holds nobody else up.
* `Reaper.finish_payments`: money that came late looks for a free unit, and money that is to go back
  is asked back, until the provider has said that it is.

Any number of reapers may run. Nothing is kept in memory between two runs, so a reaper that is
killed anywhere leaves its work to the next one; a store that is away makes it late, never wrong.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, assert_never

import structlog

from seckill.admission.errors import StockUnavailable
from seckill.admission.late import LateAnswer
from seckill.domain.clock import Clock
from seckill.domain.errors import SeckillError
from seckill.domain.ids import AttemptId, ReservationId, UserId
from seckill.domain.payment import PaymentState
from seckill.domain.reservation import BucketId
from seckill.payment.errors import ProviderAway, ProviderRefused
from seckill.payment.provider import PaymentProvider, RefundRequest
from seckill.pipeline.errors import ExpiryFailed, LedgerAway
from seckill.pipeline.ports import (
    DuePayment,
    ExpiryLag,
    ExpiryLedger,
    LateVerdict,
    PaymentLedger,
)

__all__ = ["LateUnits", "Reaper", "ReaperObserver"]

_log = structlog.get_logger()

BATCH_MAX: Final = 250
"""Orders in one transaction: a few dozen milliseconds for whoever waits to write beside it."""
BATCHES_A_RUN_MAX: Final = 40
PAYMENTS_MAX: Final = 50
REFUNDS_AT_ONCE_MAX: Final = 5
REFUND_WAIT_S: Final = 8.0
"""For one answer of the provider. Less than payments stay with the reaper that has taken them."""

_LATE_LOOK_MS: Final = 200
_LATE_PATIENCE_MS: Final = 600_000
_NEWS_PATIENCE_MS: Final = 600_000
_RETRY_MS_MIN: Final = 1_000
_RETRY_MS_MAX: Final = 300_000
_REFUSED_RETRY_MS: Final = 3_600_000


class _NoAnswer(ProviderAway):
    """It neither did it nor said no, for as long as it is waited for."""


class LateUnits(Protocol):
    """Takes free units for late money. The real one is `admission.late.LateAdmission`."""

    async def take(
        self, bucket_id: BucketId, user_id: UserId, quantity: int, attempt_id: AttemptId
    ) -> tuple[LateAnswer, str]:
        """Take units, once for each attempt. Raises StockUnavailable."""
        ...


class ReaperObserver(Protocol):
    """Receives counts from the reaper."""

    def expired(self, orders: int) -> None:
        """So many orders have expired now."""
        ...

    def run_ended(self, lag: ExpiryLag) -> None:
        """A look at the due orders came to its end; so far behind is the expiry now."""
        ...

    def late_settled(self, *, taken: bool) -> None:
        """Late money has paid a free unit, or goes back."""
        ...

    def refund_asked(self) -> None:
        """The provider was asked to give money back."""
        ...


class Reaper:
    """Ends unpaid orders and finishes payments.

    Args:
        provider: None where nobody takes money: refunds wait until somebody does.
    """

    def __init__(
        self,
        *,
        expiry: ExpiryLedger,
        payments: PaymentLedger,
        late_units: LateUnits,
        provider: PaymentProvider | None,
        clock: Clock,
        observer: ReaperObserver,
    ) -> None:
        self._expiry = expiry
        self._payments = payments
        self._late_units = late_units
        self._provider = provider
        self._clock = clock
        self._observer = observer

    # Orders

    async def expire_due(self) -> int:
        """Expire what is due now; returns how many orders that were.

        Raises:
            LedgerAway: the rest is found again.
        """
        total = 0
        for _ in range(BATCHES_A_RUN_MAX):
            due = await self._expiry.due(BATCH_MAX)
            expired = await self._expire(due)
            total += expired
            # Without progress somebody else is at these very orders, or they are being paid.
            if len(due) < BATCH_MAX or not expired:
                break
        if total:
            self._observer.expired(total)
        self._observer.run_ended(await self._expiry.lag())
        return total

    async def _expire(self, due: Sequence[ReservationId]) -> int:
        """Expire a batch; where one of it is refused, find it by halving and set it aside."""
        if not due:
            return 0
        try:
            return await self._expiry.expire(due)
        except ExpiryFailed as error:
            if len(due) == 1:
                _log.error("an order cannot be expired", reservation_id=due[0], error=str(error))
                await self._expiry.set_aside(due[0], str(error))
                return 0
        middle = len(due) // 2
        return await self._expire(due[:middle]) + await self._expire(due[middle:])

    # Payments

    async def finish_payments(self) -> int:
        """Do what is to be done for payments now; returns how many were looked at.

        One that fails is tried again later, after a growing pause, and holds up no other. One that
        the provider does not answer holds up the other refunds for `REFUND_WAIT_S` at most.

        Raises:
            LedgerAway: the rest is found again.
        """
        due = await self._payments.claim(PAYMENTS_MAX)
        # Late money needs nobody but us: it does not wait for a provider that is slow.
        for payment in due:
            if payment.state is not PaymentState.REFUND_DUE:
                await self._finish_or_postpone(payment)
        refunds = [payment for payment in due if payment.state is PaymentState.REFUND_DUE]
        for at in range(0, len(refunds), REFUNDS_AT_ONCE_MAX):
            some = refunds[at : at + REFUNDS_AT_ONCE_MAX]
            answered = await asyncio.gather(
                *(self._finish_or_postpone(payment) for payment in some), return_exceptions=True
            )
            for one in answered:
                if isinstance(one, BaseException):
                    raise one
            if not any(answered):
                break  # nor would there be one for the rest, which is due again in a moment
        return len(due)

    async def _finish_or_postpone(self, payment: DuePayment) -> bool:
        """Do what is to be done for one payment now, or put it off; False without an answer."""
        try:
            await self._finish(payment)
        except LedgerAway:
            raise
        except SeckillError as error:
            # Looked at again at once when Redis is back: a buyer waits for the answer.
            away = isinstance(error, StockUnavailable)
            pause_ms = _RETRY_MS_MIN if away else _pause_ms(payment.tries)
            if not isinstance(error, (StockUnavailable, ProviderAway)):
                pause_ms = _REFUSED_RETRY_MS
                _log.error(
                    "a payment cannot be finished",
                    payment_id=payment.payment_id,
                    state=payment.state,
                    error=str(error),
                    advice="look at it at the provider; `seckill orders show` tells its order",
                )
            await self._payments.postpone(payment.payment_id, pause_ms, str(error))
            return not isinstance(error, _NoAnswer)
        return True

    async def _finish(self, payment: DuePayment) -> None:
        match payment.state:
            case PaymentState.LATE:
                await self._find_unit(payment)
            case PaymentState.REFUND_DUE:
                await self._give_back(payment)
            case _:
                raise AssertionError(f"nothing is due for a payment that is {payment.state}")

    async def _find_unit(self, payment: DuePayment) -> None:
        verdict = await self._payments.settle_late(payment.payment_id)
        match verdict:
            case LateVerdict.SETTLED:
                self._observer.late_settled(taken=True)
            case LateVerdict.MISSED:
                await self._give_up(payment, "what it had bought was refused, or expired")
            case LateVerdict.WANTING:
                answer, why = await self._late_units.take(
                    payment.bucket_id, payment.user_id, payment.quantity, payment.attempt_id
                )
                waited_ms = self._clock.now_ms() - payment.received_at_ms
                if answer is LateAnswer.REFUSED or (
                    answer is LateAnswer.NOT_NOW and waited_ms > _LATE_PATIENCE_MS
                ):
                    await self._give_up(payment, why)
                else:
                    # Taken: the order worker writes it in a moment. Not now: in a while.
                    taken = answer is LateAnswer.TAKEN
                    pause_ms = _LATE_LOOK_MS if taken else _pause_ms(payment.tries)
                    await self._payments.postpone(payment.payment_id, pause_ms, why)
            case _:
                assert_never(verdict)

    async def _give_up(self, payment: DuePayment, why: str) -> None:
        if await self._payments.give_up_late(payment.payment_id, why):
            self._observer.late_settled(taken=False)
        else:  # it was written at this very moment
            await self._payments.postpone(payment.payment_id, _LATE_LOOK_MS, "it has one")

    async def _give_back(self, payment: DuePayment) -> None:
        if self._provider is None:
            raise ProviderRefused("no payment provider is set up (setting payment_provider)")
        self._observer.refund_asked()
        request = RefundRequest(
            refund_id=payment.refund_id, payment_id=payment.payment_id, money=payment.money
        )
        try:
            async with asyncio.timeout(REFUND_WAIT_S):
                done = await self._provider.refund(request)
        except SeckillError:
            raise
        except TimeoutError as error:
            raise _NoAnswer("the payment provider gave no answer in time") from error
        except Exception as error:  # a provider is somebody else's program
            _log.exception("the payment provider met an error", payment_id=payment.payment_id)
            raise ProviderAway(f"{type(error).__name__}: {error}") from error
        if done:
            await self._payments.refunded(payment.payment_id)
        else:
            await self._payments.postpone(payment.payment_id, _NEWS_PATIENCE_MS, "news will follow")


def _pause_ms(tries: int) -> int:
    return int(min(_RETRY_MS_MIN * 2 ** min(max(tries - 1, 0), 20), _RETRY_MS_MAX))
