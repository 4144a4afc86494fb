"""What is in the order topic and not in the ledger: for the audit, the fence, and the metrics."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from seckill.domain.events import BucketEvent
from seckill.domain.reservation import BucketId
from seckill.pipeline.errors import ChannelUnavailable, Unreadable
from seckill.pipeline.kafka.dead_topic import DeadTopic
from seckill.pipeline.kafka.messages import read_message
from seckill.pipeline.kafka.options import KafkaOptions, client_settings
from seckill.pipeline.kafka.reading import read_range
from seckill.pipeline.ports import UnderWayLetter

__all__ = ["TopicUnderWay"]

_ASK_S: Final = 10.0
_POLL_S: Final = 0.1
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]


class TopicUnderWay:
    """Implements `pipeline.ports.UnderWay` for the order topic and its dead letters."""

    def __init__(self, options: KafkaOptions, dead: DeadTopic) -> None:
        self._options = options
        self._dead = dead
        self._admin_made: AdminClient | None = None

    @property
    def _admin(self) -> AdminClient:
        """Made when it is asked for the first time: nothing connects before."""
        if self._admin_made is None:
            self._admin_made = AdminClient(client_settings(self._options, "seckill-under-way"))
        return self._admin_made

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

    def _offsets(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """The end of each partition that has messages, and what the group has committed of each.

        A partition of which nothing was ever committed counts from its oldest message.
        """
        topic = self._options.topic
        try:
            partitions = self._partitions(topic)
            group = ConsumerGroupTopicPartitions(self._options.group)
            asked: Any = self._admin.list_consumer_group_offsets([group], request_timeout=_ASK_S)
            # Committed first: what is committed later only makes the answer smaller.
            found: Any = asked[self._options.group].result(_ASK_S)
            committed = {
                at.partition: at.offset
                for at in found.topic_partitions
                if at.topic == topic and at.offset >= 0
            }
            ends = self._list(partitions, _LATEST)
            firsts = self._list(partitions, _EARLIEST)
        except KafkaException as error:
            raise ChannelUnavailable(f"asking for offsets: {error.args[0].str()}") from error
        for number, first in firsts.items():
            committed[number] = max(committed.get(number, first), first)
        return {number: end for number, end in ends.items() if end > firsts[number]}, committed

    def _partitions(self, topic: str) -> list[TopicPartition]:
        known = self._admin.list_topics(topic, timeout=_ASK_S).topics[topic]
        if known.error is not None:
            raise KafkaException(known.error)
        return [TopicPartition(topic, number) for number in known.partitions]

    def _list(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
        asked = self._admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=_ASK_S)
        return {at.partition: future.result(_ASK_S).offset for at, future in asked.items()}

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
