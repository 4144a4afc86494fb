"""One stock bucket in plain Python: what the scripts must say, written from their contracts.

The model never reads Redis and shares no code with the scripts. Each method gives the status and
the answers that the script of the same name must give, and remembers the events that must be in
the outbox.
"""

from dataclasses import dataclass, field

from seckill.admission.bucket import MADE_EARLIER
from seckill.admission.scripts import Status
from seckill.domain.events import Admitted, BucketEvent, Released, StockChanged
from seckill.domain.ids import AttemptId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import BucketId, Place

__all__ = ["Answer", "BucketModel", "Held"]

Answer = tuple[int, int, int, int]
"""Code, epoch, seq and n, as admit.lua packs them."""


@dataclass
class Held:
    """One reservation under its user."""

    epoch: int
    seq: int
    quantity: int
    attempt: str
    spent: bool = False


@dataclass
class BucketModel:
    """A bucket that may be damaged, in which case it stays so until it is opened anew.

    Attributes:
        holders: user to reservations, oldest first; what is spent counts against the limit and is
            on sale again. A user without any is not in it.
        events: what the outbox must hold; the instant of each is not compared.
        missing, torn, elsewhere, fenced_off: what was broken. Of several the scripts report the
            first in that order, with ``elsewhere`` and ``fenced_off`` before ``torn``.
        torn_released, torn_changes: keys that only some scripts read were lost.
    """

    bucket_id: BucketId
    epoch: int = 0
    seq: int = 0
    put: int = 0
    limit: int = 1
    starts: int = 0
    ends: int = 0
    paused: bool = False
    version: int = 0
    holders: dict[str, list[Held]] = field(default_factory=dict)
    released: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    changes: dict[str, tuple[int, int]] = field(default_factory=dict)
    events: list[BucketEvent] = field(default_factory=list)
    missing: bool = True
    torn: bool = False
    elsewhere: bool = False
    fenced_off: bool = False
    torn_released: bool = False
    torn_changes: bool = False

    @property
    def held(self) -> int:
        return sum(h.quantity for held in self.holders.values() for h in held if not h.spent)

    @property
    def stock(self) -> int:
        return self.put - self.held

    @property
    def damaged(self) -> bool:
        return self.looks is not Status.OK

    @property
    def trusted(self) -> Status:
        """What every script finds before it looks at the epoch."""
        if self.missing:
            return Status.MISSING
        if self.fenced_off:
            return Status.FENCED_OFF
        if self.elsewhere:
            return Status.SERVER
        return Status.TORN if self.torn else Status.OK

    @property
    def looks(self) -> Status:
        """What look.lua says, which reads every key of the bucket."""
        torn = self.torn or self.torn_released or self.torn_changes
        return Status.TORN if torn and self.trusted in {Status.OK, Status.SERVER} else self.trusted

    def status(self, epoch: int, acked_seq: int) -> Status:
        if self.trusted is not Status.OK:
            return self.trusted
        if epoch != self.epoch:
            return Status.EPOCH
        return Status.BEHIND if self.seq < acked_seq else Status.OK

    def _place(self) -> Place:
        self.seq += 1
        return Place(self.bucket_id.sale_id, self.epoch, self.bucket_id.bucket, self.seq)

    def admit(
        self, epoch: int, acked_seq: int, now_ms: int, requests: list[tuple[str, str, int]]
    ) -> tuple[Status, list[Answer]]:
        status = self.status(epoch, acked_seq)
        if status is not Status.OK:
            return status, []
        return status, [self._admit(now_ms, *request) for request in requests]

    def _admit(self, now_ms: int, user: str, attempt: str, quantity: int) -> Answer:  # noqa: PLR0911  -- one for each answer
        held = self.holders.get(user, [])
        for h in held:
            if h.attempt == attempt and not h.spent:
                same = h.quantity == quantity
                code = Outcome.SUCCESS if same else Outcome.KEY_REUSED
                return (code, h.epoch, h.seq, int(same))
        if self.ends and now_ms >= self.ends:
            return (Outcome.ENDED, 0, 0, 0)
        if now_ms < self.starts:
            return (Outcome.NOT_STARTED, 0, 0, self.starts)
        if self.paused:
            return (Outcome.PAUSED, 0, 0, 0)
        units = sum(h.quantity for h in held)
        if units + quantity > self.limit:
            code = Outcome.DUPLICATE if self.limit == 1 and units else Outcome.OVER_LIMIT
            last = held[-1] if held else Held(0, 0, 0, "")
            return (code, last.epoch, last.seq, units)
        if self.stock == 0:
            return (Outcome.SOLD_OUT, 0, 0, 0)
        if self.stock < quantity:
            return (Outcome.NOT_ENOUGH_LEFT, 0, 0, self.stock)
        place = self._place()
        self.holders.setdefault(user, []).append(Held(place.epoch, place.seq, quantity, attempt))
        self.events.append(Admitted(place, UserId(user), quantity, AttemptId(attempt), 0))
        return (Outcome.SUCCESS, place.epoch, place.seq, 0)

    def release(
        self, epoch: int, wanted: list[tuple[str, int, int]], spent: set[tuple[int, int]]
    ) -> Status | list[int]:
        status = self.status(epoch, 0)
        if status is Status.OK and self.torn_released:
            status = Status.TORN
        if status is not Status.OK:
            return status
        return [self._release(*one, spends=one[1:] in spent) for one in wanted]

    def _made(self, at: tuple[int, int]) -> int:
        return at[1] if at[0] == self.epoch else MADE_EARLIER

    def _release(self, user: str, epoch: int, seq: int, *, spends: bool) -> int:
        if (epoch, seq) in self.released:
            return self._made(self.released[epoch, seq])
        for h in self.holders.get(user, []):
            if (h.epoch, h.seq) == (epoch, seq) and not h.spent:
                h.spent = spends
                if not spends:
                    self.holders[user].remove(h)
                if not self.holders[user]:
                    del self.holders[user]
                place = self._place()
                reservation = Place(self.bucket_id.sale_id, epoch, self.bucket_id.bucket, seq)
                self.events.append(Released(place, reservation, UserId(user), h.quantity, 0))
                self.released[epoch, seq] = (place.epoch, place.seq)
                return place.seq
        return 0

    def change_stock(self, epoch: int, change_id: str, delta: int) -> Status | int:
        status = self.status(epoch, 0)
        if status is Status.OK and self.torn_changes:
            status = Status.TORN
        if status is not Status.OK:
            return status
        if change_id in self.changes:
            return self._made(self.changes[change_id])
        if self.stock + delta < 0:
            return 0
        self.put += delta
        place = self._place()
        self.changes[change_id] = (place.epoch, place.seq)
        self.events.append(StockChanged(place, change_id, delta, 0))
        return place.seq

    def carry_on(self, from_epoch: int, seq: int, to_epoch: int) -> bool:
        if self.missing or self.fenced_off or self.torn:
            return False
        if self.epoch != from_epoch:
            return self.epoch == to_epoch
        if self.seq != seq:
            return False
        self.epoch, self.seq, self.elsewhere = to_epoch, 0, False
        return True

    def open(self, epoch: int, put: int) -> bool:
        """Open anew with the buyers as they are known here."""
        if not self.missing and self.epoch >= epoch:
            return False
        self.epoch, self.seq, self.put = epoch, 0, put
        self.released, self.changes = {}, {}
        self.missing = self.torn = self.elsewhere = self.fenced_off = False
        self.torn_released = self.torn_changes = False
        return True
