"""The audit, joined to the stores."""

from collections.abc import Collection

from seckill.audit.audit import run_audit
from seckill.audit.collect import BucketReader
from seckill.audit.report import AuditReport
from seckill.domain.ids import SaleId
from seckill.ledger.looks import SQLAuditLedger
from seckill.runtime.bootstrap import Stores

__all__ = ["audit"]


async def audit(stores: Stores, sale_ids: Collection[SaleId] | None = None) -> AuditReport:
    """Audit every sale, or some. Raises as `run_audit`."""
    return await run_audit(
        reader=BucketReader(
            stores.redis,
            stores.buckets,
            stores.keys,
            under_way=stores.kafka.under_way if stores.kafka else None,
        ),
        ledger=SQLAuditLedger(stores.database, stores.clock),
        reservation_ids=stores.ids,
        clock=stores.clock,
        marks_folder=stores.settings.data.marks,
        sale_ids=sale_ids,
    )
