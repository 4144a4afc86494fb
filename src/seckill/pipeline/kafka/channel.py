"""The worker's end of the order topic: batches out of it, and offsets back once they are written.

An offset is committed only when everything before it in its partition is in the ledger or among the
dead letters, and only for partitions that this worker still has. What is lost on the way, a commit
or a partition, means that messages come again, which the ledger does not mind.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from seckill.admission.tasks import end_tasks
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId
from seckill.pipeline.errors import ChannelUnavailable, Unreadable
from seckill.pipeline.kafka.complaints import Complaints
from seckill.pipeline.kafka.dead_topic import DeadTopic
from seckill.pipeline.kafka.hands import Hands, Held
from seckill.pipeline.kafka.messages import TRACE_HEADER, read_message
from seckill.pipeline.kafka.options import KafkaOptions, consumer_settings
from seckill.pipeline.ports import Delivery

__all__ = ["KafkaChannel"]

_log = structlog.get_logger()

T = TypeVar("T")

_Token = tuple[int, int]
"""Partition and offset of a message."""

_READ_AT_ONCE: Final = 64
"""Messages that are read ahead without looking up: well below a millisecond."""

_SILENCE_S: Final = 0.5
"""How long the thread waits for orders before it shows the group that it lives."""

_COMMIT_WAIT_S: Final = 2.0
"""Bound on one commit: a broker that is away must not hold up the worker's end."""

_CLOSE_WAIT_S: Final = 2.0
_RECONNECT_S: Final = 1.0


@dataclass(slots=True)
class _Call:
    """Work for the thread, and where its result goes."""

    work: Callable[[Any], Any]
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[Any]"

    def run(self, consumer: Any) -> None:
        try:
            result = self.work(consumer)
        except Exception as error:  # noqa: BLE001  -- raised again where it is awaited
            self._tell(partial(self.done.set_exception, error))
        else:
            self._tell(partial(self.done.set_result, result))

    def _tell(self, give: Callable[[], None]) -> None:
        def tell() -> None:
            if not self.done.done():
                give()

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(tell)


class KafkaChannel:
    """Implements `pipeline.ports.OrderChannel` on the order topic, in a consumer group.

    Args:
        name: what this worker is called in the logs of the brokers.
        dead: where messages go that are none.
        on_dead: called with the reason of each message that was put aside.
        on_commit_failed: called when offsets could not be committed, which is no error.
        on_rebalance: called in the thread when partitions come or go.
    """

    def __init__(
        self,
        options: KafkaOptions,
        name: str,
        *,
        dead: DeadTopic,
        on_dead: Callable[[str], None] = lambda _reason: None,
        on_commit_failed: Callable[[], None] = lambda: None,
        on_rebalance: Callable[[], None] = lambda: None,
    ) -> None:
        self._options = options
        self._complaints = Complaints(name)
        self._settings = consumer_settings(options, name, options.group, self._complaints)
        self._dead = dead
        self._on_dead = on_dead
        self._on_commit_failed = on_commit_failed
        self._hands = Hands()
        self._ahead: asyncio.Task[None] | None = None
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._owned: set[int] = set()
        # Also what has gone since: the library keeps a partition paused through every rebalance.
        self._paused: set[int] = set()
        self._uncommitted = False
        self._on_rebalance = on_rebalance
        self._thread = threading.Thread(target=self._work, name=f"kafka {name}", daemon=True)
        self._thread.start()

    @property
    def oldest_ms(self) -> int:
        """Age of the oldest message in hand, 0 when there is none."""
        at_ms = self._hands.oldest_at_ms()
        return 0 if at_ms is None else max(0, int(time.time() * 1000) - at_ms)

    async def receive(self, deliveries_max: int, wait_ms: int) -> Sequence[Delivery]:
        """Return what has come. See `OrderChannel.receive`.

        When it returns as many as it may, more are likely to wait: the next ones are fetched and
        read ahead, while the caller writes these.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead
        held = self._hands.waiting(deliveries_max)
        if len(held) < deliveries_max:
            more, wait_ms = deliveries_max - len(held), 0 if held else wait_ms
            await self._ask(lambda consumer: self._fetch(consumer, more, wait_ms))
            held = self._hands.waiting(deliveries_max)
            if not held:
                # A commit that failed is made up for now, or what is written would count as under
                # way until the next order comes.
                await self._settle(())
        for each in held:
            self._read(each)
        if len(held) == deliveries_max:
            self._ahead = asyncio.create_task(self._go_ahead(deliveries_max), name="read ahead")
        if poison := [(each.message, each.poison) for each in held if each.poison]:
            await self._bury(poison)
        return [each.delivery for each in held if each.delivery is not None]

    async def _go_ahead(self, deliveries_max: int) -> None:
        """Fetch and read a second batch. What goes wrong here goes wrong again in `receive`."""
        more = 2 * deliveries_max - len(self._hands)
        if more > 0:
            with contextlib.suppress(ChannelUnavailable):
                await self._ask(lambda consumer: self._fetch(consumer, more, 0))
        for number, held in enumerate(self._hands.waiting(2 * deliveries_max), 1):
            self._read(held)
            if number % _READ_AT_ONCE == 0:
                await asyncio.sleep(0)  # an answer of the database comes first

    def _read(self, held: Held) -> None:
        if held.delivery is not None or held.poison:
            return
        message = held.message
        try:
            event = read_message(_value(message))
        except Unreadable as error:
            held.poison = str(error) or "unreadable"
        else:
            bucket_id = _bucket_id(event.place.sale_id, event.place.bucket)
            trace = _trace(message)
            traces = {event.place.seq: trace} if trace else None
            held.delivery = Delivery(bucket_id, _token(message), (event,), traces)

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Commit the offsets up to what is written. See `OrderChannel.acknowledge`."""
        await self._settle(delivery.token for delivery in deliveries)

    async def set_aside(self, delivery: Delivery, reason: str) -> None:
        """Move a message that the ledger refuses to the dead letters. See `OrderChannel`."""
        message = self._hands.find(*delivery.token)
        if message is not None:  # else it belongs to another worker by now, who will meet it too
            await self._bury([(message, reason)])

    async def close(self) -> None:
        """Leave the group. What is in hand goes to the others."""
        if self._ahead is not None:
            await end_tasks([self._ahead])
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join, _CLOSE_WAIT_S)

    async def _bury(self, poison: Sequence[tuple[Message, str]]) -> None:
        """Put messages aside; they are settled once all copies of the dead letters are written."""
        await self._dead.put(self._options.topic, poison)
        for message, reason in poison:
            _log.error(
                "order message put aside",
                partition=message.partition(), offset=message.offset(), reason=reason,
                **({"traceparent": trace} if (trace := _trace(message)) else {}),
            )  # fmt: skip
            self._on_dead(reason)
        await self._settle(_token(message) for message, _ in poison)

    async def _settle(self, tokens: Iterable[_Token]) -> None:
        self._hands.settle(tokens)
        positions = self._hands.positions()
        if not positions:
            return
        try:
            async with asyncio.timeout(_COMMIT_WAIT_S):
                await self._ask(lambda consumer: self._commit(consumer, positions))
        except (TimeoutError, ChannelUnavailable) as error:
            # Not an error: what is written comes again, and changes nothing.
            if not self._uncommitted:
                _log.warning("offsets were not committed", error=str(error) or "no answer in time")
            self._uncommitted = True
            self._on_commit_failed()
        else:
            self._uncommitted = False

    async def _ask(self, work: Callable[[Any], T]) -> T:
        loop = asyncio.get_running_loop()
        call = _Call(work, loop, loop.create_future())
        self._calls.put(call)
        try:
            result: T = await call.done
        except KafkaException as error:
            raise ChannelUnavailable(f"Kafka: {self._complaints.words(error)}") from error
        return result

    # In the thread

    def _work(self) -> None:
        try:
            consumer: Any = Consumer(self._settings)
            consumer.subscribe(
                [self._options.topic],
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._revoked,
            )
            self._serve(consumer)
            consumer.close()
        except Exception as error:  # noqa: BLE001  -- whoever asks for something is told
            _log.error("the Kafka consumer has ended", error=str(error))
            self._refuse(error)

    def _serve(self, consumer: Any) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_SILENCE_S)
            except queue.Empty:
                self._show_life(consumer)
                continue
            if call is None:
                return
            call.run(consumer)

    def _refuse(self, error: Exception) -> None:
        """Answer every call with why there is no consumer, until the end."""

        def fail(_consumer: Any) -> None:
            raise error

        while (call := self._calls.get()) is not None:
            call.work = fail
            call.run(None)

    def _assigned(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._on_rebalance()
        self._owned |= {at.partition for at in partitions}

    def _revoked(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._on_rebalance()
        gone = {at.partition for at in partitions}
        self._owned -= gone
        self._hands.drop(gone)

    def _show_life(self, consumer: Any) -> None:
        """Poll without taking anything, while the last batch is being written.

        A worker that does not poll for too long loses its partitions, and with a slow database all
        workers would pass them on for ever. Paused partitions give nothing to a poll.
        """
        try:
            self._pause(consumer)
            self._take([consumer.poll(0)])
        except (KafkaException, ChannelUnavailable) as error:
            _log.debug("poll while waiting", error=str(error))

    def _pause(self, consumer: Any) -> None:
        owned = consumer.assignment()
        if owned:
            consumer.pause(owned)
            self._paused |= {at.partition for at in owned}

    def _resume(self, consumer: Any) -> None:
        if back := self._paused & self._owned:
            consumer.resume([TopicPartition(self._options.topic, number) for number in back])
            self._paused -= back

    def _fetch(self, consumer: Any, messages_max: int, wait_ms: int) -> None:
        self._resume(consumer)
        # The first one is waited for; then what has come already, at once.
        first = consumer.poll(wait_ms / 1000)
        if first is not None:
            rest = consumer.consume(messages_max - 1, 0) if messages_max > 1 else []
            self._take([first, *rest])

    def _take(self, messages: Iterable[Message | None]) -> None:
        failure: KafkaError | None = None
        taken = []
        for message in messages:
            if message is None:
                continue
            error = message.error()
            if error is not None:
                failure = error
            elif message.partition() in self._owned:
                taken.append(message)
        self._hands.take(taken)
        if failure is not None and not self._hands:
            raise KafkaException(failure)

    def _commit(self, consumer: Any, positions: dict[int, int]) -> None:
        offsets = [
            TopicPartition(self._options.topic, partition, offset)
            for partition, offset in positions.items()
            if partition in self._owned
        ]
        if not offsets:
            return
        for result in consumer.commit(offsets=offsets, asynchronous=False):
            if result.error is not None:
                raise KafkaException(result.error)
        self._hands.committed(positions)


@lru_cache(maxsize=1_000)
def _bucket_id(sale_id: SaleId, bucket: int) -> BucketId:
    """The same object for every message of a bucket: making one costs more than reading one."""
    return BucketId(sale_id, bucket)


def _token(message: Message) -> _Token:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def _trace(message: Message) -> str | None:
    """The trace that a message belongs to, as its header says."""
    headers: Any = message.headers()
    if headers is None:
        return None
    found = dict(headers).get(TRACE_HEADER)
    return found.decode("ascii", "replace") if isinstance(found, bytes) else None


def _value(message: Message) -> bytes | None:
    value = message.value()
    return value.encode() if isinstance(value, str) else value
