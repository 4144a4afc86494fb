"""The relay, with an outbox and a broker in memory: acknowledged only what was taken, in order."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.events import Admitted, BucketEvent
from seckill.domain.ids import AttemptId, SaleId, UserId
from seckill.domain.reservation import Place
from seckill.domain.sale import Sale
from seckill.pipeline import relay as relay_module
from seckill.pipeline.errors import ChannelUnavailable, LedgerAway
from seckill.pipeline.kafka.messages import OrderMessage, read_message
from seckill.pipeline.ports import Delivery
from seckill.pipeline.relay import Relay, SaleBook
from services.stage import BUCKET, ID_KEY, make_sale
from services.ways import Counts


class MemoryOutbox:
    """Holds entries until they are acknowledged."""

    def __init__(self, *entries: Delivery) -> None:
        self.waiting = list(entries)
        self.held = 0

    async def receive(self, deliveries_max: int, wait_ms: int) -> Sequence[Delivery]:  # noqa: ARG002  -- as the port
        await asyncio.sleep(0)
        return self.waiting[:deliveries_max]

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self.waiting = [each for each in self.waiting if each not in deliveries]

    async def hold(self, deliveries: Sequence[Delivery]) -> None:
        self.held += len(deliveries)


class MemoryBroker:
    """Takes messages, but for those that it refuses."""

    def __init__(self, refuses: Callable[[BucketEvent], bool] = lambda _event: False) -> None:
        self.refuses = refuses
        self.taken: list[BucketEvent] = []
        self.together: list[list[bytes | None]] = []
        self.given_up = False

    async def publish(self, _topic: str, messages: Sequence[OrderMessage]) -> list[str]:
        self.together.append([message.key for message in messages])
        reports = []
        for message in messages:
            event = read_message(message.value)
            refused = self.refuses(event)
            reports.append("not now" if refused else "")
            if not refused:
                self.taken.append(event)
        return reports

    def give_up(self) -> None:
        self.given_up = True


def bought(user: str, seq: int) -> Admitted:
    place = Place(BUCKET.sale_id, 1, 0, seq)
    return Admitted(place, UserId(user), 1, AttemptId(f"a{seq}"), 1)


def entry(number: int, *events: BucketEvent) -> Delivery:
    return Delivery(BUCKET, f"{number}-0", events)


async def _sales() -> Sequence[Sale]:
    return [make_sale()]


def relay_of(outbox: Any, broker: Any, counts: Counts | None = None, grace_ms: int = 0) -> Relay:
    return Relay(
        outbox=outbox, producer=broker, topic="t", sales=SaleBook(_sales),
        ids=ReservationIds(ID_KEY), observer=counts or Counts(), grace_ms=grace_ms,
    )  # fmt: skip


def seqs(events: Sequence[BucketEvent]) -> list[int]:
    return [event.place.seq for event in events]


async def test_an_entry_is_acknowledged_only_when_all_its_messages_were_taken() -> None:
    outbox = MemoryOutbox(
        entry(1, bought("ann", 1), bought("bob", 2)),
        entry(2, bought("cid", 3), bought("dan", 4)),
        entry(3, bought("eve", 5)),
    )
    broker, counts = MemoryBroker(lambda event: event.place.seq == 4), Counts()
    relay = relay_of(outbox, broker, counts)
    with pytest.raises(ChannelUnavailable, match="1 of 3 outbox entries were not taken: not now"):
        await relay.step()
    assert [each.token for each in outbox.waiting] == ["2-0"]
    assert (counts.entries, counts.messages, counts.refused) == (2, 3, 1)
    broker.refuses = lambda _event: False
    assert await relay.step() == 1
    assert outbox.waiting == []
    assert set(seqs(broker.taken)) == {1, 2, 3, 4, 5}


async def test_of_one_buyer_one_message_is_under_way_at_a_time() -> None:
    outbox = MemoryOutbox(
        entry(1, bought("ann", 1), bought("bob", 2), bought("ann", 3)), entry(2, bought("ann", 4))
    )
    broker = MemoryBroker()
    await relay_of(outbox, broker).step()
    assert broker.together == [[b"1:ann", b"1:bob"], [b"1:ann"], [b"1:ann"]]
    assert [e.place.seq for e in broker.taken if isinstance(e, Admitted) and e.user_id == "ann"] == [
        1, 3, 4,
    ]  # fmt: skip


async def test_nothing_overtakes_a_message_of_its_buyer_that_was_not_taken() -> None:
    outbox = MemoryOutbox(
        entry(1, bought("ann", 1)), entry(2, bought("ann", 2), bought("bob", 3)),
        entry(3, bought("cid", 4)),
    )  # fmt: skip
    broker = MemoryBroker(lambda event: event.place.seq == 1)
    relay = relay_of(outbox, broker)
    with pytest.raises(ChannelUnavailable):
        await relay.step()
    assert seqs(broker.taken) == [3, 4]
    assert [each.token for each in outbox.waiting] == ["1-0", "2-0"]
    broker.refuses = lambda _event: False
    await relay.step()
    anns = [e.place.seq for e in broker.taken if isinstance(e, Admitted) and e.user_id == "ann"]
    assert anns == [1, 2]


async def test_a_failure_is_waited_out_and_then_everything_goes() -> None:
    outbox = MemoryOutbox(*(entry(n, bought(f"u{n}", n)) for n in range(1, 6)))
    broker, stop = MemoryBroker(lambda _event: True), asyncio.Event()
    running = asyncio.create_task(relay_of(outbox, broker).run(stop))
    while len(broker.together) < 3:
        await asyncio.sleep(0.01)
    broker.refuses = lambda _event: False
    while outbox.waiting:
        await asyncio.sleep(0.01)
    stop.set()
    await running
    assert set(seqs(broker.taken)) == {1, 2, 3, 4, 5}
    assert not broker.given_up


async def test_at_the_end_what_is_under_way_gets_its_grace_and_is_then_given_up() -> None:
    class Stuck(MemoryBroker):
        def __init__(self) -> None:
            super().__init__()
            self.gave_up = asyncio.Event()

        async def publish(self, _topic: str, messages: Sequence[OrderMessage]) -> list[str]:
            await self.gave_up.wait()
            return ["given up"] * len(messages)

        def give_up(self) -> None:
            self.gave_up.set()

    outbox, broker, stop = MemoryOutbox(entry(1, bought("ann", 1))), Stuck(), asyncio.Event()
    running = asyncio.create_task(relay_of(outbox, broker, grace_ms=50).run(stop))
    await asyncio.sleep(0)
    stop.set()
    async with asyncio.timeout(5):
        await running
    assert [each.token for each in outbox.waiting] == ["1-0"]


async def test_entries_are_held_while_kafka_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_HOLD_EVERY_S", 0.001)

    class Slow(MemoryBroker):
        async def publish(self, topic: str, messages: Sequence[OrderMessage]) -> list[str]:
            while outbox.held < 4:
                await asyncio.sleep(0.001)
            return await super().publish(topic, messages)

    outbox = MemoryOutbox(entry(1, bought("ann", 1)), entry(2, bought("bob", 2)))
    await relay_of(outbox, Slow()).step()
    assert outbox.held >= 4
    assert outbox.waiting == []


async def test_a_cancellation_that_the_redis_client_loses_does_not_stop_the_relay_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Orders stayed queued for ever after the broker had come back."""
    monkeypatch.setattr(relay_module, "_HOLD_EVERY_S", 0.001)

    class Losing(MemoryOutbox):
        lost = False

        async def hold(self, deliveries: Sequence[Delivery]) -> None:
            self.held += len(deliveries)
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                if self.lost:
                    raise
                self.lost = True

    class Slow(MemoryBroker):
        async def publish(self, topic: str, messages: Sequence[OrderMessage]) -> list[str]:
            while not outbox.held:
                await asyncio.sleep(0.001)
            return await super().publish(topic, messages)

    outbox = Losing(entry(1, bought("ann", 1)))
    async with asyncio.timeout(5):
        await relay_of(outbox, Slow()).step()
    assert outbox.lost
    assert outbox.waiting == []


async def test_an_entry_of_a_sale_that_the_ledger_does_not_know_yet_waits() -> None:
    stranger = Admitted(Place(SaleId(77), 1, 0, 1), UserId("ann"), 1, AttemptId("a"), 1)
    outbox = MemoryOutbox(Delivery(stranger.place.bucket_id, "1-0", (stranger,)))
    with pytest.raises(LedgerAway, match="77"):
        await relay_of(outbox, MemoryBroker()).step()
    assert len(outbox.waiting) == 1


async def test_a_sale_is_asked_for_once() -> None:
    asked: list[int] = []

    async def read() -> Sequence[Sale]:
        asked.append(1)
        return [make_sale()]

    book = SaleBook(read)
    for _ in range(3):
        assert (await book.of({SaleId(1)}))[SaleId(1)].goods_id == "1"
    assert len(asked) == 1
