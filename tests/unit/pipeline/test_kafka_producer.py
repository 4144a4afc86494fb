"""The producer's thread, with the library's producer in memory: each message has its own report."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from seckill.pipeline.kafka.messages import OrderMessage
from seckill.pipeline.kafka.options import KafkaOptions, producer_settings
from seckill.pipeline.kafka.producer import KafkaProducer

OPTIONS = KafkaOptions(bootstrap="nowhere:1", queue_messages_max=3)


class MemoryClient:
    """Keeps messages in a queue until it is flushed; says of each what ``answer`` says."""

    def __init__(
        self, answer: Callable[[bytes], KafkaError | None], room: int = 1000, stuck: bool = False
    ) -> None:
        self.answer = answer
        self.room = room
        self.stuck = stuck
        self.queue: list[tuple[bytes, Any]] = []
        self.taken: list[bytes] = []
        self.full_met = self.purges = 0
        self.threads: set[str] = set()

    def produce(self, _topic: str, **message: Any) -> None:
        self.threads.add(threading.current_thread().name)
        if len(self.queue) >= self.room:
            self.full_met += 1
            raise BufferError("Local: Queue full")
        if message["value"] == b"unfit":
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self.queue.append((message["value"], message["on_delivery"]))

    def poll(self, _timeout: float) -> int:
        return self.flush(0)

    def flush(self, _timeout: float) -> int:
        if not self.stuck:
            self._report_all(self.answer)
        return len(self.queue)

    def purge(self) -> None:
        self.purges += 1
        self._report_all(lambda _value: KafkaError(KafkaError._PURGE_QUEUE))

    def _report_all(self, answer: Callable[[bytes], KafkaError | None]) -> None:
        queue, self.queue = self.queue, []
        for value, report in queue:
            error = answer(value)
            if error is None:
                self.taken.append(value)
            report(error, None)


def fine(_value: bytes) -> None:
    return None


def messages(*values: bytes) -> list[OrderMessage]:
    return [OrderMessage(b"k", value) for value in values]


async def test_each_message_has_the_report_of_its_own() -> None:
    late = KafkaError(KafkaError._MSG_TIMED_OUT)
    client = MemoryClient(lambda value: late if value == b"2" else None)
    producer = KafkaProducer(OPTIONS, "p", make_client=lambda _settings: client)
    reports = await producer.publish("t", messages(b"1", b"2", b"unfit", b"3"))
    await producer.close()
    assert [bool(report) for report in reports] == [False, True, True, False]
    assert client.taken == [b"1", b"3"]
    assert client.threads == {"kafka p"}


async def test_a_full_queue_is_waited_for_and_loses_nothing() -> None:
    client = MemoryClient(fine, room=3)
    producer = KafkaProducer(OPTIONS, "p", make_client=lambda _settings: client)
    values = [str(number).encode() for number in range(20)]
    assert await producer.publish("t", messages(*values)) == [""] * 20
    await producer.close()
    assert client.taken == values
    assert client.full_met > 0


async def test_a_producer_that_failed_for_good_is_made_anew() -> None:
    fatal = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of order", True)
    assert fatal.fatal()
    clients = [MemoryClient(lambda _value: fatal), MemoryClient(fine)]
    made: list[MemoryClient] = []

    def make(_settings: dict[str, Any]) -> MemoryClient:
        made.append(clients[len(made)])
        return made[-1]

    producer = KafkaProducer(OPTIONS, "p", make_client=make)
    assert all(await producer.publish("t", messages(b"1", b"2")))
    assert await producer.publish("t", messages(b"1", b"2")) == ["", ""]
    await producer.close()
    assert len(made) == 2
    assert clients[0].purges == 1
    assert clients[1].taken == [b"1", b"2"]


async def test_what_is_given_up_is_reported_as_not_taken() -> None:
    client = MemoryClient(fine, stuck=True)
    producer = KafkaProducer(OPTIONS, "p", make_client=lambda _settings: client)
    publishing = asyncio.create_task(producer.publish("t", messages(b"1", b"2")))
    while len(client.queue) < 2:
        await asyncio.sleep(0.001)
    producer.give_up()
    async with asyncio.timeout(60):
        assert all(await publishing)
    await producer.close()
    assert client.taken == []


async def test_a_waiter_that_leaves_does_not_stop_what_is_under_way() -> None:
    client = MemoryClient(fine, stuck=True)
    producer = KafkaProducer(OPTIONS, "p", make_client=lambda _settings: client)
    publishing = asyncio.create_task(producer.publish("t", messages(b"1")))
    while not client.queue:
        await asyncio.sleep(0.001)
    publishing.cancel()
    await asyncio.wait({publishing})
    client.stuck = False
    assert await producer.publish("t", messages(b"2")) == [""]
    await producer.close()
    assert client.taken == [b"1", b"2"]


async def test_nothing_is_started_for_nothing() -> None:
    producer = KafkaProducer(OPTIONS, "p", make_client=lambda _settings: MemoryClient(fine))
    assert await producer.publish("t", []) == []
    assert not producer._thread.is_alive()
    await producer.close()


def test_a_message_is_safe_only_when_all_copies_have_it() -> None:
    settings = producer_settings(OPTIONS, "p")
    assert settings["acks"] == "all"
    assert settings["enable.idempotence"] is True
    assert settings["queue.buffering.max.messages"] == 3
