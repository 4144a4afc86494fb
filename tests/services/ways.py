"""The two ways from the outbox to the ledger, as tests drive them: straight, and through Kafka."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import msgspec
from redis.asyncio import Redis

from seckill.admission.bucket import Buckets
from seckill.admission.keys import Keys
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Scripts
from seckill.domain.reservation import BucketId
from seckill.domain.sale import Sale
from seckill.pipeline.dead_letters import DeadLetter, OutboxLetters, Shelf, Shelves
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.kafka.channel import KafkaChannel
from seckill.pipeline.kafka.dead_topic import DeadTopic, TopicLetters
from seckill.pipeline.kafka.messages import OrderMessage
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.producer import KafkaProducer
from seckill.pipeline.kafka.under_way import TopicUnderWay
from seckill.pipeline.ports import OrderChannel, WriteReport
from seckill.pipeline.relay import Relay, SaleBook
from services.stage import ID_KEY, make_sale

__all__ = ["Counts", "DirectWay", "KafkaWay", "Way", "entry"]

NOW_MS = 1_700_000_000_000


def entry(*seqs: int, user: str = "", quantity: int = 1, epoch: int = 1) -> dict[Any, Any]:
    """An outbox entry of admissions, as admit.lua writes it."""
    flat: list[Any] = []
    for seq in seqs:
        flat += [seq, user or f"user-{seq}", quantity, f"attempt-{seq}"]
    return {b"e": msgspec.msgpack.encode(["a", epoch, NOW_MS, flat])}


class Counts:
    """A WorkerObserver and RelayObserver that remembers."""

    def __init__(self) -> None:
        self.entries = self.messages = self.refused = self.away = 0
        self.reports: list[WriteReport] = []

    def relayed(self, entries: int, messages: int) -> None:
        self.entries += entries
        self.messages += messages

    def not_taken(self, messages: int) -> None:
        self.refused += messages

    def written(self, report: WriteReport) -> None:
        self.reports.append(report)

    def ledger_away(self) -> None:
        self.away += 1


class Way(Protocol):
    """One way, on a Redis and names of the test's own."""

    dead_reasons: list[str]

    async def channel(self, slot: int = 0) -> OrderChannel: ...

    async def leave(self, channel: OrderChannel) -> None:
        """The worker of this channel is gone, with what it had in hand."""

    async def carry(self) -> None:
        """Bring what is in the outbox to where the channel finds it."""

    async def spoil(self, raw: bytes) -> None:
        """Put something in the way that is no event."""

    async def waiting(self) -> int:
        """What nobody has acknowledged yet."""

    def shelves(self) -> Shelves: ...


class DirectWay:
    def __init__(self, redis: Redis, keys: Keys, bucket_id: BucketId) -> None:
        self.redis, self.keys, self.bucket_id = redis, keys, bucket_id
        self.dead_reasons: list[str] = []

    @property
    def outbox(self) -> str:
        return self.keys.bucket(self.bucket_id).outbox

    async def channel(self, slot: int = 0) -> OrderChannel:
        return self.reader(f"worker-{slot}")

    def reader(self, consumer: str) -> DirectChannel:
        return DirectChannel(
            redis=self.redis, keys=self.keys, consumer=consumer,
            bucket_ids=lambda: [self.bucket_id],
            on_dead=lambda _bucket, reason: self.dead_reasons.append(reason),
        )  # fmt: skip

    async def leave(self, channel: OrderChannel) -> None:
        pass  # the next one of its slot is handed what it had

    async def carry(self) -> None:
        pass

    async def spoil(self, raw: bytes) -> None:
        await self.redis.xadd(self.outbox, {b"e": raw})

    async def waiting(self) -> int:
        return int(await self.redis.xlen(self.outbox))

    def shelves(self) -> Shelves:
        return Shelves(self.shelf_list())

    def shelf_list(self) -> list[Shelf]:
        return [OutboxLetters(self.redis, self.keys, lambda: [self.bucket_id])]


class KafkaWay(DirectWay):
    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        bucket_id: BucketId,
        options: KafkaOptions,
        stack: AsyncExitStack,
        sale: Sale | None = None,
    ) -> None:
        super().__init__(redis, keys, bucket_id)
        self.options = options
        self.counts = Counts()
        self.sale = sale or make_sale()
        self._stack = stack
        self.producer = KafkaProducer(options, "test-relay")
        self.dead = DeadTopic(options, self.producer)
        self.under_way = TopicUnderWay(options, self.dead)
        stack.push_async_callback(self.producer.close)
        stack.push_async_callback(self.under_way.close)

    async def channel(self, slot: int = 0) -> KafkaChannel:
        made = KafkaChannel(
            self.options, f"worker-{slot}", dead=self.dead, on_dead=self.dead_reasons.append
        )
        self._stack.push_async_callback(made.close)
        return made

    async def leave(self, channel: OrderChannel) -> None:
        assert isinstance(channel, KafkaChannel)
        await channel.close()

    def relay(
        self, number: int = 0, *, producer: Any = None, grace_ms: int = 500,
        wrap: Callable[[DirectChannel], Any] = lambda outbox: outbox,
    ) -> Relay:  # fmt: skip
        return Relay(
            outbox=wrap(self.reader(f"relay-{number}")), producer=producer or self.producer,
            topic=self.options.topic, sales=SaleBook(self._sales), ids=ReservationIds(ID_KEY),
            observer=self.counts, grace_ms=grace_ms,
        )  # fmt: skip

    async def _sales(self) -> Sequence[Sale]:
        return [self.sale]

    async def carry(self) -> None:
        relay = self.relay()
        while await self.redis.xlen(self.outbox):
            await relay.step()

    async def spoil(self, raw: bytes) -> None:
        await self.send(raw)

    async def send(self, value: bytes | None, key: bytes | None = b"1:user") -> None:
        assert await self.producer.publish(
            self.options.topic, [OrderMessage(key, value)]
        ) == [""]  # fmt: skip

    async def waiting(self) -> int:
        return await super().waiting() + await self.under_way.pending()

    def shelf_list(self) -> list[Shelf]:
        return [*super().shelf_list(), TopicLetters(self.dead)]


async def open_bucket(redis: Redis, keys: Keys, sale: Sale) -> BucketId:
    """Open the bucket of a sale, with its outbox."""
    bucket_id = BucketId(sale.sale_id, 0)
    await Buckets(redis, Scripts(redis), keys).open(sale, bucket_id, 1, sale.stock_units)
    return bucket_id


async def receive_until(
    channel: OrderChannel, events: int, within_s: float = 60
) -> list[Any]:  # fmt: skip
    """Receive and acknowledge until so many different events have come."""
    found: list[Any] = []
    async with asyncio.timeout(within_s):
        while len({event.place for event in found}) < events:
            deliveries = await channel.receive(64, 100)
            found += [event for delivery in deliveries for event in delivery.events]
            if deliveries:
                await channel.acknowledge(deliveries)
    return found


async def letters_of(way: Way, count: int, within_s: float = 60) -> list[DeadLetter]:
    """The dead letters, once there are so many."""
    async with asyncio.timeout(within_s):
        while len(found := await way.shelves().letters()) < count:
            await asyncio.sleep(0.05)
    return found
