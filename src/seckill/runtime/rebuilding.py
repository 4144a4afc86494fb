"""Rebuilding the buckets that lost data."""

from seckill.admission.fence import Verdict
from seckill.admission.fence_ports import Rebuild
from seckill.domain.ids import check_goods_id
from seckill.ledger.errors import NoSuchGoods
from seckill.runtime.bootstrap import Stores

__all__ = ["rebuild"]


async def rebuild(
    stores: Stores, goods_id: str | None, *, force: bool, deadline_ms: int
) -> list[Rebuild]:
    """Rebuild the buckets that need it.

    Args:
        goods_id: only those of these goods, and then also what waits for an operator.
        force: also where nothing is wrong; needs ``goods_id``.
        deadline_ms: longest wait for each outbox to run dry.

    Returns:
        One statement for each bucket that was rebuilt.

    Raises:
        NoSuchGoods: there is no sale of these goods.
        BucketFenced: the outbox did not run dry in time; start again once an order worker runs.
        StockUnavailable, LedgerUnavailable: a store does not answer; start again.
    """
    wanted: int | None = None
    if goods_id is not None:
        sale = await stores.ledger.sales.sale_of_goods(check_goods_id(goods_id))
        if sale is None:
            raise NoSuchGoods(check_goods_id(goods_id))
        wanted = sale.sale_id
    verdicts = await stores.fence.keep()
    needed = {Verdict.NEEDS_REBUILD, Verdict.NEEDS_OPERATOR} if wanted else {Verdict.NEEDS_REBUILD}
    return [
        await stores.fence.rebuild(bucket_id, deadline_ms=deadline_ms)
        for bucket_id, verdict in verdicts.items()
        if (wanted is None or bucket_id.sale_id == wanted)
        and (verdict in needed or (force and wanted is not None))
    ]
