"""Reading what is in a topic now, without a group and without leaving a trace."""

from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from seckill.pipeline.errors import ChannelUnavailable
from seckill.pipeline.kafka.complaints import Complaints
from seckill.pipeline.kafka.options import KafkaOptions, consumer_settings

__all__ = ["committed_of", "open_reader", "partitions_of", "read_range"]

_NAME: Final = "seckill-reader"
_TURN_S: Final = 0.5
_ASK_S: Final = 10.0
_SLICE: Final = 500


def read_range(
    options: KafkaOptions, topic: str, *, from_committed_of: str = ""
) -> Iterator[Message]:
    """What is in a topic now, each partition in its order; what comes later is not waited for.

    Blocks: to be used in a thread. Joins no group and commits nothing.

    Args:
        from_committed_of: begin where this group has committed; empty: at the beginning.

    Raises:
        ChannelUnavailable: Kafka does not answer.
    """
    complaints = Complaints(_NAME)
    reader = None
    try:
        reader = open_reader(options, from_committed_of, complaints)
        start, ends = _range(reader, topic, committed=bool(from_committed_of))
        if start:
            reader.assign(start)
            yield from _read(reader, topic, ends)
    except KafkaException as error:
        raise ChannelUnavailable(f"reading {topic}: {complaints.words(error, reader)}") from error
    finally:
        if reader is not None:
            reader.close()


def open_reader(
    options: KafkaOptions, group: str = "", complaints: Complaints | None = None
) -> Consumer:
    """A consumer that joins nothing; it asks in the name of a group. To be closed.

    Raises:
        KafkaException: the settings are none that the library can use.
    """
    return Consumer(consumer_settings(options, _NAME, group or _NAME, complaints))


def partitions_of(reader: Consumer, topic: str) -> list[TopicPartition]:
    """All partitions of a topic. Raises KafkaException when there is none of this name."""
    found = reader.list_topics(topic, timeout=_ASK_S).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return [TopicPartition(topic, number) for number in found.partitions]


def committed_of(
    reader: Consumer, partitions: list[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    """What the reader's group has committed of each. Raises KafkaException unless all are known."""
    found = reader.committed(partitions, timeout=timeout_s)
    for at in found:
        if at.error is not None:
            raise KafkaException(at.error)
    return found


def _range(
    reader: Consumer, topic: str, *, committed: bool
) -> tuple[list[TopicPartition], dict[int, int]]:
    """Where to begin, and the end of each partition that has something to read."""
    partitions = partitions_of(reader, topic)
    begun = committed_of(reader, partitions, _ASK_S) if committed else partitions
    start, ends = [], {}
    for at in begun:
        low, high = reader.get_watermark_offsets(at, timeout=_ASK_S)
        first = max(low, at.offset) if committed and at.offset >= 0 else low
        if first < high:
            start.append(TopicPartition(topic, at.partition, first))
            ends[at.partition] = high
    return start, ends


def _read(reader: Consumer, topic: str, ends: dict[int, int]) -> Iterator[Message]:
    silent_s = 0.0
    while ends:
        messages = reader.consume(_SLICE, _TURN_S / 5)
        silent_s = 0.0 if messages else silent_s + _TURN_S / 5
        if silent_s > _ASK_S:
            raise ChannelUnavailable(f"reading {topic}: nothing came for {_ASK_S:.0f} s")
        for message in messages:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            number, offset = message.partition(), message.offset()
            assert number is not None
            assert offset is not None
            if offset < ends.get(number, 0):
                yield message
        # Where the reader stands, and not which offsets came: a place may hold no message at all.
        for at in reader.position([TopicPartition(topic, number) for number in ends]):
            if at.offset >= ends[at.partition]:
                del ends[at.partition]
