"""What the audit reads in Redis, in slices that cost it little each, and on the disk of this host.

No command here blocks, writes, or does more than about a millisecond of work, however many buyers
there are: HSCAN and HMGET by at most 1,000, XRANGE by 50 entries.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from seckill.admission.bucket import Buckets, BucketView, Holding, parse_holdings
from seckill.admission.keys import Keys
from seckill.admission.marks import read_marks
from seckill.admission.scripts import unavailable
from seckill.audit.invariants import Part
from seckill.audit.seqs import SeqSet
from seckill.domain.events import Admitted, BucketEvent, Released, StockChanged
from seckill.domain.ids import UserId
from seckill.domain.reservation import BucketId, Place
from seckill.pipeline.errors import Unreadable
from seckill.pipeline.outbox import read_entry
from seckill.pipeline.ports import UnderWay

__all__ = [
    "EVERYTHING",
    "BucketReader",
    "DeadLetter",
    "EpochLog",
    "UnwrittenLog",
    "highest_marks",
    "holding_at",
    "read_record",
]

EVERYTHING: Final = (1 << 62, 0)
"""The horizon (epoch, seq) behind which there is nothing."""

SCAN_COUNT: Final = 500
"""Buyers in one slice: about half a millisecond of Redis' time."""
SCAN_COUNT_MAX: Final = 1_000
_ENTRIES_PER_SLICE: Final = 50
"""An entry holds up to a whole admission batch, about 30 kB."""
_USERS_PER_SLICE: Final = 500
DEAD_LETTERS_MAX: Final = 1_000
"""Dead letters whose places are remembered one by one; any beyond are counted."""


@dataclass(slots=True)
class EpochLog:
    """What a log says of one epoch of one bucket: which places, and the units by kind."""

    seqs: SeqSet = field(default_factory=SeqSet)
    admitted_units: int = 0
    released_units: int = 0
    changed_units: int = 0

    def add(self, event: BucketEvent) -> None:
        """Count an event, unless its place is counted already."""
        if not self.seqs.add(event.place.seq):
            return
        match event:
            case Admitted(quantity=units):
                self.admitted_units += units
            case Released(quantity=units):
                self.released_units += units
            case StockChanged(delta_units=units):
                self.changed_units += units


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry that was put aside, or cannot be read and waits to be.

    Attributes:
        entry: its id in the outbox.
        events: what it says, as far as it can be read.
    """

    entry: str
    reason: str
    events: Sequence[BucketEvent] = ()


@dataclass(slots=True)
class UnwrittenLog:
    """What stands in Redis on its way to the ledger: the outbox, and the dead letters."""

    outbox: dict[int, EpochLog] = field(default_factory=dict)
    dead: dict[int, EpochLog] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    dead_letters_more: int = 0

    def has(self, place: Place) -> bool:
        """Whether an event of this place stands in the outbox or among the dead letters."""
        return any(
            place.epoch in log and place.seq in log[place.epoch].seqs
            for log in (self.outbox, self.dead)
        )

    def seqs(self, epoch: int) -> SeqSet:
        """The places of an epoch in either."""
        seqs = SeqSet()
        for log in (self.outbox, self.dead):
            if epoch in log:
                seqs.update(log[epoch].seqs)
        return seqs

    @property
    def epochs(self) -> set[int]:
        """The epochs that occur."""
        return self.outbox.keys() | self.dead.keys()


def highest_marks(folder: Path | None) -> dict[BucketId, dict[int, int]]:
    """The highest acknowledged seq of each epoch of each bucket, over all slots of this host."""
    marks: dict[BucketId, dict[int, int]] = {}
    if folder is not None and folder.is_dir():
        for mark in read_marks(folder):
            of_bucket = marks.setdefault(mark.bucket_id, {})
            of_bucket[mark.epoch] = max(mark.seq, of_bucket.get(mark.epoch, 0))
    return marks


class BucketReader:
    """Reads buckets for the audit. Every method raises StockUnavailable when Redis is away.

    Args:
        under_way: what carries events from the outbox to the ledger; None where nothing does.
        scan_count: buyers in one slice, at most 1,000.
    """

    def __init__(
        self,
        redis: Redis,
        buckets: Buckets,
        keys: Keys,
        *,
        under_way: UnderWay | None = None,
        scan_count: int = SCAN_COUNT,
    ) -> None:
        self._under_way = under_way
        self._redis = redis
        self._buckets = buckets
        self._keys = keys
        self._scan_count = min(scan_count, SCAN_COUNT_MAX)

    async def look(self, bucket_id: BucketId) -> BucketView:
        """One atomic look."""
        return await self._buckets.look(bucket_id)

    async def parts(self, bucket_id: BucketId) -> list[Part]:
        """What a torn bucket has left of each of its parts, at one instant."""
        keys = self._keys.bucket(bucket_id)
        try:
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.hmget(keys.meta, ["buyers", "released", "changes"])
                pipeline.type(keys.outbox)
                pipeline.hlen(keys.buyers)
                pipeline.hlen(keys.released)
                pipeline.hlen(keys.changes)
                reply: list[Any] = await pipeline.execute(raise_on_error=False)
        except RedisError as error:
            raise unavailable(error) from error
        counted, outbox, *found = reply
        if isinstance(counted, Exception):
            return []
        names = ("buyers", "released reservations", "applied stock changes")
        return [
            Part("outbox", 1, int(outbox == b"stream")),
            *(
                Part(name, int(count or 0), -1 if isinstance(there, Exception) else int(there))
                for name, count, there in zip(names, counted, found, strict=True)
            ),
        ]

    async def unwritten(self, bucket_id: BucketId, epoch: int, seq: int) -> UnwrittenLog:
        """All that stands in the outbox and among the dead letters now.

        Args:
            bucket_id: the bucket.
            epoch: with ``seq``, the place of the look that came before. What happened after it is
                left out: it belongs to a later audit.
            seq: see ``epoch``.

        What a relay has carried on from the outbox and no order worker has written counts with it.
        A worker that moves entries meanwhile hides none: the outbox is read in the order in which
        entries leave it, and the dead letters, to which they may go, after it.
        """
        keys = self._keys.bucket(bucket_id)
        log = UnwrittenLog()

        def add(to: dict[int, EpochLog], events: Iterable[BucketEvent]) -> None:
            for event in events:
                place = event.place
                if place.epoch < epoch or (place.epoch == epoch and place.seq <= seq):
                    to.setdefault(place.epoch, EpochLog()).add(event)

        waiting: set[str] = set()
        async for entry_id, fields in self._entries(keys.outbox):
            try:
                add(log.outbox, read_entry(bucket_id, fields))
            except Unreadable as error:
                waiting.add(entry_id)
                self._keep(log, DeadLetter(entry_id, f"still in the outbox: {error}"))
        # After the outbox, out of which they come, and before the ledger, into which they go.
        carried, letters = await self._carried(bucket_id)
        add(log.outbox, carried)
        for letter in letters:
            add(log.dead, letter.events)
            self._keep(log, letter)
        async for _, fields in self._entries(keys.dead):
            entry = fields.get(b"entry", b"?").decode(errors="replace")
            reason = fields.get(b"reason", b"").decode(errors="replace")
            if entry in waiting:
                continue  # it was put aside between the two readings
            try:
                dead = read_entry(bucket_id, fields)
            except Unreadable:
                dead = ()
            add(log.dead, dead)
            self._keep(log, DeadLetter(entry, reason, dead))
        return log

    async def _carried(
        self, bucket_id: BucketId
    ) -> tuple[Sequence[BucketEvent], Sequence[DeadLetter]]:
        """What is between the outbox and the ledger of a bucket, and what has died there."""
        if self._under_way is None:
            return (), ()
        return await self._under_way.events(bucket_id), [
            DeadLetter(letter.name, letter.reason, () if letter.event is None else (letter.event,))
            for letter in await self._under_way.letters(bucket_id)
        ]

    @staticmethod
    def _keep(log: UnwrittenLog, letter: DeadLetter) -> None:
        if len(log.dead_letters) < DEAD_LETTERS_MAX:
            log.dead_letters.append(letter)
        else:
            log.dead_letters_more += 1

    async def _entries(self, stream: str) -> AsyncIterator[tuple[str, dict[bytes, bytes]]]:
        """The entries that are in a stream now, oldest first; later ones are not waited for."""
        try:
            newest: Any = await self._redis.xrevrange(stream, count=1)
            if not newest:
                return
            start, end = "-", newest[0][0].decode()
            while True:
                slice_: Any = await self._redis.xrange(stream, start, end, count=_ENTRIES_PER_SLICE)
                for entry_id, fields in slice_:
                    yield entry_id.decode(), fields or {}
                if len(slice_) < _ENTRIES_PER_SLICE:
                    return
                start = f"({slice_[-1][0].decode()}"
        except RedisError as error:
            raise unavailable(error) from error

    async def buyers(self, bucket_id: BucketId) -> AsyncIterator[list[tuple[UserId, bytes]]]:
        """The buyers and their records, in slices.

        Whoever is there during the whole scan comes at least once, and perhaps twice.
        """
        buyers = self._keys.bucket(bucket_id).buyers
        cursor: Any = 0
        while True:
            try:
                reply: Any = await self._redis.hscan(buyers, cursor, count=self._scan_count)
            except RedisError as error:
                raise unavailable(error) from error
            cursor, found = reply
            yield [
                (UserId(user.decode(errors="backslashreplace")), record)
                for user, record in found.items()
            ]
            if int(cursor) == 0:
                return

    async def records(self, bucket_id: BucketId, user_ids: Sequence[UserId]) -> list[bytes | None]:
        """The records of some users, in order; None for one who holds nothing."""
        buyers = self._keys.bucket(bucket_id).buyers
        records: list[bytes | None] = []
        for at in range(0, len(user_ids), _USERS_PER_SLICE):
            try:
                found: Any = await self._redis.hmget(
                    buyers, list(user_ids[at : at + _USERS_PER_SLICE])
                )
            except RedisError as error:
                raise unavailable(error) from error
            records += found
        return records


def read_record(bucket_id: BucketId, record: bytes) -> list[Holding] | None:
    """What is held by a record; None when it is not what the scripts write.

    What is spent is back on sale: nobody holds it.
    """
    try:
        return [one for one in parse_holdings(bucket_id, record) if not one.spent]
    except (ValueError, UnicodeDecodeError):
        return None


def holding_at(place: Place, record: bytes | None) -> Holding | None:
    """What a record says of one place."""
    holdings = [] if record is None else read_record(place.bucket_id, record) or []
    return next((holding for holding in holdings if holding.place == place), None)
