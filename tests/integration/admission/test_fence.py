"""The fence: a Redis that is not the one it was is refused until somebody who knows lets it go on."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from seckill.admission.bucket import Buckets
from seckill.admission.errors import BucketFenced
from seckill.admission.fence import FenceKeeper, Verdict
from seckill.admission.fence_ports import EpochState
from seckill.admission.judging import Patience
from seckill.admission.keys import Keys
from seckill.admission.marks import MarkWriter, read_marks
from seckill.admission.redis_client import connect
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Scripts, Status
from seckill.domain.ids import UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import Place
from services.redis import RedisServer
from services.stage import (
    BUCKET,
    ID_KEY,
    Gate,
    MemoryFenceLedger,
    buy,
    make_sale,
    open_gate,
    until,
)
from services.stopwatch import stopwatch


class Scene:
    """One Redis, one ledger, its keeper."""

    def __init__(
        self, server: RedisServer, redis: Redis, keys: Keys, marks: Path, stock: int = 100
    ) -> None:
        self.server, self.redis, self.keys, self.marks = server, redis, keys, marks
        self.sale = make_sale(stock_units=stock)
        self.ledger = MemoryFenceLedger([self.sale])
        self.keeper: FenceKeeper = self.ledger.keeper(redis, keys, marks)
        self.buckets = Buckets(redis, Scripts(redis), keys)

    async def keep(self) -> Verdict:
        return (await self.keeper.keep())[BUCKET]

    async def restart(self) -> None:
        await asyncio.to_thread(self.server.restart)

    async def open_again(self, gate: Gate) -> None:
        async def open_() -> bool:
            return not gate.gate.fenced_buckets

        with stopwatch() as watch:
            await until(open_)
        assert watch.seconds < 2


@pytest.fixture
async def scene(own_redis: RedisServer, keys: Keys, marks_folder: Path) -> AsyncIterator[Scene]:
    redis = connect(own_redis.url, timeout_ms=60_000)
    scene = Scene(own_redis, redis, keys, marks_folder)
    assert await scene.keep() is Verdict.REOPENED
    assert await scene.keep() is Verdict.FINE
    yield scene
    await redis.aclose()


async def refused(gate: Gate, user: str) -> bool:
    """Whether a buyer is told "cannot decide now", with nothing promised and a time to come back."""
    answer = await gate.buy(user)
    assert answer.outcome is not Outcome.SOLD_OUT
    if answer.outcome is Outcome.UNDECIDED:
        assert answer.reservation_id is None
        assert answer.retry_after_ms > 0
        return True
    return False


async def test_a_restart_that_lost_nothing_is_refused_until_the_keeper_carries_it_on(
    scene: Scene,
) -> None:
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        first = await gate.buy("A")
        await scene.restart()
        for number in range(20):
            assert await refused(gate, f"early-{number}")
        assert gate.gate.fenced_buckets == [BUCKET]
        assert gate.counts.fenced_now == 1
        assert (await scene.buckets.look(BUCKET)).stock_units == 99
        assert await scene.keep() is Verdict.REOPENED
        assert scene.ledger.valid_to[BUCKET, 1] == 1
        await scene.open_again(gate)
        assert gate.counts.fenced_now == 0
        again = await gate.buy("A")
        assert (again.outcome, again.reservation_id) == (Outcome.DUPLICATE, first.reservation_id)
        second = await gate.buy("B")
        assert second.outcome is Outcome.SUCCESS
        assert ReservationIds(ID_KEY).decode(second.reservation_id or "") == Place(
            BUCKET.sale_id, 2, 0, 1
        )
        assert await scene.keep() is Verdict.FINE


async def test_a_flushed_redis_is_fenced_and_not_sold_out_and_rebuilt_from_the_ledger(
    scene: Scene,
) -> None:
    """C5 b at the gate: 40 sold and written, everything flushed, 60 left to sell."""
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        before = dict(
            zip(
                [f"u{n}" for n in range(40)],
                await buy([gate], [f"u{n}" for n in range(40)]),
                strict=True,
            )
        )
        await scene.ledger.take_outbox(scene.redis, scene.keys)
        await scene.redis.flushall()
        assert all([await refused(gate, f"early-{n}") for n in range(20)])
        assert await scene.keep() is Verdict.NEEDS_REBUILD
        assert all([await refused(gate, f"early-{n}") for n in range(20)])
        statement = await scene.keeper.rebuild(BUCKET, deadline_ms=60_000)
        assert (statement.put_units, statement.held_units, statement.buyers) == (100, 40, 40)
        assert list(statement.lost) == []
        await scene.open_again(gate)
        old = await buy([gate], [f"u{n}" for n in range(5)])
        assert {d.outcome for d in old} == {Outcome.DUPLICATE}
        assert [d.reservation_id for d in old] == [before[f"u{n}"].reservation_id for n in range(5)]
        new = await buy([gate], [f"new-{n}" for n in range(100)])
        assert sum(d.outcome is Outcome.SUCCESS for d in new) == 60
        assert await scene.keep() is Verdict.FINE


async def test_a_lost_stock_key_is_not_ready_and_not_an_error(scene: Scene) -> None:
    """C5 a."""
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await gate.buy("A")
        await scene.redis.hdel(scene.keys.bucket(BUCKET).meta, "stock")
        assert await refused(gate, "B")
        assert gate.gate.fenced_buckets == [BUCKET]
        assert await scene.keep() is Verdict.NEEDS_REBUILD


async def test_a_process_that_starts_on_a_running_sale_changes_nothing(scene: Scene) -> None:
    """C5 c: gates and keeper come anew, Redis has stayed."""
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await buy([gate], [f"user-{n}" for n in range(40)])
    keeper = scene.ledger.keeper(scene.redis, scene.keys, scene.marks)
    assert (await keeper.keep())[BUCKET] is Verdict.FINE
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        assert (await scene.buckets.look(BUCKET)).stock_units == 60
        assert (await gate.buy("user-0")).outcome is Outcome.DUPLICATE


async def put_back_an_older_redis(scene: Scene, gate: Gate, folder: Path) -> None:
    """Two buyers, a backup, three more buyers, and the backup comes back."""
    assert {d.outcome for d in await buy([gate], ["A", "B"])} == {Outcome.SUCCESS}
    await asyncio.to_thread(scene.server.copy_data, folder)
    assert {d.outcome for d in await buy([gate], ["C", "D", "E"])} == {Outcome.SUCCESS}
    scene.server.kill()
    scene.server.put_data_back(folder)
    await asyncio.to_thread(scene.server.start)
    assert (await scene.buckets.look(BUCKET)).seq == 2


async def test_a_restored_older_file_is_refused_since_the_marks_know_better(
    scene: Scene, tmp_path: Path
) -> None:
    """The three who were told yes are named, and nobody gets their reservations."""
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await put_back_an_older_redis(scene, gate, tmp_path / "backup")
        assert await refused(gate, "F")
        assert await scene.keep() is Verdict.NEEDS_REBUILD
        assert await scene.keep() is Verdict.NEEDS_REBUILD
        await scene.ledger.take_outbox(scene.redis, scene.keys)
        statement = await scene.keeper.rebuild(BUCKET, deadline_ms=60_000)
        told = ReservationIds(ID_KEY)
        assert [told.decode(i) for i in statement.lost] == [
            Place(BUCKET.sale_id, 1, 0, seq) for seq in (3, 4, 5)
        ]
        assert statement.held_units == 2
        await scene.open_again(gate)
        answer = await gate.buy("F")
        assert answer.outcome is Outcome.SUCCESS
        assert ReservationIds(ID_KEY).decode(answer.reservation_id or "") == Place(
            BUCKET.sale_id, statement.epoch, 0, 1
        )


async def test_a_restored_older_file_is_refused_since_the_ledger_knows_better(
    scene: Scene, tmp_path: Path
) -> None:
    """Without any mark: the host of the web processes is gone."""
    async with open_gate(scene.server.url, scene.keys, tmp_path / "lost-marks") as gate:
        assert {d.outcome for d in await buy([gate], ["A", "B"])} == {Outcome.SUCCESS}
        await asyncio.to_thread(scene.server.copy_data, tmp_path / "backup")
        await gate.buy("C")
        await scene.ledger.take_outbox(scene.redis, scene.keys)
    scene.server.kill()
    scene.server.put_data_back(tmp_path / "backup")
    await asyncio.to_thread(scene.server.start)
    assert list(read_marks(scene.marks)) == []
    assert await scene.keep() is Verdict.NEEDS_REBUILD


async def test_a_keeper_that_died_in_the_middle_judges_again_what_redis_is_now(
    scene: Scene, tmp_path: Path
) -> None:
    """The ledger had closed the epoch; before Redis was told, an older file came back."""
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        assert {d.outcome for d in await buy([gate], ["A", "B"])} == {Outcome.SUCCESS}
        await asyncio.to_thread(scene.server.copy_data, tmp_path / "backup")
        assert (await gate.buy("C")).outcome is Outcome.SUCCESS
        await scene.restart()
        assert await refused(gate, "D")
        assert await scene.ledger.carry_on(BUCKET, 1, 3) == 2  # and here the keeper died
        scene.server.kill()
        scene.server.put_data_back(tmp_path / "backup")
        await asyncio.to_thread(scene.server.start)
        assert await scene.keep() is Verdict.NEEDS_REBUILD
        assert (await scene.buckets.look(BUCKET)).epoch == 1
        assert await refused(gate, "D")


async def test_a_keeper_that_died_in_the_middle_is_finished_by_the_next(scene: Scene) -> None:
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await gate.buy("A")
        await scene.restart()
        assert await refused(gate, "B")
        assert await scene.ledger.carry_on(BUCKET, 1, 1) == 2
        assert await scene.keep() is Verdict.REOPENED
        assert scene.ledger.epochs[BUCKET].state is EpochState.OPEN
        await scene.open_again(gate)
        assert (await gate.buy("B")).outcome is Outcome.SUCCESS
        # And once more, dead between Redis and the ledger's note of it.
        scene.ledger.epochs[BUCKET] = dataclasses.replace(
            scene.ledger.epochs[BUCKET], state=EpochState.OPENING
        )
        assert await scene.keep() is Verdict.REOPENED
        assert await scene.keep() is Verdict.FINE


KILLED_PROCESS = """
import sys
from pathlib import Path
from seckill.admission.marks import MarkWriter
from seckill.domain.reservation import BucketId
marks = MarkWriter(Path(sys.argv[1]), "web-9")
marks.sending(BucketId(1, 0), 1)
marks.acknowledge(BucketId(1, 0), 1, 7)
print("told", flush=True)
sys.stdin.read()
"""


def killed_process_that_acknowledged_seven(marks_folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_PROCESS, str(marks_folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"told\n"
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL


async def test_what_a_killed_process_had_told_counts(scene: Scene) -> None:
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await buy([gate], ["A", "B"])
        killed_process_that_acknowledged_seven(scene.marks)
        await scene.restart()
        assert await refused(gate, "C")
        # It was waiting for a reply when it died: the dead wait for nothing, so this is no "wait".
        assert await scene.keep() is Verdict.NEEDS_REBUILD


async def test_a_living_process_that_waits_for_a_reply_is_waited_for_but_not_for_ever(
    scene: Scene,
) -> None:
    def look_with(patience: Patience) -> None:
        scene.keeper = scene.ledger.keeper(scene.redis, scene.keys, scene.marks, patience=patience)

    look_with(Patience(quiet_ms=600_000))
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await gate.buy("A")
    with MarkWriter(scene.marks, "web-5") as other:
        other.sending(BUCKET, 1)
        await scene.restart()
        assert await scene.keep() is Verdict.WAITING
        other.settled(BUCKET, 1)
        other.acknowledge(BUCKET, 1, 1)
        assert await scene.keep() is Verdict.REOPENED
        await scene.restart()
        other.sending(BUCKET, 2)
        look_with(Patience(quiet_ms=200))

        async def judged() -> bool:
            return await scene.keep() is Verdict.REOPENED

        began = asyncio.get_running_loop().time()
        await until(judged)
        assert asyncio.get_running_loop().time() - began > 0.19


async def test_a_keeper_does_not_reopen_what_a_rebuild_has_just_closed(scene: Scene) -> None:
    """`seckill rebuild` runs beside the worker's keeper: the one must not undo the other."""
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await buy([gate], ["A", "B"])
        rebuilding = asyncio.create_task(scene.keeper.rebuild(BUCKET, deadline_ms=60_000))

        async def closed() -> bool:
            return (await scene.buckets.look(BUCKET)).status is not Status.OK

        await until(closed)
        other = scene.ledger.keeper(scene.redis, scene.keys, scene.marks)
        for number in range(20):
            assert (await other.keep())[BUCKET] is Verdict.NEEDS_REBUILD
            assert await refused(gate, f"early-{number}")
        assert scene.ledger.epochs[BUCKET].epoch == 1
        await scene.ledger.take_outbox(scene.redis, scene.keys)
        statement = await rebuilding
        assert (statement.held_units, statement.epoch) == (2, 2)
        await scene.open_again(gate)
        assert (await gate.buy("A")).outcome is Outcome.DUPLICATE
        assert (await gate.buy("C")).outcome is Outcome.SUCCESS


async def test_a_rebuild_waits_for_the_outbox_and_gives_up_in_time(scene: Scene) -> None:
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await gate.buy("A")
        with pytest.raises(BucketFenced, match="run dry"):
            await scene.keeper.rebuild(BUCKET, deadline_ms=300)
        assert await refused(gate, "B")
        await scene.restart()
        assert await scene.keep() is Verdict.NEEDS_REBUILD  # a restart does not unlock it
        await scene.ledger.take_outbox(scene.redis, scene.keys)
        statement = await scene.keeper.rebuild(BUCKET, deadline_ms=60_000)
        assert statement.held_units == 1
        assert await scene.keep() is Verdict.FINE


@pytest.mark.parametrize("lost", ["released", "changes", "buyers", "outbox"])
async def test_a_key_that_was_lost_is_reported_whichever_it_is(scene: Scene, lost: str) -> None:
    """Else a release would wait for ever, in silence, for a bucket that everybody calls fine."""
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await buy([gate], ["A", "B"])
    await scene.buckets.release(BUCKET, 1, [(UserId("A"), Place(BUCKET.sale_id, 1, 0, 1))])
    assert await scene.buckets.change_stock(BUCKET, 1, "more", 5)
    assert await scene.keep() is Verdict.FINE
    await scene.redis.delete(getattr(scene.keys.bucket(BUCKET), lost))
    assert await scene.keep() is Verdict.NEEDS_REBUILD
    # Nor does a restart hide it, or burn an epoch over it.
    await scene.restart()
    assert await scene.keep() is Verdict.NEEDS_REBUILD
    assert scene.ledger.epochs[BUCKET].epoch == 1


async def test_a_bucket_that_was_never_opened_is_opened_and_one_that_was_lost_is_not(
    scene: Scene,
) -> None:
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await gate.buy("A")
    scene.ledger.epochs[BUCKET] = dataclasses.replace(
        scene.ledger.epochs[BUCKET], state=EpochState.OPENING
    )
    await scene.redis.flushall()
    assert await scene.keep() is Verdict.NEEDS_REBUILD
    assert (await scene.buckets.look(BUCKET)).status is Status.MISSING


async def test_a_new_version_of_the_sale_reaches_the_bucket(scene: Scene) -> None:
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await gate.buy("A")
        scene.ledger.held_sales[0] = dataclasses.replace(scene.sale, paused=True, version=2)
        assert await scene.keep() is Verdict.FINE
        assert (await gate.buy("B")).outcome is Outcome.PAUSED


async def test_no_reply_from_before_the_fence_is_believed(scene: Scene) -> None:
    """Rule 5: what this process did not report in time must not become a yes afterwards."""
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        await gate.buy("A")
        batcher = gate.gate._lanes[BUCKET].batcher
        scripts = batcher._scripts
        real = scripts.run

        async def fenced_meanwhile(*args: object, **options: object) -> object:
            reply = await real(*args, **options)  # type: ignore[arg-type]
            batcher._fence(Status.SERVER)
            return reply

        scripts.run = fenced_meanwhile  # type: ignore[method-assign,assignment]
        answer = await gate.buy("B")
        scripts.run = real  # type: ignore[method-assign]
        assert (answer.outcome, answer.cause) == (Outcome.UNDECIDED, "fenced")
        assert batcher._marks.acknowledged(BUCKET, 1) == 1, "nobody was told, so nothing is marked"


async def test_a_mark_is_raised_before_anybody_is_told(scene: Scene) -> None:
    async with open_gate(scene.server.url, scene.keys, scene.marks) as gate:
        for number in range(1, 30):
            answer = await gate.buy(f"user-{number}")
            place = ReservationIds(ID_KEY).decode(answer.reservation_id or "")
            assert place is not None
            (mark,) = read_marks(scene.marks)
            assert mark.seq >= place.seq
            assert not mark.in_flight
        scene.server.freeze()
        waiting = asyncio.create_task(gate.buy("waiting"))
        await until(lambda: any(m.in_flight for m in read_marks(scene.marks)))
        scene.server.thaw()
        await waiting
        assert not any(m.in_flight for m in read_marks(scene.marks))
