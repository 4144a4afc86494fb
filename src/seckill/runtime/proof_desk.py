"""What the audit and the fence say, and repairs: for the operators' API."""

from typing import Any

from seckill.domain.ids import check_goods_id
from seckill.domain.instants import rfc3339_ms
from seckill.ledger.errors import NoSuchGoods
from seckill.runtime.beside import Beside
from seckill.runtime.bootstrap import Stores

__all__ = ["ProofDesk"]

Row = dict[str, Any]


class ProofDesk:
    """Reports and repairs. Raises LedgerUnavailable when the ledger is away."""

    def __init__(self, stores: Stores, beside: Beside) -> None:
        self._stores = stores
        self._beside = beside

    async def latest_audit(self) -> Row:
        """What the background audit found last; the report is None before the first."""
        found = await self._stores.ledger.audit_results.latest()
        if found is None:
            return {"at": None, "report": None}
        at_ms, report = found
        return {"at": rfc3339_ms(at_ms), "report": report}

    async def audit(self) -> Row:
        """Audit now. Raises Unavailable as `Beside.run`."""
        at_ms = self._stores.clock.now_ms()
        return {"at": rfc3339_ms(at_ms), "report": await self._beside.run("audit", "--json")}

    async def statements(self, goods_id: str | None) -> list[Row]:
        """What happened to buckets that were not trusted, the newest first, at most 200."""
        sale_id = None
        if goods_id is not None:
            sale = await self._stores.ledger.sales.sale_of_goods(check_goods_id(goods_id))
            if sale is None:
                raise NoSuchGoods(check_goods_id(goods_id))
            sale_id = sale.sale_id
        found = await self._stores.ledger.fences.statements(sale_id)
        return [one.to_dict() for one in found]

    async def reconcile(self, goods_id: str | None, *, apply: bool, actor: str, reason: str) -> Row:
        """Plan what would set the findings right; with ``apply`` do it.

        Raises:
            NoSuchGoods: there never was a sale of these goods.
            Unavailable: as `Beside.run`; asking again is safe.
        """
        goods: list[str] = []
        if goods_id is not None:
            name = check_goods_id(goods_id)
            if await self._stores.ledger.sales.sale_of_goods(name) is None:
                raise NoSuchGoods(name)
            goods = ["--", name]  # it may begin with a dash
        if apply:
            # Before it begins: who did it must be known even where it was cut.
            await self._stores.ledger.actions.note(
                "reconcile", actor=actor, reason=reason, goods_id=goods_id
            )
        row = await self._beside.run("reconcile", *(["--apply"] if apply else []), "--json", *goods)
        return dict(row)
