"""The pace of a worker that gives way, on a clock and a processor that the test moves."""

import asyncio
from dataclasses import replace

import pytest

from seckill.pipeline import giving_way as module
from seckill.pipeline.giving_way import GivingWay, ProcessorTime, wait_until_calm

LONGEST_S = 5.0


class Machine:
    """A worker's processor and its clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.time = ProcessorTime(3.0, 2.0, 1.0)
        self.crowded = True
        self.slept_s: list[float] = []
        self.rests_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def look(self) -> ProcessorTime:
        return self.time

    def run(self, used_s: float) -> None:
        """The process does something, with or without a queue for its processor."""
        queued_s = used_s * (2 if self.crowded else 0.1)
        self.now_s += used_s + queued_s
        self.time = replace(
            self.time,
            used_s=self.time.used_s + used_s,
            ran_s=self.time.ran_s + used_s / 2,
            queued_s=self.time.queued_s + queued_s,
        )

    async def sleep_unless(self, stop: asyncio.Event, wait_ms: float) -> None:
        self.slept_s.append(wait_ms / 1000)
        if stop.is_set():
            return
        # In whole ns as a real one, and no sleep takes no time.
        self.now_s = round(self.now_s + max(wait_ms / 1000, 1e-8), 9)
        queued_s = wait_ms / 1000 * (0.5 if self.crowded else 0.01)
        self.time = replace(
            self.time, ran_s=self.time.ran_s + 0.05 * wait_ms / 1000,
            queued_s=self.time.queued_s + queued_s,
        )  # fmt: skip


@pytest.fixture(name="machine")
def _machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(module, "sleep_unless", machine.sleep_unless)
    return machine


@pytest.fixture(name="pace")
def _pace(machine: Machine) -> GivingWay:
    return GivingWay(
        look=machine.look,
        longest_s=LONGEST_S,
        rested=machine.rests_s.append,
        clock=machine.clock,
    )


async def batch(pace: GivingWay, machine: Machine, used_s: float, *, carried: bool = True) -> int:
    """One batch and its rest; how much the pace let it hold."""
    most = pace.begin(64)
    machine.run(used_s)
    await pace.rest(asyncio.Event(), caught_up=not carried)
    return most


async def test_who_has_a_processor_for_itself_never_rests(
    pace: GivingWay, machine: Machine
) -> None:
    machine.crowded = False
    most = [await batch(pace, machine, 0.1) for _ in range(20)]
    assert most == [2, 4, 8, 16, 32] + [64] * 15
    assert machine.slept_s == machine.rests_s == []


async def test_who_queues_takes_a_fiftieth_of_a_processor_in_small_batches(
    pace: GivingWay, machine: Machine
) -> None:
    assert await batch(pace, machine, 0.04) == 2
    assert sum(machine.slept_s) == pytest.approx(0.04 * 49)
    assert machine.rests_s == [pytest.approx(0.04 * 49)]
    assert [await batch(pace, machine, 0.01) for _ in range(5)] == [2] * 5


async def test_a_rest_ends_when_nobody_queues_any_more(pace: GivingWay, machine: Machine) -> None:
    pace.begin(64)
    machine.run(0.2)
    machine.crowded = False
    await pace.rest(asyncio.Event(), caught_up=False)
    looks = [pytest.approx(0.2)] * 3
    assert machine.slept_s == looks, "the crowd is half a second ago; it would rest for 3.8 s"
    await batch(pace, machine, 0.2)
    assert machine.slept_s == looks, "the next batch had its processor"
    assert pace.begin(64) == 4


async def test_a_lucky_moment_is_not_the_end_of_a_rush(
    pace: GivingWay, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep_unless(stop: asyncio.Event, wait_ms: float) -> None:
        machine.crowded = len(machine.slept_s) % 3 > 0
        await machine.sleep_unless(stop, wait_ms)

    monkeypatch.setattr(module, "sleep_unless", sleep_unless)
    await batch(pace, machine, 0.05)
    assert sum(machine.slept_s) == pytest.approx(0.05 * 49), "it rests as long as it would"
    machine.crowded = False
    assert await batch(pace, machine, 0.001) == 2, "a short batch is a lucky moment too"
    assert len(machine.rests_s) == 2


async def test_giving_way_has_an_end_and_then_everything_is_written(
    pace: GivingWay, machine: Machine
) -> None:
    began_s = machine.now_s
    while machine.now_s < began_s + LONGEST_S:
        await batch(pace, machine, 0.02)
    rested_s = sum(machine.rests_s)
    assert rested_s <= LONGEST_S
    most = [await batch(pace, machine, 0.5) for _ in range(50)]
    assert most == [4, 8, 16, 32] + [64] * 46
    assert sum(machine.rests_s) == rested_s, "however full the machine still is"


@pytest.mark.parametrize("how", ["caught up", "not queued"])
async def test_who_has_caught_up_or_was_alone_may_give_way_anew(
    pace: GivingWay, machine: Machine, how: str
) -> None:
    for _ in range(10):
        await batch(pace, machine, 0.5)
    rested_s = sum(machine.rests_s)
    if how == "caught up":
        await batch(pace, machine, 0.01, carried=False)
    else:
        machine.crowded = False
        await batch(pace, machine, 0.6)
    machine.now_s += 1
    machine.crowded = True
    assert await batch(pace, machine, 0.05) == (2 if how == "caught up" else 64)
    assert sum(machine.rests_s) == pytest.approx(rested_s + 0.05 * 49)


async def test_a_small_batch_is_not_made_nothing(pace: GivingWay, machine: Machine) -> None:
    await batch(pace, machine, 0.02)
    assert pace.begin(1) == 1


async def test_who_is_told_to_stop_does_not_rest() -> None:
    machine = Machine()
    pace = GivingWay(look=machine.look, longest_s=LONGEST_S, rested=machine.rests_s.append)
    stop = asyncio.Event()
    pace.begin(64)
    machine.run(10.0)
    resting = asyncio.create_task(pace.rest(stop, caught_up=False))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not resting.done(), "it rests, on the real clock"
    stop.set()
    await resting
    assert machine.rests_s


@pytest.mark.parametrize(("crowded_looks", "slept"), [(0, 1), (3, 6), (100, 10)])
async def test_long_work_waits_for_a_calm_moment_but_not_for_ever(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, crowded_looks: int, slept: int
) -> None:
    async def sleep_unless(stop: asyncio.Event, wait_ms: float) -> None:
        machine.crowded = len(machine.slept_s) < crowded_looks
        await machine.sleep_unless(stop, wait_ms)

    monkeypatch.setattr(module, "sleep_unless", sleep_unless)
    await wait_until_calm(machine.look, longest_s=2.0, clock=machine.clock)
    assert len(machine.slept_s) == slept
