"""What the order worker and the reaper need from the sides that they join."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from seckill.domain.events import BucketEvent
from seckill.domain.ids import AttemptId, ReservationId, SaleId, UserId
from seckill.domain.payment import Money, PaymentId, PaymentState
from seckill.domain.reservation import BucketId, Place

__all__ = [
    "Delivery",
    "DuePayment",
    "ExpiryLag",
    "ExpiryLedger",
    "LateVerdict",
    "OrderChannel",
    "OrderLedger",
    "PaymentLedger",
    "PendingRelease",
    "PendingStockChange",
    "UnderWay",
    "UnderWayLetter",
    "WriteReport",
]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message of a channel: what happened in one batch of one bucket, in order of ``seq``.

    Attributes:
        bucket_id: the bucket whose outbox it came from.
        token: what the channel needs to acknowledge it; opaque to everybody else.
        events: at least one event.
        traces: the trace (W3C traceparent) that an event belongs to, by its seq; None for none.
    """

    bucket_id: BucketId
    token: Any
    events: tuple[BucketEvent, ...]
    traces: Mapping[int, str] | None = None


class OrderChannel(Protocol):
    """A carrier of bucket events that delivers at least once."""

    async def receive(self, deliveries_max: int, wait_ms: int) -> Sequence[Delivery]:
        """Return what has come, at most ``deliveries_max``, waiting at most ``wait_ms`` for it.

        Raises:
            ChannelUnavailable: the carrier cannot be reached now; nothing is lost, call again.
        """
        ...

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Forget these deliveries for good: they are committed.

        Raises:
            ChannelUnavailable: they may come again, which the ledger does not mind.
        """
        ...

    async def set_aside(self, delivery: Delivery, reason: str) -> None:
        """Move a delivery that can never be written to the dead letters, with the reason.

        Raises:
            ChannelUnavailable: it may come again.
        """
        ...


@dataclass(frozen=True, slots=True)
class UnderWayLetter:
    """A dead letter of a carrier.

    Attributes:
        event: what it says; None where nobody can read it.
    """

    name: str
    reason: str
    event: BucketEvent | None


class UnderWay(Protocol):
    """What a carrier holds between the outbox and the ledger.

    Every method raises ChannelUnavailable when the carrier does not answer.
    """

    async def pending(self) -> int:
        """How many messages it holds."""
        ...

    async def run_dry(self) -> None:
        """Wait until all that it holds now has been written; what comes later may stay.

        Waits for ever where nobody writes: the caller sets the deadline.
        """
        ...

    async def events(self, bucket_id: BucketId) -> Sequence[BucketEvent]:
        """What it holds of a bucket."""
        ...

    async def letters(self, bucket_id: BucketId) -> Sequence[UnderWayLetter]:
        """The dead letters that are of a bucket, or may be."""
        ...


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What the ledger did with a batch of events.

    Attributes:
        ordered: admissions that became orders now.
        known: events that had been written before; nothing was changed.
        compensated: admissions that were refused, with the reason recorded.
        collided: events that claim a place or a reservation id of something else. Each is recorded
            as a compensation of its own and is an alarm: the bucket has two histories. Their
            reservation ids are left out of ``compensated``, because those are other buyers' orders.
    """

    ordered: int = 0
    known: int = 0
    compensated: tuple[ReservationId, ...] = field(default=())
    collided: tuple[BucketEvent, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """Units that the ledger has decided to give back and Redis does not know of yet.

    Attributes:
        reservation: the reservation that held them.
        epoch: the epoch of the bucket in which the release is valid, and in no other.
        spent: the units still count against the limit of the user.
    """

    reservation_id: ReservationId
    reservation: Place
    epoch: int
    user_id: UserId
    quantity: int
    spent: bool = False


@dataclass(frozen=True, slots=True)
class PendingStockChange:
    """A stock change that the ledger has recorded and Redis does not know of yet."""

    change_id: str
    sale_id: SaleId
    delta_units: int


class OrderLedger(Protocol):
    """The side of the ledger that the order worker writes to."""

    async def write(self, events: Sequence[BucketEvent]) -> WriteReport:
        """Write events in one transaction: all of them, or none when it raises.

        Writing an event again changes nothing. What may not become an order (the epoch no longer
        accepts it, the buyer's units or the stock would be exceeded) becomes a compensation, with
        a pending release where Redis still counts the units.

        Raises:
            LedgerAway: nothing was written; call again with the same events.
            EventRefused: nothing was written, and never will be while this event is among them.
        """
        ...

    async def pending_releases(self, releases_max: int) -> Sequence[PendingRelease]:
        """The oldest releases that Redis has not confirmed."""
        ...

    async def confirm_releases(
        self, done: Sequence[tuple[ReservationId, int]], *, epoch: int
    ) -> None:
        """Record that Redis made these releases, each at the given ``seq`` (0: not known there).

        What is not valid in that epoch any more stays as it is: Redis may have forgotten it since.
        """
        ...

    async def pending_stock_changes(self) -> Sequence[PendingStockChange]:
        """Stock changes that Redis has not confirmed, oldest first."""
        ...

    async def confirm_stock_change(self, change_id: str, *, epoch: int, seq: int) -> None:
        """Record that Redis applied a stock change at a ``seq``, or refused it (0: too few left).

        Where that epoch is over the change stays pending: Redis may have forgotten it since.
        """
        ...


@dataclass(frozen=True, slots=True)
class ExpiryLag:
    """How far the expiry of unpaid orders is behind.

    Attributes:
        oldest_ms: how long the oldest due order has been due; 0 when none is.
        set_aside: orders that the ledger refuses to expire and that are tried again later.
    """

    oldest_ms: int
    set_aside: int


class ExpiryLedger(Protocol):
    """The side of the ledger that the reaper ends unpaid orders in.

    Every method raises LedgerAway when it cannot be asked now; nothing was changed then.
    """

    async def due(self, orders_max: int) -> Sequence[ReservationId]:
        """Unpaid orders past their deadline, the longest due first, without those set aside."""
        ...

    async def expire(self, reservation_ids: Sequence[ReservationId]) -> int:
        """Expire those that are still unpaid and due; how many that were.

        Raises:
            ExpiryFailed: it is refused for one of them; nothing was changed.
        """
        ...

    async def set_aside(self, reservation_id: ReservationId, error: str) -> None:
        """Leave an order alone for a while, longer each time."""
        ...

    async def lag(self) -> ExpiryLag:
        """How far it is behind."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePayment:
    """A payment with something to be done.

    Attributes:
        state: ``LATE`` (look for a free unit) or ``REFUND_DUE`` (give the money back).
        money: what has come.
        refund_id: names the refund at the provider; the same until the provider says it failed.
        tries: how often it was claimed before, this time included.
        bucket_id: of the order that it was meant for, as are the next two.
        attempt_id: what it buys with, however often that is tried.
    """

    payment_id: PaymentId
    state: PaymentState
    money: Money
    received_at_ms: int
    refund_id: str
    tries: int
    bucket_id: BucketId
    user_id: UserId
    quantity: int
    attempt_id: AttemptId


class LateVerdict(StrEnum):
    """Where money that came late stands in the ledger."""

    SETTLED = "settled"
    WANTING = "wanting"
    """It has bought nothing yet that is written."""
    MISSED = "missed"
    """What it had bought was refused, or expired."""


class PaymentLedger(Protocol):
    """The side of the ledger that the reaper finishes payments in. Raises as `ExpiryLedger`."""

    async def claim(self, payments_max: int) -> Sequence[DuePayment]:
        """Payments with something to be done; the other reapers leave them alone for a while."""
        ...

    async def settle_late(self, payment_id: PaymentId) -> LateVerdict:
        """Let late money pay what it has bought, if that is written by now."""
        ...

    async def give_up_late(self, payment_id: PaymentId, reason: str) -> bool:
        """Let late money go back; False when it has bought something after all."""
        ...

    async def refunded(self, payment_id: PaymentId) -> None:
        """Record that the money is back."""
        ...

    async def postpone(self, payment_id: PaymentId, pause_ms: int, why: str) -> None:
        """Look at it again later."""
        ...
