"""The audit of one sale: all readings, in the order for which `seckill.audit.audit` has reasons."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from seckill.admission.bucket import BucketView, Holding
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Status
from seckill.audit import invariants
from seckill.audit.collect import EVERYTHING, BucketReader, highest_marks, read_record
from seckill.audit.counting import AuditedBucket, Suspect
from seckill.audit.invariants import Ref
from seckill.audit.ports import (
    AuditBooks,
    AuditedCollision,
    AuditedOrder,
    AuditedStockChange,
    AuditLedger,
    SaleSums,
)
from seckill.audit.report import IDS_MAX, Finding, SaleLine, Subject, Tally
from seckill.audit.second_look import CONFIRMATIONS, ROUNDS_MAX, SecondLook
from seckill.audit.seqs import SeqSet
from seckill.domain.events import Admitted
from seckill.domain.ids import UserId
from seckill.domain.order import HOLDING_STATES
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import Sale

__all__ = ["NotNow", "SaleAudit", "SaleOutcome"]

_FAULTS_MAX: Final = 10_000
"""Users with wrong counters or too many units that one audit takes note of."""
_NAMES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class SaleOutcome:
    """What the audit of one sale came to; the parts are those of `AuditReport`."""

    findings: Sequence[Finding]
    accounted: Sequence[Finding]
    line: SaleLine
    unproven: Sequence[BucketId]
    unsettled: int


class NotNow(Exception):  # noqa: N818  -- control flow of this room, no error
    """A bucket is fenced, or moved on while it was audited: worth another try."""


class SaleAudit:
    """Audits one sale, as often as it is asked to."""

    def __init__(
        self,
        *,
        sale: Sale,
        reader: BucketReader,
        ledger: AuditLedger,
        reservation_ids: ReservationIds,
        marks_folder: Path | None,
        settle_ms: int,
        suspects_max: int,
    ) -> None:
        self._sale = sale
        self._reader = reader
        self._ledger = ledger
        self._reservation_ids = reservation_ids
        self._marks_folder = marks_folder
        self._settle_ms = settle_ms
        self._suspects_max = suspects_max
        self._second_look = SecondLook(reader, ledger, self._subject, settle_ms)
        self._unsettled = 0

    async def run(self, *, last: bool) -> SaleOutcome:
        """Audit the sale once.

        Args:
            last: report what cannot be proven, instead of asking for another try.

        Raises:
            NotNow: a bucket cannot be trusted now, or moved on meanwhile.
        """
        sale_id = self._sale.sale_id
        ref = Ref(sale_id, self._sale.goods_id)
        self._unsettled = 0
        buckets = await self._first_looks()
        findings: list[Finding] = []
        accounted: list[Finding] = []
        async with self._ledger.books() as books:
            sums = await books.sums(sale_id)
            assert sums is not None, "sales are never deleted"
            # It may have been closed since the audit began.
            now = [sale for sale in await books.sales(closed=False) if sale.sale_id == sale_id]
            closed = not now or now[0].retired
            epochs = await books.epochs(sale_id)
            causes = await books.fence_causes(sale_id)
            for bucket in buckets.values():
                bucket.judge_trust(
                    [row for row in epochs if row.bucket == bucket.bucket_id.bucket], closed=closed
                )
                if bucket.reason is not None and bucket.bucket_id.bucket in causes:
                    bucket.reason = f"{bucket.reason} ({causes[bucket.bucket_id.bucket]})"
                if bucket.reason is not None and not last:
                    raise NotNow(bucket.reason)
            changes = await books.stock_changes(sale_id)
            faults = await books.holding_faults(sale_id, _FAULTS_MAX)
            findings += invariants.check_oversold(ref, sums)
            findings += invariants.check_duplicates(ref, faults)
            findings += invariants.check_counters(ref, sums, faults)
            await self._read_orders(books, buckets)
            await self._read_others(books, buckets)
            more, settled = await self._read_facts(ref, books, buckets)
            findings += more
            accounted += settled
        for bucket in buckets.values():
            findings += await self._check_bucket(bucket, last=last)
            if bucket.accounted:
                named = self._name_gaps(bucket, bucket.accounted, units=1)
                accounted.append(invariants.accounted_losses(bucket.ref, named))
        if all(bucket.trusted for bucket in buckets.values()) and not await self._stock_agrees(
            sums, changes, buckets.values()
        ):
            put_units = sum(bucket.view.put_units for bucket in buckets.values())
            findings += invariants.check_stock(ref, put_units, sums.stock_units)
        return SaleOutcome(
            findings,
            accounted,
            self._line(sums, list(buckets.values()), closed=closed),
            [bucket.bucket_id for bucket in buckets.values() if bucket.reason is not None],
            self._unsettled,
        )

    def _line(self, sums: SaleSums, buckets: Sequence[AuditedBucket], *, closed: bool) -> SaleLine:
        views = [bucket.view for bucket in buckets]
        known = all(bucket.trusted for bucket in buckets)
        return SaleLine(
            sale_id=self._sale.sale_id,
            goods_id=self._sale.goods_id,
            closed=closed,
            stock_units=sums.stock_units,
            live_units=sums.live_units,
            put_units=sum(view.put_units for view in views) if known else None,
            left_units=sum(view.stock_units for view in views) if known else None,
            held_units=sum(view.held_units for view in views) if known else None,
            in_flight_units=sum(bucket.in_flight_units for bucket in buckets),
            releasing_units=sums.pending_release_units,
            buyers=sum(view.buyers for view in views) if known else None,
        )

    def _subject(
        self,
        place: Place,
        user_id: UserId | None = None,
        units: int | None = None,
        note: str | None = None,
    ) -> Subject:
        return Subject(self._reservation_ids.encode(place), user_id, place, units, note)

    # The first readings, in their order: marks, look, outbox, dead letters; then the books

    async def _first_looks(self) -> dict[int, AuditedBucket]:
        sale = self._sale
        # Before the look: a mark is raised only after Redis has given the seq out.
        reported = await self._ledger.marks(sale.sale_id)
        marks = await asyncio.to_thread(highest_marks, self._marks_folder)
        buckets = {}
        for number in range(sale.bucket_count):
            bucket_id = BucketId(sale.sale_id, number)
            view = await self._reader.look(bucket_id)
            # Of a bucket that cannot be trusted, all that is left in its outbox counts.
            horizon = (view.epoch, view.seq) if _readable(view) else EVERYTHING
            buckets[number] = AuditedBucket(
                ref=Ref(sale.sale_id, sale.goods_id, number),
                bucket_id=bucket_id,
                marks=_highest(marks.get(bucket_id, {}), reported.get(number, {})),
                view=view,
                parts=(await self._reader.parts(bucket_id) if view.status is Status.TORN else []),
                log=await self._reader.unwritten(bucket_id, *horizon),
            )
        return buckets

    async def _read_orders(self, books: AuditBooks, buckets: Mapping[int, AuditedBucket]) -> None:
        """Stream the orders once, counting them and looking for the live ones in Redis."""
        async for orders in books.orders(self._sale.sale_id):
            for number, bucket in buckets.items():
                rows = [order for order in orders if order.place.bucket == number]
                for row in rows:
                    bucket.count_order(row)
                if bucket.trusted:
                    live = [row for row in rows if row.state in HOLDING_STATES]
                    await self._suspect_phantoms(bucket, live)

    async def _read_others(self, books: AuditBooks, buckets: Mapping[int, AuditedBucket]) -> None:
        """Stream the releases and stock changes, counting them."""
        sale_id = self._sale.sale_id
        async for events in books.bucket_events(sale_id):
            for event in events:
                if event.place.bucket in buckets:
                    buckets[event.place.bucket].count_event(event)
        if any(bucket.base > 1 for bucket in buckets.values()):
            async for releases in books.releases(sale_id):
                for release in releases:
                    if release.reservation.bucket in buckets:
                        buckets[release.reservation.bucket].count_release(release)

    async def _read_facts(
        self, ref: Ref, books: AuditBooks, buckets: Mapping[int, AuditedBucket]
    ) -> tuple[list[Finding], list[Finding]]:
        """Read what is recorded as gone wrong: findings, and what is settled by a rebuild."""
        collisions, settled = await self._read_collisions(books, buckets)
        for place in await books.losses(ref.sale_id):
            if place.bucket in buckets:
                buckets[place.bucket].count_loss(place)
        return (
            [invariants.collided(ref, collisions)] if collisions.count else [],
            [invariants.settled_collisions(ref, settled)] if settled.count else [],
        )

    async def _read_collisions(
        self, books: AuditBooks, buckets: Mapping[int, AuditedBucket]
    ) -> tuple[Tally, Tally]:
        """The collisions since the last rebuild of their buckets, and those before it."""
        tally, settled = Tally(), Tally()
        async for collisions in books.collisions(self._sale.sale_id):
            for collision in collisions:
                bucket = buckets.get(collision.place.bucket)
                before = bucket is not None and collision.place.epoch < bucket.base
                (settled if before else tally).add(_collision_subject(collision))
                if bucket is not None:
                    bucket.count_collision(collision.place)
        return tally, settled

    # One bucket against the books

    async def _check_bucket(self, bucket: AuditedBucket, *, last: bool) -> list[Finding]:
        ref = bucket.ref
        findings = self._check_counts(bucket)
        gaps = await self._second_look.confirm_gaps(bucket, bucket.find_gaps())
        bucket.gaps = bucket.account_for(gaps)
        if bucket.reason is not None:
            unwritten = self._name_gaps(bucket, bucket.gaps, units=0)
            return [*findings, invariants.fenced(ref, bucket.reason, unwritten)]
        if bucket.trusted:
            await self._suspect_stranded(bucket)
            self._unsettled += await self._second_look.confirm(bucket)
        lost_releases = await self._sort_gaps(bucket)
        for tally, make in (
            (bucket.lost, invariants.lost),
            (lost_releases, invariants.lost_events),
            (bucket.stranded, invariants.stranded),
            (bucket.phantom, invariants.phantom),
        ):
            if tally.count:
                findings.append(make(ref, tally))
        moved = await self._why_moved(bucket) if bucket.trusted else None
        if moved is None:
            return findings
        if not last:
            raise NotNow(moved)
        bucket.reason = moved
        return [invariants.fenced(ref, moved, Tally())]

    def _check_counts(self, bucket: AuditedBucket) -> list[Finding]:
        """What follows from the first readings alone."""
        ref, view, log = bucket.ref, bucket.view, bucket.log
        findings: list[Finding] = []
        if bucket.trusted:
            findings += invariants.check_balance(ref, view)
            findings += invariants.check_whole(ref, view, bucket.parts)
            findings += invariants.check_books(ref, view, bucket.last_written(view.epoch))
            if bucket.log_is_whole():
                findings += invariants.check_log(ref, view, bucket.log_sums())
        letters = _dead_letters(bucket)
        if letters.count or log.dead_letters_more:
            findings.append(invariants.dead_lettered(ref, letters, log.dead_letters_more))
        return findings

    async def _why_moved(self, bucket: AuditedBucket) -> str | None:
        """Why what was read does not belong together; None when it does."""
        then, now = bucket.view, await self._reader.look(bucket.bucket_id)
        if (now.epoch, now.status) != (then.epoch, then.status):
            return (
                f"it went from epoch {then.epoch} ({then.status.name.lower()}) to epoch"
                f" {now.epoch} ({now.status.name.lower()}) while it was audited"
            )
        written = bucket.last_written(now.epoch)
        if now.seq < max(then.seq, written):
            return (
                f"it is at seq {now.seq}, and seq {max(then.seq, written)} of the same epoch was"
                " seen before: Redis has gone back in time, or a row was written by hand"
            )
        return None

    # Places that are in no log

    def _name_gaps(self, bucket: AuditedBucket, gaps: Mapping[int, SeqSet], *, units: int) -> Tally:
        tally = Tally()
        for epoch, seqs in gaps.items():
            self._name(tally, bucket.bucket_id, epoch, seqs, units=units, note=None)
        return tally

    def _name(
        self,
        tally: Tally,
        bucket_id: BucketId,
        epoch: int,
        seqs: SeqSet,
        *,
        units: int,
        note: str | None,
    ) -> None:
        """Count places, however many they are said to be, and name the first of them."""
        named = list(islice(seqs, IDS_MAX))
        for seq in named:
            place = Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)
            tally.add(self._subject(place, units=units or None, note=note))
        tally.add_unnamed(len(seqs) - len(named), units)

    async def _sort_gaps(self, bucket: AuditedBucket) -> Tally:
        """Say of each missing place that no buyer holds what it was.

        Returns:
            What is known by word.
        """
        by_word = Tally()
        bucket_id = bucket.bucket_id
        for epoch, gap in bucket.gaps.items():
            seqs = gap.minus(bucket.held_gaps.get(epoch, SeqSet()))
            said: dict[int, str] = {}
            for first, last in seqs.intervals():
                said |= await self._ledger.known_by_word(bucket_id, epoch, first, last)
            for seq, what in said.items():
                place = Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)
                by_word.add(Subject(place=place, note=what))
            others = seqs.minus(SeqSet(said))
            note = "nobody holds it now; at least 1 unit"
            self._name(bucket.lost, bucket_id, epoch, others, units=1, note=note)
        return by_word

    # Reservations in both stores

    async def _suspect_phantoms(
        self, bucket: AuditedBucket, orders: Sequence[AuditedOrder]
    ) -> None:
        """Look for live orders among the buyers."""
        records = await self._reader.records(bucket.bucket_id, [order.user_id for order in orders])
        for order, record in zip(orders, records, strict=True):
            place = order.place
            beginning = f"{place.epoch}.{place.seq}.{order.quantity}.".encode()
            items = () if record is None else record.split(b",")
            # What is spent has a "!" there, and is held by nobody.
            if not any(
                item.startswith(beginning) and not item.startswith(beginning + b"!")
                for item in items
            ):
                bucket.suspects.add((place, order.user_id))
        await self._confirm_when_many(bucket)

    async def _suspect_stranded(self, bucket: AuditedBucket) -> None:
        """Look for what buyers hold among the live orders; name lost places by their holders."""
        unreadable: set[UserId] = set()
        async for buyers in self._reader.buyers(bucket.bucket_id):
            ahead: list[Suspect] = []
            for user_id, record in buyers:
                holdings = read_record(bucket.bucket_id, record)
                if holdings is None and user_id not in unreadable:
                    unreadable.add(user_id)
                    text = record[:200].decode(errors="backslashreplace")
                    note = f"the record of this user cannot be read: {text!r}"
                    bucket.stranded.add(Subject(user_id=user_id, note=note))
                for holding in holdings or ():
                    if not bucket.prints.match(holding.place, user_id, holding.quantity):
                        self._compare(bucket, user_id, holding, ahead)
            if ahead:
                now = await self._reader.look(bucket.bucket_id)
                bucket.suspects.update(
                    (place, user_id)
                    for place, user_id in ahead
                    if invariants.never_given(place, now, {})
                )
            await self._confirm_when_many(bucket)

    def _compare(
        self, bucket: AuditedBucket, user_id: UserId, holding: Holding, ahead: list[Suspect]
    ) -> None:
        """Sort a holding that is no live order of the snapshot."""
        place, view = holding.place, bucket.view
        gap = bucket.gaps.get(place.epoch)
        if gap is not None and place.seq in gap:
            # The scan may bring a buyer twice.
            if bucket.held_gaps.setdefault(place.epoch, SeqSet()).add(place.seq):
                note = "Redis holds the units"
                bucket.lost.add(self._subject(place, user_id, holding.quantity, note))
        elif (place.epoch, place.seq) > (view.epoch, view.seq):
            ahead.append((place, user_id))
        elif not bucket.log.has(place):
            bucket.suspects.add((place, user_id))

    async def _confirm_when_many(self, bucket: AuditedBucket) -> None:
        if len(bucket.suspects) >= self._suspects_max:
            self._unsettled += await self._second_look.confirm(bucket)

    # Redis' stock against the ledger's

    async def _stock_agrees(
        self,
        sums: SaleSums,
        changes: Sequence[AuditedStockChange],
        buckets: Collection[AuditedBucket],
    ) -> bool:
        """Whether as much was put on sale in Redis as in the ledger, or a change is under way."""
        bucket_ids = [bucket.bucket_id for bucket in buckets]
        seen = (sum(bucket.view.put_units for bucket in buckets), sums.stock_units)
        if seen[0] == seen[1] or _under_way(changes):
            return True
        times = 0
        for _ in range(ROUNDS_MAX):
            await asyncio.sleep(self._settle_ms / 1000)
            put_before = await self._put_units(bucket_ids)
            async with self._ledger.books() as books:
                now = await books.sums(self._sale.sale_id)
                changes = await books.stock_changes(self._sale.sale_id)
            assert now is not None, "sales are never deleted"
            put_after = await self._put_units(bucket_ids)
            if put_before == now.stock_units == put_after or _under_way(changes):
                return True
            again = (put_after, now.stock_units)
            times = times + 1 if again == seen and put_before == put_after else 0
            seen = again
            if times == CONFIRMATIONS:
                return False
        self._unsettled += 1
        return True

    async def _put_units(self, bucket_ids: Iterable[BucketId]) -> int:
        return sum([(await self._reader.look(bucket_id)).put_units for bucket_id in bucket_ids])


def _highest(*marks: Mapping[int, int]) -> dict[int, int]:
    """The highest of several marks of each epoch."""
    highest: dict[int, int] = {}
    for some in marks:
        for epoch, seq in some.items():
            highest[epoch] = max(seq, highest.get(epoch, 0))
    return highest


def _readable(view: BucketView) -> bool:
    return view.status in {Status.OK, Status.TORN}


def _collision_subject(collision: AuditedCollision) -> Subject:
    return Subject(
        collision.reservation_id,
        collision.user_id,
        collision.place,
        collision.units if collision.kind == "admission" else None,
        f"{collision.kind}: {collision.reason}",
    )


def _dead_letters(bucket: AuditedBucket) -> Tally:
    """The dead letters that have not become rows of the ledger since."""
    tally = Tally()
    for letter in bucket.log.dead_letters:
        left = [event for event in letter.events if not bucket.is_written(event.place)]
        if letter.events and not left:
            continue
        admissions = [event for event in left if isinstance(event, Admitted)]
        names = ", ".join(event.user_id for event in admissions[:_NAMES_MAX])
        more = len(admissions) - _NAMES_MAX
        note = f"entry {letter.entry}: {letter.reason}"
        if names:
            note += f"; buyers {names}" + (f" and {more} more" if more > 0 else "")
        tally.add(
            Subject(
                place=left[0].place if left else None,
                units=sum(event.quantity for event in admissions) or None,
                note=note,
            )
        )
    return tally


def _under_way(changes: Iterable[AuditedStockChange]) -> bool:
    """Whether a change of the stock has reached only one of the two sides."""
    return any(
        change.state == "pending" or (change.state == "applied" and not change.counted)
        for change in changes
    )
