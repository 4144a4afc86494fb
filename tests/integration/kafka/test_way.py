"""The way of an order through a real Kafka: what goes wrong on it, and what comes out all the same."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException
from redis.asyncio import Redis

from contract.ledger.kit import HandClock, Shop, dump, open_shop
from seckill.admission.bucket import OUTBOX_GROUP
from seckill.admission.keys import Keys
from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.events import BucketEvent
from seckill.ledger import Database, LedgerOptions, SQLLedger, ensure_schema
from seckill.pipeline import direct
from seckill.pipeline.errors import ChannelUnavailable, LedgerAway
from seckill.pipeline.kafka.channel import KafkaChannel
from seckill.pipeline.kafka.messages import write_messages
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.producer import KafkaProducer
from seckill.pipeline.kafka.reading import read_range
from seckill.pipeline.kafka.under_way import TopicUnderWay
from seckill.pipeline.ports import Delivery, WriteReport
from seckill.pipeline.worker import OrderWorker
from services.kafka import KafkaBroker, make_topics, own_options
from services.stage import ID_KEY, MemoryOrderLedger, make_sale, until
from services.stopwatch import stopwatch
from services.ways import Counts, KafkaWay, entry, letters_of, open_bucket, receive_until

ORDERS = 1_000


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


@pytest.fixture
async def way(redis: Redis, keys: Keys, options: KafkaOptions, stack: AsyncExitStack) -> KafkaWay:
    sale = make_sale(stock_units=5000, limit_per_user=5)
    return KafkaWay(redis, keys, await open_bucket(redis, keys, sale), options, stack, sale)


async def admit(way: KafkaWay, orders: int, each: int = 50) -> None:
    for start in range(1, orders + 1, each):
        await way.redis.xadd(way.outbox, entry(*range(start, min(start + each, orders + 1))))


def seqs(events: Sequence[BucketEvent]) -> list[int]:
    return sorted(event.place.seq for event in events)


class Working:
    """An order worker at work in the background."""

    def __init__(self, channel: KafkaChannel, ledger: Any, deliveries_max: int = 200) -> None:
        self.counts = Counts()
        self._stop = asyncio.Event()
        self.worker = OrderWorker(
            channel=channel, ledger=ledger, observer=self.counts, deliveries_max=deliveries_max
        )
        self._task = asyncio.create_task(self.worker.run(self._stop))

    async def end(self) -> None:
        self._stop.set()
        await self._task

    async def die(self) -> None:
        """As by kill -9: nothing more is acknowledged."""
        self._task.cancel()
        await asyncio.wait({self._task})


async def test_what_was_admitted_reaches_the_ledger(way: KafkaWay) -> None:
    await admit(way, ORDERS)
    stop, ledger = asyncio.Event(), MemoryOrderLedger()
    relaying = asyncio.create_task(way.relay().run(stop))
    working = Working(await way.channel(), ledger)
    await until(lambda: len(ledger.events) == ORDERS, 60)
    stop.set()
    await asyncio.gather(relaying, working.end())
    assert seqs(ledger.events) == list(range(1, ORDERS + 1))
    assert await way.redis.xlen(way.outbox) == 0
    assert (way.counts.entries, way.counts.messages, way.counts.refused) == (20, ORDERS, 0)
    assert await way.under_way.pending() == 0


async def test_a_trace_travels_in_the_headers_to_the_line_about_the_order(way: KafkaWay) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await way.redis.xadd(way.outbox, entry(1, 2, 3) | {b"t": msgspec.msgpack.encode([2, trace])})
    await way.carry()
    headers = {
        msgspec.json.decode(message.value() or b"")["seq"]: message.headers()
        for message in read_range(way.options, way.options.topic)
    }
    assert headers == {1: None, 2: [("traceparent", trace.encode())], 3: None}
    worker = OrderWorker(
        channel=await way.channel(),
        ledger=MemoryOrderLedger(refuses=lambda event: event.place.seq == 3),
        observer=Counts(),
    )
    with structlog.testing.capture_logs() as lines:
        async with asyncio.timeout(60):
            while await way.waiting():
                await worker.step()
    written = [line for line in lines if line["event"] == "written to the order books"]
    assert [(line["traceparent"], line["seq"]) for line in written] == [(trace, 2)]


async def test_the_next_batch_is_read_while_this_one_is_being_written(way: KafkaWay) -> None:
    await admit(way, 200)
    await way.carry()
    channel = await way.channel()
    first: Sequence[Delivery] = []

    async def ahead() -> bool:
        # Nothing is acknowledged, so each call gives the same and looks for the next once more.
        nonlocal first
        first = await channel.receive(50, 200)
        assert len(channel._hands) <= 100
        return len(first) == 50 and len(channel._hands) == 100

    # Nobody asks for more. A second batch comes into our hands all the same, and no third.
    await until(ahead)
    await until(lambda: all(held.delivery for held in channel._hands.waiting(1_000)), 60)
    assert len(channel._hands) == 100
    again = await channel.receive(50, 200)
    assert [d.token for d in again] == [d.token for d in first]  # not written: it comes again
    await channel.acknowledge(again)
    rest = await receive_until(channel, 150)
    assert seqs([e for d in first for e in d.events] + rest) == list(range(1, 201))


# Nothing is lost by mistake


class FailingLedger(MemoryOrderLedger):
    """Takes so many events, then is away."""

    takes = 300

    async def write(self, events: Sequence[BucketEvent]) -> WriteReport:
        self.away = len(self.events) >= self.takes
        return await super().write(events)


async def test_c14_a_worker_that_dies_while_the_database_is_away_loses_no_order(
    way: KafkaWay,
) -> None:
    await admit(way, ORDERS)
    await way.carry()
    ledger = FailingLedger()
    channel = await way.channel()
    working = Working(channel, ledger, deliveries_max=100)
    committed_max = 0
    while working.counts.away < 4 or not committed_max:
        # What is committed can never be more than what is written.
        committed = ORDERS - await way.under_way.pending()
        assert committed <= len(ledger.events)
        committed_max = max(committed_max, committed)
    await working.die()
    await way.leave(channel)
    ledger.takes = 10**9
    again = Working(await way.channel(1), ledger)
    await until(lambda: len({e.place for e in ledger.events}) == ORDERS, 60)
    await until(lambda: _is_dry(way), 60)
    await again.end()
    assert await way.shelves().letters() == []


async def _is_dry(way: KafkaWay) -> bool:
    return await way.under_way.pending() == 0


def _met_an_outage(working: Working) -> bool:
    return working.counts.away > 0


class EagerChannel(KafkaChannel):
    """The control: acknowledges what it has received before anybody has written it."""

    async def receive(self, deliveries_max: int, wait_ms: int) -> Sequence[Delivery]:
        deliveries = await super().receive(deliveries_max, wait_ms)
        await super().acknowledge(deliveries)
        return deliveries


@pytest.mark.parametrize("kind", [KafkaChannel, EagerChannel])
async def test_control_with_offsets_committed_before_the_transaction_orders_are_lost(
    way: KafkaWay, stack: AsyncExitStack, kind: type[KafkaChannel]
) -> None:
    await admit(way, 200)
    await way.carry()
    ledger = FailingLedger()
    ledger.takes = 100
    for life in range(2):
        channel = kind(way.options, f"worker-{life}", dead=way.dead)
        stack.push_async_callback(channel.close)
        working = Working(channel, ledger, deliveries_max=50)
        if life == 0:
            await until(partial(_met_an_outage, working), 60)
            await working.die()
        else:
            await until(lambda: _is_dry(way), 60)
            await working.end()
        await channel.close()
        ledger.takes = 10**9
    lost = 200 - len({event.place for event in ledger.events})
    assert lost == 0 if kind is KafkaChannel else lost > 0


# Exactly one order for one reservation


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    made = Database(LedgerOptions(url=f"sqlite:///{tmp_path}/ledger.db"))
    await ensure_schema(made)
    yield made
    await made.dispose()


async def shop_way(
    redis: Redis, keys: Keys, options: KafkaOptions, stack: AsyncExitStack, database: Database
) -> tuple[KafkaWay, Shop]:
    ledger = SQLLedger(database, ReservationIds(ID_KEY), HandClock())
    shop = await open_shop(ledger, stock=400)
    bucket_id = await open_bucket(redis, keys, shop.sale)
    return KafkaWay(redis, keys, bucket_id, options, stack, shop.sale), shop


async def test_the_whole_topic_read_again_by_a_second_group_changes_nothing(
    redis: Redis, keys: Keys, options: KafkaOptions, stack: AsyncExitStack, database: Database
) -> None:
    way, shop = await shop_way(redis, keys, options, stack, database)
    await admit(way, 300)
    await way.carry()
    working = Working(await way.channel(), shop.ledger)
    await until(lambda: _is_dry(way), 60)
    await working.end()
    books = await dump(database)
    assert len(await shop.states()) == 300

    second = own_options(options.bootstrap, topic=options.topic)
    channel = KafkaChannel(second, "second", dead=way.dead)
    stack.push_async_callback(channel.close)
    under_way = TopicUnderWay(second, way.dead)
    stack.push_async_callback(under_way.close)
    assert await under_way.pending() == 300
    again = Working(channel, shop.ledger)
    async with asyncio.timeout(60):
        await under_way.run_dry()
    await again.end()
    assert sum(report.known for report in again.counts.reports) == 300
    assert await dump(database) == books


@pytest.mark.parametrize("unique", [True, False])
async def test_control_with_the_unique_key_dropped_the_same_reading_doubles_the_orders(
    way: KafkaWay, stack: AsyncExitStack, unique: bool
) -> None:
    books = sqlite3.connect(":memory:")
    books.execute(f"CREATE TABLE orders (place TEXT {'PRIMARY KEY' if unique else ''})")

    class Naive(MemoryOrderLedger):
        async def write(self, events: Sequence[BucketEvent]) -> WriteReport:
            rows = [(repr(event.place),) for event in events]
            books.executemany("INSERT OR IGNORE INTO orders VALUES (?)", rows)
            return WriteReport()

    await admit(way, 100)
    await way.carry()
    for group in range(2):
        options = own_options(way.options.bootstrap, topic=way.options.topic)
        channel = KafkaChannel(options, f"group-{group}", dead=way.dead)
        under_way = TopicUnderWay(options, way.dead)
        stack.push_async_callback(under_way.close)
        working = Working(channel, Naive())
        async with asyncio.timeout(60):
            await under_way.run_dry()
        await working.end()
        await channel.close()
    (orders,) = books.execute("SELECT count(*) FROM orders").fetchone()
    books.close()
    assert orders == (100 if unique else 200)


# What can never become an order


async def test_c16_poison_goes_to_the_dead_letters_and_both_good_orders_are_made(
    way: KafkaWay,
) -> None:
    ids = ReservationIds(ID_KEY)
    good = [
        write_messages([event], {way.sale.sale_id: way.sale}, ids)[0].value
        for event in (await _events(way, 1), await _events(way, 2))
    ]
    assert good[0] is not None
    poison: list[bytes | None] = [
        b"\xff\x00garbage",
        b"{}",
        good[0].replace(b'"quantity":1', b'"quantity":"1"'),
        good[0].replace(b'"schema":1', b'"schema":99'),
        None,
        b"x" * 2_000_000,
    ]
    for value in (good[0], *poison, good[1]):
        await way.send(value, key=b"one-partition")
    ledger = MemoryOrderLedger()
    working = Working(await way.channel(), ledger)
    await until(lambda: len(ledger.events) == 2, 60)
    letters = await letters_of(way, 6)
    await until(lambda: _is_dry(way), 60)
    await working.end()
    assert [letter.raw for letter in letters] == poison
    assert all(letter.reason for letter in letters)
    assert "schema 99 is newer than 1" in letters[3].reason
    origins = [letter.origin.rsplit("/", 1) for letter in letters]
    assert [offset for _, offset in origins] == ["1", "2", "3", "4", "5", "6"]
    assert {place.rsplit("/", 1)[0] for place, _ in origins} == {way.options.topic}
    assert {letter.key for letter in letters} == {b"one-partition"}
    assert seqs(ledger.events) == [1, 2]


async def _events(way: KafkaWay, seq: int) -> BucketEvent:
    await way.redis.xadd(way.outbox, entry(seq))
    reader = way.reader("reader")
    (delivery,) = await reader.receive(1, 100)
    await reader.acknowledge([delivery])
    return delivery.events[0]


async def test_a_dead_letter_that_kafka_does_not_take_is_not_forgotten(
    way: KafkaWay, stack: AsyncExitStack
) -> None:
    class Refusing:
        async def publish(self, _topic: str, messages: Sequence[Any]) -> list[str]:
            return ["no room"] * len(messages)

    await way.send(b"nonsense")
    channel = await way.channel()
    taken, way.dead._producer = way.dead._producer, Refusing()  # type: ignore[assignment]

    async def is_refused() -> bool:
        try:
            await channel.receive(10, 100)
        except ChannelUnavailable as error:
            return "no room" in str(error)
        return False

    await until(is_refused, 60)
    assert await way.under_way.pending() == 1
    way.dead._producer = taken
    await channel.receive(10, 100)
    assert len(await way.shelves().letters()) == 1
    assert await way.under_way.pending() == 0


# The broker is away


async def test_c17_a_broker_that_is_away_costs_no_outbox_entry(
    kafka_broker: KafkaBroker, redis: Redis, keys: Keys, stack: AsyncExitStack
) -> None:
    if kafka_broker.number == 0:
        pytest.skip("SECKILL_TEST_KAFKA is somebody else's: it cannot be frozen")
    options = own_options(kafka_broker.bootstrap, queue_messages_max=100, delivery_timeout_ms=1_000)
    await make_topics(options)
    sale = make_sale(stock_units=5000)
    way = KafkaWay(redis, keys, await open_bucket(redis, keys, sale), options, stack, sale)
    entries = 200
    for seq in range(1, ORDERS + 1, ORDERS // entries):
        await redis.xadd(way.outbox, entry(*range(seq, seq + ORDERS // entries)))
    kafka_broker.freeze()
    try:
        stop = asyncio.Event()
        relaying = asyncio.create_task(way.relay(grace_ms=200).run(stop))
        await until(lambda: way.counts.refused > 0, 60)
        stop.set()  # SIGTERM in the outage
        async with asyncio.timeout(60):
            await relaying
        # Not one is acknowledged without the report of its messages.
        assert await redis.xlen(way.outbox) == entries
        assert way.counts.entries == 0
    finally:
        kafka_broker.thaw()
    # The next life of the relay, with a client of its own.
    producer = KafkaProducer(replace(options, delivery_timeout_ms=60_000), "next-life")
    stack.push_async_callback(producer.close)
    stop = asyncio.Event()
    relaying = asyncio.create_task(way.relay(producer=producer).run(stop))
    ledger = MemoryOrderLedger()
    working = Working(await way.channel(), ledger)
    await until(lambda: len({e.place for e in ledger.events}) == ORDERS, 60)
    await until(lambda: _is_empty(way), 60)
    stop.set()
    await asyncio.gather(relaying, working.end())


async def _is_empty(way: KafkaWay) -> bool:
    return await way.redis.xlen(way.outbox) == 0


# The database is slow


class SlowLedger(MemoryOrderLedger):
    slow_s = 0.0

    async def write(self, events: Sequence[BucketEvent]) -> WriteReport:
        slow_s, self.slow_s = self.slow_s, 0.0
        await asyncio.sleep(slow_s)
        return await super().write(events)


@pytest.mark.parametrize("shows_life", [True, False])
async def test_c32_a_slow_database_does_not_make_the_group_rebalance(
    way: KafkaWay, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, shows_life: bool
) -> None:
    """The control shows no life while it waits, and loses its partitions, again and again."""
    if not shows_life:
        monkeypatch.setattr(KafkaChannel, "_show_life", lambda _self, _consumer: None)
    options = own_options(
        way.options.bootstrap, topic=way.options.topic,
        # Longer than a machine stands still.
        poll_interval_ms_max=9_000, session_timeout_ms=9_000,
    )  # fmt: skip
    rebalances: list[int] = []
    await admit(way, ORDERS)
    await way.carry()
    ledger = SlowLedger()
    ledger.slow_s = 12.0
    channel = KafkaChannel(
        options, "slow", dead=way.dead, on_rebalance=lambda: rebalances.append(1)
    )
    stack.push_async_callback(channel.close)
    working = Working(channel, ledger, deliveries_max=400)
    await until(lambda: len({e.place for e in ledger.events}) == ORDERS, 60)
    await working.end()
    if shows_life:
        assert len(rebalances) == 1
        assert len(ledger.events) == ORDERS
    else:
        assert len(rebalances) > 1


# Rebalance


async def test_a_batch_whose_partitions_went_to_another_worker_is_dropped(way: KafkaWay) -> None:
    await admit(way, 300)
    await way.carry()
    first = await way.channel(0)
    held: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(held) < 300:
            held = list(await first.receive(1_000, 200))
            if len(held) < 300:  # not all partitions have come yet: settle none of them
                await first._ask(lambda consumer: first._fetch(consumer, 1_000, 200))
    second = await way.channel(1)
    found: list[BucketEvent] = []
    async with asyncio.timeout(60):
        while not found:
            deliveries = await second.receive(1_000, 100)
            found += [event for delivery in deliveries for event in delivery.events]
    pending = await way.under_way.pending()
    assert pending == 300
    # The first one has written its batch meanwhile, and commits for what is still its own.
    await first.acknowledge(held)
    left = await way.under_way.pending()
    assert 0 < left < 300
    assert left >= len(found)
    await second.acknowledge(deliveries)
    rest = await receive_until(second, left - len(found)) if left > len(found) else []
    await until(lambda: _is_dry(way), 60)
    assert {e.place for e in [*found, *rest]} <= {d.events[0].place for d in held}


async def test_a_partition_that_went_while_the_database_was_slow_is_read_when_it_is_back(
    way: KafkaWay,
) -> None:
    """Shown to the group as alive, so paused; and the library keeps that through a rebalance."""
    first = await way.channel(0)
    await until(lambda: len(first._owned) == way.options.partitions, 60)
    await until(lambda: len(first._paused) == way.options.partitions, 60)
    second = await way.channel(1)
    await until(lambda: bool(second._owned), 60)
    await admit(way, 300)
    await way.carry()
    # From here on the first one asks without a break, so that nothing of it is paused any more
    # when it gets back what the second one leaves.
    receiving = asyncio.create_task(receive_until(first, 300))
    await until(lambda: not first._paused & first._owned)
    await second.close()
    assert len({event.place for event in await receiving}) == 300


async def test_workers_that_come_and_go_lose_nothing(way: KafkaWay) -> None:
    """A storm of rebalances under load."""
    ledger = MemoryOrderLedger()
    await admit(way, ORDERS)
    stop = asyncio.Event()
    relaying = asyncio.create_task(way.relay().run(stop))
    for slot in range(4):
        channel = await way.channel(slot)
        working = Working(channel, ledger, deliveries_max=37)
        goal = ORDERS * (slot + 1) // 5

        async def has(goal: int = goal) -> bool:
            return len({event.place for event in ledger.events}) >= goal

        await until(has, 60)
        await (working.die() if slot % 2 else working.end())
        await channel.close()
    last = Working(await way.channel(9), ledger)
    await until(lambda: len({event.place for event in ledger.events}) == ORDERS, 60)
    await until(lambda: _is_dry(way), 60)
    stop.set()
    await asyncio.gather(relaying, last.end())


# Several relays


async def test_what_a_dead_relay_had_taken_is_carried_by_another(
    way: KafkaWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "CLAIM_IDLE_MS", 300)
    monkeypatch.setattr(direct, "_CLAIM_EVERY_MS", 50)
    await admit(way, 100, each=10)
    assert len(await way.reader("relay-9").receive(5, 100)) == 5  # and is never seen again
    stop = asyncio.Event()
    relays = [asyncio.create_task(way.relay(number).run(stop)) for number in range(2)]
    await until(lambda: _is_empty(way), 60)
    stop.set()
    await asyncio.gather(*relays)
    assert set(seqs(await receive_until(await way.channel(), 100))) == set(range(1, 101))


async def test_entries_in_the_hands_of_a_relay_that_waits_are_not_taken_from_it(
    way: KafkaWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "CLAIM_IDLE_MS", 600_000)
    monkeypatch.setattr(direct, "_CLAIM_EVERY_MS", 0)
    await admit(way, 10, each=10)
    waiting, other = way.reader("relay-0"), way.reader("relay-1")
    held = await waiting.receive(5, 100)
    ((entry_id, _),) = await way.redis.xrange(way.outbox)

    async def grow_old() -> None:
        await way.redis.xclaim(way.outbox, OUTBOX_GROUP, "relay-0", 0, [entry_id], idle=700_000)

    for _ in range(3):
        await grow_old()
        await waiting.hold(held)
        assert await other.receive(5, 10) == []
    await grow_old()
    assert len(await other.receive(5, 10)) == 1


# What is under way


async def test_what_is_under_way_is_told_for_the_audit_and_the_fence(way: KafkaWay) -> None:
    await admit(way, 30)
    await way.carry()
    assert await way.under_way.pending() == 30
    assert seqs(await way.under_way.events(way.bucket_id)) == list(range(1, 31))
    drying = asyncio.create_task(way.under_way.run_dry())
    channel = await way.channel()
    found = await receive_until(channel, 30)
    async with asyncio.timeout(60):
        await drying
    assert len(found) == 30
    assert await way.under_way.events(way.bucket_id) == []
    await way.send(b"nonsense")
    async with asyncio.timeout(60):
        while not await way.under_way.letters(way.bucket_id):
            await channel.receive(10, 100)
    (letter,) = await way.under_way.letters(way.bucket_id)
    assert (letter.name, letter.event) == ("kafka:0-0", None)


async def test_a_topic_is_read_to_its_end_as_of_now(way: KafkaWay) -> None:
    await admit(way, 500)
    await way.carry()
    read: Callable[[], int] = lambda: sum(  # noqa: E731
        1 for _ in read_range(way.options, way.options.topic)
    )
    assert await asyncio.to_thread(read) == 500


async def test_a_ledger_that_fails_in_the_middle_of_halving_loses_nothing(way: KafkaWay) -> None:
    """A refused order is isolated by halves; one of these meets a database that is away."""

    class Moody(MemoryOrderLedger):
        luck = random.Random(7)

        async def write(self, events: Sequence[BucketEvent]) -> WriteReport:
            if self.luck.random() < 0.2:
                raise LedgerAway("moody")
            return await super().write(events)

    await admit(way, 64)
    await way.carry()
    ledger = Moody(refuses=lambda event: event.place.seq == 40)
    working = Working(await way.channel(), ledger)
    await letters_of(way, 1)
    await until(lambda: len({event.place for event in ledger.events}) == 63, 60)
    await until(lambda: _is_dry(way), 60)
    await working.end()
    assert len(await way.shelves().letters()) == 1


async def test_a_consumer_that_cannot_be_made_is_told_to_whoever_asks(
    way: KafkaWay, stack: AsyncExitStack
) -> None:
    wrong = own_options(way.options.bootstrap, security={"security.protocol": "nonsense"})
    channel = KafkaChannel(wrong, "wrong", dead=way.dead)
    stack.push_async_callback(channel.close)
    for _ in range(2):
        with pytest.raises(ChannelUnavailable, match="kafka_security_protocol"):
            await channel.receive(1, 10)


async def test_a_commit_that_failed_is_made_up_for_without_a_further_order(
    way: KafkaWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admit(way, 10)
    await way.carry()
    channel = await way.channel()
    real, failures = channel._commit, iter(range(1))

    def commit(consumer: Any, positions: dict[int, int]) -> None:
        if next(failures, None) is not None:
            raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
        real(consumer, positions)

    monkeypatch.setattr(channel, "_commit", commit)
    working = Working(channel, MemoryOrderLedger())
    await until(lambda: _is_dry(way), 60)
    await working.end()
    assert next(failures, None) is None


async def test_a_worker_ends_soon_though_the_broker_does_not_answer(
    kafka_broker: KafkaBroker, way: KafkaWay
) -> None:
    if kafka_broker.number == 0:
        pytest.skip("SECKILL_TEST_KAFKA is somebody else's: it cannot be frozen")
    await admit(way, 20)
    await way.carry()
    channel = await way.channel()
    async with asyncio.timeout(60):
        while not (deliveries := await channel.receive(100, 100)):
            pass
    kafka_broker.freeze()
    try:
        with stopwatch() as watch:
            await channel.acknowledge(deliveries)
            await channel.close()
        assert watch.seconds < 7, "less than the supervisor waits"
    finally:
        kafka_broker.thaw()
