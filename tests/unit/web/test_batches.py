import asyncio
from collections.abc import Mapping, Sequence

import pytest

from seckill.web.batches import Lanes, MicroBatches, TooManyWaiting
from unit.web.doubles import PartAway


class Source:
    """Doubles numbers, one gate pass for each look-up."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.passes = asyncio.Semaphore(0)
        self.error: Exception | None = None

    async def look_up(self, keys: Sequence[int]) -> Mapping[int, int]:
        self.batches.append(list(keys))
        await self.passes.acquire()
        if self.error is not None:
            raise self.error
        return {key: 2 * key for key in keys if key >= 0}


class Running:
    def __init__(self, part: MicroBatches[int, int] | Lanes) -> None:
        self._part = part

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._part.run())

    async def __aexit__(self, *exc_info: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def batches(source: Source, batch_max: int = 100, waiting_max: int = 100) -> MicroBatches[int, int]:
    return MicroBatches(source.look_up, batch_max=batch_max, waiting_max=waiting_max)


async def test_what_arrives_during_one_read_goes_into_the_next() -> None:
    source = Source()
    reads = batches(source)
    async with Running(reads):
        first = reads.get(1)
        await settle()
        rest = [reads.get(key) for key in (2, 3, 3, 2, -1)]
        await settle()
        assert source.batches == [[1]]
        source.passes.release()
        source.passes.release()
        assert await first == 2
        assert await asyncio.gather(*rest) == [4, 6, 6, 4, None]
        assert source.batches == [[1], [2, 3, -1]]


async def test_one_that_gives_up_disturbs_nobody() -> None:
    source = Source()
    reads = batches(source)
    async with Running(reads):
        leaving, staying = reads.get(1), reads.get(1)
        await settle()
        gone = reads.get(2)
        leaving.cancel()
        gone.cancel()
        kept = reads.get(3)
        source.passes.release()
        source.passes.release()
        assert await staying == 2
        assert await kept == 6
        assert source.batches == [[1], [3]], "nobody waited for 2 any more"


async def test_the_queue_and_the_batch_are_bounded() -> None:
    source = Source()
    reads = batches(source, batch_max=2, waiting_max=5)
    async with Running(reads):
        first = reads.get(0)
        await settle()
        waiting = [reads.get(key) for key in (1, 2, 3, 4, 5)]
        with pytest.raises(TooManyWaiting):
            reads.get(6)
        for _ in range(4):
            source.passes.release()
        assert await asyncio.gather(first, *waiting) == [0, 2, 4, 6, 8, 10]
        assert [len(batch) for batch in source.batches] == [1, 2, 2, 1]
        again = reads.get(7)
        source.passes.release()
        assert await again == 14


@pytest.mark.parametrize("error", [PartAway("gone"), ValueError("a bug")])
async def test_an_error_reaches_those_who_wait_and_ends_nothing(error: Exception) -> None:
    source = Source()
    reads = batches(source)
    async with Running(reads):
        source.error = error
        failing = [reads.get(1), reads.get(2)]
        source.passes.release()
        answers = await asyncio.gather(*failing, return_exceptions=True)
        assert answers == [error, error]
        source.error = None
        fine = reads.get(1)
        source.passes.release()
        assert await fine == 2


async def test_a_call_under_way_goes_on_when_its_client_leaves() -> None:
    lanes = Lanes(lanes=1, waiting_max=10)
    passes, done = asyncio.Semaphore(0), []

    async def work(name: str) -> str:
        await passes.acquire()
        done.append(name)
        return name

    async with Running(lanes):
        begun = lanes.call(lambda: work("begun"))
        never = lanes.call(lambda: work("never"))
        last = lanes.call(lambda: work("last"))
        await settle()
        begun.cancel()
        never.cancel()
        passes.release()
        passes.release()
        assert await last == "last"
        assert done == ["begun", "last"]


async def test_lanes_are_as_many_as_said_and_their_queue_is_bounded() -> None:
    lanes = Lanes(lanes=2, waiting_max=3)
    passes = asyncio.Semaphore(0)
    under_way = most = 0

    async def work() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await passes.acquire()
        under_way -= 1

    async with Running(lanes):
        calls = [lanes.call(work), lanes.call(work)]
        await settle()
        calls += [lanes.call(work) for _ in range(3)]
        with pytest.raises(TooManyWaiting):
            lanes.call(work)
        for _ in calls:
            passes.release()
        await asyncio.gather(*calls)
        assert most == 2


async def test_a_failing_call_does_not_take_its_lane_along() -> None:
    lanes = Lanes(lanes=1, waiting_max=3)

    async def fail() -> None:
        raise ValueError("a bug")

    async def away() -> None:
        raise PartAway("gone")

    async def work() -> int:
        return 1

    async with Running(lanes):
        with pytest.raises(ValueError, match="a bug"):
            await lanes.call(fail)
        with pytest.raises(PartAway):
            await lanes.call(away)
        assert await lanes.call(work) == 1
