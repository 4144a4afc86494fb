"""The order topic: a list, with one committed offset for the group of the order workers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from seckill.domain.events import BucketEvent
from seckill.domain.reservation import BucketId
from seckill.pipeline.kafka.messages import OrderMessage, read_message
from seckill.pipeline.ports import Delivery, UnderWayLetter
from simulation.wire import Process, Store

__all__ = ["Topic", "TopicChannel", "TopicProducer", "TopicUnderWay"]


@dataclass
class Topic:
    """What Kafka holds."""

    messages: list[bytes] = field(default_factory=list)
    committed: int = 0
    letters: list[tuple[bytes, str]] = field(default_factory=list)

    @property
    def events(self) -> list[BucketEvent]:
        return [read_message(value) for value in self.messages]


class TopicProducer:
    """Implements `pipeline.relay.MessageCarrier`. A report that is lost counts as not taken."""

    def __init__(self, process: Process, topic: Topic) -> None:
        self._process = process
        self._topic = topic

    async def publish(self, _topic: str, messages: Sequence[OrderMessage]) -> Sequence[str]:
        reports = []
        for message in messages:
            value = message.value
            assert value is not None
            try:
                await self._process.call(
                    Store.KAFKA, "publish", lambda value=value: self._topic.messages.append(value)
                )
            except Exception as error:  # noqa: BLE001  -- a delivery report says it in words
                reports.append(str(error))
            else:
                reports.append("")
        return reports

    def give_up(self) -> None:
        raise AssertionError("no relay is asked to end here")


class TopicChannel:
    """Implements `pipeline.ports.OrderChannel` for one worker, from the committed offset on."""

    def __init__(self, process: Process, topic: Topic) -> None:
        self._process = process
        self._topic = topic

    async def receive(self, deliveries_max: int, _wait_ms: int) -> Sequence[Delivery]:
        def read() -> list[Delivery]:
            first = self._topic.committed
            some = self._topic.messages[first : first + min(deliveries_max, 3)]
            events = [read_message(value) for value in some]
            return [
                Delivery(event.place.bucket_id, str(first + at), (event,))
                for at, event in enumerate(events)
            ]

        return await self._process.call(Store.KAFKA, "receive", read)  # type: ignore[no-any-return]

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        def commit() -> None:
            last = max(int(delivery.token) for delivery in deliveries)
            self._topic.committed = max(self._topic.committed, last + 1)

        await self._process.call(Store.KAFKA, "commit", commit)

    async def set_aside(self, delivery: Delivery, reason: str) -> None:
        def move() -> None:
            self._topic.letters.append((self._topic.messages[int(delivery.token)], reason))

        await self._process.call(Store.KAFKA, "set aside", move)
        await self.acknowledge([delivery])


class TopicUnderWay:
    """Implements `pipeline.ports.UnderWay`."""

    def __init__(self, process: Process, topic: Topic) -> None:
        self._process = process
        self._topic = topic

    async def pending(self) -> int:
        return await self._process.call(  # type: ignore[no-any-return]
            Store.KAFKA, "pending", lambda: len(self._topic.messages) - self._topic.committed
        )

    async def run_dry(self) -> None:
        end = await self._process.call(Store.KAFKA, "end", lambda: len(self._topic.messages))
        while await self._process.call(Store.KAFKA, "offset", lambda: self._topic.committed) < end:
            await asyncio.sleep(0.1)

    async def events(self, bucket_id: BucketId) -> Sequence[BucketEvent]:
        def read() -> list[BucketEvent]:
            return [
                event
                for event in self._topic.events[self._topic.committed :]
                if event.place.bucket_id == bucket_id
            ]

        return await self._process.call(Store.KAFKA, "events", read)  # type: ignore[no-any-return]

    async def letters(self, _bucket_id: BucketId) -> Sequence[UnderWayLetter]:
        return [
            UnderWayLetter(str(at), reason, read_message(value))
            for at, (value, reason) in enumerate(self._topic.letters)
        ]
