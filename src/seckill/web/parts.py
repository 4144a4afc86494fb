"""What the web application is made of. Everything is passed in; nothing is global."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from seckill.domain.clock import Clock
from seckill.payment.sandbox import Sandbox
from seckill.sentinel import Sentinel
from seckill.web.addresses import Addresses
from seckill.web.admin.ports import AdminParts
from seckill.web.limits import WebLimits
from seckill.web.ports import (
    Authenticator,
    Catalogue,
    Dependencies,
    OrderBooks,
    PaymentDesk,
    PurchaseGate,
    QueuedPlaces,
    ReservationCodec,
    WebMetrics,
)

__all__ = ["WebParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebParts:
    """The parts of one web process.

    Attributes:
        gate: decides purchases.
        books: the ledger as buyers see it.
        queued: what Redis knows of purchases on their way to the ledger.
        ids: reads reservation ids.
        catalogue: what is on sale.
        authenticator: names the buyer.
        dependencies: how the parts stand that this process leans on.
        metrics: counts.
        render_metrics: the page that Prometheus reads.
        clock: the time that buyers are told.
        payments: None where no payment provider is set up.
        sandbox: the page of the sandbox provider; None where it is not in use.
        admin: what operators work with; None where they do not come in by HTTP.
        limits: bounds.
        sentinel: flow control; by default without a rule.
        addresses: tells where a request came from.
        draining: set once, when this process is about to stop.
    """

    gate: PurchaseGate
    books: OrderBooks
    queued: QueuedPlaces
    ids: ReservationCodec
    catalogue: Catalogue
    authenticator: Authenticator
    dependencies: Dependencies
    metrics: WebMetrics
    render_metrics: Callable[[], bytes | Awaitable[bytes]]
    clock: Clock
    payments: PaymentDesk | None = None
    sandbox: Sandbox | None = None
    admin: AdminParts | None = None
    limits: WebLimits = field(default_factory=WebLimits)
    sentinel: Sentinel = field(default_factory=Sentinel)
    addresses: Addresses = field(default_factory=Addresses)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
