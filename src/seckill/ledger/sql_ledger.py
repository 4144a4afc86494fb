"""The ledger as one object: every book of it, and the port that the order worker writes to."""

from collections.abc import Collection, Sequence

from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.clock import Clock
from seckill.domain.events import BucketEvent
from seckill.domain.ids import ReservationId
from seckill.domain.reservation import BucketId
from seckill.ledger.actions import ActionLog
from seckill.ledger.admins import AdminBook
from seckill.ledger.audit_results import AuditResults
from seckill.ledger.auditing import AuditReading
from seckill.ledger.engine import Database
from seckill.ledger.epochs import EpochBook
from seckill.ledger.expiry import ExpiryBook
from seckill.ledger.fences import FenceBook
from seckill.ledger.mark_folders import MarkFolders
from seckill.ledger.order_search import OrderSearch
from seckill.ledger.orders import OrderBook
from seckill.ledger.payments import PaymentBook
from seckill.ledger.reading import OrderReading
from seckill.ledger.retirement import RetirementBook
from seckill.ledger.sales import SaleBook
from seckill.pipeline.ports import PendingRelease, PendingStockChange, WriteReport

__all__ = ["SQLLedger"]


class SQLLedger:
    """The ledger in SQL; implements `pipeline.ports.OrderLedger`.

    Attributes:
        sales: sales and their stock.
        orders: orders and their releases.
        payments: payments, and what their provider tells.
        expiry: unpaid orders whose deadline has passed.
        epochs: openings of buckets, for the fence.
        fences: what is not trusted, the marks of all hosts, what was lost.
        mark_folders: where web processes keep their marks, for the fence.
        retirement: sales whose books are closed, and whose keys may leave Redis.
        reading: what buyers read.
        search: what operators look for among the orders.
        audit: what the audit reads.
        audit_results: what the background audit found last.
        admins: who may run the shop.
        actions: who changed what, when and why.
    """

    def __init__(self, database: Database, reservation_ids: ReservationIds, clock: Clock) -> None:
        self._database = database
        self.sales = SaleBook(database, clock)
        self.orders = OrderBook(database, reservation_ids, clock)
        self.payments = PaymentBook(database, clock)
        self.expiry = ExpiryBook(database, clock)
        self.epochs = EpochBook(database, reservation_ids, clock)
        self.fences = FenceBook(database, clock)
        self.retirement = RetirementBook(database, clock)
        self.mark_folders = MarkFolders(database, clock)
        self.reading = OrderReading(database)
        self.search = OrderSearch(database)
        self.audit = AuditReading(database)
        self.audit_results = AuditResults(database)
        self.admins = AdminBook(database, clock)
        self.actions = ActionLog(database, clock)

    async def dispose(self) -> None:
        """Let what is under way finish, then close every connection. Safe to call twice."""
        await self._database.dispose()

    async def write(self, events: Sequence[BucketEvent]) -> WriteReport:
        """See `OrderBook.write`."""
        return await self.orders.write(events)

    async def pending_releases(
        self, releases_max: int, *, except_buckets: Collection[BucketId] = ()
    ) -> list[PendingRelease]:
        """See `OrderBook.pending_releases`."""
        return await self.orders.pending_releases(releases_max, except_buckets=except_buckets)

    async def confirm_releases(
        self, done: Sequence[tuple[ReservationId, int]], *, epoch: int
    ) -> None:
        """See `OrderBook.confirm_releases`."""
        await self.orders.confirm_releases(done, epoch=epoch)

    async def pending_stock_changes(self) -> list[PendingStockChange]:
        """See `SaleBook.pending_stock_changes`."""
        return await self.sales.pending_stock_changes()

    async def confirm_stock_change(self, change_id: str, *, epoch: int, seq: int) -> None:
        """See `SaleBook.confirm_stock_change`."""
        await self.sales.confirm_stock_change(change_id, epoch=epoch, seq=seq)
