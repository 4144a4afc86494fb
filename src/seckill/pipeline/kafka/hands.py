"""What a worker has received and not settled yet, by partition."""

import threading
from dataclasses import dataclass, field
from itertools import islice

from confluent_kafka import Message

__all__ = ["Hands"]


@dataclass(slots=True)
class _Partition:
    """Attributes: open: messages by offset, rising; next: the offset after the last one taken."""

    open: dict[int, Message] = field(default_factory=dict)
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

    def take(self, message: Message) -> None:
        """A message has come; after those of its partition that came before."""
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        with self._lock:
            of = self._partitions.setdefault(partition, _Partition())
            assert offset >= of.next, "a partition is read forwards only"
            of.open[offset] = message
            of.next = offset + 1

    def waiting(self, messages_max: int) -> list[Message]:
        """What is not settled, each partition in its order."""
        with self._lock:
            every = (message for of in self._partitions.values() for message in of.open.values())
            return list(islice(every, messages_max))

    def find(self, partition: int, offset: int) -> Message | None:
        """One message, unless it is settled or was given away."""
        with self._lock:
            of = self._partitions.get(partition)
            return of.open.get(offset) if of else None

    def settle(self, partition: int, offset: int) -> None:
        """A message is written, or among the dead letters."""
        with self._lock:
            if (of := self._partitions.get(partition)) is not None:
                of.open.pop(offset, None)

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
                self._partitions.pop(partition, None)

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        with self._lock:
            return not any(of.open for of in self._partitions.values())

    def oldest_at_ms(self) -> int | None:
        """When the oldest message that waits was published; None when none waits."""
        with self._lock:
            firsts = [next(iter(of.open.values())) for of in self._partitions.values() if of.open]
        return min((message.timestamp()[1] for message in firsts), default=None)
