"""Rebuilds without being asked: each bucket once at a time, again when it came to no end."""

import asyncio
from typing import Any

import pytest

from seckill.admission.errors import BucketFenced
from seckill.admission.fence import Verdict
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId
from seckill.runtime import rebuilds as room
from seckill.runtime.rebuilds import Rebuilds

A, B, C = (BucketId(SaleId(number), 0) for number in (1, 2, 3))


class Fence:
    """A keeper whose rebuilds end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[BucketId] = []
        self.end = asyncio.Event()
        self.fails: list[Exception] = []

    async def rebuild(self, bucket_id: BucketId, *, deadline_ms: int) -> None:
        assert deadline_ms > 0
        self.begun.append(bucket_id)
        await self.end.wait()
        if self.fails:
            raise self.fails.pop()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_needs_it_is_rebuilt_two_at_a_time_and_each_once() -> None:
    fence: Any = Fence()
    rebuilds = Rebuilds(fence, automatic=True)
    running = asyncio.create_task(rebuilds.run())
    needed = {
        A: Verdict.NEEDS_REBUILD,
        B: Verdict.NEEDS_REBUILD,
        C: Verdict.NEEDS_REBUILD,
        BucketId(SaleId(4), 0): Verdict.NEEDS_OPERATOR,
        BucketId(SaleId(5), 0): Verdict.WAITING,
    }
    for _ in range(3):
        rebuilds.take(needed)
        await settle()
    assert fence.begun == [A, B]
    fence.end.set()
    await settle()
    assert fence.begun == [A, B, C]
    rebuilds.take({A: Verdict.NEEDS_REBUILD})  # once more, since it was lost again
    await settle()
    assert fence.begun == [A, B, C, A]
    running.cancel()
    await asyncio.wait({running})


async def test_one_that_came_to_no_end_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_PAUSE_S", 0)
    fence: Any = Fence()
    fence.end.set()
    fence.fails.append(BucketFenced(A, "its outbox did not run dry"))
    rebuilds = Rebuilds(fence, automatic=True)
    running = asyncio.create_task(rebuilds.run())
    for _ in range(2):
        rebuilds.take({A: Verdict.NEEDS_REBUILD})
        await settle()
    assert fence.begun == [A, A]
    assert not running.done()
    running.cancel()
    await asyncio.wait({running})


async def test_nothing_is_rebuilt_where_an_operator_is_to_decide() -> None:
    fence: Any = Fence()
    rebuilds = Rebuilds(fence, automatic=False)
    running = asyncio.create_task(rebuilds.run())
    rebuilds.take({A: Verdict.NEEDS_REBUILD})
    await settle()
    assert fence.begun == []
    running.cancel()
    await asyncio.wait({running})
