"""The sales that buyers may ask for: written from the ledger, read by every web process.

In Redis it is one hash: goods id to definition, and under the empty name a stamp that changes with
every change. Readers ask for the stamp alone and read the rest only when it is new.

A definition is a list of what a sale is made of, in the order of its fields, since it stays there
when the sale is over, and names would be two thirds of it. A field that is added to a sale goes to
the end and has a default: then older and newer programs read each other's.

A hash without its stamp is not an empty catalogue but a lost one: then nobody is told "no such
item", since nobody knows.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError, WatchError

from seckill.admission.errors import StockUnavailable
from seckill.admission.keys import Keys
from seckill.admission.scripts import unavailable
from seckill.domain.clock import Clock
from seckill.domain.ids import GoodsId
from seckill.domain.sale import Sale

__all__ = ["Catalogue", "publish"]

_log = structlog.get_logger()

_STAMP: Final = ""
_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Sale))
_decode_list = msgspec.msgpack.Decoder(list[Any]).decode

POLL_MS: Final = 250
"""How often a process asks for the stamp: bound on how late it learns of a new or changed sale."""

UNKNOWN_MS: Final = 50
"""Nobody is told "no such item" of a sale that was published longer ago than this."""

_PUBLISH_TRIES_MAX: Final = 20


async def publish(
    redis: Redis,
    keys: Keys,
    sales: Iterable[Sale],
    newest: Callable[[], Awaitable[Iterable[Sale] | None]] | None = None,
) -> bool:
    """Write the catalogue unless it is there already; True when it was written.

    Several may publish at once. Where ``newest`` is given the sales are read anew before they are
    written, and what was written in between makes that begin again: so nobody takes a sale away
    that was published after they read theirs.

    Args:
        newest: reads the sales; None leaves the catalogue as it is.

    Raises:
        StockUnavailable: Redis cannot answer now, or others publish all the time.
    """
    fields = _fields_of(sales)
    try:
        async with redis.pipeline(transaction=False) as pipeline:
            pipeline.hget(keys.sales, _STAMP)
            pipeline.hlen(keys.sales)
            if await pipeline.execute() == [fields[_STAMP], len(fields)]:
                return False
        async with redis.pipeline(transaction=True) as pipeline:
            for _ in range(_PUBLISH_TRIES_MAX):
                await pipeline.watch(keys.sales)
                if newest is not None:
                    found = await newest()
                    if found is None:
                        return False
                    fields = _fields_of(found)
                pipeline.multi()  # type: ignore[no-untyped-call]  # declares no types
                pipeline.delete(keys.sales)
                pipeline.hset(keys.sales, mapping=fields)
                with contextlib.suppress(WatchError):
                    await pipeline.execute()
                    return True
        raise WatchError(f"others have published {_PUBLISH_TRIES_MAX} times in between")
    except RedisError as error:
        raise unavailable(error) from error


def _fields_of(sales: Iterable[Sale]) -> dict[Any, Any]:
    """The hash: each sale by its goods, and the stamp of them all."""
    fields = {sale.goods_id: _encode(sale) for sale in sales}
    digest = hashlib.blake2b(digest_size=16)
    for goods_id in sorted(fields):
        digest.update(fields[goods_id])
    return {_STAMP: digest.digest(), **fields}


def _encode(sale: Sale) -> bytes:
    return msgspec.msgpack.encode([getattr(sale, name) for name in _FIELDS])


def _decode(definition: bytes) -> Sale:
    """Read a definition. Raises MsgspecError when it is none."""
    return msgspec.convert(dict(zip(_FIELDS, _decode_list(definition), strict=False)), Sale)


class Catalogue:
    """The catalogue as this process knows it."""

    def __init__(self, redis: Redis, keys: Keys, clock: Clock) -> None:
        self._redis = redis
        self._keys = keys
        self._clock = clock
        self._sales: Mapping[GoodsId, Sale] = {}
        self._stamp: bytes | None = None
        self._known = False
        self._checked_at_ms = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def sales(self) -> Mapping[GoodsId, Sale]:
        """Goods id to sale."""
        return self._sales

    @property
    def known(self) -> bool:
        """Whether the last look found a catalogue: only then what it lacks is not on sale."""
        return self._known

    def fresh(self) -> bool:
        """Whether the last look is so recent that another one would tell nothing new."""
        return self._clock.monotonic_ms() - self._checked_at_ms < UNKNOWN_MS

    async def refresh(self) -> None:
        """Look once. Raises StockUnavailable when Redis cannot answer now."""
        looked_at_ms = self._clock.monotonic_ms()
        try:
            stamp: Any = await self._redis.hget(self._keys.sales, _STAMP)
            found: Any = None
            if stamp is not None and stamp != self._stamp:
                found = await self._redis.hgetall(self._keys.sales)
                stamp = found.pop(_STAMP.encode(), None)
            if looked_at_ms < self._checked_at_ms:
                return  # a look that began later was quicker, and knows more
            if found is not None and stamp is not None:
                self._take(found, stamp)
            # Without a stamp what was known before stays: a sale does not end by this.
            self._known = stamp is not None
        except RedisError as error:
            raise unavailable(error) from error
        self._checked_at_ms = looked_at_ms

    def _take(self, found: Mapping[bytes, bytes], stamp: bytes) -> None:
        sales = {}
        for name, blob in found.items():
            try:
                sale = _decode(blob)
            except msgspec.MsgspecError as error:
                # One that this program cannot read must not take the others, or the process, down.
                _log.error("unreadable sale in the catalogue", goods=repr(name), error=str(error))
            else:
                sales[sale.goods_id] = sale
        self._sales, self._stamp = sales, stamp

    async def refresh_together(self) -> None:
        """Look once for all who ask at the same time. Raises StockUnavailable as `refresh`.

        A look that is under way serves those too who come later, unless it began so long before
        them, on a slow wire, that it may have missed what was published since. One that found no
        catalogue at all serves nobody who comes later: that changes but once, when the first sale
        is published, and who asks then shall not be sent away.
        """
        asked_at_ms = self._clock.monotonic_ms()
        while self._checked_at_ms < asked_at_ms - (UNKNOWN_MS if self._known else 0):
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.ensure_future(self.refresh())
            # Shielded: a client that leaves must not take the look away from the others.
            await asyncio.shield(self._refreshing)

    async def poll(self) -> None:
        """Look again and again, for ever. Redis being away is no reason to stop."""
        while True:
            with contextlib.suppress(StockUnavailable):
                await self.refresh()
            await asyncio.sleep(POLL_MS / 1000)
