"""What the web room needs from the other rooms.

Every method that does I/O may raise a `SeckillError` that is not an `InvalidValue`: it means
"cannot answer now", and the buyer reads 503 with Retry-After. Anything else is a fault of the
program: it is logged, and the buyer reads 500.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

# The types alone: they are plain aliases of what ASGI says.
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seckill.admission.batcher import Waiting
from seckill.admission.decision import Decision
from seckill.domain.ids import GoodsId, ReservationId, SaleId, UserId
from seckill.domain.order import Order
from seckill.domain.outcomes import Outcome
from seckill.domain.payment import Payment
from seckill.domain.reservation import Place
from seckill.domain.sale import Sale

__all__ = [
    "ASGIApp",
    "Authenticator",
    "Catalogue",
    "Dependencies",
    "DependencyState",
    "DependencyStatus",
    "Message",
    "OrderBooks",
    "PayAnswer",
    "PaymentDesk",
    "PurchaseGate",
    "QueuedPlaces",
    "Receive",
    "ReservationCodec",
    "SaleOnShow",
    "Scope",
    "Send",
    "WebMetrics",
]


class PurchaseGate(Protocol):
    """Decides purchase requests. The real one is `admission.gate.AdmissionGate`."""

    def admit_now(self, goods_id: GoodsId, waiting: Waiting) -> Decision | None:
        """A decision at once where memory suffices; None: `Waiting.decided` will be called.

        That a buyer leaves meanwhile changes nothing: the batch goes on, and what they win is
        followed to its end.
        """
        ...


class OrderBooks(Protocol):
    """The side of the ledger that buyers see."""

    async def orders_by_ids(self, reservation_ids: Sequence[ReservationId]) -> Sequence[Order]:
        """The orders of these reservations, in any order; those not in the ledger are left out."""
        ...

    async def lost_orders(self, reservation_ids: Sequence[ReservationId]) -> Sequence[Order]:
        """Those of these reservations that were lost and are named so; their user id is empty."""
        ...

    async def orders_of_user(
        self, user_id: UserId, *, orders_max: int, before: ReservationId | None
    ) -> Sequence[Order]:
        """A user's orders, newest first, at most ``orders_max``.

        Args:
            user_id: the buyer.
            orders_max: 1 to 101: one more than a page tells whether there is another.
            before: the last order of the page before; None for the first page. One that is
                unknown or another user's gives an empty page.
        """
        ...

    async def cancel(self, reservation_id: ReservationId, user_id: UserId) -> Order | None:
        """Cancel the order if it awaits payment; return it as it stands after that.

        Cancelling again changes nothing. None: unknown to the ledger, or another user's.
        """
        ...


@dataclass(frozen=True, slots=True)
class PayAnswer:
    """What becomes of a buyer's wish to pay.

    Attributes:
        order: as it stands.
        payment: the open payment, with its page; None when there is nothing to pay (any more).
        refusal: why there is no payment, in one sentence; empty when the order is paid.
    """

    order: Order
    payment: Payment | None = None
    refusal: str = ""


class PaymentDesk(Protocol):
    """Where payments are started, and where the provider's news comes in."""

    async def start(self, reservation_id: ReservationId, user_id: UserId) -> PayAnswer | None:
        """Start to pay, or go on with the payment that is open. None: as `OrderBooks.cancel`.

        Raises:
            SeckillError: the ledger or the provider is away; asking again is safe.
        """
        ...

    async def take_news(self, headers: Mapping[str, str], body: bytes) -> None:
        """Take one message of the provider.

        Raises:
            HTTPProblem: 401 when it is not the provider's, 422 when it breaks a rule.
            SeckillError: the ledger is away; the provider sends it again.
        """
        ...


class QueuedPlaces(Protocol):
    """Looks admitted purchases up that have not reached the ledger yet."""

    async def holding(self, place: Place, user_id: UserId) -> int | None:
        """Units that this user holds at this place by the word of Redis, or None."""
        ...


class ReservationCodec(Protocol):
    """Reads reservation ids. The real one is `admission.reservation_ids.ReservationIds`."""

    def decode(self, text: str) -> Place | None:
        """The place behind an id, or None when this installation never made such an id."""
        ...


@dataclass(frozen=True, slots=True)
class SaleOnShow:
    """A sale as buyers may see it.

    Attributes:
        sale: its definition.
        remaining_units: units still to be had, at most one second old; None when Redis cannot say.
        paid_units: units of paid orders, at most five seconds old; None when it was not asked for,
            or the ledger cannot say.
        next_due_ms: when the next unpaid order lets go of its units, if it stays unpaid.
    """

    sale: Sale
    remaining_units: int | None
    paid_units: int | None = None
    next_due_ms: int | None = None


class Catalogue(Protocol):
    """What is, was and will be on sale."""

    async def on_show(self) -> Sequence[SaleOnShow]:
        """At most one sale for each goods id: the open one, or else the latest. Bounded."""
        ...

    async def on_show_of(self, goods_id: GoodsId) -> SaleOnShow | None:
        """The same for one goods id, with what is paid."""
        ...

    def sale(self, sale_id: SaleId) -> Sale | None:
        """The definition of one sale, out of memory."""
        ...


class DependencyStatus(StrEnum):
    """Whether a part that this process leans on answers."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DependencyState:
    """How one dependency stands.

    Attributes:
        name: ``redis``, ``ledger``, ``sales``, ...
        status: see there.
        since_ms: when it came into this status (UTC epoch milliseconds).
        detail: one sentence without secrets, or empty.
    """

    name: str
    status: DependencyStatus
    since_ms: int
    detail: str = ""


class Dependencies(Protocol):
    """Knows how each dependency stands, without asking it now."""

    def states(self) -> Sequence[DependencyState]:
        """One entry for each dependency, out of memory."""
        ...


class WebMetrics(Protocol):
    """Counts what the web room does. Each call is on a hot path: no I/O, no waiting."""

    def requests(self, route: str, method: str, status: int, seconds: Sequence[float]) -> None:
        """Requests of one route template: the time of each until its answer began."""
        ...

    def decisions(self, outcome: Outcome, cause: str, count: int) -> None:
        """So many answered purchase requests; ``cause`` is that of the decision."""
        ...

    def streams_open(self, count: int) -> None:
        """How many event streams are open now."""
        ...

    def bound_met(self, bound: str) -> None:
        """A bound refused something: ``order_reads``, ``order_calls``, ``sse_streams``, ..."""
        ...


class Authenticator(Protocol):
    """Says who the buyer is."""

    @property
    def security_schemes(self) -> Mapping[str, Mapping[str, str]]:
        """The ways to say who one is, as OpenAPI security schemes by name."""
        ...

    def identify(self, headers: Mapping[bytes, bytes], query_string: bytes) -> UserId:
        """The user behind a request.

        Args:
            headers: the headers that matter, each given once, names in lower case.
            query_string: as it came, still percent-encoded.

        Raises:
            HTTPProblem: 401, or 400 where what was sent cannot be read.
        """
        ...

    async def run(self) -> None:
        """Keep what it needs (keys) fresh until cancelled."""
        ...
