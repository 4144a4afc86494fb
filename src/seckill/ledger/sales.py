"""Sales: put on, changed, their stock raised and lowered."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog
from sqlalchemy import Row, Select, bindparam, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.clock import Clock
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import GoodsId, SaleId, check_id
from seckill.domain.sale import INSTANT_MS_MAX, STOCK_UNITS_MAX, LatePayment, NewSale, Sale
from seckill.ledger import statements
from seckill.ledger.engine import Database
from seckill.ledger.errors import ChangeIdReused, NoSuchSale, SaleClosed, SaleExists, SaleStarted
from seckill.ledger.records import check_actor, check_reason, record_action
from seckill.ledger.tables import epochs, sales, stock_changes
from seckill.pipeline.ports import PendingStockChange

__all__ = ["STOCK_CHANGES_MAX", "SaleBook", "SaleTerms", "sale_from_row"]

STOCK_CHANGES_MAX: Final = 1_000
"""Pending stock changes read at once, at most."""

_SALES_PER_PAGE_MAX: Final = 101

_BUCKET_COUNT: Final = 1
"""Every sale has one bucket until stock can be borrowed between buckets."""

_TERMS_FIXED_MS: Final = 10_000
"""So long before its start the terms of a sale stand: every process has heard of them by then."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaleTerms:
    """What is to be changed of a sale that has not started; None stays as it is. See `NewSale`."""

    title: str | None = None
    price_fen: int | None = None
    limit_per_user: int | None = None
    pay_window_ms: int | None = None
    late_payment: LatePayment | None = None
    may_buy_again: bool | None = None


def select_sales() -> Select[Any]:
    """The columns that `sale_from_row` reads."""
    return select(
        sales.c.sale_id,
        sales.c.goods_id,
        sales.c.title,
        sales.c.price_fen,
        sales.c.limit_per_user,
        sales.c.stock_units,
        sales.c.starts_at_ms,
        sales.c.ends_at_ms,
        sales.c.pay_window_ms,
        sales.c.paused,
        sales.c.version,
        sales.c.bucket_count,
        sales.c.closed_at_ms,
        sales.c.retired_at_ms,
        sales.c.sold_units,
        sales.c.late_payment,
        sales.c.may_buy_again,
    )


def sale_from_row(row: Row[Any]) -> Sale:
    """The sale in a row of `select_sales`."""
    return Sale(
        sale_id=row.sale_id,
        goods_id=row.goods_id,
        title=row.title,
        price_fen=row.price_fen,
        limit_per_user=row.limit_per_user,
        stock_units=row.stock_units,
        starts_at_ms=row.starts_at_ms,
        ends_at_ms=row.ends_at_ms,
        pay_window_ms=row.pay_window_ms,
        paused=row.paused,
        version=row.version,
        bucket_count=row.bucket_count,
        closed=row.closed_at_ms is not None,
        late_payment=LatePayment(row.late_payment),
        retired=row.retired_at_ms is not None,
        may_buy_again=row.may_buy_again,
    )


class SaleBook:
    """The sales of the ledger. The ledger defines them; Redis holds a projection.

    Every method raises LedgerUnavailable when the database cannot be asked now; nothing was
    changed then.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def sales(self, *, closed: bool = False) -> list[Sale]:
        """The sales by id: scheduled, running, paused, ended; with ``closed`` those too."""
        query = select_sales().order_by(sales.c.sale_id)
        if not closed:
            query = query.where(sales.c.closed_at_ms.is_(None))

        async def work(connection: AsyncConnection) -> list[Sale]:
            result = await connection.execute(query)
            return [sale_from_row(row) for row in result]

        return await self._database.read("read the sales", work)

    async def page(
        self, sales_max: int, *, before: int | None = None, closed: bool = False
    ) -> list[Sale]:
        """Sales, the newest first.

        Args:
            sales_max: 1 to 101: one more than a page tells whether there is another.
            before: the sale id that the page before ended with.
            closed: those too whose goods have a later sale, or whose books are closed.
        """
        assert 1 <= sales_max <= _SALES_PER_PAGE_MAX
        query = select_sales().order_by(sales.c.sale_id.desc()).limit(sales_max)
        if not closed:
            query = query.where(sales.c.closed_at_ms.is_(None))
        if before is not None:
            query = query.where(sales.c.sale_id < before)

        async def work(connection: AsyncConnection) -> list[Sale]:
            return [sale_from_row(row) for row in await connection.execute(query)]

        return await self._database.read("read a page of sales", work)

    async def sale(self, sale_id: SaleId) -> Sale | None:
        """One sale, closed or not; None when there never was one."""

        async def work(connection: AsyncConnection) -> Sale | None:
            result = await connection.execute(select_sales().where(sales.c.sale_id == sale_id))
            row = result.one_or_none()
            return None if row is None else sale_from_row(row)

        return await self._database.read(f"read sale {sale_id}", work)

    async def sale_of_goods(self, goods_id: GoodsId) -> Sale | None:
        """The latest sale of some goods, closed or not; None when there never was one."""

        async def work(connection: AsyncConnection) -> Sale | None:
            result = await connection.execute(
                select_sales()
                .where(sales.c.goods_id == goods_id)
                .order_by(sales.c.sale_id.desc())
                .limit(1)
            )
            row = result.one_or_none()
            return None if row is None else sale_from_row(row)

        return await self._database.read(f"read the sale of goods {goods_id}", work)

    async def create_sale(self, new: NewSale, *, actor: str, reason: str = "") -> Sale:
        """Put goods on sale. An ended sale of the same goods is closed in the same transaction.

        Its buckets start in epoch 1, state ``opening``: Redis does not know them yet.

        Raises:
            SaleExists: a sale of the goods has not ended; end it first.
            InvalidValue: naming ``actor`` or ``reason``.
        """
        check_actor(actor)
        check_reason(reason)
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> Sale:
            before = await _locked(connection, sales.c.goods_id == new.goods_id, only_open=True)
            if before is not None:
                await self._close_ended(connection, before, now_ms)
            result = await connection.execute(
                statements.INSERTS[connection.dialect.name].sale,
                {
                    "goods_id": new.goods_id,
                    "title": new.title,
                    "price_fen": new.price_fen,
                    "limit_per_user": new.limit_per_user,
                    "stock_units": new.stock_units,
                    "sold_units": 0,
                    "starts_at_ms": new.starts_at_ms,
                    "ends_at_ms": new.ends_at_ms,
                    "pay_window_ms": new.pay_window_ms,
                    "late_payment": new.late_payment.value,
                    "may_buy_again": new.may_buy_again,
                    "paused": False,
                    "bucket_count": _BUCKET_COUNT,
                    "version": 1,
                    "created_at_ms": now_ms,
                },
            )
            sale_id = result.scalar_one_or_none()
            if sale_id is None:  # another process has put it on sale since we looked
                raise SaleExists(new.goods_id, SaleId(0))
            await connection.execute(
                insert(epochs),
                [
                    {
                        "sale_id": sale_id,
                        "bucket": bucket,
                        "epoch": 1,
                        "state": "opening",
                        "origin": "created",
                        "opening_units": new.stock_units // _BUCKET_COUNT
                        + (bucket < new.stock_units % _BUCKET_COUNT),
                        "created_at_ms": now_ms,
                        "reason": "the sale was put on",
                    }
                    for bucket in range(_BUCKET_COUNT)
                ],
            )
            await record_action(
                connection,
                at_ms=now_ms,
                actor=actor,
                action="create_sale",
                sale_id=sale_id,
                detail={
                    "reason": reason,
                    "goods_id": new.goods_id,
                    "stock_units": new.stock_units,
                    "limit_per_user": new.limit_per_user,
                    "price_fen": new.price_fen,
                    "starts_at_ms": new.starts_at_ms,
                    "ends_at_ms": new.ends_at_ms,
                    "pay_window_ms": new.pay_window_ms,
                    "late_payment": new.late_payment.value,
                    "may_buy_again": new.may_buy_again,
                    "closed_sale_id": None if before is None else before.sale_id,
                },
            )
            return await _read_again(connection, sale_id)

        return await self._database.write(f"put goods {new.goods_id} on sale", work)

    async def _close_ended(self, connection: AsyncConnection, row: Row[Any], now_ms: int) -> None:
        sale = sale_from_row(row)
        if sale.ends_at_ms is None or now_ms < sale.ends_at_ms:
            raise SaleExists(sale.goods_id, sale.sale_id)
        await connection.execute(
            update(sales)
            .where(sales.c.sale_id == sale.sale_id)
            .values(closed_at_ms=now_ms, version=sales.c.version + 1)
        )

    async def change_sale(
        self,
        sale_id: SaleId,
        *,
        paused: bool | None = None,
        starts_at_ms: int | None = None,
        ends_at_ms: int | None = None,
        terms: SaleTerms | None = None,
        actor: str,
        reason: str = "",
    ) -> Sale:
        """Pause, resume, open, end, move or edit a sale. What is None stays as it is.

        Args:
            terms: what buyers agree to: can be changed until 10 s before the sale starts, so that
                nobody is admitted under terms that are changing.

        Returns:
            The sale with its version raised by one, or as it is when nothing was to change.

        Raises:
            NoSuchSale: there is none with this id.
            SaleClosed: it cannot be changed any more.
            SaleStarted: its terms are fixed.
            InvalidValue: naming the field of `NewSale`, ``actor`` or ``reason``.
        """
        check_actor(actor)
        check_reason(reason)
        wanted: dict[str, Any] = {
            "paused": paused,
            "starts_at_ms": starts_at_ms,
            "ends_at_ms": ends_at_ms,
            **(asdict(terms) if terms else {}),
        }
        for field, instant_ms in (("starts_at", starts_at_ms), ("ends_at", ends_at_ms)):
            if instant_ms is not None and not 0 <= instant_ms <= INSTANT_MS_MAX:
                raise InvalidValue(field, f"must be from 0 to {INSTANT_MS_MAX}")
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> Sale:
            row = await _locked_open(connection, sale_id)
            before = {name: getattr(row, name) for name in wanted}
            after = {
                name: before[name] if value is None else value for name, value in wanted.items()
            }
            if after == before:
                return sale_from_row(row)
            if after["ends_at_ms"] is not None and after["ends_at_ms"] <= after["starts_at_ms"]:
                raise InvalidValue("ends_at", "must be later than starts_at")
            changed = [name for name in wanted if after[name] != before[name]]
            _check_terms(row, after, changed, now_ms)
            await connection.execute(
                update(sales)
                .where(sales.c.sale_id == sale_id)
                .values(**after, version=sales.c.version + 1)
            )
            await record_action(
                connection,
                at_ms=now_ms,
                actor=actor,
                action="change_sale",
                sale_id=sale_id,
                detail={
                    "reason": reason,
                    "before": {name: before[name] for name in changed},
                    "after": {name: after[name] for name in changed},
                },
            )
            return await _read_again(connection, sale_id)

        return await self._database.write(f"change sale {sale_id}", work)

    async def request_stock_change(
        self, change_id: str, sale_id: SaleId, delta_units: int, *, actor: str, reason: str = ""
    ) -> Sale:
        """Put more units on sale, or take some off it. The same change id counts once.

        More units are in ``stock_units`` at once. Fewer leave it only when Redis has taken them
        away, which it refuses when fewer are left there.

        Args:
            change_id: names the change: 1 to 64 characters, as `check_id` allows them.
            sale_id: the sale.
            delta_units: the difference, not 0.
            actor: who wishes it.
            reason: why.

        Returns:
            The sale as it is now.

        Raises:
            NoSuchSale: there is none with this id.
            SaleClosed: it cannot be changed any more.
            ChangeIdReused: the id stands for another sale or difference.
            InvalidValue: naming ``by`` when it is 0, would put too many units on sale, or would
                take away units that are sold; or ``change_id``, ``actor``, ``reason``.
        """
        check_id("change_id", change_id)
        check_actor(actor)
        check_reason(reason)
        if delta_units == 0 or abs(delta_units) > STOCK_UNITS_MAX:
            raise InvalidValue("by", f"must be from 1 to {STOCK_UNITS_MAX} units, up or down")
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> Sale:
            row = await _locked(connection, sales.c.sale_id == sale_id)
            if row is None:
                raise NoSuchSale(sale_id)
            inserted = await connection.execute(
                statements.INSERTS[connection.dialect.name].stock_change,
                {
                    "change_id": change_id,
                    "sale_id": sale_id,
                    "delta_units": delta_units,
                    "state": "pending",
                    "actor": actor,
                    "reason": reason,
                    "requested_at_ms": now_ms,
                    "counted_at_ms": now_ms if delta_units > 0 else None,
                },
            )
            if inserted.one_or_none() is None:
                known = (
                    await connection.execute(
                        select(stock_changes.c.sale_id, stock_changes.c.delta_units).where(
                            stock_changes.c.change_id == change_id
                        )
                    )
                ).one()
                if tuple(known) != (sale_id, delta_units):
                    raise ChangeIdReused(change_id)
                return sale_from_row(row)
            if row.closed_at_ms is not None:
                raise SaleClosed(sale_id)
            await _check_bounds(connection, row, delta_units)
            await connection.execute(
                statements.CHANGE_SALE_TOTALS,
                {
                    "of_sale_id": sale_id,
                    "more_sold": 0,
                    "more_stock": max(delta_units, 0),
                    "more_version": 1,
                },
            )
            await record_action(
                connection,
                at_ms=now_ms,
                actor=actor,
                action="request_stock_change",
                sale_id=sale_id,
                detail={
                    "reason": reason,
                    "change_id": change_id,
                    "delta_units": delta_units,
                    "before": {"stock_units": row.stock_units},
                    "after": {"stock_units": row.stock_units + delta_units},
                },
            )
            return await _read_again(connection, sale_id)

        return await self._database.write(f"change the stock of sale {sale_id}", work)

    async def sold_units(self, sale_id: SaleId) -> int:
        """Units of the live orders of a sale."""

        async def work(connection: AsyncConnection) -> int:
            query = select(sales.c.sold_units).where(sales.c.sale_id == sale_id)
            return int(await connection.scalar(query) or 0)

        return await self._database.read(f"read what of sale {sale_id} is sold", work)

    async def stock_change_state(self, change_id: str) -> str | None:
        """``pending``, ``applied`` or ``refused``; None when there is no such change."""

        async def work(connection: AsyncConnection) -> str | None:
            query = select(stock_changes.c.state).where(stock_changes.c.change_id == change_id)
            state: str | None = await connection.scalar(query)
            return state

        return await self._database.read(f"read stock change {change_id}", work)

    async def pending_stock_changes(self) -> list[PendingStockChange]:
        """Stock changes that Redis has not confirmed, oldest first, at most 1,000."""

        async def work(connection: AsyncConnection) -> list[PendingStockChange]:
            result = await connection.execute(
                select(
                    stock_changes.c.change_id, stock_changes.c.sale_id, stock_changes.c.delta_units
                )
                .where(stock_changes.c.state == "pending")
                .order_by(stock_changes.c.requested_at_ms, stock_changes.c.change_id)
                .limit(STOCK_CHANGES_MAX)
            )
            return [PendingStockChange(*row) for row in result]

        return await self._database.read("read the pending stock changes", work)

    async def confirm_stock_change(self, change_id: str, *, epoch: int, seq: int) -> None:
        """Record that Redis applied a stock change, or refused it (fewer are left than taken).

        Only a pending change is decided by this, and only while the epoch in which Redis was
        asked is the newest: a bucket that has a newer one was judged, or made anew, without this
        word, so the Redis that gave it may be gone. Then it is asked again.
        The event of the change, which comes through the outbox before or after this call, is what
        lowers the stock and has the last word.

        Args:
            change_id: the change.
            epoch: in which Redis was asked.
            seq: at which it was applied; 0 when it was refused.
        """
        applied = seq > 0
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> None:
            sale_id = await connection.scalar(
                select(stock_changes.c.sale_id).where(stock_changes.c.change_id == change_id)
            )
            if sale_id is None:
                _log.error("a stock change came that nobody asked for", change_id=change_id)
                return
            row = await _locked(connection, sales.c.sale_id == sale_id)
            assert row is not None, "a stock change belongs to a sale, and sales are never deleted"
            newest = await connection.scalar(
                select(func.max(epochs.c.epoch)).where(epochs.c.sale_id == sale_id)
            )
            if newest != epoch:
                return
            decided = await connection.execute(
                _DECIDE_CHANGE,
                {
                    "of_change_id": change_id,
                    "verdict": "applied" if applied else "refused",
                    "now_ms": now_ms,
                    "in_epoch": epoch if applied else None,
                    "at_seq": seq if applied else None,
                },
            )
            delta_units = decided.scalar_one_or_none()
            if delta_units is None or applied or delta_units < 0:
                return
            # Units that Redis would not take: nobody can ever buy them.
            await connection.execute(
                statements.CHANGE_SALE_TOTALS,
                {
                    "of_sale_id": sale_id,
                    "more_sold": 0,
                    "more_stock": max(row.stock_units - delta_units, row.sold_units)
                    - row.stock_units,
                    "more_version": 1,
                },
            )
            await connection.execute(
                update(stock_changes)
                .where(stock_changes.c.change_id == change_id)
                .values(counted_at_ms=None)
            )

        await self._database.write(f"confirm stock change {change_id}", work)


_DECIDE_CHANGE: Final = (
    update(stock_changes)
    .where(
        stock_changes.c.change_id == bindparam("of_change_id"), stock_changes.c.state == "pending"
    )
    .values(
        state=bindparam("verdict"),
        decided_at_ms=bindparam("now_ms"),
        applied_epoch=bindparam("in_epoch"),
        applied_seq=bindparam("at_seq"),
    )
    .returning(stock_changes.c.delta_units)
)


async def _locked(
    connection: AsyncConnection, which: Any, *, only_open: bool = False
) -> Row[Any] | None:
    query = select_sales().where(which).with_for_update()
    if only_open:
        query = query.where(sales.c.closed_at_ms.is_(None))
    row: Row[Any] | None = (await connection.execute(query)).one_or_none()
    return row


async def _locked_open(connection: AsyncConnection, sale_id: SaleId) -> Row[Any]:
    row = await _locked(connection, sales.c.sale_id == sale_id)
    if row is None:
        raise NoSuchSale(sale_id)
    if row.closed_at_ms is not None:
        raise SaleClosed(sale_id)
    return row


def _check_terms(
    row: Row[Any], after: Mapping[str, Any], changed: Sequence[str], now_ms: int
) -> None:
    """Refuse terms that break a rule, or that change when the sale has started or is about to."""
    names = [name for name in changed if name in SaleTerms.__slots__]
    if not names:
        return
    if min(row.starts_at_ms, after["starts_at_ms"]) < now_ms + _TERMS_FIXED_MS:
        raise SaleStarted(row.sale_id, names, _TERMS_FIXED_MS // 1000)
    whole = {name: getattr(row, name) for name in SaleTerms.__slots__} | {
        name: after[name] for name in names
    }
    NewSale(
        goods_id=row.goods_id,
        stock_units=row.stock_units,
        starts_at_ms=after["starts_at_ms"],
        ends_at_ms=after["ends_at_ms"],
        **whole | {"late_payment": LatePayment(whole["late_payment"])},
    )


async def _read_again(connection: AsyncConnection, sale_id: SaleId) -> Sale:
    result = await connection.execute(select_sales().where(sales.c.sale_id == sale_id))
    return sale_from_row(result.one())


async def _check_bounds(connection: AsyncConnection, row: Row[Any], delta_units: int) -> None:
    """The bounds of a stock change; the change itself is among the pending ones already."""
    if row.stock_units + delta_units > STOCK_UNITS_MAX:
        raise InvalidValue("by", f"would put more than {STOCK_UNITS_MAX} units on sale")
    if delta_units > 0:
        return
    leaving = await connection.scalar(
        select(func.coalesce(func.sum(stock_changes.c.delta_units), 0)).where(
            stock_changes.c.sale_id == row.sale_id,
            stock_changes.c.state != "refused",
            stock_changes.c.counted_at_ms.is_(None),
        )
    )
    unsold = row.stock_units - row.sold_units + int(leaving or 0) - delta_units
    if unsold + delta_units < 0:
        raise InvalidValue("by", f"must not take away sold units: at most {unsold} can be taken")
