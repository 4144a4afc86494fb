"""One bucket while it is audited: what was read of it, and the sums that grow from the ledger."""

import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from seckill.admission.bucket import BucketView
from seckill.admission.scripts import Status
from seckill.audit import invariants
from seckill.audit.collect import UnwrittenLog
from seckill.audit.invariants import LogSums, Part, Ref
from seckill.audit.ports import AuditedEvent, AuditedOrder, AuditedRelease, EpochRow
from seckill.audit.report import Tally
from seckill.audit.seqs import SeqSet
from seckill.domain.ids import UserId
from seckill.domain.order import HOLDING_STATES
from seckill.domain.reservation import BucketId, Place

__all__ = ["AuditedBucket", "Suspect"]

Suspect = tuple[Place, UserId]
"""A reservation that does not fit, and whose it is said to be."""

_CHUNK_BITS: Final = 12
_CHUNK: Final = 1 << _CHUNK_BITS


class _Prints:
    """For each place with a live order a checksum of its user and quantity: 4 bytes a place."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[int, int], array[int]] = {}

    @staticmethod
    def _print(user_id: str, quantity: int) -> int:
        # Never 0, which means that there is no live order.
        return zlib.crc32(f"{quantity} {user_id}".encode()) or 1

    def add(self, place: Place, user_id: str, quantity: int) -> None:
        key = (place.epoch, place.seq >> _CHUNK_BITS)
        chunk = self._chunks.get(key)
        if chunk is None:
            chunk = self._chunks[key] = array("I", bytes(array("I").itemsize * _CHUNK))
        chunk[place.seq % _CHUNK] = self._print(user_id, quantity)

    def match(self, place: Place, user_id: str, quantity: int) -> bool:
        chunk = self._chunks.get((place.epoch, place.seq >> _CHUNK_BITS))
        return chunk is not None and chunk[place.seq % _CHUNK] == self._print(user_id, quantity)


@dataclass(slots=True)
class AuditedBucket:
    """One bucket: the look, what stands in Redis unwritten, and what the ledger's rows add up to.

    Attributes:
        marks: the highest acknowledged seq of each epoch.
        parts: what is there of a torn bucket.
        reason: why nothing can be proven, or None.
        trusted: whether what Redis says is used. The bucket of a closed sale may be gone without
            a reason to complain, and is not trusted either.
        base: the epoch in which the counters of Redis began.
        accepted: of each epoch since, the last seq that these counters contain.
        written: the places in the ledger, by epoch.
        gaps: the places that are in no log, by epoch; `held_gaps` those that a buyer holds.
        losses: the places that are named as lost, by epoch; `accounted` those that are in no log.
        suspects: to be looked at again; `condemned`: already found to be wrong.
    """

    ref: Ref
    bucket_id: BucketId
    marks: Mapping[int, int]
    view: BucketView
    log: UnwrittenLog
    parts: Sequence[Part]
    epochs: Sequence[EpochRow] = ()
    reason: str | None = None
    trusted: bool = False
    base: int = 1
    accepted: dict[int, int] = field(default_factory=dict)
    written: dict[int, SeqSet] = field(default_factory=dict)
    prints: _Prints = field(default_factory=_Prints)
    collisions: int = 0
    gaps: dict[int, SeqSet] = field(default_factory=dict)
    held_gaps: dict[int, SeqSet] = field(default_factory=dict)
    lost: Tally = field(default_factory=Tally)
    stranded: Tally = field(default_factory=Tally)
    phantom: Tally = field(default_factory=Tally)
    suspects: set[Suspect] = field(default_factory=set)
    condemned: set[Suspect] = field(default_factory=set)
    losses: dict[int, SeqSet] = field(default_factory=dict)
    accounted: dict[int, SeqSet] = field(default_factory=dict)
    _opening_held: int = 0
    _admitted: int = 0
    _released: int = 0
    _changed: int = 0
    _outbox_written: int = 0

    def judge_trust(self, epochs: Sequence[EpochRow], *, closed: bool) -> None:
        """Decide whether Redis may be believed, once the ledger's epochs are known."""
        self.epochs = epochs
        reason = invariants.why_unproven(epochs, self.view, self.marks)
        self.trusted = reason is None
        unopened = (
            [row.state for row in epochs] == ["opening"]
            and self.view.status is Status.MISSING
            and not self.marks
        )
        # Nobody opens the bucket of a closed sale again, and nobody has to.
        self.reason = None if closed or unopened else reason
        self.base = invariants.base_epoch(epochs)
        if self.trusted:
            self.accepted = invariants.last_accepted(epochs, self.view)

    def count_order(self, order: AuditedOrder) -> None:
        """Count one order of the ledger."""
        place = order.place
        if not self._cover(place):
            return
        if self._in_outbox(place):
            self._outbox_written += order.quantity
        elif place.seq <= self.accepted.get(place.epoch, 0):
            self._admitted += order.quantity
        if order.state in HOLDING_STATES:
            self.prints.add(place, order.user_id, order.quantity)
            if place.epoch < self.base:
                self._opening_held += order.quantity

    def count_event(self, event: AuditedEvent) -> None:
        """Count one release or stock change of the ledger."""
        place = event.place
        if not self._cover(place) or self._in_outbox(place):
            return
        if place.seq <= self.accepted.get(place.epoch, 0):
            if event.kind == "release":
                self._released += event.units
            else:
                self._changed += event.units

    def count_collision(self, place: Place) -> None:
        """Count an event whose place or id belonged to something else: its place is known."""
        if place.epoch >= self.base:
            self.collisions += 1
        self._cover(place)

    def count_release(self, release: AuditedRelease) -> None:
        """Count a release of what was live when the bucket was rebuilt, as opened with it."""
        carried_out = release.state == "pending" or release.release_seq is not None
        if release.reservation.epoch < self.base <= release.epoch and carried_out:
            self._opening_held += release.units

    def _cover(self, place: Place) -> bool:
        """Note that a place is written; False when it is counted already."""
        seqs = self.written.get(place.epoch)
        if seqs is None:
            seqs = self.written[place.epoch] = SeqSet()
        return seqs.add(place.seq)

    def _in_outbox(self, place: Place) -> bool:
        log = self.log.outbox.get(place.epoch)
        return log is not None and place.seq in log.seqs

    def is_written(self, place: Place) -> bool:
        """Whether the ledger had anything at a place."""
        return place.epoch in self.written and place.seq in self.written[place.epoch]

    def last_written(self, epoch: int) -> int:
        """The highest seq of an epoch that the ledger had; 0 for none."""
        return self.written[epoch].last if epoch in self.written else 0

    def find_gaps(self) -> dict[int, SeqSet]:
        """The places that were given out and are in no log, by epoch."""
        last_written = {epoch: seqs.last for epoch, seqs in self.written.items()}
        given = invariants.places_given(self.epochs, self.view, self.marks, last_written)
        covered: dict[int, SeqSet] = {}
        for epoch in given:
            covered[epoch] = self.log.seqs(epoch)
            if epoch in self.written:
                covered[epoch].update(self.written[epoch])
        return invariants.gaps(given, covered)

    def count_loss(self, place: Place) -> None:
        """Note a place that is named as lost."""
        self.losses.setdefault(place.epoch, SeqSet()).add(place.seq)

    def account_for(self, gaps: Mapping[int, SeqSet]) -> dict[int, SeqSet]:
        """Set the gaps apart that are named as lost already; returns the others."""
        others: dict[int, SeqSet] = {}
        for epoch, seqs in gaps.items():
            rest = seqs.minus(self.losses.get(epoch, SeqSet()))
            named = seqs.minus(rest)
            if named:
                self.accounted[epoch] = named
            if rest:
                others[epoch] = rest
        return others

    def log_is_whole(self) -> bool:
        """Whether nothing is missing of what the counters of Redis were made of."""
        return not (
            self.log.dead_letters
            or self.collisions
            or any(epoch >= self.base for epoch in self.find_gaps())
        )

    def log_sums(self) -> LogSums:
        """What the log adds up to; only true when nothing is missing from it."""
        logs = [log for epoch, log in self.log.outbox.items() if epoch in self.accepted]
        return LogSums(
            opening_put=next(row.opening_units for row in self.epochs if row.epoch == self.base),
            opening_held=self._opening_held,
            admitted=self._admitted + sum(log.admitted_units for log in logs),
            released=self._released + sum(log.released_units for log in logs),
            changed=self._changed + sum(log.changed_units for log in logs),
        )

    @property
    def in_flight_units(self) -> int:
        """Units admitted and not written."""
        admitted = sum(log.admitted_units for log in self.log.outbox.values())
        return admitted - self._outbox_written
