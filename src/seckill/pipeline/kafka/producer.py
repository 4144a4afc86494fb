"""A producer in a thread of its own. What is published is known to be taken, or known not to be."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from seckill.pipeline.kafka.messages import OrderMessage
from seckill.pipeline.kafka.options import KafkaOptions, producer_settings

__all__ = ["KafkaProducer", "ProducerClient"]

_log = structlog.get_logger()

_TURN_S: Final = 0.05
_IDLE_S: Final = 0.5
_POLL_EVERY: Final = 500
_END_S: Final = 1.0


class ProducerClient(Protocol):
    """What is used of the library's producer."""

    def produce(self, topic: str, **message: Any) -> None:
        """Put a message into the queue. Raises BufferError when that is full."""
        ...

    def poll(self, timeout: float) -> int:
        """Serve delivery reports."""
        ...

    def flush(self, timeout: float) -> int:
        """Send at once, serve delivery reports; returns how many messages are left."""
        ...

    def purge(self) -> None:
        """Give up what is queued or under way: it is reported as failed."""
        ...


# The library's own types name every argument; of them only those above are used.
_LIBRARY: Final = cast("Callable[[dict[str, Any]], ProducerClient]", Producer)


class _Job:
    """Messages that are published together; ended when each of them has its report."""

    def __init__(self, topic: str, messages: Sequence[OrderMessage]) -> None:
        self.topic = topic
        self.messages = messages
        self.errors: list[str | None] = [None] * len(messages)
        self.left = len(messages)
        self.fatal = False
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[list[str]] = self.loop.create_future()

    def report(self, index: int, error: KafkaError | None, _message: Message | None) -> None:
        """The delivery report of one message."""
        if self.errors[index] is None:
            self.left -= 1
        self.errors[index] = "" if error is None else error.str()
        if error is not None and error.fatal():
            self.fatal = True

    def fail(self, why: str) -> None:
        """Whatever has no report yet was not taken."""
        self.errors = [why if error is None else error for error in self.errors]

    def end(self) -> None:
        """Hand the result to the loop. To be called in the thread."""
        result = ["was not reported" if error is None else error for error in self.errors]

        def tell() -> None:
            if not self.done.done():
                self.done.set_result(result)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(tell)


class KafkaProducer:
    """Publishes messages in order, and says of each whether all copies have it.

    Messages of one key are taken in the order in which they are published, if they are published
    one after the other: what belongs together is awaited before the next is sent.

    Args:
        name: what it is called in the logs of the brokers.
        make_client: builds the library's producer; another one in tests.
    """

    def __init__(
        self,
        options: KafkaOptions,
        name: str,
        *,
        make_client: Callable[[dict[str, Any]], ProducerClient] | None = None,
    ) -> None:
        self._settings = producer_settings(options, name)
        self._name = name
        self._make_client = make_client or _LIBRARY
        self._client: ProducerClient | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._giving_up = threading.Event()
        # Started by the first message: a command that only reads has no use for it.
        self._thread = threading.Thread(target=self._work, name=f"kafka {name}", daemon=True)
        self._begun = False

    async def publish(self, topic: str, messages: Sequence[OrderMessage]) -> list[str]:
        """Publish messages and wait for the report of each; bounded by the delivery time-out.

        Returns:
            For each message the empty text when it was taken, or why it was not. What was not
            reported as taken may be in the topic all the same: it may be sent again.
        """
        if not messages:
            return []
        if not self._begun:
            self._begun = True
            self._thread.start()
        job = _Job(topic, messages)
        self._jobs.put(job)
        # Shielded: whoever waits may go, the messages are under way all the same.
        return await asyncio.shield(job.done)

    def give_up(self) -> None:
        """Let what is under way fail now; for the end of a process whose broker is away."""
        self._giving_up.set()

    async def close(self) -> None:
        """End the thread. What is still under way fails."""
        if not self._begun:
            return
        self.give_up()
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, _END_S * 2)

    # In the thread

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                if self._client is not None:
                    self._client.poll(0)  # serves what the client has to say
                continue
            if job is None:
                break
            try:
                self._carry(job)
            except Exception as error:  # noqa: BLE001  -- told to whoever has published
                # The thread must outlive it: nobody else ends the jobs that come after this one.
                _log.error("the Kafka producer", client=self._name, error=str(error))
                job.fail(str(error))
                self._drop_client()
            finally:
                job.end()
        self._drop_client()

    def _carry(self, job: _Job) -> None:
        if self._client is None:
            self._client = self._make_client(dict(self._settings))
        client = self._client
        for index, message in enumerate(job.messages):
            self._produce(client, job, index, message)
            if index % _POLL_EVERY == _POLL_EVERY - 1:
                client.poll(0)
        while job.left:
            client.flush(_TURN_S)
            if self._giving_up.is_set() and job.left:
                client.purge()
                client.flush(_END_S)
                break
        if job.fatal:
            # The library's object is of no use any more, for ever (librdkafka#3584).
            _log.error("the Kafka producer failed for good and is made anew", client=self._name)
            self._drop_client()

    def _produce(
        self, client: ProducerClient, job: _Job, index: int, message: OrderMessage
    ) -> None:
        while True:
            if self._giving_up.is_set() or job.fatal:
                job.errors[index] = "given up"
                job.left -= 1
                return
            try:
                client.produce(
                    job.topic,
                    key=message.key,
                    value=message.value,
                    headers=list(message.headers),
                    on_delivery=partial(job.report, index),
                )
            except BufferError:
                client.poll(_TURN_S)  # full: wait until something of it has been taken
            except KafkaException as error:
                job.report(index, error.args[0], None)
                return
            else:
                return

    def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.purge()
            client.flush(_END_S)
