"""The sold-out flag: answers the crowd after the last unit is gone without asking Redis.

The flag never claims more than was seen: it answers only while a look at Redis, begun no longer
ago than the stated staleness, has shown an empty stock; and only to users who had surely bought
nothing at that look, since a buyer is told so ("duplicate") even when the stock is gone. Who bought
is kept as a Bloom filter of the buyers hash: "surely not" is certain, "perhaps" goes to Redis.

So a unit that comes back and is bought at once, through another process, leaves its buyer one
staleness long with a "sold out" here for a second click. What this process itself has seen change
lowers its flag at once.

No news is needed for the flag to fall: whatever brings stock back is seen by the next look.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from seckill.admission.bucket import Buckets, BucketView
from seckill.admission.errors import StockUnavailable
from seckill.admission.keys import Keys
from seckill.admission.scripts import Status, unavailable
from seckill.domain.clock import Clock
from seckill.domain.ids import UserId
from seckill.domain.reservation import BucketId

__all__ = ["BuyerFilter", "SoldOutFlag"]

BUYERS_MAX: Final = 2_000_000
"""Above this many buyers the flag stays down: the filter would cost more than it saves."""

_IDLE_MS: Final = 5_000
_SCAN_SLICE: Final = 1_000
_LOOKS_PER_STALENESS: Final = 2.5


class BuyerFilter:
    """A Bloom filter of user ids: 16 bits a buyer and 6 probes, about one false "perhaps" in 1,000.

    The two halves of Python's 64-bit string hash make the probes, as in double hashing. That hash
    is seeded anew in each process, so nobody outside can aim at it.
    Source: Kirsch and Mitzenmacher, Less Hashing, Same Performance (2006).
    """

    def __init__(self, buyers: int) -> None:
        self._bits = max(64, buyers * 16)
        self._bytes = bytearray(self._bits // 8 + 1)

    def add(self, user_id: str) -> None:
        """Remember a user."""
        both = hash(user_id)
        position, step = both & 0xFFFFFFFF, (both >> 32) & 0xFFFFFFFF | 1
        for _ in range(6):
            bit = position % self._bits
            self._bytes[bit >> 3] |= 1 << (bit & 7)
            position += step

    def __contains__(self, user_id: str) -> bool:
        """False: surely never added. True: perhaps."""
        both = hash(user_id)
        position, step = both & 0xFFFFFFFF, (both >> 32) & 0xFFFFFFFF | 1
        for _ in range(6):
            bit = position % self._bits
            if not self._bytes[bit >> 3] & 1 << (bit & 7):
                return False
            position += step
        return True


class SoldOutFlag:
    """The flag of one bucket in one process.

    Args:
        staleness_ms: how long after the start of a look its "sold out" may be repeated.
        on_raised: called each time that the flag goes up.
    """

    def __init__(
        self,
        bucket_id: BucketId,
        *,
        redis: Redis,
        buckets: Buckets,
        keys: Keys,
        clock: Clock,
        staleness_ms: int,
        on_raised: Callable[[], object] = lambda: None,
    ) -> None:
        self._bucket_id = bucket_id
        self._redis = redis
        self._buckets = buckets
        self._buyers_key = keys.bucket(bucket_id).buyers
        self._clock = clock
        self._staleness_ms = staleness_ms
        self._on_raised = on_raised
        self._buyers: BuyerFilter | None = None
        self._buyers_of: tuple[int, int] = (0, 0)
        self._valid_until_ms = 0.0
        self._asked_at_ms = 0.0
        self.watching = False
        """Whether `watch` runs. While it does not, nobody keeps the flag true, and it is down."""

    def answers(self, user_id: UserId) -> bool:
        """Whether this user may be told "sold out" without asking Redis."""
        if not self.watching:
            return False
        now = self._clock.monotonic_ms()
        self._asked_at_ms = now
        return (
            now < self._valid_until_ms and self._buyers is not None and user_id not in self._buyers
        )

    def observe(self, epoch: int, seq: int, stock_units: int, start: Callable[[], object]) -> None:
        """Take note of a reply: lower the flag where it shows news, watch an empty stock.

        Args:
            start: starts `watch` as a task with an owner.
        """
        if (epoch, seq) > self._buyers_of:
            self._valid_until_ms = 0.0
        if stock_units:
            return
        self._asked_at_ms = self._clock.monotonic_ms()
        if not self.watching:
            self.watching = True
            start()

    async def watch(self) -> None:
        """Keep the flag true to Redis until there is stock again, or nobody asks any more."""
        try:
            while self._clock.monotonic_ms() - self._asked_at_ms < _IDLE_MS:
                looked_at_ms = self._clock.monotonic_ms()
                try:
                    view = await self._buckets.look(self._bucket_id)
                    sold_out = _sold_out(view)
                    if sold_out and (view.epoch, view.seq) != self._buyers_of:
                        self._valid_until_ms = 0.0
                        await self._load_buyers(view)
                        continue
                except StockUnavailable:
                    # The flag falls by itself when its time is over; Redis is looked at again.
                    sold_out = True
                else:
                    if not sold_out:
                        return
                    left_ms = view.ends_at_ms - view.now_ms if view.ends_at_ms else float("inf")
                    if self._clock.monotonic_ms() >= self._valid_until_ms:
                        self._on_raised()
                    self._valid_until_ms = looked_at_ms + min(self._staleness_ms, left_ms)
                await asyncio.sleep(self._staleness_ms / _LOOKS_PER_STALENESS / 1000)
        finally:
            self._valid_until_ms = 0.0
            self.watching = False

    async def _load_buyers(self, view: BucketView) -> None:
        """Read who bought. The caller looks again: it holds if nothing has changed since."""
        if view.buyers > BUYERS_MAX:
            self._valid_until_ms = 0.0
            await asyncio.sleep(1)
            return
        buyers = BuyerFilter(view.buyers)
        cursor = 0
        try:
            while True:
                found: Any
                cursor, found = await self._redis.hscan(self._buyers_key, cursor, count=_SCAN_SLICE)
                for user in found:
                    buyers.add(user.decode())
                if cursor == 0:
                    break
        except RedisError as error:
            raise unavailable(error) from error
        self._buyers, self._buyers_of = buyers, (view.epoch, view.seq)


def _sold_out(view: BucketView) -> bool:
    return (
        view.status is Status.OK
        and view.stock_units == 0
        and not view.paused
        and view.starts_at_ms <= view.now_ms
        and (view.ends_at_ms == 0 or view.now_ms < view.ends_at_ms)
    )
