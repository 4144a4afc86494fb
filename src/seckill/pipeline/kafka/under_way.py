"""What is in the order topic and not in the ledger: for the audit, the fence, and the metrics."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException

from seckill.domain.events import BucketEvent
from seckill.domain.reservation import BucketId
from seckill.pipeline.errors import ChannelUnavailable, Unreadable
from seckill.pipeline.kafka.complaints import Complaints
from seckill.pipeline.kafka.dead_topic import DeadTopic
from seckill.pipeline.kafka.messages import read_message
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.reading import committed_of, open_reader, partitions_of, read_range
from seckill.pipeline.ports import UnderWayLetter

__all__ = ["TopicUnderWay"]

_ASK_S: Final = 10.0
_POLL_S: Final = 0.1


class TopicUnderWay:
    """Implements `pipeline.ports.UnderWay` for the order topic and its dead letters."""

    def __init__(self, options: KafkaOptions, dead: DeadTopic) -> None:
        self._options = options
        self._dead = dead
        # A consumer that joins nothing, and not the administrator's client: that one dies with a
        # segmentation fault when the group has no coordinator yet (seen with librdkafka 2.16;
        # confluent-kafka-javascript#374).
        self._reader: Consumer | None = None
        self._complaints = Complaints("seckill-under-way")
        self._lock = threading.Lock()

    async def pending(self) -> int:
        """Messages that the order workers have not committed yet."""
        ends, committed = await asyncio.to_thread(self._offsets)
        return sum(max(0, end - committed.get(at, 0)) for at, end in ends.items())

    async def run_dry(self) -> None:
        """Wait until all that is in the topic now is committed; what comes later may stay."""
        ends, committed = await asyncio.to_thread(self._offsets)
        while any(committed.get(at, 0) < end for at, end in ends.items()):
            await asyncio.sleep(_POLL_S)
            _, committed = await asyncio.to_thread(self._offsets)

    async def close(self) -> None:
        """Let go of what was opened."""
        await asyncio.to_thread(self._drop_reader)

    def _offsets(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """The end of each partition that has messages, and what the group has committed of each.

        A partition of which nothing was ever committed counts from its oldest message.
        """
        topic = self._options.topic
        with self._lock:
            try:
                if self._reader is None:
                    self._reader = open_reader(self._options, self._options.group, self._complaints)
                # Committed first: what is committed later only makes the answer smaller.
                partitions = partitions_of(self._reader, topic)
                begun = committed_of(self._reader, partitions, _ASK_S)
                bounds = {
                    at.partition: self._reader.get_watermark_offsets(at, timeout=_ASK_S)
                    for at in begun
                }
            except KafkaException as error:
                words = self._complaints.words(error, self._reader)
                raise ChannelUnavailable(f"asking for offsets: {words}") from error
        committed = {at.partition: max(at.offset, bounds[at.partition][0]) for at in begun}
        return {number: high for number, (low, high) in bounds.items() if high > low}, committed

    def _drop_reader(self) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    async def events(self, bucket_id: BucketId) -> list[BucketEvent]:
        """The events of a bucket that the group has not committed yet."""
        return await asyncio.to_thread(self._unread, bucket_id)

    def _unread(self, bucket_id: BucketId) -> list[BucketEvent]:
        events = []
        group = self._options.group
        for message in read_range(self._options, self._options.topic, from_committed_of=group):
            value = message.value()
            try:
                event = read_message(value.encode() if isinstance(value, str) else value)
            except Unreadable:
                continue  # a worker will make a dead letter of it
            if event.place.bucket_id == bucket_id:
                events.append(event)
        return events

    async def letters(self, bucket_id: BucketId) -> list[UnderWayLetter]:
        """The dead letters that may be of a bucket: also those that nobody can read."""
        found = []
        for letter in await self._dead.unsettled():
            try:
                event = read_message(letter.value)
            except Unreadable:
                found.append(UnderWayLetter(f"kafka:{letter.letter}", letter.reason, None))
            else:
                if event.place.bucket_id == bucket_id:
                    found.append(UnderWayLetter(f"kafka:{letter.letter}", letter.reason, event))
        return found
