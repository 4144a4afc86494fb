"""What every channel promises to the order worker, and so to the buyer."""

import asyncio
from typing import Any

import msgspec
import pytest

from seckill.domain.events import Admitted, Released, StockChanged
from seckill.pipeline.errors import LedgerAway, LetterGone
from seckill.pipeline.ports import OrderChannel
from seckill.pipeline.worker import OrderWorker
from services.stage import BUCKET, MemoryOrderLedger, until
from services.ways import NOW_MS, Counts, DirectWay, Way, entry, letters_of, receive_until


def seqs(events: Any) -> list[int]:
    return [event.place.seq for event in events]


async def admit(way: Way, *entries: dict[Any, Any]) -> None:
    assert isinstance(way, DirectWay)
    for each in entries:
        await way.redis.xadd(way.outbox, each)
    await way.carry()


async def receive_some(channel: OrderChannel, deliveries_max: int = 64) -> list[Any]:
    """The next deliveries, whenever they come."""
    async with asyncio.timeout(60):
        while True:
            if deliveries := await channel.receive(deliveries_max, 100):
                return list(deliveries)


async def test_each_event_comes_once_and_nothing_is_left(way: Way) -> None:
    await admit(way, entry(1, 2), entry(3), entry(*range(4, 104)))
    channel = await way.channel()
    assert sorted(seqs(await receive_until(channel, 103))) == list(range(1, 104))
    assert await channel.receive(64, 50) == []
    await until(lambda: _nothing_waits(way))


async def _nothing_waits(way: Way) -> bool:
    return await way.waiting() == 0


async def test_all_kinds_of_events_arrive_as_they_were(way: Way) -> None:
    pack = msgspec.msgpack.encode
    await admit(
        way,
        entry(1, user="ann", quantity=2),
        {b"e": pack(["s", 1, NOW_MS, [2, "more-1", 50]])},
        {b"e": pack(["r", 1, NOW_MS, [3, "ann", 2, 1, 1]])},
    )
    events = {
        event.place.seq: event for event in await receive_until(await way.channel(), 3)
    }  # fmt: skip
    admitted, changed, released = events[1], events[2], events[3]
    assert isinstance(admitted, Admitted)
    assert (admitted.user_id, admitted.quantity, admitted.attempt_id, admitted.at_ms) == (
        "ann", 2, "attempt-1", NOW_MS,
    )  # fmt: skip
    assert isinstance(changed, StockChanged)
    assert (changed.change_id, changed.delta_units) == ("more-1", 50)
    assert isinstance(released, Released)
    assert (released.reservation, released.quantity) == (admitted.place, 2)


@pytest.mark.parametrize(
    "user",
    ["é", "e\u0301", "٣", "😀", "a:b", "{a}", "../../x", "%00", "a" * 64, '"\\', "=1+1|cmd"],
)  # fmt: skip
async def test_a_user_id_that_is_allowed_arrives_byte_for_byte(way: Way, user: str) -> None:
    """C35: what one store takes the next one takes too, unchanged."""
    await admit(way, entry(1, user=user))
    (event,) = await receive_until(await way.channel(), 1)
    assert event.user_id == user


async def test_what_was_not_acknowledged_comes_again_before_anything_newer(way: Way) -> None:
    await admit(way, entry(1), entry(2), entry(3))
    channel = await way.channel()
    first = await receive_some(channel)
    await admit(way, entry(4))
    again = await receive_some(channel)
    assert [d.token for d in again][: len(first)] == [d.token for d in first]
    assert sorted(seqs(await receive_until(channel, 4))) == [1, 2, 3, 4]


async def test_the_bound_on_deliveries_is_kept(way: Way) -> None:
    await admit(way, *(entry(seq) for seq in range(1, 11)))
    channel = await way.channel()
    assert 0 < len(await receive_some(channel, 3)) <= 3
    assert sorted(seqs(await receive_until(channel, 10))) == list(range(1, 11))


async def test_what_a_dead_worker_had_in_hand_goes_to_another(way: Way) -> None:
    await admit(way, entry(1), entry(2))
    first = await way.channel()
    assert await receive_some(first)
    await way.leave(first)
    assert sorted(seqs(await receive_until(await way.channel(), 2))) == [1, 2]


async def test_only_what_was_acknowledged_stays_away(way: Way) -> None:
    await admit(way, *(entry(seq) for seq in range(1, 7)))
    first = await way.channel()
    deliveries = await receive_some(first)
    await first.acknowledge(deliveries[:1])
    await way.leave(first)
    left = {1, 2, 3, 4, 5, 6} - {deliveries[0].events[0].place.seq}
    assert set(seqs(await receive_until(await way.channel(), 5))) >= left


async def test_an_unreadable_message_does_not_stop_its_neighbours(way: Way) -> None:
    await admit(way, entry(1))
    await way.spoil(b"\xff\x00garbage")
    await admit(way, entry(2))
    assert sorted(seqs(await receive_until(await way.channel(), 2))) == [1, 2]
    (letter,) = await letters_of(way, 1)
    assert letter.raw == b"\xff\x00garbage"
    assert letter.reason
    assert [letter.reason] == way.dead_reasons
    await until(lambda: _nothing_waits(way))


async def test_one_order_that_the_ledger_refuses_does_not_stop_its_neighbours(way: Way) -> None:
    await admit(way, *(entry(seq) for seq in range(1, 21)))
    ledger = MemoryOrderLedger(refuses=lambda event: event.place.seq == 7)
    stop, worker = asyncio.Event(), OrderWorker(
        channel=await way.channel(), ledger=ledger, observer=Counts(), deliveries_max=64
    )  # fmt: skip
    running = asyncio.create_task(worker.run(stop))
    await until(lambda: len(ledger.events) == 19)
    (letter,) = await letters_of(way, 1)
    stop.set()
    await running
    assert sorted(seqs(ledger.events)) == [seq for seq in range(1, 21) if seq != 7]
    assert "refused by order of the test" in letter.reason


async def test_a_ledger_that_is_away_is_waited_for_and_makes_no_dead_letter(way: Way) -> None:
    """C16: a database outage is not mistaken for a poisoned message."""
    await admit(way, *(entry(seq) for seq in range(1, 11)))
    ledger, counts, stop = MemoryOrderLedger(away=True), Counts(), asyncio.Event()
    worker = OrderWorker(channel=await way.channel(), ledger=ledger, observer=counts)
    running = asyncio.create_task(worker.run(stop))
    await until(lambda: counts.away >= 3)
    assert await way.waiting() > 0
    ledger.away = False
    await until(lambda: len(ledger.events) == 10)
    stop.set()
    await running
    assert sorted(seqs(ledger.events)) == list(range(1, 11))
    assert await way.shelves().letters() == []


async def test_a_dead_letter_can_be_replayed_after_a_fix_and_is_then_gone(way: Way) -> None:
    await admit(way, entry(1), entry(2))
    ledger = MemoryOrderLedger(refuses=lambda event: event.place.seq == 1)
    channel = await way.channel()
    worker = OrderWorker(channel=channel, ledger=ledger, observer=Counts())
    shelves = way.shelves()
    async with asyncio.timeout(60):
        while not await shelves.letters():
            await worker.step()
    (letter,) = await shelves.letters()
    ledger.refuses = lambda _event: False
    await shelves.replay(letter.name)
    assert await shelves.letters() == []
    async with asyncio.timeout(60):
        while sorted(seqs(ledger.events)) != [1, 2]:
            await way.carry()
            await worker.step()
    with pytest.raises(LetterGone):
        await shelves.replay(letter.name)


async def test_a_dead_letter_can_be_discarded(way: Way) -> None:
    await way.spoil(b"nonsense")
    channel = await way.channel()
    async with asyncio.timeout(60):
        while not (letters := await way.shelves().letters()):
            await channel.receive(64, 50)
    await way.shelves().discard(letters[0].name)
    assert await way.shelves().letters() == []
    with pytest.raises(LetterGone):
        await way.shelves().find(letters[0].name)


async def test_a_name_of_no_dead_letter_is_refused_in_a_sentence(way: Way) -> None:
    for name in ("", "x", "kafka:0-99", "outbox:1.0:1-1", "post:1"):
        with pytest.raises(LetterGone):
            await way.shelves().find(name)


async def _step_fails(worker: OrderWorker) -> bool:
    try:
        await worker.step()
    except LedgerAway:
        return True
    return False


async def test_a_step_that_fails_loses_nothing(way: Way) -> None:
    await admit(way, entry(1))
    ledger = MemoryOrderLedger(away=True)
    worker = OrderWorker(channel=await way.channel(), ledger=ledger, observer=Counts())
    await until(lambda: _step_fails(worker))
    ledger.away = False
    async with asyncio.timeout(60):
        while not (taken := await worker.step()):
            pass
    assert taken == 1
    assert (BUCKET, seqs(ledger.events)) == (BUCKET, [1])
