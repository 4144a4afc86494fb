"""The promises as pure functions over plain data: one for each way in which one can be broken.

Nothing here reads a store, waits or knows of time. Each function gets what was read, and returns
the findings; what may be compared with what, and in which order it must have been read, is the
matter of `seckill.audit.audit`.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from seckill.admission.bucket import BucketView, Holding
from seckill.admission.judging import ledger_behind
from seckill.admission.scripts import Status
from seckill.audit.ports import EpochRow, HoldingFault, SaleSums, WrittenPlace
from seckill.audit.report import Finding, Kind, Subject, Tally
from seckill.audit.seqs import SeqSet
from seckill.domain.ids import GoodsId, SaleId, UserId
from seckill.domain.reservation import Place

__all__ = [
    "LogSums",
    "Part",
    "Ref",
    "ReservationFacts",
    "Verdict",
    "accounted_losses",
    "base_epoch",
    "check_balance",
    "check_books",
    "check_counters",
    "check_duplicates",
    "check_log",
    "check_oversold",
    "check_stock",
    "check_whole",
    "collided",
    "dead_lettered",
    "fenced",
    "gaps",
    "judge",
    "last_accepted",
    "lost",
    "lost_events",
    "never_given",
    "phantom",
    "places_given",
    "settled_collisions",
    "stranded",
    "why_stranded",
    "why_unproven",
]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bucket: how many fields were counted, and how many there are.

    A key that is not there has none, and one of another type has -1.
    """

    name: str
    counted: int
    found: int


_NEWEST_STATES: Final = frozenset({"opening", "open"})


@dataclass(frozen=True, slots=True)
class Ref:
    """What a finding is about: a sale, or one bucket of it."""

    sale_id: SaleId
    goods_id: GoodsId
    bucket: int | None = None

    def finding(self, kind: Kind, tally: Tally, what: str, advice: str) -> Finding:
        """A finding about this."""
        return Finding(
            kind=kind,
            sale_id=self.sale_id,
            goods_id=self.goods_id,
            bucket=self.bucket,
            units=tally.units,
            count=tally.count,
            ids=tuple(tally.ids),
            what=what,
            advice=advice,
        )

    @property
    def pause(self) -> str:
        """The command that stops the sale."""
        return f"`seckill sale pause {shlex.quote(self.goods_id)}`"

    @property
    def rebuild(self) -> str:
        """The command that makes Redis anew from the ledger, also where Redis sees no need."""
        return f"`seckill rebuild {shlex.quote(self.goods_id)} --force`"


def _tally(*subjects: Subject) -> Tally:
    tally = Tally()
    for subject in subjects:
        tally.add(subject)
    return tally


# No oversell, no duplicate


def check_oversold(ref: Ref, sums: SaleSums) -> Iterable[Finding]:
    """Live orders never exceed the stock put on sale."""
    over = sums.live_units - sums.stock_units
    if over > 0:
        yield ref.finding(
            Kind.OVERSOLD,
            _tally(Subject(units=over)),
            f"{sums.live_units} units are in live orders, and only {sums.stock_units} were put on"
            " sale.",
            f"Stop the sale with {ref.pause}; then raise the stock by what can be delivered, and"
            " cancel the newest orders that cannot.",
        )


def check_duplicates(ref: Ref, faults: Sequence[HoldingFault]) -> Iterable[Finding]:
    """No user holds more than the limit."""
    tally = Tally()
    for fault in faults:
        over = fault.live_units - fault.limit_units
        if over > 0:
            tally.add(
                Subject(
                    user_id=fault.user_id,
                    units=over,
                    note=f"holds {fault.live_units}, the limit is {fault.limit_units}",
                )
            )
    if tally.count:
        yield ref.finding(
            Kind.DUPLICATE,
            tally,
            f"{tally.count} users have more units in their orders than one buyer may.",
            "Look at the orders of these users, and cancel what is beyond the limit.",
        )


# Conservation


def check_counters(ref: Ref, sums: SaleSums, faults: Sequence[HoldingFault]) -> Iterable[Finding]:
    """The ledger's counters say what its rows say. It is they that guard stock and limit."""
    if sums.sold_units != sums.live_units:
        yield ref.finding(
            Kind.COUNTER,
            _tally(Subject(note=f"sold_units {sums.sold_units}, live orders {sums.live_units}")),
            f"The ledger counts {sums.sold_units} units as sold, but its live orders hold"
            f" {sums.live_units}. Rows were changed by something other than this software.",
            f"Stop the sale with {ref.pause} and find out who changed the ledger. Do not rebuild"
            " before the counter is right: a rebuild trusts it.",
        )
    tally = Tally()
    for fault in faults:
        if fault.held_units != fault.live_units:
            tally.add(
                Subject(
                    user_id=fault.user_id,
                    note=f"counted {fault.held_units} units, orders {fault.live_units}",
                )
            )
    if tally.count:
        yield ref.finding(
            Kind.COUNTER,
            tally,
            f"For {tally.count} users the ledger counts other units than their live orders hold."
            " Rows were changed by something other than this software.",
            f"Stop the sale with {ref.pause} and find out who changed the ledger. The counter is"
            " what refuses a second order of a user.",
        )


def check_balance(ref: Ref, view: BucketView) -> Iterable[Finding]:
    """In Redis, at every instant: stock + held = put, and none of them below zero."""
    subject = Subject(
        note=f"epoch {view.epoch} seq {view.seq}: stock {view.stock_units}, held"
        f" {view.held_units}, put {view.put_units}"
    )
    if view.stock_units < 0:
        yield ref.finding(
            Kind.OVERSOLD,
            Tally(-view.stock_units, 1, [subject]),
            f"The stock in Redis is below zero: {view.stock_units}.",
            f"Stop the sale with {ref.pause}, then run {ref.rebuild}.",
        )
    difference = view.put_units - view.stock_units - view.held_units
    if difference:
        word = "too few" if difference > 0 else "too many"
        yield ref.finding(
            Kind.UNBALANCED,
            Tally(abs(difference), 1, [subject]),
            f"Redis has {abs(difference)} units {word}: {view.stock_units} left and"
            f" {view.held_units} held are not the {view.put_units} that were put on sale. No"
            " script of this software can do that: a key was changed by hand.",
            f"Stop the sale with {ref.pause}, then run {ref.rebuild}.",
        )


@dataclass(frozen=True, slots=True)
class LogSums:
    """What a complete log says that a bucket must have.

    Attributes:
        opening_put: units put into it when it was created or rebuilt.
        opening_held: those of them that buyers held already.
        admitted: units of all admissions since, up to the look.
        released: units given back since.
        changed: sum of the stock changes since.
    """

    opening_put: int
    opening_held: int
    admitted: int
    released: int
    changed: int

    @property
    def put_units(self) -> int:
        """Units put in so far."""
        return self.opening_put + self.changed

    @property
    def held_units(self) -> int:
        """Units that buyers hold."""
        return self.opening_held + self.admitted - self.released


def check_log(ref: Ref, view: BucketView, log: LogSums) -> Iterable[Finding]:
    """The counters in Redis are what the log of its changes adds up to, at the look's very seq."""
    for name, found, expected in (
        ("put on sale", view.put_units, log.put_units),
        ("held by buyers", view.held_units, log.held_units),
    ):
        if found != expected:
            yield ref.finding(
                Kind.MISCOUNTED,
                Tally(
                    abs(found - expected),
                    1,
                    [Subject(note=f"epoch {view.epoch} seq {view.seq}: {name}")],
                ),
                f"Redis counts {found} units as {name}; the log of all that happened up to this"
                f" place says {expected}. A counter was changed past the log.",
                f"Stop the sale with {ref.pause}, then run {ref.rebuild}.",
            )


def check_stock(ref: Ref, put_units: int, stock_units: int) -> Iterable[Finding]:
    """What the buckets were given is what the ledger has put on sale, when no change is under way.

    Args:
        put_units: over all buckets.
    """
    if put_units != stock_units:
        yield ref.finding(
            Kind.STOCK_DIFFERS,
            Tally(
                abs(put_units - stock_units),
                1,
                [Subject(note=f"Redis {put_units}, ledger {stock_units}")],
            ),
            f"{put_units} units were put on sale in Redis, {stock_units} in the ledger, and no"
            " change of the stock is under way.",
            f"Stop the sale with {ref.pause}, then run {ref.rebuild}, which puts on sale what"
            " the ledger says.",
        )


# No loss: completeness by counting


def places_given(
    epochs: Sequence[EpochRow],
    view: BucketView,
    marks: Mapping[int, int],
    written: Mapping[int, int],
) -> dict[int, int]:
    """The last seq of each epoch of a bucket that was surely given out: all up to it must be found.

    Args:
        epochs: as the ledger has them.
        view: the look, which must have come before the logs were read; its numbers count only when
            it may be trusted.
        marks: highest acknowledged seq by epoch.
        written: highest written seq by epoch.
    """
    known = {row.epoch: row for row in epochs}
    given: dict[int, int] = {}
    for epoch in sorted(known.keys() | marks.keys() | written.keys()):
        if epoch == view.epoch and view.status in {Status.OK, Status.TORN}:
            # Later places belong to a later audit, written though they may be by now.
            given[epoch] = max(view.seq, marks.get(epoch, 0))
            continue
        last = max(marks.get(epoch, 0), written.get(epoch, 0))
        row = known.get(epoch)
        if row is not None and row.valid_to_seq is not None:
            last = max(last, row.valid_to_seq)
        if view.status not in {Status.OK, Status.TORN} or epoch < view.epoch:
            given[epoch] = last
    return given


def base_epoch(epochs: Sequence[EpochRow]) -> int:
    """The epoch in which the counters of a bucket began: its creation, or its last rebuild."""
    return max((row.epoch for row in epochs if row.origin != "carried_on"), default=1)


def last_accepted(epochs: Sequence[EpochRow], view: BucketView) -> dict[int, int]:
    """Of each epoch since the base, the last seq that the counters in Redis contain."""
    base = base_epoch(epochs)
    accepted = {
        row.epoch: row.valid_to_seq
        for row in epochs
        if base <= row.epoch < view.epoch and row.valid_to_seq is not None
    }
    accepted[view.epoch] = view.seq
    return accepted


def why_unproven(  # noqa: PLR0911  -- one for each reason
    epochs: Sequence[EpochRow], view: BucketView, marks: Mapping[int, int]
) -> str | None:
    """Why what a bucket says may not be trusted now; None when it may."""
    newest = epochs[-1] if epochs else None
    match view.status:
        case Status.MISSING:
            return "it is not there, or not whole"
        case Status.SERVER:
            return (
                "Redis was started again, or is another one, and the bucket is not open on it yet"
            )
        case Status.FENCED_OFF:
            return "it was stopped for a rebuild, which is under way or has not come to its end"
        case Status.OK | Status.TORN:
            pass
        case _:
            return f"Redis says {view.status.name.lower()}"
    if newest is None or newest.epoch < view.epoch:
        return (
            f"it is under epoch {view.epoch}, which the ledger does not know: the ledger is behind"
        )
    if newest.epoch > view.epoch:
        return f"it is under epoch {view.epoch}, and the ledger is at {newest.epoch}"
    if newest.state not in _NEWEST_STATES:
        return f"its epoch {view.epoch} is {newest.state} in the ledger"
    last_mark = max(marks, default=0)
    if last_mark > view.epoch:
        return f"it is under epoch {view.epoch}, and buyers were answered under {last_mark}"
    if marks.get(view.epoch, 0) > view.seq:
        return (
            f"it is at seq {view.seq}, and seq {marks[view.epoch]} was acknowledged to a buyer:"
            " Redis has gone back in time"
        )
    return None


def never_given(place: Place, view: BucketView, given: Mapping[int, int]) -> bool:
    """Whether no admission can have made a place, by a look that came after it was read."""
    if place.epoch == view.epoch:
        return place.seq > view.seq
    return place.seq > given.get(place.epoch, 0)


def check_whole(ref: Ref, view: BucketView, parts: Sequence[Part]) -> Iterable[Finding]:
    """No part of a bucket was lost while others stayed.

    Args:
        parts: as they were just after a look that said torn.
    """
    if view.status is not Status.TORN:
        return
    notes = [
        f"{part.name}: {part.found} there, {part.counted} counted"
        for part in parts
        if part.found != part.counted
    ]
    yield ref.finding(
        Kind.TORN,
        _tally(*(Subject(note=note) for note in notes or ["it was whole again a moment later"])),
        "A part of the bucket was lost or changed while others stayed, so its scripts refuse to"
        " go on: nobody is told sold out, everybody 503.",
        f"Run {ref.rebuild}: it makes the bucket anew from the ledger.",
    )


def fenced(ref: Ref, reason: str, unwritten: Tally) -> Finding:
    """A bucket about which nothing can be proven now.

    Args:
        reason: from `why_unproven`.
        unwritten: acknowledged places that are in no log that can be read now.
    """
    also = ""
    if unwritten.count:
        also = (
            f" {unwritten.count} places that were acknowledged to buyers are in no log that can be"
            " read now; if they do not come back, they are lost."
        )
    return ref.finding(
        Kind.FENCED,
        Tally(0, unwritten.count, unwritten.ids),
        f"Nothing can be proven about this bucket now: {reason}.{also}",
        "Is the order worker running (`seckill status`)? It opens by itself a bucket that lost"
        f" nothing. If this stays for more than a few seconds, run {ref.rebuild}, then"
        " `seckill audit` again.",
    )


def lost(ref: Ref, tally: Tally) -> Finding:
    """Places that were given out and are in no log."""
    return ref.finding(
        Kind.LOST,
        tally,
        f"{tally.count} purchases of at least {tally.units} units were admitted and are neither in"
        " the ledger nor on the way to it: their buyers may have been told yes and have no order.",
        "Keep this report. Tell the buyers that are named; one without a user id is known to"
        f" the buyer by the reservation id. Run {ref.rebuild} to put units that Redis still"
        " holds for them back on sale.",
    )


def accounted_losses(ref: Ref, tally: Tally) -> Finding:
    """Lost places that a rebuild has named."""
    return ref.finding(
        Kind.LOST,
        tally,
        f"{tally.count} places were acknowledged to buyers and lost; a rebuild has named each of"
        " them, and its buyer reads so.",
        "Nothing more is to be repaired. `seckill rebuild --statements` says what was done.",
    )


def settled_collisions(ref: Ref, tally: Tally) -> Finding:
    """Collisions from before the last rebuild."""
    return ref.finding(
        Kind.COLLISION,
        tally,
        f"{tally.count} events claimed a place that belongs to another one, before the bucket was"
        " rebuilt. None of them became an order; each is recorded, and its buyer reads so.",
        "Nothing more is to be repaired.",
    )


def check_books(ref: Ref, view: BucketView, written_seq: int) -> Iterable[Finding]:
    """The ledger is not less far than it was when Redis last noted it."""
    older = ledger_behind(view, written_seq)
    if older is not None:
        yield ref.finding(
            Kind.LEDGER_OLDER,
            _tally(Subject(note=f"epoch {view.epoch}")),
            f"A backup was restored behind the back of Redis: {older}.",
            "Run `seckill reconcile`: it shows which orders Redis still knows, and writes them.",
        )


def lost_events(ref: Ref, tally: Tally) -> Finding:
    """Releases and stock changes that Redis made and whose event is in no log."""
    return ref.finding(
        Kind.LOST_EVENT,
        tally,
        f"{tally.count} releases or stock changes were made in Redis and their events are neither"
        " in the ledger nor on the way to it. No buyer lost anything: the ledger knows of them by"
        " word.",
        "Find out what removed entries from the outbox. No unit has to be set right.",
    )


def dead_lettered(ref: Ref, tally: Tally, more: int) -> Finding:
    """Entries that never reached the ledger.

    Args:
        more: dead letters beyond those that were looked at.
    """
    beyond = f" {more} more were not looked at." if more else ""
    return ref.finding(
        Kind.DEAD_LETTER,
        tally,
        f"{tally.count} outbox entries could not be written to the ledger and were put aside with"
        f" their reason: their buyers wait in vain.{beyond}",
        "Read the reasons. An entry that this version of the software cannot read came from"
        " another version, or was changed by hand.",
    )


def collided(ref: Ref, tally: Tally) -> Finding:
    """Events that claim what belongs to something else."""
    return ref.finding(
        Kind.COLLISION,
        tally,
        f"{tally.count} events claim a place that belongs to another one: the bucket has had two"
        " histories. None of them became an order; each is recorded in the ledger.",
        f"Stop the sale with {ref.pause}, then run {ref.rebuild}. Tell the buyers that are named.",
    )


# Stranded and phantom: one reservation in both stores


class Verdict(StrEnum):
    """What is to be thought of one reservation."""

    RIGHT = "right"
    UNSTABLE = "unstable"
    """It moved while it was looked at: look again."""
    LOST = "lost"
    STRANDED = "stranded"
    PHANTOM = "phantom"


@dataclass(frozen=True, slots=True)
class ReservationFacts:
    """One reservation of one user, as both stores have it.

    To be read in this order: the epoch, the outbox, Redis, the ledger, Redis again, and whether
    the place was ever given out.

    Attributes:
        held: what Redis holds for the user at this place, before the ledger was read and after.
        written: what the ledger has at this place.
        under_way: an event of this place is in the outbox or among the dead letters.
        never_given: Redis has never given this place out.
        epoch: the epoch of the bucket when its audit began.
    """

    place: Place
    user_id: UserId
    held: tuple[Holding | None, Holding | None]
    written: WrittenPlace | None
    under_way: bool
    never_given: bool
    epoch: int


def judge(facts: ReservationFacts) -> Verdict:
    """Compare what Redis holds for a user with what the ledger says.

    Since Redis was read on both sides of the ledger and said the same, it said so at the instant
    of the ledger too: the place had been given out before (it is a suspect because it was seen),
    and what Redis gives back it never takes again under the same place.
    """
    before, after = facts.held
    if before != after:
        return Verdict.UNSTABLE
    order = None if facts.written is None else facts.written.order
    own = order is not None and order.user_id == facts.user_id
    if before is None:
        return Verdict.PHANTOM if order is not None and own and order.live else Verdict.RIGHT
    if facts.written is None:
        if facts.under_way:
            return Verdict.RIGHT
        return Verdict.STRANDED if facts.never_given else Verdict.LOST
    if order is None or not own or order.quantity != before.quantity:
        return Verdict.STRANDED
    # A pending release is carried out in its epoch alone; carrying a bucket on takes it along.
    releasing = order.release_epoch is not None and order.release_epoch >= facts.epoch
    return Verdict.RIGHT if order.live or releasing else Verdict.STRANDED


def why_stranded(facts: ReservationFacts) -> str:
    """What speaks against units that Redis holds and that are judged to be stranded."""
    written = facts.written
    if written is None:
        return "Redis has never given this place out"
    order = written.order
    if order is None:
        return f"the ledger has a {written.kind} at this place"
    if order.user_id != facts.user_id:
        return "the ledger has another user's order at this place"
    held = facts.held[0]
    if held is not None and order.quantity != held.quantity:
        return f"the ledger's order is of {order.quantity} units"
    return f"the order is {order.state}, and no release is pending"


def stranded(ref: Ref, tally: Tally) -> Finding:
    """Units that Redis holds for nobody."""
    return ref.finding(
        Kind.STRANDED,
        tally,
        f"Redis holds {tally.units} units that belong to no live order, are not on the way to the"
        " ledger, and are not about to be given back: nobody can buy them.",
        f"Run {ref.rebuild}: it puts them back on sale.",
    )


def phantom(ref: Ref, tally: Tally) -> Finding:
    """Live orders that Redis does not know."""
    return ref.finding(
        Kind.PHANTOM,
        tally,
        f"{tally.count} live orders of {tally.units} units are not among the buyers in Redis: the"
        " same users could be admitted again, and the units may be sold twice. The ledger would"
        " refuse the second order.",
        f"Stop the sale with {ref.pause}, then run {ref.rebuild}.",
    )


def gaps(given: Mapping[int, int], covered: Mapping[int, SeqSet]) -> dict[int, SeqSet]:
    """The places that were given out and are not covered, by epoch; epochs without a gap left out.

    Args:
        given: last seq by epoch, from `places_given`.
        covered: the places that stand in any log.
    """
    found = {epoch: covered.get(epoch, SeqSet()).missing(last) for epoch, last in given.items()}
    return {epoch: seqs for epoch, seqs in found.items() if seqs}
