"""The order worker, with a channel and a ledger in memory: written, then acknowledged."""

import asyncio
from collections.abc import Sequence

import pytest

from seckill.domain.events import Admitted
from seckill.domain.ids import AttemptId, UserId
from seckill.domain.reservation import Place
from seckill.pipeline import worker as worker_module
from seckill.pipeline.errors import ChannelUnavailable, LedgerAway
from seckill.pipeline.ports import Delivery, WriteReport
from seckill.pipeline.worker import OrderWorker
from services.stage import BUCKET, MemoryOrderLedger


class MemoryChannel:
    """Holds deliveries until they are acknowledged, as every channel must."""

    def __init__(self, entries: int, events_each: int = 3) -> None:
        self.waiting = [delivery(n, events_each) for n in range(entries)]
        self.dead: list[tuple[str, str]] = []
        self.away = 0
        self.steps: list[str] = []

    async def receive(self, deliveries_max: int, wait_ms: int) -> Sequence[Delivery]:  # noqa: ARG002  -- the port asks for it
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise ChannelUnavailable("by order of the test")
        return self.waiting[:deliveries_max]

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self.steps.append("acknowledge")
        gone = {d.token for d in deliveries}
        self.waiting = [d for d in self.waiting if d.token not in gone]

    async def set_aside(self, delivery: Delivery, reason: str) -> None:
        self.dead.append((delivery.token, reason))
        self.waiting.remove(delivery)


class Counts:
    def __init__(self) -> None:
        self.reports: list[WriteReport] = []
        self.away = 0

    def written(self, report: WriteReport) -> None:
        self.reports.append(report)

    def ledger_away(self) -> None:
        self.away += 1


def delivery(number: int, events: int = 3) -> Delivery:
    return Delivery(
        BUCKET,
        f"{number}-0",
        tuple(
            Admitted(
                Place(BUCKET.sale_id, 1, 0, number * events + n + 1),
                UserId(f"user-{number}-{n}"),
                1,
                AttemptId("t"),
                1,
            )
            for n in range(events)
        ),
    )


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_BACKOFF_MS_MIN", 1)
    monkeypatch.setattr(worker_module, "_BACKOFF_MS_MAX", 2)


def parts(entries: int) -> tuple[MemoryChannel, MemoryOrderLedger, Counts, OrderWorker]:
    channel, ledger, counts = MemoryChannel(entries), MemoryOrderLedger(), Counts()
    return channel, ledger, counts, OrderWorker(channel=channel, ledger=ledger, observer=counts)


async def run_until(worker: OrderWorker, done: object, within_s: float = 30) -> None:
    stop = asyncio.Event()
    assert callable(done)
    running = asyncio.create_task(worker.run(stop))
    async with asyncio.timeout(within_s):
        while not done():
            assert not running.done() or running.result() is None
            await asyncio.sleep(0)
    stop.set()
    await running


async def test_everything_is_written_in_one_transaction_and_then_acknowledged() -> None:
    channel, ledger, counts, worker = parts(10)
    assert await worker.step() == 10
    assert len(ledger.writes) == 1
    assert [e.place.seq for e in ledger.events] == list(range(1, 31))
    assert channel.waiting == []
    assert counts.reports == [WriteReport(ordered=30)]
    assert await worker.step() == 0


async def test_nothing_is_acknowledged_before_it_is_written() -> None:
    channel, ledger, _, worker = parts(3)
    ledger.away = True
    with pytest.raises(LedgerAway):
        await worker.step()
    assert channel.steps == []
    assert len(channel.waiting) == 3


async def test_a_ledger_that_is_away_is_waited_for_and_is_never_taken_for_poison() -> None:
    channel, ledger, counts, worker = parts(5)
    ledger.away = True
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    async with asyncio.timeout(5):
        while ledger.calls["write"] < 10:
            await asyncio.sleep(0.001)
    assert channel.dead == []
    assert len(channel.waiting) == 5
    assert counts.away >= 9
    ledger.away = False
    async with asyncio.timeout(5):
        while channel.waiting:
            await asyncio.sleep(0.001)
    stop.set()
    await running
    assert len(ledger.events) == 15


async def test_a_channel_that_is_away_is_waited_for() -> None:
    channel, ledger, counts, worker = parts(2)
    channel.away = 5
    await run_until(worker, lambda: not channel.waiting)
    assert len(ledger.events) == 6
    assert counts.away == 0


@pytest.mark.parametrize("bad", [[0], [9], [4, 5], [0, 3, 7, 9], list(range(10))])
async def test_only_what_the_ledger_can_never_write_is_set_aside(bad: list[int]) -> None:
    channel, ledger, _, worker = parts(10)
    ledger.refuses = lambda event: (event.place.seq - 1) // 3 in bad
    assert await worker.step() == 10
    assert sorted(token for token, _ in channel.dead) == [f"{n}-0" for n in bad]
    assert all("refused by order of the test" in reason for _, reason in channel.dead)
    good = [n for n in range(10) if n not in bad]
    assert [e.place.seq for e in ledger.events] == [n * 3 + i + 1 for n in good for i in range(3)]
    assert channel.waiting == []
    # Halving: about two writes for each level of the tree above a bad one, never one for each.
    assert ledger.calls["write"] <= 1 + 2 * 4 * len(bad)


async def test_a_ledger_that_goes_away_while_a_bad_one_is_sought_loses_nothing() -> None:
    channel, ledger, _, worker = parts(8)
    ledger.refuses = lambda event: event.place.seq == 20
    write = ledger.write
    calls = 0

    async def flaky(events: Sequence[object]) -> WriteReport:
        nonlocal calls
        calls += 1
        if calls in {2, 4, 5}:
            raise LedgerAway("by order of the test")
        return await write(events)  # type: ignore[arg-type]

    ledger.write = flaky  # type: ignore[method-assign,assignment]
    await run_until(worker, lambda: not channel.waiting)
    assert [token for token, _ in channel.dead] == ["6-0"]
    assert {e.place.seq for e in ledger.events} == set(range(1, 25)) - {19, 20, 21}


async def test_it_ends_between_two_transactions_when_it_is_told_to_stop() -> None:
    channel, ledger, _, worker = parts(200)
    stop = asyncio.Event()
    write = ledger.write

    async def stop_in_the_middle(events: Sequence[object]) -> WriteReport:
        stop.set()
        await asyncio.sleep(0.01)
        return await write(events)  # type: ignore[arg-type]

    ledger.write = stop_in_the_middle  # type: ignore[method-assign,assignment]
    async with asyncio.timeout(5):
        await worker.run(stop)
    assert len(ledger.writes) == 1
    assert len(channel.waiting) == 200 - worker_module.DELIVERIES_MAX


async def test_it_stops_at_once_while_it_waits_for_a_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "_BACKOFF_MS_MIN", 60_000)
    _, ledger, counts, worker = parts(1)
    ledger.away = True
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    async with asyncio.timeout(2):
        while not counts.away:
            await asyncio.sleep(0)
        stop.set()
        await running


class Pace:
    """Lets batches hold one delivery, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, deliveries_max: int) -> int:
        self.told.append(f"begin {deliveries_max}")
        return 1

    async def rest(self, stop: asyncio.Event, *, caught_up: bool) -> None:  # noqa: ARG002  -- the port gives it
        self.told.append("caught up" if caught_up else "rest")
        await asyncio.sleep(0)


async def test_its_pace_says_how_much_it_takes_and_when() -> None:
    channel, ledger, pace = MemoryChannel(2), MemoryOrderLedger(), Pace()
    worker = OrderWorker(channel=channel, ledger=ledger, observer=Counts(), pace=pace)
    await run_until(worker, lambda: "caught up" in pace.told)
    assert pace.told[:6] == ["begin 64", "rest", "begin 64", "rest", "begin 64", "caught up"]
    assert len(ledger.writes) == 2
