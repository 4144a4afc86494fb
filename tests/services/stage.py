"""What the tests of admission and pipeline share: sales, gates, counters, doubles of the ledger.

A `Gate` here is one web process' worth: its own connections, marks, catalogue and flags. Several
of them in one test are several processes, as far as Redis and the fence can tell.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from seckill.admission.bounds import Bounds
from seckill.admission.bucket import Buckets, Holding
from seckill.admission.catalogue import publish
from seckill.admission.circuit import Circuit
from seckill.admission.decision import Decision
from seckill.admission.durability import Barrier
from seckill.admission.fence import FenceKeeper
from seckill.admission.fence_ports import (
    CurrentEpoch,
    EpochState,
    Fence,
    RebuildPlan,
    Recovered,
    Reopening,
    ReportedMark,
)
from seckill.admission.gate import AdmissionGate
from seckill.admission.judging import Folder, Patience
from seckill.admission.keys import Keys
from seckill.admission.marks import MarkWriter
from seckill.admission.redis_client import connect
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Scripts, Status
from seckill.domain.events import Admitted, BucketEvent, Released, StockChanged
from seckill.domain.ids import AttemptId, GoodsId, ReservationId, SaleId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import Sale
from seckill.pipeline.errors import EventRefused, LedgerAway
from seckill.pipeline.outbox import read_entry
from seckill.pipeline.outbox_log import OutboxLog
from seckill.pipeline.ports import PendingRelease, PendingStockChange, WriteReport
from services.patient_loop import PatientClock

__all__ = [
    "BUCKET",
    "GOODS",
    "ID_KEY",
    "Counts",
    "Gate",
    "MemoryFenceLedger",
    "MemoryOrderLedger",
    "buy",
    "events_of",
    "make_sale",
    "open_gate",
    "open_sale",
    "until",
]

GOODS = GoodsId("1")
BUCKET = BucketId(SaleId(1), 0)
ID_KEY = bytes(range(16))


async def until(condition: Callable[[], Awaitable[bool] | bool], within_s: float = 60) -> None:
    """Wait until a condition holds; fail when it does not in time."""
    deadline = time.monotonic() + within_s
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return
        assert time.monotonic() < deadline, f"still not so after {within_s} s"
        await asyncio.sleep(0.005)


def make_sale(**changes: Any) -> Sale:
    """A sale that runs since long ago, of 10 units, one to a buyer."""
    sale = Sale(
        sale_id=BUCKET.sale_id,
        goods_id=GOODS,
        title="",
        price_fen=100,
        limit_per_user=1,
        stock_units=10,
        starts_at_ms=1,
        ends_at_ms=None,
        pay_window_ms=900_000,
        paused=False,
        version=1,
    )
    return replace(sale, **changes)


async def open_sale(redis: Redis, keys: Keys, sale: Sale, epoch: int = 1) -> Buckets:
    """Open the one bucket of a sale and put the sale into the catalogue."""
    buckets = Buckets(redis, Scripts(redis), keys)
    bucket_id = BucketId(sale.sale_id, 0)
    assert await buckets.open(sale, bucket_id, epoch, sale.stock_units) is Status.OK
    await publish(redis, keys, [sale])
    return buckets


async def events_of(redis: Redis, keys: Keys, bucket_id: BucketId = BUCKET) -> list[BucketEvent]:
    """What the outbox holds, in order."""
    entries: Any = await redis.xrange(keys.bucket(bucket_id).outbox)
    return [event for _, fields in entries for event in read_entry(bucket_id, fields)]


@dataclass
class Counts:
    """An AdmissionObserver that remembers."""

    batches: list[int] = field(default_factory=list)
    batch_ms: list[float] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    by_flag: int = 0
    flags_raised: int = 0
    queue_now: int = 0
    queue_max: int = 0
    fenced_now: int = 0

    def batch_decided(self, requests: int, duration_ms: float) -> None:
        self.batches.append(requests)
        self.batch_ms.append(duration_ms)

    def undecided(self, cause: str) -> None:
        self.causes[cause] += 1

    def redis_failed(self, kind: str) -> None:
        self.failures[kind] += 1

    def answered_by_flag(self) -> None:
        self.by_flag += 1

    def flag_raised(self) -> None:
        self.flags_raised += 1

    def queue_changed(self, by: int) -> None:
        self.queue_now += by
        self.queue_max = max(self.queue_max, self.queue_now)

    def fenced(self, buckets: int) -> None:
        self.fenced_now += buckets


@dataclass
class Gate:
    """One web process' worth of admission."""

    gate: AdmissionGate
    redis: Redis
    marks: MarkWriter
    counts: Counts
    attempts: int = 0

    def attempt(self) -> AttemptId:
        self.attempts += 1
        return AttemptId(f"t{id(self):x}-{self.attempts}")

    async def buy(
        self,
        user: str,
        quantity: int = 1,
        attempt: str | None = None,
        goods: GoodsId = GOODS,
    ) -> Decision:
        return await self.gate.admit(
            goods, UserId(user), quantity, self.attempt() if attempt is None else AttemptId(attempt)
        )

    async def insist(self, user: str, attempt: str | None = None) -> Decision:
        """Ask again for as long as it cannot be decided, as a buyer does whom it is told.

        For gates that lose patience soon: a stall of the test's Redis is not what they are about.
        """
        async with asyncio.timeout(60):
            while (answer := await self.buy(user, 1, attempt)).outcome is Outcome.UNDECIDED:
                await asyncio.sleep(0.02)
        return answer


@contextlib.asynccontextmanager
async def open_gate(
    url: str,
    keys: Keys,
    marks_folder: Path,
    *,
    slot: str = "web-0",
    timeout_ms: int = 30_000,
    bounds: Bounds | None = None,
    barrier: Barrier | None = None,
    circuit: Circuit | None = None,
) -> AsyncIterator[Gate]:
    """A gate that waits long for Redis, unless the test says how long."""
    redis = connect(url, timeout_ms=timeout_ms)
    counts = Counts()
    try:
        with MarkWriter(marks_folder, slot) as marks:
            gate = AdmissionGate(
                redis=redis,
                scripts=Scripts(redis, barrier),
                keys=keys,
                ids=ReservationIds(ID_KEY),
                marks=marks,
                clock=PatientClock(),
                bounds=bounds or Bounds(queue_wait_ms_max=60_000),
                observer=counts,
                circuit=circuit,
            )
            # The gate is left by hand: an error of a test shall show as itself, not in a group.
            await gate.__aenter__()
            try:
                yield Gate(gate, redis, marks, counts)
            finally:
                await gate.__aexit__(None, None, None)
    finally:
        await redis.aclose()


async def buy(gates: Sequence[Gate], users: Iterable[str], quantity: int = 1) -> list[Decision]:
    """All at once, spread over the gates."""
    return list(
        await asyncio.gather(
            *(gates[i % len(gates)].buy(user, quantity) for i, user in enumerate(users))
        )
    )


@dataclass
class MemoryFenceLedger:
    """What the fence needs of the ledger, without a ledger: a dictionary of written seqs."""

    held_sales: list[Sale]
    epochs: dict[BucketId, CurrentEpoch] = field(default_factory=dict)
    written: dict[tuple[BucketId, int], dict[int, BucketEvent]] = field(default_factory=dict)
    valid_to: dict[tuple[BucketId, int], int] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    reported: dict[tuple[str, BucketId, int], ReportedMark] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    silent_ms: float = 0
    fences: dict[BucketId, Fence] = field(default_factory=dict)
    statements: list[Reopening] = field(default_factory=list)
    findings: list[tuple[int, list[str]]] = field(default_factory=list)
    lost: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        for sale in self.held_sales:
            bucket_id = BucketId(sale.sale_id, 0)
            self.epochs[bucket_id] = CurrentEpoch(
                bucket_id, 1, EpochState.OPENING, sale.stock_units, by_rebuild=False
            )

    def keeper(
        self,
        redis: Redis,
        keys: Keys,
        marks_folder: Path,
        *,
        patience: Patience | None = None,
        withhold: bool = False,
    ) -> FenceKeeper:
        return FenceKeeper(
            redis=redis,
            buckets=Buckets(redis, Scripts(redis), keys),
            keys=keys,
            ledger=self,
            channel=OutboxLog(redis, keys),
            marks_folder=marks_folder,
            ids=ReservationIds(ID_KEY),
            clock=PatientClock(),
            patience=patience,
            withhold=withhold,
        )

    async def take_outbox(self, redis: Redis, keys: Keys, bucket_id: BucketId = BUCKET) -> None:
        """Write what the outbox holds and empty it, as the order worker does."""
        outbox = keys.bucket(bucket_id).outbox
        entries: Any = await redis.xrange(outbox)
        for entry_id, fields in entries:
            for event in read_entry(bucket_id, fields):
                self.written.setdefault((bucket_id, event.place.epoch), {})[event.place.seq] = event
            await redis.xdel(outbox, entry_id)

    async def sales(self) -> Sequence[Sale]:
        return self.held_sales

    async def current_epochs(self) -> Sequence[CurrentEpoch]:
        return list(self.epochs.values())

    async def begin_opening(self, bucket_id: BucketId, epoch: int) -> bool:
        assert self.epochs[bucket_id].epoch == epoch
        first = not self.epochs[bucket_id].begun
        self.epochs[bucket_id] = replace(self.epochs[bucket_id], begun=True)
        return first

    async def mark_folders(self, bucket_id: BucketId, epoch: int) -> list[Folder]:
        found = []
        for name in self.folders:
            mark = self.reported.get((name, bucket_id, epoch))
            found.append(
                Folder(
                    name,
                    f"host-of-{name[:6]}",
                    seq=mark.seq if mark else 0,
                    answered=mark is not None and mark.answered,
                    left=name in self.left,
                    silent_ms=self.silent_ms,
                )
            )
        return found

    async def marked_epochs(self, bucket_id: BucketId) -> dict[int, int]:
        highest: dict[int, int] = {}
        for (_, where, epoch), mark in self.reported.items():
            if where == bucket_id:
                highest[epoch] = max(mark.seq, highest.get(epoch, 0))
        return highest

    async def report_marks(
        self, folder_id: str, marks: Sequence[ReportedMark], *, leaving: bool
    ) -> None:
        for mark in marks:
            self.reported[folder_id, mark.bucket_id, mark.epoch] = mark
        if leaving:
            self.left.add(folder_id)

    async def open_fences(self) -> list[Fence]:
        return list(self.fences.values())

    async def notice(
        self, bucket_id: BucketId, epoch: int, cause: str, *, needs_operator: bool = False
    ) -> Fence | None:
        known = self.fences.get(bucket_id)
        if known is None:
            newest = self.epochs[bucket_id]
            following = newest.epoch - 1 if newest.state is EpochState.OPENING else newest.epoch
            if epoch not in {newest.epoch, following}:
                return None
            now_ms = PatientClock().now_ms()
            known = Fence(bucket_id, epoch, cause, needs_operator, now_ms)
        elif needs_operator:
            known = replace(known, needs_operator=True, cause=cause)
        self.fences[bucket_id] = known
        return known

    async def claim(self, fence: Fence, who: str) -> int | None:
        known = self.fences.get(fence.bucket_id)
        if known is None or not (
            known.claimed_by in {None, who} or known.claim_beats == fence.claim_beats
        ):
            return None
        known = replace(known, claimed_by=who, claim_beats=known.claim_beats + 1)
        self.fences[fence.bucket_id] = known
        return known.claim_beats

    async def unclaim(self, bucket_id: BucketId, who: str) -> None:
        known = self.fences.get(bucket_id)
        if known is not None and known.claimed_by == who:
            self.fences[bucket_id] = replace(known, claimed_by=None)

    async def found_out(
        self, bucket_id: BucketId, *, recovered_orders: int, unknown: Sequence[str]
    ) -> None:
        assert bucket_id in self.fences, "any keeper may have written the last words already"
        self.findings.append((recovered_orders, list(unknown)))

    async def reopened(self, bucket_id: BucketId, how: Reopening) -> int | None:
        fence = self.fences.get(bucket_id)
        if fence is None or fence.epoch >= how.new_epoch:
            return None
        del self.fences[bucket_id]
        self.statements.append(how)
        return fence.noticed_at_ms

    async def adopt_epochs(self, bucket_id: BucketId, up_to: int) -> None:
        if self.epochs[bucket_id].epoch < up_to:
            self.epochs[bucket_id] = replace(self.epochs[bucket_id], epoch=up_to)

    async def recover(self, found: Sequence[Recovered]) -> int:
        for one in found:
            place = one.place
            self.written.setdefault((place.bucket_id, place.epoch), {})[place.seq] = Admitted(
                place, one.user_id, one.quantity, one.attempt_id, PatientClock().now_ms()
            )
        return len(found)

    async def mark_open(self, bucket_id: BucketId, epoch: int) -> None:
        if self.epochs[bucket_id].epoch == epoch:
            self.epochs[bucket_id] = replace(self.epochs[bucket_id], state=EpochState.OPEN)

    async def known_seq(self, bucket_id: BucketId, epoch: int) -> int:
        return max(self.written.get((bucket_id, epoch), {0: None}))

    async def confirmed_seq(self, bucket_id: BucketId, epoch: int) -> int:
        return self.valid_to.get((bucket_id, epoch), 0)

    async def carry_on(self, bucket_id: BucketId, from_epoch: int, valid_to_seq: int) -> int:
        if self.epochs[bucket_id].epoch == from_epoch:
            self.valid_to[bucket_id, from_epoch] = valid_to_seq
            self.epochs[bucket_id] = replace(
                self.epochs[bucket_id], epoch=from_epoch + 1, state=EpochState.OPENING
            )
        return self.epochs[bucket_id].epoch

    async def plan_rebuild(
        self,
        bucket_id: BucketId,
        *,
        newest: int,
        given: Mapping[int, int],
        withhold: bool,  # noqa: ARG002  -- the port asks for it
    ) -> RebuildPlan:
        assert self.epochs[bucket_id].epoch == newest
        epoch = newest + 1
        self.lost = [
            Place(bucket_id.sale_id, old, bucket_id.bucket, seq)
            for old, seq_max in sorted(given.items())
            for seq in await self.unwritten(bucket_id, old, seq_max)
        ]
        holdings: dict[Place, tuple[UserId, Holding]] = {}
        put_units = self.epochs[bucket_id].put_units
        for (where, _), events in sorted(self.written.items()):
            for event in (e for _, e in sorted(events.items()) if where == bucket_id):
                match event:
                    case Admitted():
                        holdings[event.place] = (
                            event.user_id,
                            Holding(event.place, event.quantity, event.attempt_id),
                        )
                    case Released():
                        holdings.pop(event.reservation, None)
                    case StockChanged():
                        put_units += event.delta_units
        by_user: dict[UserId, list[Holding]] = {}
        for user_id, holding in holdings.values():
            by_user.setdefault(user_id, []).append(holding)
        self.epochs[bucket_id] = CurrentEpoch(
            bucket_id, epoch, EpochState.OPENING, put_units, by_rebuild=True
        )
        return RebuildPlan(epoch, put_units, list(by_user.items()), self.lost)

    async def unwritten(self, bucket_id: BucketId, epoch: int, seq_max: int) -> Sequence[int]:
        known = self.written.get((bucket_id, epoch), {})
        return [seq for seq in range(1, seq_max + 1) if seq not in known]


@dataclass
class MemoryOrderLedger:
    """An OrderLedger that remembers what it was told, and can be away or refuse.

    Attributes:
        away: raise LedgerAway from every call.
        refuses: refuse a write that has such an event among its own.
        writes: the events of each committed write.
    """

    away: bool = False
    refuses: Callable[[BucketEvent], bool] = lambda _: False
    writes: list[list[BucketEvent]] = field(default_factory=list)
    releases: list[PendingRelease] = field(default_factory=list)
    stock_changes: list[PendingStockChange] = field(default_factory=list)
    confirmed: dict[ReservationId, int] = field(default_factory=dict)
    confirmed_in: set[int] = field(default_factory=set)
    confirmed_changes: dict[str, int] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def events(self) -> list[BucketEvent]:
        return [event for write in self.writes for event in write]

    def _ask(self, name: str) -> None:
        self.calls[name] += 1
        if self.away:
            raise LedgerAway("the ledger is away, by order of the test")

    async def write(self, events: Sequence[BucketEvent]) -> WriteReport:
        self._ask("write")
        for event in events:
            if self.refuses(event):
                raise EventRefused(f"refused by order of the test: {event.place}")
        self.writes.append(list(events))
        return WriteReport(ordered=len(events))

    async def pending_releases(self, releases_max: int) -> Sequence[PendingRelease]:
        self._ask("pending_releases")
        return [r for r in self.releases if r.reservation_id not in self.confirmed][:releases_max]

    async def confirm_releases(
        self, done: Sequence[tuple[ReservationId, int]], *, epoch: int
    ) -> None:
        self._ask("confirm_releases")
        self.confirmed_in.add(epoch)
        self.confirmed.update(done)

    async def pending_stock_changes(self) -> Sequence[PendingStockChange]:
        self._ask("pending_stock_changes")
        return [c for c in self.stock_changes if c.change_id not in self.confirmed_changes]

    async def confirm_stock_change(self, change_id: str, *, epoch: int, seq: int) -> None:
        self._ask("confirm_stock_change")
        self.confirmed_in.add(epoch)
        self.confirmed_changes[change_id] = seq
