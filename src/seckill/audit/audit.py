"""One audit, from the first look to the report; why it is right, and why it may run at any time.

Nothing is stopped, so no two readings are of the same instant. What is proven is proven by the
*order* of the readings and by things that never change again once they are so.

**Counters in Redis.** One look is atomic: stock + held = put, stock >= 0, as many buyers as are
counted. It also gives the place (epoch E, seq S) at which it was taken.

**Completeness.** Every change of a bucket has a seq, and its event is in the outbox by the same
atomic script. An entry leaves the outbox only after the ledger has committed it (or, in one
transaction, for the dead letters). So: look first, then read the outbox from its old end, then the
dead letters, then the ledger. What happened up to (E, S) was in the outbox at the look or had been
written; if it left the outbox while that was read, it was written before the ledger is read. Hence
each seq from 1 to S is in one of the three, or it is lost. The same holds for earlier epochs: up
to where the ledger closed them, and up to what web processes have acknowledged: those of this host
by their marks, those of others by what they have reported. What is named as lost already is set
apart: it is accounted for.
What happened after the look is left out everywhere: it belongs to the next audit.

**Counters against the log.** Where nothing is missing, the events up to (E, S) add up to what the
bucket must hold at (E, S): units held, units put on sale. An event in the outbox is taken from
there and its row, if it has one already, is not counted again; rows outside the outbox up to S were
all committed before. So this is exact under any load.

**The ledger against itself.** Sums, counters and limits are read in one snapshot.

**One reservation in both stores.** Live orders of the snapshot are looked for among the buyers, and
the buyers, slice by slice, among the live orders. What does not fit is a *suspect* only: it may
have moved in between. A suspect is read again in the order outbox, Redis, ledger, Redis. If Redis
says the same before and after, it was so at the instant of the ledger, since a place that Redis
gave back it never holds again, and an order that stopped being live never becomes it again before
the release is done. Twice the same wrong answer, and it is a finding. What the outbox holds or a
pending release is about to return is in flight, not wrong.

**Restarts.** A bucket that is fenced, or moves to another epoch while it is audited, is audited
again, for a few seconds; what is still so then is reported as not provable, and nothing else is
said about it from Redis' side.

Memory: slices of bounded size; intervals of seqs; 4 bytes for each place with a live order, to
compare buyers without asking the ledger about each. A buyer's record that differs from the order
at its place only in user id or quantity is overlooked if their checksums (CRC-32) are equal.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from seckill.admission.reservation_ids import ReservationIds
from seckill.audit.collect import BucketReader
from seckill.audit.ports import AuditLedger
from seckill.audit.report import AuditReport
from seckill.audit.sale_audit import NotNow, SaleAudit, SaleOutcome
from seckill.domain.clock import Clock
from seckill.domain.ids import SaleId

__all__ = ["AuditOptions", "run_audit"]

_RETRY_MS: Final = 100
"""Pause before a sale with a fenced or moving bucket is audited again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """How patient an audit is, and how much it keeps in mind.

    Attributes:
        settle_ms: pause before a suspect is looked at again; doubles from round to round.
        patience_ms: how long a fenced or moving bucket is waited for.
        suspects_max: suspects that are collected before they are looked at again.
    """

    settle_ms: int = 20
    patience_ms: int = 5_000
    suspects_max: int = 2_000


async def run_audit(
    *,
    reader: BucketReader,
    ledger: AuditLedger,
    reservation_ids: ReservationIds,
    clock: Clock,
    marks_folder: Path | None = None,
    sale_ids: Collection[SaleId] | None = None,
    options: AuditOptions | None = None,
) -> AuditReport:
    """Audit sales while they run, or long after; changes nothing.

    Args:
        reader: reads the buckets.
        ledger: reads the books.
        reservation_ids: names places as their buyers know them.
        clock: for the duration and the patience.
        marks_folder: where the web processes of this host keep what they acknowledged; without it
            an acknowledged place that Redis and the ledger both forgot cannot be missed.
        sale_ids: which sales; None is every sale that the ledger ever had.
        options: patience and bounds.

    Raises:
        StockUnavailable: Redis cannot be asked now.
        LedgerUnavailable: the ledger cannot be asked now.

    Complexity: O(orders of the sales); the measured times stand in docs/operate/audit.md.
    """
    options = options or AuditOptions()
    started_at_ms, started_ms = clock.now_ms(), clock.monotonic_ms()
    async with ledger.books() as books:
        sales = [s for s in await books.sales() if sale_ids is None or s.sale_id in sale_ids]
    statements = await ledger.statements()
    outcomes = []
    for sale in sales:
        audit = SaleAudit(
            sale=sale,
            reader=reader,
            ledger=ledger,
            reservation_ids=reservation_ids,
            marks_folder=marks_folder,
            settle_ms=options.settle_ms,
            suspects_max=options.suspects_max,
        )
        outcomes.append(await _run_patiently(audit, clock, options.patience_ms))
    return AuditReport(
        findings=[finding for outcome in outcomes for finding in outcome.findings],
        sales=[outcome.line for outcome in outcomes],
        started_at_ms=started_at_ms,
        duration_ms=round(clock.monotonic_ms() - started_ms),
        accounted=[finding for outcome in outcomes for finding in outcome.accounted],
        statements=[one for one in statements if one.sale_id in {sale.sale_id for sale in sales}],
        unproven=[bucket_id for outcome in outcomes for bucket_id in outcome.unproven],
        unsettled=sum(outcome.unsettled for outcome in outcomes),
    )


async def _run_patiently(audit: SaleAudit, clock: Clock, patience_ms: int) -> SaleOutcome:
    """Audit a sale; while a bucket cannot be trusted, again and again until patience ends."""
    deadline_ms = clock.monotonic_ms() + patience_ms
    while clock.monotonic_ms() < deadline_ms:
        try:
            return await audit.run(last=False)
        except NotNow:
            await asyncio.sleep(min(_RETRY_MS, patience_ms) / 1000)
    return await audit.run(last=True)
