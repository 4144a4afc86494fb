"""What an operator may have done about the findings of an audit: a plan first, and then its steps.

The plan is a pure function of the report. The steps are those of the fence (a rebuild of a bucket),
so they are safe to be repeated, to be begun by two operators at once, and to be cut off anywhere.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from seckill.audit.report import AuditReport, Finding, Kind
from seckill.domain.ids import GoodsId, SaleId
from seckill.domain.reservation import BucketId

__all__ = ["Action", "Repair", "plan_repairs"]


class Action(StrEnum):
    """What is to be done."""

    REBUILD = "rebuild"
    """Make the bucket anew from the ledger; write what only Redis knows, name what nobody knows."""

    BY_HAND = "by_hand"
    """No program may decide it."""


_REBUILT: Final = {
    Kind.LOST: "write the orders that Redis holds units for, name the others as lost",
    Kind.COLLISION: "give the bucket one history again",
    Kind.STRANDED: "put units back on sale that nobody holds",
    Kind.PHANTOM: "let Redis know the buyers of live orders again",
    Kind.UNBALANCED: "count the units anew",
    Kind.MISCOUNTED: "count the units anew",
    Kind.STOCK_DIFFERS: "put on sale what the ledger says",
    Kind.TORN: "make the lost part anew",
    Kind.LEDGER_OLDER: "write the orders that only Redis knows into the older books",
    Kind.FENCED: "open the bucket under a new epoch",
}
"""What a rebuild does about a finding."""

_BY_HAND: Final = {
    Kind.OVERSOLD: "raise the stock by what can be delivered, cancel the rest",
    Kind.DUPLICATE: "cancel what is beyond the limit",
    Kind.COUNTER: "correct the rows of the ledger; nothing is rebuilt from wrong ones",
    Kind.DEAD_LETTER: "read the reasons of the dead letters",
}

_BLOCKS: Final = frozenset({Kind.COUNTER})
"""A rebuild believes these rows: while they are wrong it would do harm."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One step of the plan.

    Attributes:
        bucket: None where it is about the sale.
        findings: the kinds that it is to set right.
        what: what it does, one sentence for each.
    """

    action: Action
    sale_id: SaleId
    goods_id: GoodsId
    bucket: int | None
    findings: Sequence[Kind]
    what: Sequence[str]

    @property
    def bucket_id(self) -> BucketId:
        """The bucket to rebuild."""
        return BucketId(self.sale_id, self.bucket or 0)

    def to_dict(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "action": self.action.value,
            "sale_id": self.sale_id,
            "goods_id": self.goods_id,
            "bucket": self.bucket,
            "findings": [kind.value for kind in self.findings],
            "what": list(self.what),
        }


def plan_repairs(report: AuditReport) -> list[Repair]:
    """The steps that set the findings of a report right, by sale and bucket.

    A sale whose ledger disagrees with itself is left to people as a whole. A lost event harms
    nobody and has no step.
    """
    blocked = {one.sale_id for one in report.findings if one.kind in _BLOCKS}
    rebuilds: dict[tuple[SaleId, GoodsId, int], list[Finding]] = defaultdict(list)
    by_hand: list[Repair] = []
    for one in report.findings:
        # An oversell in Redis names its bucket, and is a wrong counter there.
        in_redis = one.kind is Kind.OVERSOLD and one.bucket is not None
        if (one.kind in _REBUILT or in_redis) and one.sale_id not in blocked:
            rebuilds[one.sale_id, one.goods_id, one.bucket or 0].append(one)
        elif one.kind in _BY_HAND or one.kind in _REBUILT:
            what = _BY_HAND.get(one.kind) or "wait until the rows of the ledger are right"
            by_hand.append(
                Repair(Action.BY_HAND, one.sale_id, one.goods_id, one.bucket, [one.kind], [what])
            )
    return [
        Repair(
            Action.REBUILD,
            sale_id,
            goods_id,
            bucket,
            sorted({one.kind for one in some}),
            sorted({_REBUILT.get(one.kind, "count the units anew") for one in some}),
        )
        for (sale_id, goods_id, bucket), some in sorted(rebuilds.items())
    ] + by_hand
