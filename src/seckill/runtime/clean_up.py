"""Clean-up: the keys of sales that are over, and whose books are closed, leave Redis.

In two steps, so that nobody meets a bucket that is half gone: the ledger retires the sale first,
and every web process learns of it from the catalogue and answers "ended" without asking Redis; a
while later the keys go. Any process may die between any two lines of it.
"""

from typing import Final

import structlog

from seckill.admission.scripts import Status
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId
from seckill.runtime.auditing import audit
from seckill.runtime.bootstrap import Stores

__all__ = ["SETTLE_MS", "clean_up"]

_log = structlog.get_logger(__name__)

SETTLE_MS: Final = 15_000
"""From retiring a sale to the removal of its keys. The catalogue is published four times a second
and read as often; clocks of two hosts may differ by seconds."""


async def clean_up(stores: Stores, grace_ms: int, settle_ms: int = SETTLE_MS) -> int:
    """Retire what may be retired, remove the keys of what was; returns how many sales were cleaned.

    Args:
        grace_ms: how long a sale must have been over.
        settle_ms: how long it must have been retired before its keys go.

    Raises:
        StockUnavailable, LedgerUnavailable: call again.
    """
    for sale_id in await stores.ledger.retirement.ready(grace_ms):
        if await _is_proven(stores, sale_id) and await stores.ledger.retirement.retire(
            sale_id, grace_ms
        ):
            _log.info("the books of a sale are closed", sale_id=sale_id)
    buckets = await stores.ledger.retirement.to_clean(settle_ms)
    for bucket_id, epoch in buckets:
        await stores.buckets.forget(bucket_id, epoch)
    sale_ids = sorted({bucket_id.sale_id for bucket_id, _ in buckets})
    if sale_ids:
        await stores.ledger.retirement.cleaned(sale_ids)
        _log.info("the keys of sales that are over have left Redis", sale_ids=sale_ids)
    return len(sale_ids)


async def _is_proven(stores: Stores, sale_id: SaleId) -> bool:
    """Whether nothing is under way and the audit finds nothing."""
    sale = await stores.ledger.sales.sale(sale_id)
    assert sale is not None, "sales are never deleted"
    for number in range(sale.bucket_count):
        view = await stores.buckets.look(BucketId(sale_id, number))
        # A bucket that is gone already hides nothing: what was in it is written, says the audit.
        if view.status not in {Status.OK, Status.MISSING} or view.outbox_entries:
            return False
    if stores.outbox_log.behind is not None and await stores.outbox_log.behind.pending():
        return False
    return (await audit(stores, {sale_id})).ok
