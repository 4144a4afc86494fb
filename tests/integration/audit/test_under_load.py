"""Audits while everything moves: not one false finding. And a fault among it is found.

The load runs in a thread and on connections of its own, so that it moves on between any two
readings of the audit and also while the audit computes.
"""

import asyncio
import contextlib
import os
import random
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from redis.asyncio import Redis

from integration.audit.kit import Service, open_service
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.audit import AuditOptions, Kind, Subject
from seckill.audit.counting import AuditedBucket
from seckill.audit.second_look import SecondLook
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import ReservationId, UserId
from services.redis import RedisServer
from services.stage import until

SEED = 20_261_201
USERS = 5_000
STOCK_UNITS = 3_000
RESTART_EVERY_S = 1.0
AUDITS = int(os.environ.get("SECKILL_TEST_LOAD_AUDITS", "20"))
"""Audits under full load, at least. scripts/full-size has a hundred. The control below cries wolf
within a handful, so that these are enough for the same fault to show."""


class Load:
    """Buyers, worker, cancellations, releases, stock changes and keeper, each as fast as it can.

    Args:
        restarts: let the bucket look as after a restart now and then.
    """

    def __init__(self, service: Service, stop: threading.Event, *, restarts: bool) -> None:
        self.service = service
        self.done = Counter[str]()
        self._stop = stop
        self._rng = random.Random(SEED)
        self._held: deque[tuple[str, ReservationId]] = deque()
        self._restarts = restarts

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for part in (self.admit, self.carry, self.change_stock, self.keep):
                group.create_task(self._repeat(part))
            if self._restarts:
                group.create_task(self._repeat(self.restart))

    async def _repeat(self, part: Callable[[], Awaitable[None]]) -> None:
        while not self._stop.is_set():
            await part()
            await asyncio.sleep(0)

    async def admit(self) -> None:
        users = [f"u{self._rng.randrange(USERS)}" for _ in range(self._rng.randrange(1, 20))]
        got = await self.service.buy(users, self._rng.randrange(1, 3))
        self._held.extend(got)
        self.done["admitted"] += len(got)

    async def carry(self) -> None:
        """The worker's two jobs in turn, and buyers who cancel: SQLite has one writer."""
        self.done["written"] += await self.service.worker.step()
        for _ in range(min(len(self._held), self._rng.randrange(20))):
            user, reservation_id = self._held.popleft()
            order = await self.service.ledger.reading.order_of(reservation_id, UserId(user))
            if order is None:  # the worker has not come to it yet
                self._held.append((user, reservation_id))
            elif order.state == "awaiting_payment":
                await self.service.cancel(reservation_id, user)
                self.done["cancelled"] += 1
        self.done["swept"] += await self.service.sweep.sweep()

    async def change_stock(self) -> None:
        self.done["changes"] += 1
        # Up and down in turn: the sale must neither run dry nor swell.
        delta_units = 4 if self.done["changes"] % 2 else -4
        with contextlib.suppress(InvalidValue):  # that many are not left
            await self.service.ledger.sales.request_stock_change(
                f"c{self.done['changes']}", self.service.sale.sale_id, delta_units, actor="test"
            )
        await asyncio.sleep(0.1)

    async def keep(self) -> None:
        await self.service.keeper.keep()
        await asyncio.sleep(0.02)

    async def restart(self) -> None:
        await asyncio.sleep(RESTART_EVERY_S)
        await self.service.restart_seen()
        self.done["restarts"] += 1


@contextlib.contextmanager
def running(
    service: Service, redis_server: RedisServer, *, restarts: bool = False
) -> Iterator[Counter[str]]:
    """The load, in a thread of its own; gives what it has done so far."""
    stop = threading.Event()
    started: Future[Load] = Future()

    async def body() -> None:
        redis = connect(redis_server.url, timeout_ms=60_000)
        async with open_service(
            redis,
            service.keys,
            service.folder,
            service.marks_folder,
            sale=service.sale,
            slot="web-1",
        ) as other:
            load = Load(other, stop, restarts=restarts)
            started.set_result(load)
            await load.run()
        await redis.aclose()

    ended: Future[None] = Future()

    def thread_body() -> None:
        try:
            asyncio.run(body())
        except BaseException as error:  # noqa: BLE001  -- it is raised in the test
            ended.set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=thread_body)
    thread.start()
    try:
        yield started.result(60).done
    finally:
        stop.set()
        ended.result(60)
        thread.join()


@pytest.fixture
async def busy(
    redis: Redis, keys: Keys, tmp_path: Path, marks_folder: Path
) -> AsyncIterator[Service]:
    async with open_service(
        redis, keys, tmp_path, marks_folder, stock_units=STOCK_UNITS
    ) as service:
        yield service


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True])
async def test_audits_under_full_load_find_nothing(
    busy: Service, redis_server: RedisServer, *, restarts: bool
) -> None:
    options = AuditOptions(settle_ms=2, patience_ms=60_000 if restarts else 0)
    audits = with_flight = 0

    def enough() -> bool:
        return (
            audits >= AUDITS
            and done["admitted"] > 1_000
            and done["cancelled"] > 50
            and done["changes"] > 10
            and (done["restarts"] > 2 or not restarts)
        )

    with running(busy, redis_server, restarts=restarts) as done:
        await until(lambda: done["cancelled"] > 0)
        while not enough():
            report = await busy.audit(options=options)
            assert report.ok, report.to_text()
            assert report.unsettled == 0
            with_flight += report.in_flight > 0
            audits += 1
    assert with_flight > audits // 4, "little was under way while it was audited"
    await busy.keeper.keep()
    await busy.settle()
    report = await busy.audit()
    assert report.ok, report.to_text()
    assert report.in_flight == 0


@pytest.mark.slow
async def test_an_audit_that_believed_its_first_look_would_cry_wolf(
    busy: Service, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the load above does make suspects, and it is the second look that clears them."""

    async def believe(_: SecondLook, bucket: AuditedBucket) -> int:
        for place, user_id in bucket.suspects:
            bucket.stranded.add(Subject(place=place, user_id=user_id, units=1))
        bucket.suspects = set()
        return 0

    monkeypatch.setattr(SecondLook, "confirm", believe)
    with running(busy, redis_server) as done:
        await until(lambda: done["cancelled"] > 0)
        for _ in range(200):
            report = await busy.audit()
            if not report.ok:
                break
    assert {finding.kind for finding in report.findings} == {Kind.STRANDED}


@pytest.mark.slow
async def test_faults_are_found_under_full_load_too(
    busy: Service, redis_server: RedisServer
) -> None:
    got = await busy.buy([f"still-{n}" for n in range(6)], 2)
    await busy.settle()
    ids = dict(got)
    with running(busy, redis_server) as done:
        await until(lambda: done["cancelled"] > 0)
        busy.sql("UPDATE orders SET state = 'cancelled' WHERE user_id = 'still-1'")
        busy.sql("DELETE FROM orders WHERE user_id = 'still-2'")
        record = await busy.redis.hget(busy.names.buyers, "still-3")
        assert record is not None
        async with busy.redis.pipeline(transaction=True) as pipeline:
            pipeline.hdel(busy.names.buyers, "still-3")
            pipeline.hset(busy.names.buyers, "thief", record)
            await pipeline.execute()
        report = await busy.audit()
    found = {finding.kind: finding for finding in report.findings}
    named = {kind: {s.user_id for s in finding.ids} for kind, finding in found.items()}
    assert named[Kind.STRANDED] == {"still-1", "thief"}
    assert named[Kind.LOST] == {"still-2"}
    assert named[Kind.PHANTOM] == {"still-3"}
    assert found[Kind.PHANTOM].ids[0].reservation_id == ids["still-3"]
    assert (report.stranded, report.lost, report.oversold, report.duplicates) == (6, 2, 0, 0)
    assert found.keys() == {Kind.STRANDED, Kind.LOST, Kind.PHANTOM, Kind.COUNTER}


LAG_S = float(os.environ.get("SECKILL_TEST_LAG_S", "2"))
"""How far the ledger falls behind."""
LAG_AUDITS = int(os.environ.get("SECKILL_TEST_LAG_AUDITS", "10"))
"""Audits meanwhile, at least. scripts/full-size has a hundred, and 20 s."""


@pytest.mark.slow
async def test_audits_while_the_ledger_lags_find_nothing_but_a_true_loss(busy: Service) -> None:
    """C81 with lag: nothing is written while buyers come, so all of it is in flight, and calm."""
    users = (f"lag-{number}" for number in range(100_000))
    deadline = asyncio.get_running_loop().time() + LAG_S
    audits = in_flight = 0
    while asyncio.get_running_loop().time() < deadline or audits < LAG_AUDITS:
        got = await busy.buy([next(users) for _ in range(5)])
        report = await busy.audit()
        assert report.ok, report.to_text()
        assert report.in_flight == in_flight + len(got)
        in_flight, audits = report.in_flight, audits + 1
    # Somebody deletes one entry that nobody has read yet: the only record of five purchases but
    # for what Redis holds for their buyers.
    (entry, _), *_ = await busy.redis.xrange(busy.names.outbox, count=1)
    await busy.redis.xdel(busy.names.outbox, entry)
    report = await busy.audit()
    assert [(one.kind, one.units) for one in report.findings] == [(Kind.LOST, 5)]
    await busy.write()
    report = await busy.audit()
    assert [(one.kind, one.units) for one in report.findings] == [(Kind.LOST, 5)]
    await busy.rebuild()
    report = await busy.audit()
    assert report.ok, report.to_text()
    assert report.sales[0].live_units == in_flight, "they are written from what Redis holds"
