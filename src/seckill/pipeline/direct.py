"""The direct channel: the outbox streams, read by consumer group, without a broker between.

An entry is acknowledged after the ledger's commit and deleted then, never before: trimming a
stream by length would throw away what is still pending (redis/redis#6199). What a dead worker has
taken is claimed by a living one after a while.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from seckill.admission.bucket import OUTBOX_GROUP
from seckill.admission.keys import Keys
from seckill.domain.reservation import BucketId
from seckill.pipeline.errors import ChannelUnavailable, Unreadable
from seckill.pipeline.outbox import read_entry, read_traces
from seckill.pipeline.ports import Delivery

__all__ = ["DirectChannel", "OutboxLag"]

_log = structlog.get_logger()

CLAIM_IDLE_MS: Final = 5_000
"""How long an entry may be in the hands of a worker before another takes it over. A worker that is
merely slow loses nothing by it: writing an entry twice changes nothing."""

_CLAIM_EVERY_MS: Final = 1_000
_WAIT_MS_MAX: Final = 200
"""Bound on one blocking read, so that the outbox of a new sale is seen soon."""

_Found = list[tuple[bytes, list[Any]]]
"""What Redis gave: stream and entries, each an id and its fields."""


def _of_one_stream(error: ResponseError) -> bool:
    """Whether an error reply is about one stream that is not there, or no stream at all."""
    return str(error).startswith(("NOGROUP", "WRONGTYPE"))


@dataclass(frozen=True, slots=True)
class OutboxLag:
    """What the ledger has not acknowledged yet.

    Attributes:
        entries: batches that wait, over all buckets.
        oldest_ms: age of the oldest one by the clock of Redis, 0 when nothing waits.
    """

    entries: int
    oldest_ms: int


class DirectChannel:
    """Implements `pipeline.ports.OrderChannel` on the outbox streams.

    What was received and neither acknowledged nor set aside by the next `receive` comes again
    then, before anything newer: it could not be written, and nobody else is waiting for it.

    Args:
        redis: a client whose time-out is longer than the longest blocking read.
        consumer: name of this worker's slot; what its predecessor had taken is handed to it.
        bucket_ids: gives the buckets that exist now.
        on_dead: called with each entry that could not be read, after it was put aside.
    """

    def __init__(
        self,
        *,
        redis: Redis,
        keys: Keys,
        consumer: str,
        bucket_ids: Callable[[], Iterable[BucketId]],
        on_dead: Callable[[BucketId, str], None],
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._consumer = consumer
        self._bucket_ids = bucket_ids
        self._on_dead = on_dead
        self._holds_nothing: set[BucketId] = set()
        self._in_hand: dict[BucketId, set[str]] = {}
        self._claimed_at_ms = float("-inf")

    async def receive(self, deliveries_max: int, wait_ms: int) -> Sequence[Delivery]:
        """Return what has come. See `OrderChannel.receive`."""
        try:
            return await self._receive(deliveries_max, min(wait_ms, _WAIT_MS_MAX))
        except (RedisError, OSError) as error:
            # A reply that was lost may have put entries into our hands that we do not know of.
            self._holds_nothing.clear()
            raise ChannelUnavailable(f"reading the outbox: {error}") from error

    async def _receive(self, deliveries_max: int, wait_ms: int) -> Sequence[Delivery]:
        streams = {self._keys.bucket(at).outbox.encode(): at for at in self._bucket_ids()}
        if not streams:
            await asyncio.sleep(wait_ms / 1000)
            return []
        self._holds_nothing -= {at for at, tokens in self._in_hand.items() if tokens}
        self._in_hand.clear()
        # First what this slot has in its hands, or had when it died; then what others left; then
        # news. Redis counts for each stream by itself, so each gets its share.
        share = max(1, deliveries_max // len(streams))
        found = (
            await self._held(streams, deliveries_max)
            or await self._claim(streams, share)
            or await self._read(dict.fromkeys(streams, ">"), share, wait_ms)
        )
        entries = [
            (streams[stream], entry_id, fields)
            for stream, rows in found
            for entry_id, fields in rows
        ]
        # All of it is in our hands from here; what is over the bound is left for the next call.
        for bucket_id, entry_id, _ in entries:
            token = "" if entry_id is None else entry_id.decode()
            self._in_hand.setdefault(bucket_id, set()).add(token)
        return await self._deliveries(entries[:deliveries_max])

    async def _held(self, streams: dict[bytes, BucketId], count: int) -> _Found:
        for stream, bucket_id in streams.items():
            if bucket_id not in self._holds_nothing:
                found = await self._read({stream: "0"}, count, None)
                if found:
                    return found
                self._holds_nothing.add(bucket_id)
        return []

    async def _read(self, streams: dict[bytes, str], count: int, block_ms: int | None) -> _Found:
        try:
            return await self._ask(streams, count, block_ms)
        except ResponseError as error:
            if not _of_one_stream(error):
                raise
        # One of them is not open yet, or was lost: the fence deals with it. It must not keep the
        # others waiting, so each is asked by itself, and then those that can be read together.
        found: _Found = []
        readable: dict[bytes, str] = {}
        for stream, position in streams.items():
            try:
                found += await self._ask({stream: position}, count, None)
            except ResponseError as error:
                if not _of_one_stream(error):
                    raise
            else:
                readable[stream] = position
        if found or block_ms is None:
            return found
        if readable:
            return await self._ask(readable, count, block_ms)
        await asyncio.sleep(block_ms / 1000)
        return []

    async def _ask(self, streams: dict[bytes, str], count: int, block_ms: int | None) -> _Found:
        # The client's own type of this argument is a dictionary of anything, and invariant.
        asked: dict[Any, Any] = {**streams}
        reply: Any = await self._redis.xreadgroup(
            OUTBOX_GROUP, self._consumer, asked, count=count, block=block_ms
        )
        # Asked for what it holds, a consumer that holds nothing is named with an empty list.
        return [(stream, rows) for stream, rows in reply or [] if rows]

    async def _claim(self, streams: dict[bytes, BucketId], count: int) -> _Found:
        """Take over entries that another worker has held for too long."""
        now = asyncio.get_running_loop().time() * 1000
        if now - self._claimed_at_ms < _CLAIM_EVERY_MS:
            return []
        self._claimed_at_ms = now
        claimed: _Found = []
        for stream in streams:
            try:
                reply: Any = await self._redis.xautoclaim(
                    stream, OUTBOX_GROUP, self._consumer, CLAIM_IDLE_MS, count=count
                )
            except ResponseError as error:
                if not _of_one_stream(error):
                    raise
                continue
            if reply[1]:
                claimed.append((stream, reply[1]))
        return claimed

    async def _deliveries(self, entries: Sequence[tuple[BucketId, Any, Any]]) -> list[Delivery]:
        deliveries = []
        for bucket_id, entry_id, fields in entries:
            if entry_id is None:
                # Redis 6.2 claims an entry that was deleted while it was pending, and does not
                # name it. It is in our hands now, so the next call sees it with its id.
                continue
            token = entry_id.decode()
            try:
                if not fields:
                    raise Unreadable("the entry was deleted while it was pending")  # noqa: TRY301
                events = read_entry(bucket_id, fields)
            except Unreadable as error:
                await self._put_aside(bucket_id, token, str(error), fields or {})
            else:
                deliveries.append(Delivery(bucket_id, token, events, read_traces(fields)))
        return deliveries

    async def set_aside(self, delivery: Delivery, reason: str) -> None:
        """Move a delivery that the ledger refuses to the dead letters. See `OrderChannel`."""
        outbox = self._keys.bucket(delivery.bucket_id).outbox
        try:
            found: Any = await self._redis.xrange(outbox, delivery.token, delivery.token)
            fields = found[0][1] if found else {}
            await self._put_aside(delivery.bucket_id, delivery.token, reason, fields)
        except (RedisError, OSError) as error:
            raise ChannelUnavailable(f"putting an outbox entry aside: {error}") from error

    async def _put_aside(
        self, bucket_id: BucketId, token: str, reason: str, fields: dict[bytes, bytes]
    ) -> None:
        """Move an entry to the dead letters, with its reason and raw bytes."""
        keys = self._keys.bucket(bucket_id)
        async with self._redis.pipeline(transaction=True) as pipeline:
            # Ours come last: a reader that makes a dictionary of them must not take a raw field
            # of the same name for the reason.
            letter: dict[Any, Any] = {**fields, "entry": token, "reason": reason}
            pipeline.xadd(keys.dead, letter)
            pipeline.xack(keys.outbox, OUTBOX_GROUP, token)
            pipeline.xdel(keys.outbox, token)
            await pipeline.execute()
        self._in_hand.get(bucket_id, set()).discard(token)
        _log.error("outbox entry put aside", bucket=bucket_id, entry=token, reason=reason)
        self._on_dead(bucket_id, reason)

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Forget deliveries for good. See `OrderChannel.acknowledge`."""
        tokens: dict[BucketId, list[str]] = {}
        for delivery in deliveries:
            tokens.setdefault(delivery.bucket_id, []).append(delivery.token)
        try:
            # One transaction: what was acknowledged and not deleted would stay for ever.
            async with self._redis.pipeline(transaction=True) as pipeline:
                for bucket_id, ids in tokens.items():
                    outbox = self._keys.bucket(bucket_id).outbox
                    pipeline.xack(outbox, OUTBOX_GROUP, *ids)
                    pipeline.xdel(outbox, *ids)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            raise ChannelUnavailable(f"acknowledging the outbox: {error}") from error
        for bucket_id, ids in tokens.items():
            self._in_hand.get(bucket_id, set()).difference_update(ids)

    async def hold(self, deliveries: Sequence[Delivery]) -> None:
        """Keep deliveries in hand for longer: nobody else is to take them over just now.

        Raises:
            ChannelUnavailable: Redis cannot answer now; somebody may carry them a second time.
        """
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for delivery in deliveries:
                    outbox = self._keys.bucket(delivery.bucket_id).outbox
                    pipeline.xclaim(
                        outbox, OUTBOX_GROUP, self._consumer, 0, [delivery.token], justid=True
                    )
                await pipeline.execute()
        except (RedisError, OSError) as error:
            raise ChannelUnavailable(f"holding outbox entries: {error}") from error

    def has_in_hand(self, bucket_id: BucketId) -> bool:
        """Whether this worker holds entries of a bucket that it has not written yet."""
        return bool(self._in_hand.get(bucket_id))

    async def lag(self) -> OutboxLag:
        """What waits. Counted by ourselves: XINFO's ``lag`` is wrong after deletions.

        Raises:
            ChannelUnavailable: Redis cannot answer now.
        """
        entries, oldest_ms = 0, 0
        try:
            seconds, microseconds = await self._redis.time()
            for bucket_id in self._bucket_ids():
                outbox = self._keys.bucket(bucket_id).outbox
                length = int(await self._redis.xlen(outbox))
                if length:
                    entries += length
                    first: Any = await self._redis.xrange(outbox, count=1)
                    if first:
                        at_ms = int(first[0][0].split(b"-")[0])
                        oldest_ms = max(oldest_ms, seconds * 1000 + microseconds // 1000 - at_ms)
        except (RedisError, OSError) as error:
            raise ChannelUnavailable(f"measuring the outbox: {error}") from error
        return OutboxLag(entries, oldest_ms)
