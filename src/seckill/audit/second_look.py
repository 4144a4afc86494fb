"""The second look: suspects are read again until they are proven right, or wrong twice alike."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from seckill.audit import invariants
from seckill.audit.collect import EVERYTHING, BucketReader, UnwrittenLog, holding_at
from seckill.audit.counting import AuditedBucket, Suspect
from seckill.audit.invariants import ReservationFacts, Verdict
from seckill.audit.ports import AuditLedger
from seckill.audit.report import Subject
from seckill.audit.seqs import SeqSet
from seckill.domain.ids import UserId
from seckill.domain.reservation import BucketId, Place

__all__ = ["CONFIRMATIONS", "ROUNDS_MAX", "SecondLook"]

CONFIRMATIONS: Final = 2
"""How often the same must be seen wrong before it is a finding."""
ROUNDS_MAX: Final = 10
PLACES_PER_QUESTION: Final = 1_000
_PAUSE_MS_MAX: Final = 1_000

MakeSubject = Callable[[Place, UserId | None, int | None, str | None], Subject]


class SecondLook:
    """Reads again what did not fit, and condemns what still does not.

    Args:
        subject: names a reservation in the report.
        settle_ms: pause before a round.
    """

    def __init__(
        self, reader: BucketReader, ledger: AuditLedger, subject: MakeSubject, settle_ms: int
    ) -> None:
        self._reader = reader
        self._ledger = ledger
        self._subject = subject
        self._settle_ms = settle_ms

    # Places that are in no log

    async def confirm_gaps(
        self, bucket: AuditedBucket, gaps: dict[int, SeqSet]
    ) -> dict[int, SeqSet]:
        """What is still in no log: the outbox is read again first, then the ledger."""
        for _ in range(CONFIRMATIONS):
            if not gaps:
                break
            await asyncio.sleep(self._settle_ms / 1000)
            log = await self._reader.unwritten(bucket.bucket_id, *EVERYTHING)
            gaps = {
                epoch: rest
                for epoch, seqs in gaps.items()
                if (rest := await self._still_missing(bucket.bucket_id, epoch, seqs, log))
            }
        return gaps

    async def _still_missing(
        self, bucket_id: BucketId, epoch: int, seqs: SeqSet, log: UnwrittenLog
    ) -> SeqSet:
        found = log.seqs(epoch)
        for first, last in seqs.intervals():
            at = first
            while at <= last:
                written = await self._ledger.written_seqs(bucket_id, epoch, at, last)
                if not written:
                    break
                found.update(SeqSet(written))
                at = written[-1] + 1
        return seqs.minus(found)

    # Reservations that differ between the stores

    async def confirm(self, bucket: AuditedBucket) -> int:
        """Look at the suspects of a bucket until each is settled; condemn what is wrong.

        Returns:
            How many kept moving to the end, and are neither right nor wrong.
        """
        suspects = bucket.suspects - bucket.condemned
        bucket.suspects = set()
        wrong: dict[Suspect, tuple[ReservationFacts, int]] = {}
        pause_ms = self._settle_ms
        for number in range(ROUNDS_MAX):
            if not suspects:
                return 0
            if number:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, _PAUSE_MS_MAX)
            async for facts in self._read_again(bucket, sorted(suspects)):
                suspect = (facts.place, facts.user_id)
                verdict = invariants.judge(facts)
                if verdict is Verdict.RIGHT:
                    suspects.discard(suspect)
                elif verdict is Verdict.UNSTABLE:
                    wrong.pop(suspect, None)
                else:
                    before, times = wrong.get(suspect, (None, 0))
                    times = times + 1 if before == facts else 1
                    wrong[suspect] = (facts, times)
                    if times == CONFIRMATIONS:
                        suspects.discard(suspect)
                        self._condemn(bucket, facts, verdict)
        return len(suspects)

    async def _read_again(
        self, bucket: AuditedBucket, suspects: Sequence[Suspect]
    ) -> AsyncIterator[ReservationFacts]:
        bucket_id = bucket.bucket_id
        given = {
            row.epoch: max(row.valid_to_seq or 0, bucket.marks.get(row.epoch, 0))
            for row in bucket.epochs
        }
        # What is seen in the outbox here and is not any more below, is in the ledger below.
        log = await self._reader.unwritten(bucket_id, *EVERYTHING)
        for at in range(0, len(suspects), PLACES_PER_QUESTION):
            some = suspects[at : at + PLACES_PER_QUESTION]
            users = [user_id for _, user_id in some]
            before = await self._reader.records(bucket_id, users)
            written = await self._ledger.written([place for place, _ in some])
            after = await self._reader.records(bucket_id, users)
            now = await self._reader.look(bucket_id)
            for (place, user_id), first, second in zip(some, before, after, strict=True):
                yield ReservationFacts(
                    place=place,
                    user_id=user_id,
                    held=(holding_at(place, first), holding_at(place, second)),
                    written=written.get(place),
                    under_way=log.has(place),
                    never_given=invariants.never_given(place, now, given),
                    epoch=bucket.view.epoch,
                )

    def _condemn(self, bucket: AuditedBucket, facts: ReservationFacts, verdict: Verdict) -> None:
        place, user_id, held = facts.place, facts.user_id, facts.held[0]
        bucket.condemned.add((place, user_id))
        if verdict is Verdict.PHANTOM:
            order = facts.written and facts.written.order
            assert order, "a phantom is an order"
            note = f"the ledger says {order.state}, Redis holds nothing"
            bucket.phantom.add(Subject(order.reservation_id, user_id, place, order.quantity, note))
            return
        assert held is not None, "what is lost or stranded is held"
        if verdict is Verdict.LOST:
            note = "Redis holds the units"
            bucket.lost.add(self._subject(place, user_id, held.quantity, note))
        else:
            note = invariants.why_stranded(facts)
            bucket.stranded.add(self._subject(place, user_id, held.quantity, note))
