"""The channel as the fence sees it: what of a bucket is still under way to the ledger."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from seckill.admission.bucket import OUTBOX_GROUP
from seckill.admission.keys import Keys
from seckill.admission.scripts import unavailable
from seckill.domain.reservation import BucketId
from seckill.pipeline.errors import Unreadable
from seckill.pipeline.outbox import read_entry
from seckill.pipeline.ports import UnderWay

__all__ = ["OutboxLog"]

_LOOK_EVERY_S: Final = 0.05
_ENTRIES_MAX: Final = 10
"""Entries at the new end that are looked at: the last readable one of an epoch has its last seq."""


class OutboxLog:
    """Implements `admission.fence_ports.FenceChannel` on the outbox streams and what follows them.

    Args:
        behind: the carrier that a relay empties the outbox into; None where a worker reads it.
        in_hand: whether a worker of this process holds entries of a bucket that it has not
            written yet. A Redis that went back does not know of them any more.
    """

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        *,
        behind: UnderWay | None = None,
        in_hand: Callable[[BucketId], bool] = lambda _: False,
    ) -> None:
        self._redis = redis
        self._keys = keys
        self.behind = behind
        self.in_hand = in_hand

    async def carried_seq(self, bucket_id: BucketId, epoch: int) -> int:
        """See `FenceChannel`."""
        last = await self._last_in_outbox(bucket_id, epoch)
        if self.behind is not None:
            for event in await self.behind.events(bucket_id):
                if event.place.epoch == epoch:
                    last = max(last, event.place.seq)
        return last

    async def _last_in_outbox(self, bucket_id: BucketId, epoch: int) -> int:
        try:
            entries: Any = await self._redis.xrevrange(
                self._keys.bucket(bucket_id).outbox, count=_ENTRIES_MAX
            )
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                return 0
            raise unavailable(error) from error
        except RedisError as error:
            raise unavailable(error) from error
        last = 0
        for _, fields in entries:
            # What cannot be read goes to the dead letters, and the audit speaks of it.
            with contextlib.suppress(Unreadable):
                events = read_entry(bucket_id, fields or {})
                last = max([last, *(e.place.seq for e in events if e.place.epoch == epoch)])
        return last

    async def run_dry(self, bucket_id: BucketId) -> None:
        """See `FenceChannel`."""
        while not await self._outbox_is_dry(bucket_id):
            await asyncio.sleep(_LOOK_EVERY_S)
        if self.behind is not None:
            await self.behind.run_dry()

    async def _outbox_is_dry(self, bucket_id: BucketId) -> bool:
        outbox = self._keys.bucket(bucket_id).outbox
        try:
            left = int(await self._redis.xlen(outbox))
            if left:
                # A stream that was restored without its group would never run dry.
                with contextlib.suppress(ResponseError):
                    await self._redis.xgroup_create(outbox, OUTBOX_GROUP, id="0")
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                return True  # opening the bucket anew removes it
            raise unavailable(error) from error
        except RedisError as error:
            raise unavailable(error) from error
        return left == 0 and not self.in_hand(bucket_id)
