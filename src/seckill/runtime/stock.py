"""Changing the stock of a sale while it runs: recorded by the ledger, carried to Redis."""

from typing import Final

from seckill.domain.errors import InvalidValue
from seckill.domain.sale import Sale
from seckill.pipeline.sweep import Sweep
from seckill.runtime.bootstrap import Stores

__all__ = ["change_stock"]

_PENDING: Final = "pending"
_REFUSED: Final = "refused"


async def change_stock(
    stores: Stores, sale: Sale, by_units: int, *, change_id: str, actor: str, reason: str
) -> Sale:
    """Put more units on sale, or take unsold ones off, once per change id.

    The change is a row of the ledger first; then it is carried to Redis here, or by the sweep of
    the order worker when the bucket is fenced just now.

    Returns:
        The sale as it is now.

    Raises:
        InvalidValue: fewer units are left than would be taken off.
        StockUnavailable, LedgerUnavailable: what is recorded is carried by the order worker.
    """
    await stores.ledger.sales.request_stock_change(
        change_id, sale.sale_id, by_units, actor=actor, reason=reason
    )
    await stores.fence.keep()
    await Sweep(
        ledger=stores.ledger,
        buckets=stores.buckets,
        epochs=lambda: stores.fence.known_epochs,
        on_released=lambda _units: None,
    ).sweep()
    if await stores.ledger.sales.stock_change_state(change_id) == _REFUSED:
        raise InvalidValue("by", "would take off more units than are left unsold")
    changed = await stores.ledger.sales.sale(sale.sale_id)
    assert changed is not None, "a sale is never deleted"
    return changed
