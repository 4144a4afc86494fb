"""One bucket as Redis shows it, and the calls that read and change it."""

import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from seckill.admission.keys import Keys
from seckill.admission.scripts import (
    CARRY_ON,
    CHANGE_STOCK,
    DEFINE,
    DOUBT,
    FENCE_OFF,
    LOOK,
    NOTE_WRITTEN,
    OPEN_BUCKET,
    RELEASE,
    Scripts,
    Status,
    unavailable,
)
from seckill.domain.ids import AttemptId, UserId
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import Sale

__all__ = [
    "MADE_EARLIER",
    "OUTBOX_GROUP",
    "BucketView",
    "Buckets",
    "Holding",
    "held_units",
    "parse_holdings",
]

OUTBOX_GROUP: Final = "orders"
"""Consumer group that carries the outbox to the ledger."""

RELEASES_PER_CALL_MAX: Final = 256

MADE_EARLIER: Final = -1
"""In place of a seq: what is asked was made under an earlier epoch (lua/bucket.lua)."""

_SPENT: Final = "!"
"""Stands in front of the attempt of a spent reservation: no attempt id has it (release.lua)."""

_STAGE_SLICE: Final = 500
_STAGES_KEPT_MAX: Final = 8
"""How many epochs back the stage of a rebuild that came to no end is looked for."""


@dataclass(frozen=True, slots=True)
class BucketView:
    """One look at a bucket, atomic.

    Attributes:
        status: whether it may be trusted.
        now_ms: the clock of Redis at that moment, the only clock that opens and closes a sale.
        stock_units: units still admissible.
        put_units: units put into this bucket so far.
        held_units: units that buyers hold; stock + held = put.
        outbox_entries: batches that the ledger has not acknowledged.
        written_seq: how far the ledger had written this epoch when it was last asked.

    With status MISSING all numbers are 0.
    """

    status: Status
    now_ms: int
    epoch: int
    seq: int
    stock_units: int
    put_units: int = 0
    held_units: int = 0
    buyers: int = 0
    limit_per_user: int = 0
    starts_at_ms: int = 0
    ends_at_ms: int = 0
    paused: bool = False
    version: int = 0
    outbox_entries: int = 0
    written_seq: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """One reservation as the buyers hash keeps it.

    Attributes:
        spent: its units are back on sale, and still count against the limit of its buyer.
    """

    place: Place
    quantity: int
    attempt_id: AttemptId
    spent: bool = False


def held_units(holdings: Iterable[Holding]) -> int:
    """The units that are not on sale because of these."""
    return sum(holding.quantity for holding in holdings if not holding.spent)


def parse_holdings(bucket_id: BucketId, record: bytes) -> list[Holding]:
    """Read one record of the buyers hash (its form is written by admit.lua and release.lua)."""
    holdings = []
    for item in record.decode("ascii").split(","):
        epoch, seq, quantity, attempt = item.split(".", 3)
        place = Place(bucket_id.sale_id, int(epoch), bucket_id.bucket, int(seq))
        spent = attempt.startswith(_SPENT)
        attempt_id = AttemptId(attempt.removeprefix(_SPENT))
        holdings.append(Holding(place, int(quantity), attempt_id, spent))
    return holdings


def format_holdings(holdings: Sequence[Holding]) -> str:
    """Write one record of the buyers hash, as the scripts would."""
    return ",".join(
        f"{h.place.epoch}.{h.place.seq}.{h.quantity}.{_SPENT * h.spent}{h.attempt_id}"
        for h in holdings
    )


def _readable_holders(
    bucket_id: BucketId, found: Mapping[bytes, bytes]
) -> Iterator[tuple[UserId, list[Holding]]]:
    for user, record in found.items():
        with contextlib.suppress(ValueError):  # UnicodeDecodeError is one
            yield UserId(user.decode()), parse_holdings(bucket_id, record)


class Buckets:
    """Reads and changes buckets. Every method raises StockUnavailable when Redis cannot answer."""

    def __init__(self, redis: Redis, scripts: Scripts, keys: Keys) -> None:
        self._redis = redis
        self._scripts = scripts
        self._keys = keys

    async def look(self, bucket_id: BucketId) -> BucketView:
        """Read a bucket without changing it."""
        keys = self._keys.bucket(bucket_id)
        reply = await self._scripts.run(
            LOOK, (keys.meta, keys.buyers, keys.outbox, keys.released, keys.changes)
        )
        status = Status(reply[0])
        if status is Status.MISSING:
            return BucketView(status, 0, 0, 0, 0)
        now, epoch, seq, stock, put, held, buyers, limit, starts, ends, *rest = reply[1:]
        paused, version, outbox_entries, written_seq = rest
        return BucketView(
            status,
            now_ms=now,
            epoch=epoch,
            seq=seq,
            stock_units=stock,
            put_units=put,
            held_units=held,
            buyers=buyers,
            limit_per_user=limit,
            starts_at_ms=starts,
            ends_at_ms=ends,
            paused=bool(paused),
            version=version,
            outbox_entries=outbox_entries,
            written_seq=written_seq,
        )

    async def holdings(self, bucket_id: BucketId, user_id: UserId) -> list[Holding]:
        """The reservations of a user in a bucket, spent ones too."""
        try:
            record: Any = await self._redis.hget(self._keys.bucket(bucket_id).buyers, user_id)
        except RedisError as error:
            raise unavailable(error) from error
        return [] if record is None else parse_holdings(bucket_id, record)

    async def open(
        self,
        sale: Sale,
        bucket_id: BucketId,
        epoch: int,
        put_units: int,
        buyers: Sequence[tuple[UserId, Sequence[Holding]]] = (),
    ) -> Status:
        """Open a fresh bucket, or with ``buyers`` one rebuilt from the ledger.

        Returns:
            OK when it is open under ``epoch`` now; EPOCH when the bucket has that epoch or a later
            one and was left alone.
        """
        keys = self._keys.bucket(bucket_id)
        # One key for each epoch: a rebuild that was overtaken must not write into another's.
        staged_buyers = keys.staged_buyers(epoch)
        held = sum(held_units(holdings) for _, holdings in buyers)
        try:
            earlier = range(max(1, epoch - _STAGES_KEPT_MAX), epoch + 1)
            await self._redis.unlink(*(keys.staged_buyers(before) for before in earlier))
            for at in range(0, len(buyers), _STAGE_SLICE):
                await self._redis.hset(
                    staged_buyers,
                    mapping={
                        user: format_holdings(holdings)
                        for user, holdings in buyers[at : at + _STAGE_SLICE]
                    },
                )
        except RedisError as error:
            raise unavailable(error) from error
        request = (
            epoch,
            put_units,
            held,
            len(buyers),
            sale.limit_per_user,
            sale.starts_at_ms,
            sale.ends_at_ms or 0,
            int(sale.paused),
            sale.version,
        )
        reply = await self._scripts.run(
            OPEN_BUCKET,
            (keys.meta, keys.buyers, keys.outbox, keys.released, keys.changes, staged_buyers),
            request,
            OUTBOX_GROUP,
        )
        return Status(reply[0])

    async def carry_on(self, bucket_id: BucketId, from_epoch: int, seq: int, to_epoch: int) -> bool:
        """Go on under a new epoch; True when the bucket is under ``to_epoch`` now."""
        keys = self._keys.bucket(bucket_id)
        reply = await self._scripts.run(
            CARRY_ON, (keys.meta, keys.buyers, keys.outbox), (from_epoch, seq, to_epoch)
        )
        return Status(reply[0]) in {Status.OK, Status.EPOCH} and reply[2] == to_epoch

    async def define(self, sale: Sale, bucket_id: BucketId) -> None:
        """Bring window, limit and pause of a bucket up to the sale's version."""
        request = (
            sale.limit_per_user,
            sale.starts_at_ms,
            sale.ends_at_ms or 0,
            int(sale.paused),
            sale.version,
        )
        await self._scripts.run(DEFINE, (self._keys.bucket(bucket_id).meta,), request)

    async def doubt(self, bucket_id: BucketId, epoch: int) -> None:
        """Stop a bucket under this epoch until it is judged, so that its seq stands still."""
        await self._scripts.run(DOUBT, (self._keys.bucket(bucket_id).meta,), (epoch,))

    async def fence_off(self, bucket_id: BucketId, newest_epoch: int) -> None:
        """Stop a bucket until it is opened under a new epoch.

        Args:
            newest_epoch: a bucket under a later one was opened by somebody else, and is left alone.
        """
        await self._scripts.run(FENCE_OFF, (self._keys.bucket(bucket_id).meta,), (newest_epoch,))

    async def forget(self, bucket_id: BucketId, newest_epoch: int) -> None:
        """Take the keys of a bucket out of Redis, for good. Its memory is freed beside its work."""
        keys = self._keys.bucket(bucket_id)
        stages = range(max(1, newest_epoch - _STAGES_KEPT_MAX), newest_epoch + 2)
        try:
            await self._redis.unlink(
                keys.meta,
                keys.buyers,
                keys.outbox,
                keys.released,
                keys.changes,
                keys.dead,
                *(keys.staged_buyers(epoch) for epoch in stages),
            )
        except RedisError as error:
            raise unavailable(error) from error

    async def note_written(self, bucket_id: BucketId, epoch: int, seq: int) -> None:
        """Have the bucket remember how far the ledger has written its epoch."""
        await self._scripts.run(NOTE_WRITTEN, (self._keys.bucket(bucket_id).meta,), (epoch, seq))

    async def holders(
        self, bucket_id: BucketId
    ) -> AsyncIterator[list[tuple[UserId, list[Holding]]]]:
        """The buyers and what they hold, in slices; a record that cannot be read is left out.

        Whoever is there during the whole scan comes at least once, and perhaps twice.
        """
        buyers = self._keys.bucket(bucket_id).buyers
        cursor: Any = 0
        while True:
            try:
                reply: Any = await self._redis.hscan(buyers, cursor, count=_STAGE_SLICE)
            except ResponseError as error:
                if str(error).startswith("WRONGTYPE"):
                    return
                raise unavailable(error) from error
            except RedisError as error:
                raise unavailable(error) from error
            cursor, found = reply
            yield list(_readable_holders(bucket_id, found))
            if int(cursor) == 0:
                return

    async def release(
        self,
        bucket_id: BucketId,
        epoch: int,
        reservations: Sequence[tuple[UserId, Place]],
        spent: Collection[Place] = (),
    ) -> list[int] | Status:
        """Give the units of reservations back, each once.

        Args:
            epoch: the epoch in which these releases are valid.
            reservations: at most 256.
            spent: those of them that still count against the limit of their buyers.

        Returns:
            For each the seq of its release, 0 where the user does not hold it, MADE_EARLIER where
            it was released under an earlier epoch; or the status that kept the bucket from being
            touched.
        """
        assert 1 <= len(reservations) <= RELEASES_PER_CALL_MAX
        keys = self._keys.bucket(bucket_id)
        request: list[int | str] = [epoch]
        for user_id, place in reservations:
            request += (user_id, place.epoch, place.seq, int(place in spent))
        reply = await self._scripts.run(
            RELEASE, (keys.meta, keys.buyers, keys.outbox, keys.released), request, durable=True
        )
        status = Status(reply[0])
        return reply[5:] if status is Status.OK else status

    async def change_stock(
        self, bucket_id: BucketId, epoch: int, change_id: str, delta_units: int
    ) -> int | Status:
        """Put more units on sale or take unsold ones off, once per change id.

        Returns:
            The seq at which it was applied, now or before; 0 when fewer are left than would be
            taken; MADE_EARLIER when it was applied under an earlier epoch; or the status that kept
            the bucket from being touched.
        """
        keys = self._keys.bucket(bucket_id)
        reply = await self._scripts.run(
            CHANGE_STOCK,
            (keys.meta, keys.buyers, keys.outbox, keys.changes),
            (epoch, change_id, delta_units),
            durable=True,
        )
        status = Status(reply[0])
        return int(reply[5]) if status is Status.OK else status
