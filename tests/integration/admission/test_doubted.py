"""What a simulation found at a fence: buyers go on buying while the keeper makes up its mind.

Each test is one schedule of it (``scripts/simulate``), by hand and with the parts that it needs.
"""

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from seckill.admission.bucket import Buckets
from seckill.admission.fence import FenceKeeper, Verdict
from seckill.admission.fence_ports import EpochState, Reopening
from seckill.admission.judging import Patience
from seckill.admission.keys import Keys
from seckill.admission.scripts import Scripts, Status
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import BucketId
from seckill.ledger.errors import LedgerUnavailable
from services.redis import RedisServer
from services.stage import BUCKET, MemoryFenceLedger, make_sale, open_gate


class Hooked(MemoryFenceLedger):
    """A ledger in memory with which something happens at the worst moment."""

    async def carry_on(self, bucket_id: BucketId, from_epoch: int, valid_to_seq: int) -> int:
        await self.meanwhile()
        return await super().carry_on(bucket_id, from_epoch, valid_to_seq)

    async def meanwhile(self) -> None: ...


@pytest.fixture
def ledger() -> Hooked:
    return Hooked([make_sale(stock_units=10)])


@pytest.fixture
def buckets(redis: Redis, keys: Keys) -> Buckets:
    return Buckets(redis, Scripts(redis), keys)


@pytest.fixture
async def keeper(redis: Redis, keys: Keys, marks_folder: Path, ledger: Hooked) -> FenceKeeper:
    keeper = ledger.keeper(redis, keys, marks_folder)
    assert (await keeper.keep())[BUCKET] is Verdict.REOPENED
    return keeper


async def test_who_buys_while_the_keeper_judges_is_not_told_yes_and_then_compensated(
    redis_server: RedisServer,
    keys: Keys,
    marks_folder: Path,
    ledger: Hooked,
    keeper: FenceKeeper,
    buckets: Buckets,
) -> None:
    """The epoch was closed at what was judged, and later yeses lay beyond its end."""
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        assert (await gate.buy("before")).outcome is Outcome.SUCCESS
        told: list[Outcome] = []

        async def another_buys() -> None:
            told.append((await gate.buy("meanwhile")).outcome)

        ledger.meanwhile = another_buys  # type: ignore[method-assign]
        await ledger.notice(BUCKET, 1, "somebody does not trust it")
        assert (await keeper.keep())[BUCKET] is Verdict.REOPENED
        assert told == [Outcome.UNDECIDED]
        view = await buckets.look(BUCKET)
        assert (view.status, view.epoch, view.held_units) == (Status.OK, 2, 1)
        assert ledger.valid_to[BUCKET, 1] == 1


async def test_a_keeper_that_died_before_the_last_words_leaves_no_fence_for_ever(
    ledger: Hooked, keeper: FenceKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it stood open no later fence of the bucket could be noticed."""

    async def dies(_bucket_id: BucketId, _how: Reopening) -> int | None:
        raise LedgerUnavailable("away, just now")

    await ledger.notice(BUCKET, 1, "somebody does not trust it")
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "reopened", dies)
        with pytest.raises(LedgerUnavailable):
            await keeper.keep()
    assert ledger.epochs[BUCKET].state is EpochState.OPEN
    assert await ledger.open_fences()
    assert (await keeper.keep())[BUCKET] is Verdict.FINE
    assert await ledger.open_fences() == []
    assert [how.new_epoch for how in ledger.statements] == [2]


async def test_a_keeper_that_is_faster_than_the_rebuild_hides_nothing_that_it_found_out(
    redis: Redis,
    keys: Keys,
    marks_folder: Path,
    ledger: Hooked,
    keeper: FenceKeeper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The statement said that all was known, while a host had not reported."""
    ledger.folders.append("f" * 32)
    rebuilding = ledger.keeper(redis, keys, marks_folder, patience=Patience(reports_ms=50))
    mark_open = ledger.mark_open

    async def another_looks(bucket_id: BucketId, epoch: int) -> None:
        await mark_open(bucket_id, epoch)
        assert (await keeper.keep())[BUCKET] is Verdict.FINE

    monkeypatch.setattr(ledger, "mark_open", another_looks)
    await ledger.notice(BUCKET, 1, "somebody does not trust it")
    done = await rebuilding.rebuild(BUCKET, deadline_ms=60_000)
    assert [how.new_epoch for how in ledger.statements] == [2]
    (said,) = done.unknown
    assert "did not report" in said
    assert ledger.findings == [(0, [said])]


async def test_an_opening_that_came_to_no_end_is_never_repeated_under_its_epoch(
    redis: Redis, keys: Keys, marks_folder: Path, ledger: Hooked, buckets: Buckets
) -> None:
    """Two buyers would be given the same first reservation."""
    assert await ledger.begin_opening(BUCKET, 1)  # and here the first keeper died, or is slow
    keeper = ledger.keeper(redis, keys, marks_folder)
    assert (await keeper.keep())[BUCKET] is Verdict.WAITING
    assert await ledger.open_fences() == []
    while (verdict := (await keeper.keep())[BUCKET]) is Verdict.WAITING:
        await asyncio.sleep(0.05)  # a second at most, until it counts as lost
    assert verdict is Verdict.NEEDS_REBUILD
    assert (await keeper.rebuild(BUCKET, deadline_ms=60_000)).epoch == 2
    # The slow one comes after all.
    assert await buckets.open(ledger.held_sales[0], BUCKET, 1, 10) is Status.EPOCH
    assert (await keeper.keep())[BUCKET] is Verdict.FINE


async def test_whoever_opens_a_bucket_too_late_is_refused_from_the_beginning_of_a_rebuild(
    ledger: Hooked, buckets: Buckets
) -> None:
    await buckets.fence_off(BUCKET, 1)
    assert (await buckets.look(BUCKET)).status is Status.MISSING
    assert await buckets.open(ledger.held_sales[0], BUCKET, 1, 10) is Status.EPOCH
    assert await buckets.open(ledger.held_sales[0], BUCKET, 2, 10) is Status.OK
    assert (await buckets.look(BUCKET)).status is Status.OK


async def test_a_doubted_bucket_stands_still_and_can_go_on(
    keeper: FenceKeeper, buckets: Buckets
) -> None:
    await buckets.doubt(BUCKET, 2)
    assert (await buckets.look(BUCKET)).status is Status.OK, "it is under another epoch"
    await buckets.doubt(BUCKET, 1)
    assert (await buckets.look(BUCKET)).status is Status.SERVER
    assert (await keeper.keep())[BUCKET] is Verdict.REOPENED
    assert (await buckets.look(BUCKET)).epoch == 2
    await buckets.fence_off(BUCKET, 2)
    await buckets.doubt(BUCKET, 2)
    assert (await buckets.look(BUCKET)).status is Status.FENCED_OFF
