"""Dead letters, wherever they lie: of the outbox in Redis, of the order topic in Kafka.

A letter is looked at, replayed after what was wrong has been put right, or discarded. To replay one
twice changes nothing: the ledger knows what it has written.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from seckill.admission.keys import Keys
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId
from seckill.pipeline.errors import ChannelUnavailable, LetterGone

__all__ = ["LETTERS_MAX", "DeadLetter", "OutboxLetters", "Shelf", "Shelves"]

LETTERS_MAX: Final = 10_000
"""Letters of one bucket that are looked at."""

_OURS: Final = frozenset({b"entry", b"reason"})


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One letter.

    Attributes:
        name: says on which shelf it lies and where there; what the commands take.
        origin: where it came from.
        at_ms: when it was first sent.
        key: of the message; empty in the outbox.
        raw: what came, byte for byte; None where there was nothing at all.
    """

    name: str
    origin: str
    reason: str
    at_ms: int
    key: bytes
    raw: bytes | None


class Shelf(Protocol):
    """Where letters of one kind lie. Every method raises ChannelUnavailable."""

    prefix: str
    """What the names of its letters begin with."""

    async def letters(self) -> Sequence[DeadLetter]:
        """All letters that nothing was done about yet, oldest first."""
        ...

    async def replay(self, letter: DeadLetter) -> None:
        """Send a letter once more the way it came. Raises LetterGone as `Shelves.replay`."""
        ...

    async def discard(self, letter: DeadLetter) -> None:
        """Do away with a letter, for good."""
        ...


class Shelves:
    """All letters of the service."""

    def __init__(self, shelves: Iterable[Shelf]) -> None:
        self._shelves = {shelf.prefix: shelf for shelf in shelves}

    async def letters(self) -> list[DeadLetter]:
        """All letters that nothing was done about yet, by shelf, oldest first."""
        return [letter for shelf in self._shelves.values() for letter in await shelf.letters()]

    async def find(self, name: str) -> DeadLetter:
        """One letter. Raises LetterGone when there is none of this name any more."""
        shelf = self._shelves.get(name.partition(":")[0])
        for letter in await shelf.letters() if shelf else ():
            if letter.name == name:
                return letter
        raise LetterGone(name, "there is no such dead letter, or it was settled already")

    async def replay(self, name: str) -> None:
        """Send one once more the way it came.

        Raises:
            LetterGone: it is not there any more, or there is nothing to go back to.
        """
        letter = await self.find(name)
        await self._shelves[name.partition(":")[0]].replay(letter)

    async def discard(self, name: str) -> None:
        """Do away with one, for good. Raises LetterGone as `find`."""
        letter = await self.find(name)
        await self._shelves[name.partition(":")[0]].discard(letter)


class OutboxLetters:
    """Implements `Shelf` for what was put aside from the outbox, each bucket in its stream.

    Args:
        bucket_ids: gives the buckets that exist now.
    """

    prefix = "outbox"

    def __init__(
        self, redis: Redis, keys: Keys, bucket_ids: Callable[[], Iterable[BucketId]]
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._bucket_ids = bucket_ids

    async def letters(self) -> list[DeadLetter]:
        """See Shelf."""
        try:
            return [
                _letter(at, entry_id.decode(), fields)
                for at in self._bucket_ids()
                for entry_id, fields in await self._entries(at)
            ]
        except (RedisError, OSError) as error:
            raise ChannelUnavailable(f"reading the dead letters of the outbox: {error}") from error

    async def _entries(self, bucket_id: BucketId) -> Any:
        return await self._redis.xrange(self._keys.bucket(bucket_id).dead, count=LETTERS_MAX)

    async def replay(self, letter: DeadLetter) -> None:
        """See Shelf. Back into the outbox and off the shelf in one step."""
        bucket_id, entry_id = _place(letter.name)
        keys = self._keys.bucket(bucket_id)
        try:
            found: Any = await self._redis.xrange(keys.dead, entry_id, entry_id)
            fields = found[0][1] if found else {}
            original: dict[Any, Any] = {n: v for n, v in fields.items() if n not in _OURS}
            if not original:
                raise LetterGone(letter.name, "nothing of it is left that could be sent")
            if not await self._redis.exists(keys.outbox):
                raise LetterGone(letter.name, "its bucket has no outbox any more")
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.xadd(keys.outbox, original)
                pipeline.xdel(keys.dead, entry_id)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            raise ChannelUnavailable(f"replaying {letter.name}: {error}") from error

    async def discard(self, letter: DeadLetter) -> None:
        """See Shelf."""
        bucket_id, entry_id = _place(letter.name)
        try:
            await self._redis.xdel(self._keys.bucket(bucket_id).dead, entry_id)
        except (RedisError, OSError) as error:
            raise ChannelUnavailable(f"discarding {letter.name}: {error}") from error


def _letter(bucket_id: BucketId, entry_id: str, fields: dict[bytes, bytes]) -> DeadLetter:
    entry = fields.get(b"entry", b"?").decode(errors="replace")
    raw = [name + b"=" + value for name, value in fields.items() if name not in _OURS]
    # One field named e is what a script writes: its content is shown as it is.
    shown = fields[b"e"] if list(fields.keys() - _OURS) == [b"e"] else b" ".join(raw)
    at = entry.partition("-")[0]
    return DeadLetter(
        name=f"outbox:{bucket_id.sale_id}.{bucket_id.bucket}:{entry_id}",
        origin=f"outbox of bucket {bucket_id.sale_id}.{bucket_id.bucket}, entry {entry}",
        reason=fields.get(b"reason", b"").decode(errors="replace"),
        at_ms=int(at) if at.isdigit() else 0,
        key=b"",
        raw=shown if raw else None,
    )


def _place(name: str) -> tuple[BucketId, str]:
    _, bucket, entry_id = name.split(":")
    sale_id, _, number = bucket.partition(".")
    return BucketId(SaleId(int(sale_id)), int(number)), entry_id
