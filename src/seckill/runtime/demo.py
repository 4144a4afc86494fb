"""The sample sale of `seckill serve --demo`."""

from typing import Final

from seckill.domain.ids import GoodsId
from seckill.domain.sale import NewSale
from seckill.runtime.bootstrap import Stores
from seckill.runtime.opening import put_on_sale

__all__ = ["open_sample_sale"]

_GOODS_ID: Final = GoodsId("1")
_UNITS: Final = 100


async def open_sample_sale(stores: Stores) -> None:
    """Open goods 1 with 100 units, unless there has been a sale of it: a second run goes on.

    Raises:
        StockUnavailable, LedgerUnavailable: a store does not answer.
    """
    if await stores.ledger.sales.sale_of_goods(_GOODS_ID) is None:
        new = NewSale(
            goods_id=_GOODS_ID,
            stock_units=_UNITS,
            title="Sample item",
            price_fen=9_900,
            starts_at_ms=stores.clock.now_ms(),
        )
        await put_on_sale(stores, new, actor="demo")
