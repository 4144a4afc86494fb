"""What the audit needs of the ledger.

Two kinds of reading. `AuditBooks` are the books at one instant, in slices: sums, counters and rows
that belong together are compared there, and cannot differ because something moved. The other two
methods ask for a few places as they are *now*: a suspect is looked at again with them.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import Sale
from seckill.ledger.auditing import (
    AuditedCollision,
    AuditedEvent,
    AuditedOrder,
    AuditedRelease,
    AuditedStockChange,
    HoldingFault,
    SaleSums,
)
from seckill.ledger.epochs import EpochRow
from seckill.ledger.fences import FenceStatement
from seckill.ledger.looks import WrittenOrder, WrittenPlace

__all__ = [
    "AuditBooks",
    "AuditLedger",
    "AuditedCollision",
    "AuditedEvent",
    "AuditedOrder",
    "AuditedRelease",
    "AuditedStockChange",
    "EpochRow",
    "FenceStatement",
    "HoldingFault",
    "SaleSums",
    "WrittenOrder",
    "WrittenPlace",
]


class AuditBooks(Protocol):
    """The books at one instant. Slices are bounded and come by bucket, epoch and seq."""

    async def sales(self, *, closed: bool = True) -> list[Sale]:
        """Every sale by id; with ``closed`` False only those that are not closed."""
        ...

    async def sums(self, sale_id: SaleId) -> SaleSums | None:
        """The sums of a sale; None when there is none."""
        ...

    async def epochs(self, sale_id: SaleId) -> list[EpochRow]:
        """Every opening of the buckets of a sale, by bucket and epoch."""
        ...

    def orders(self, sale_id: SaleId) -> AsyncIterator[list[AuditedOrder]]:
        """The orders of a sale."""
        ...

    def bucket_events(self, sale_id: SaleId) -> AsyncIterator[list[AuditedEvent]]:
        """The places of a sale that are no admissions."""
        ...

    def releases(self, sale_id: SaleId) -> AsyncIterator[list[AuditedRelease]]:
        """The releases of a sale, by reservation id."""
        ...

    def collisions(self, sale_id: SaleId) -> AsyncIterator[list[AuditedCollision]]:
        """The collisions of a sale."""
        ...

    async def losses(self, sale_id: SaleId) -> list[Place]:
        """The places of a sale that are named as lost, and so accounted for."""
        ...

    async def fence_causes(self, sale_id: SaleId) -> dict[int, str]:
        """By bucket, why it is not trusted now."""
        ...

    async def stock_changes(self, sale_id: SaleId) -> list[AuditedStockChange]:
        """The stock changes of a sale."""
        ...

    async def holding_faults(self, sale_id: SaleId, faults_max: int = 100) -> list[HoldingFault]:
        """Users whose recorded units are not those of their live orders, or pass the limit."""
        ...


class AuditLedger(Protocol):
    """The ledger as the audit reads it. Every method raises LedgerUnavailable when it is away."""

    def books(self) -> AbstractAsyncContextManager[AuditBooks]:
        """The books as they are at this instant, for as long as the block runs."""
        ...

    async def marks(self, sale_id: SaleId) -> Mapping[int, Mapping[int, int]]:
        """By bucket and epoch the highest seq that any host has reported as acknowledged."""
        ...

    async def statements(self) -> Sequence[FenceStatement]:
        """What happened to buckets that were not trusted, the newest first."""
        ...

    async def written(self, places: Sequence[Place]) -> dict[Place, WrittenPlace]:
        """What is at some places of one bucket now; a place where nothing is, is left out.

        Args:
            places: at most 1,000.
        """
        ...

    async def written_seqs(
        self, bucket_id: BucketId, epoch: int, first: int, last: int
    ) -> Sequence[int]:
        """The seqs from ``first`` to ``last`` of an epoch at which anything is written now.

        Returns:
            In order, at most 5,000 of them: ask again from behind the last one.
        """
        ...

    async def known_by_word(
        self, bucket_id: BucketId, epoch: int, first: int, last: int
    ) -> dict[int, str]:
        """Which seqs of a range Redis has confirmed by word, each with what was made there.

        A release or a stock change whose event was lost is known by this alone. At most 5,000.
        """
        ...
