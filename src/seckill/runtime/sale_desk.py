"""What an operator does with sales: for the commands, and for the operators' API."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from seckill.admission.scripts import Status
from seckill.domain.ids import check_goods_id
from seckill.domain.instants import rfc3339_ms
from seckill.domain.reservation import BucketId
from seckill.domain.sale import NewSale, Sale
from seckill.ledger.errors import NoSuchGoods
from seckill.ledger.sales import SaleTerms
from seckill.runtime.bootstrap import Stores
from seckill.runtime.opening import put_on_sale
from seckill.runtime.stock import change_stock

__all__ = ["SaleDesk", "Verb"]

Verb = Literal["open", "pause", "resume", "end"]
Row = dict[str, Any]

_MS_PER_S: Final = 1000


class SaleDesk:
    """Puts goods on sale and changes sales. Answers with a sale as programs read it.

    Every method raises StockUnavailable or LedgerUnavailable when a store does not answer; every
    change may be asked for again.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    async def all(self) -> list[Row]:
        """Every sale that is, was or will be, one for each goods id."""
        return [await self._row(sale) for sale in await self._stores.ledger.sales.sales()]

    async def page(self, sales_max: int, *, before: int | None, closed: bool) -> list[Row]:
        """Sales, the newest first; see `SaleBook.page`."""
        found = await self._stores.ledger.sales.page(sales_max, before=before, closed=closed)
        return [await self._row(sale) for sale in found]

    async def show(self, goods_id: str) -> Row:
        """The latest sale of some goods. Raises NoSuchGoods when there never was one."""
        return await self._row(await self._sale(goods_id))

    async def create(self, new: NewSale, *, actor: str, reason: str = "") -> Row:
        """Put goods on sale. Raises as `put_on_sale`."""
        return await self._row(await put_on_sale(self._stores, new, actor=actor, reason=reason))

    async def act(self, goods_id: str, verb: Verb, *, actor: str, reason: str) -> Row:
        """Start a sale or let it go on, pause it, resume it, end it. Again changes nothing.

        Raises:
            NoSuchGoods: there never was a sale of these goods.
            SaleClosed: it cannot be changed any more.
            InvalidValue: naming ``ends_at``: it has not started; or ``reason``.
        """
        sale = await self._sale(goods_id)
        now_ms = self._stores.clock.now_ms()
        changes: Mapping[str, Any]
        match verb:
            case "open":
                changes = {"paused": False, "starts_at_ms": min(sale.starts_at_ms, now_ms)}
            case "pause":
                changes = {"paused": True}
            case "resume":
                changes = {"paused": False}
            case "end":
                # One that has ended keeps its end, however often it is asked for.
                ended = sale.ends_at_ms is not None and sale.ends_at_ms <= now_ms
                changes = {"ends_at_ms": sale.ends_at_ms if ended else now_ms}
        return await self._change(sale, changes, actor, reason)

    async def edit(
        self,
        goods_id: str,
        terms: SaleTerms,
        *,
        starts_at_ms: int | None,
        ends_at_ms: int | None,
        actor: str,
        reason: str,
    ) -> Row:
        """Change the terms of a sale that has not started, or when it starts and ends.

        Raises:
            NoSuchGoods: there never was a sale of these goods.
            SaleClosed, SaleStarted, InvalidValue: as `SaleBook.change_sale`.
        """
        changes = {"terms": terms, "starts_at_ms": starts_at_ms, "ends_at_ms": ends_at_ms}
        return await self._change(await self._sale(goods_id), changes, actor, reason)

    async def change_stock(
        self, goods_id: str, by_units: int, *, change_id: str, actor: str, reason: str
    ) -> Row:
        """Put more units on sale, or take unsold ones off, once per change id.

        Raises:
            NoSuchGoods: there never was a sale of these goods.
            SaleClosed, ChangeIdReused, InvalidValue: as `change_stock`.
        """
        changed = await change_stock(
            self._stores,
            await self._sale(goods_id),
            by_units,
            change_id=change_id,
            actor=actor,
            reason=reason,
        )
        return await self._row(changed)

    async def _sale(self, goods_id: str) -> Sale:
        name = check_goods_id(goods_id)
        sale = await self._stores.ledger.sales.sale_of_goods(name)
        if sale is None:
            raise NoSuchGoods(name)
        return sale

    async def _change(self, sale: Sale, changes: Mapping[str, Any], actor: str, reason: str) -> Row:
        changed = await self._stores.ledger.sales.change_sale(
            sale.sale_id, actor=actor, reason=reason, **changes
        )
        await self._stores.fence.keep()
        return await self._row(changed)

    async def _row(self, sale: Sale) -> Row:
        """Its definition, what is left, how its bucket stands."""
        view = await self._stores.buckets.look(BucketId(sale.sale_id, 0))
        return {
            "goods_id": sale.goods_id,
            "title": sale.title,
            "state": sale.state_at(self._stores.clock.now_ms()).value,
            "starts_at": rfc3339_ms(sale.starts_at_ms),
            "ends_at": None if sale.ends_at_ms is None else rfc3339_ms(sale.ends_at_ms),
            "price_fen": sale.price_fen,
            "limit_per_user": sale.limit_per_user,
            "stock": sale.stock_units,
            "remaining": view.stock_units if view.status is Status.OK else None,
            "sold": await self._stores.ledger.sales.sold_units(sale.sale_id),
            "pay_window_s": sale.pay_window_ms // _MS_PER_S,
            "late_payment": sale.late_payment.value,
            "may_buy_again": sale.may_buy_again,
            "sale_id": sale.sale_id,
            "version": sale.version,
            "bucket": view.status.name.lower(),
            "epoch": view.epoch,
            "held": view.held_units,
            "outbox_entries": view.outbox_entries,
        }
