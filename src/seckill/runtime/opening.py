"""Putting goods on sale: in the ledger, in Redis, and known to every web process."""

import asyncio

from seckill.admission.catalogue import UNKNOWN_MS
from seckill.domain.sale import NewSale, Sale
from seckill.runtime.bootstrap import Stores

__all__ = ["put_on_sale"]


async def put_on_sale(stores: Stores, new: NewSale, *, actor: str, reason: str = "") -> Sale:
    """Create a sale and open its buckets; from the return on, no process calls it unknown.

    Raises:
        InvalidValue, SaleExists: nothing was created.
        StockUnavailable, LedgerUnavailable: a store does not answer. The sale may be in the ledger
            already; the order worker's keeper opens it then.
    """
    sale = await stores.ledger.sales.create_sale(new, actor=actor, reason=reason)
    await stores.fence.keep()
    # How long a web process may still answer out of a look from before: a bound, not a guess.
    await asyncio.sleep(UNKNOWN_MS / 1000)
    return sale
