"""What a worker has received and not settled yet, by partition."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from confluent_kafka import Message

from seckill.pipeline.ports import Delivery

__all__ = ["Hands", "Held"]


@dataclass(slots=True)
class Held:
    """One message in hand, and what it says once somebody has read it.

    Attributes:
        delivery: None before that, and when it cannot be read.
        poison: why it cannot be read; empty otherwise.
    """

    message: Message
    delivery: Delivery | None = None
    poison: str = ""


@dataclass(slots=True)
class _Partition:
    """Attributes: open: offsets, rising; next: the one after the last one that was taken."""

    open: dict[int, Held] = field(default_factory=dict)
    next: int = 0
    committed: int = -1

    @property
    def position(self) -> int:
        """The offset before which everything is settled."""
        return next(iter(self.open), self.next)


class Hands:
    """Safe to be used by the loop and by the thread of the consumer at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[int, _Partition] = {}
        # All that is open, in the order in which it came.
        self._held: dict[tuple[int, int], Held] = {}

    def take(self, messages: Iterable[Message]) -> None:
        """Messages have come; each after those of its partition that came before."""
        with self._lock:
            for message in messages:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                of = self._partitions.get(partition)
                if of is None:
                    of = self._partitions[partition] = _Partition()
                assert offset >= of.next, "a partition is read forwards only"
                of.open[offset] = self._held[partition, offset] = Held(message)
                of.next = offset + 1

    def waiting(self, messages_max: int) -> list[Held]:
        """What is not settled, in the order in which it came."""
        with self._lock:
            return list(islice(self._held.values(), messages_max))

    def find(self, partition: int, offset: int) -> Message | None:
        """One message, unless it is settled or was given away."""
        with self._lock:
            held = self._held.get((partition, offset))
        return held.message if held else None

    def settle(self, places: Iterable[tuple[int, int]]) -> None:
        """Messages are written, or among the dead letters: each by partition and offset."""
        with self._lock:
            for place in places:
                if self._held.pop(place, None) is not None:
                    self._partitions[place[0]].open.pop(place[1])

    def positions(self) -> dict[int, int]:
        """The offsets to commit: of each partition that has moved."""
        with self._lock:
            return {
                partition: of.position
                for partition, of in self._partitions.items()
                if of.position > of.committed and (of.next > 0)
            }

    def committed(self, positions: dict[int, int]) -> None:
        """These are committed: not to be told again."""
        with self._lock:
            for partition, offset in positions.items():
                if (of := self._partitions.get(partition)) is not None:
                    of.committed = max(of.committed, offset)

    def drop(self, partitions: set[int]) -> None:
        """Partitions were given to somebody else, with everything in them."""
        with self._lock:
            for partition in partitions:
                gone = self._partitions.pop(partition, None)
                for offset in gone.open if gone else ():
                    del self._held[partition, offset]

    def __len__(self) -> int:
        """How many are not settled."""
        with self._lock:
            return len(self._held)

    def oldest_at_ms(self) -> int | None:
        """When the oldest message that waits was published; None when none waits."""
        with self._lock:
            firsts = [next(iter(of.open.values())) for of in self._partitions.values() if of.open]
        return min((held.message.timestamp()[1] for held in firsts), default=None)
