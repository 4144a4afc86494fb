"""Reconcile: show what would set the findings of the audit right, and do it when told to."""

from dataclasses import dataclass
from typing import Any

from seckill.admission.errors import BucketFenced
from seckill.admission.fence_ports import Rebuild
from seckill.audit.reconcile import Action, Repair, plan_repairs
from seckill.audit.report import AuditReport
from seckill.domain.ids import SaleId, check_goods_id
from seckill.ledger.errors import NoSuchGoods
from seckill.runtime.auditing import audit
from seckill.runtime.bootstrap import Stores

__all__ = ["Done", "Reconciliation", "reconcile"]


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one repair.

    Attributes:
        rebuild: what was done; None when it was not needed any more, or could not be done.
        why_not: why, in one sentence; empty when it was done.
    """

    repair: Repair
    rebuild: Rebuild | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The plan, what was done of it, and the audit afterwards.

    Attributes:
        after: the audit when all was done; the one of the plan when nothing was to be done.
    """

    plan: list[Repair]
    done: list[Done]
    after: AuditReport

    @property
    def ok(self) -> bool:
        """Whether nothing is left to be repaired."""
        return self.after.ok

    def to_dict(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "ok": self.ok,
            "plan": [repair.to_dict() for repair in self.plan],
            "done": [
                {
                    "bucket": f"{one.repair.sale_id}.{one.repair.bucket}",
                    "rebuilt": one.rebuild is not None,
                    "why_not": one.why_not,
                    "lost": list(one.rebuild.lost) if one.rebuild else [],
                    "recovered": one.rebuild.recovered_orders if one.rebuild else 0,
                }
                for one in self.done
            ],
            "findings_after": [finding.to_dict() for finding in self.after.findings],
        }


async def reconcile(
    stores: Stores, goods_id: str | None, *, apply: bool, deadline_ms: int
) -> Reconciliation:
    """Plan the repairs that the audit asks for, and carry them out when told to.

    Safe to be started again, and by two operators at once: each step is looked at again before
    it is taken, and a bucket is rebuilt by one at a time.

    Args:
        goods_id: only of these goods.
        apply: do it; else nothing is changed.
        deadline_ms: longest wait for each outbox to run dry.

    Raises:
        NoSuchGoods: there is no sale of these goods.
        StockUnavailable, LedgerUnavailable: a store does not answer; start again.
    """
    sale_ids: set[SaleId] | None = None
    if goods_id is not None:
        sale = await stores.ledger.sales.sale_of_goods(check_goods_id(goods_id))
        if sale is None:
            raise NoSuchGoods(check_goods_id(goods_id))
        sale_ids = {sale.sale_id}
    report = await audit(stores, sale_ids)
    plan = plan_repairs(report)
    if not apply:
        return Reconciliation(plan, [], report)
    done = [await _carry_out(stores, repair, deadline_ms) for repair in plan]
    return Reconciliation(plan, done, await audit(stores, sale_ids) if plan else report)


async def _carry_out(stores: Stores, repair: Repair, deadline_ms: int) -> Done:
    if repair.action is Action.BY_HAND:
        return Done(repair, None, "no program may decide it")
    still = plan_repairs(await audit(stores, {repair.sale_id}))
    wanted = {(one.bucket_id, one.action) for one in still}
    if (repair.bucket_id, Action.REBUILD) not in wanted:
        return Done(repair, None, "it is right by now")
    try:
        return Done(repair, await stores.fence.rebuild(repair.bucket_id, deadline_ms=deadline_ms))
    except BucketFenced as error:
        return Done(repair, None, error.reason)
