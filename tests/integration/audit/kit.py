"""One sale in real parts, moved by hand: the tests say when a worker writes and what breaks."""

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from seckill.admission.bucket import Buckets
from seckill.admission.fence import FenceKeeper
from seckill.admission.keys import BucketKeys, Keys
from seckill.admission.marks import MarkWriter
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import ADMIT, Scripts, Status
from seckill.audit import (
    AuditOptions,
    AuditReport,
    BucketReader,
    Finding,
    Kind,
    run_audit,
)
from seckill.domain.ids import GoodsId, ReservationId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import NewSale, Sale
from seckill.ledger import Database, LedgerOptions, SQLLedger, ensure_schema
from seckill.ledger.fence import LedgerFence
from seckill.ledger.looks import SQLAuditLedger
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.outbox_log import OutboxLog
from seckill.pipeline.ports import WriteReport
from seckill.pipeline.sweep import Sweep
from seckill.pipeline.worker import OrderWorker
from services.patient_loop import PatientClock

__all__ = ["Service", "open_service"]

ID_KEY = bytes(range(16))
FAST = AuditOptions(settle_ms=2, patience_ms=200)


class _Silent:
    def written(self, report: WriteReport) -> None: ...
    def ledger_away(self) -> None: ...


@dataclass
class Service:
    """A sale with everything that moves it, and the audit of it."""

    redis: Redis
    keys: Keys
    folder: Path
    marks_folder: Path
    database: Database
    ledger: SQLLedger
    audit_ledger: SQLAuditLedger
    buckets: Buckets
    scripts: Scripts
    keeper: FenceKeeper
    channel: DirectChannel
    worker: OrderWorker
    sweep: Sweep
    sale: Sale
    reservation_ids: ReservationIds
    marks: MarkWriter
    attempts: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @property
    def bucket_id(self) -> BucketId:
        return BucketId(self.sale.sale_id, 0)

    @property
    def names(self) -> BucketKeys:
        return self.keys.bucket(self.bucket_id)

    def place(self, seq: int, epoch: int = 1) -> Place:
        return Place(self.sale.sale_id, epoch, 0, seq)

    def id_of(self, seq: int, epoch: int = 1) -> ReservationId:
        return self.reservation_ids.encode(self.place(seq, epoch))

    async def buy(
        self, users: Sequence[str], quantity: int = 1, *, acknowledge: bool = True
    ) -> list[tuple[str, ReservationId]]:
        """Admit users in one batch, as a web process does; returns those who got it."""
        epoch = (await self.buckets.look(self.bucket_id)).epoch
        request: list[int | str] = [epoch, 0, 0]
        for user in users:
            request += [user, f"a{next(self.attempts)}", quantity]
        names = self.names
        reply = await self.scripts.run(ADMIT, (names.meta, names.buyers, names.outbox), request)
        if Status(reply[0]) is not Status.OK:
            return []
        if acknowledge:
            self.marks.acknowledge(self.bucket_id, epoch, reply[3])
        return [
            (user, self.id_of(reply[7 + i * 4], reply[6 + i * 4]))
            for i, user in enumerate(users)
            if reply[5 + i * 4] == Outcome.SUCCESS
        ]

    async def restart_seen(self) -> None:
        """Let the bucket look as it does after a restart of Redis that lost nothing."""
        await self.redis.hset(self.names.meta, "server", "another.run")

    async def rebuild(self) -> None:
        """Rebuild the bucket, with a worker that lets the outbox run dry."""
        rebuild = asyncio.create_task(self.keeper.rebuild(self.bucket_id, deadline_ms=60_000))
        while not rebuild.done():
            await self.worker.step()
            await asyncio.sleep(0)
        await rebuild
        await self.keeper.keep()

    async def write(self) -> None:
        """Let the worker write all that has come."""
        while await self.worker.step():
            pass

    async def settle(self) -> None:
        """Let everything come to rest."""
        while await self.sweep.sweep():
            await self.write()
        await self.write()

    async def cancel(self, reservation_id: ReservationId, user: str) -> None:
        order = await self.ledger.orders.cancel(
            reservation_id, UserId(user), actor="test", reason=""
        )
        assert order is not None

    async def audit(self, **options: Any) -> AuditReport:
        return await run_audit(
            reader=BucketReader(self.redis, self.buckets, self.keys),
            ledger=self.audit_ledger,
            reservation_ids=self.reservation_ids,
            clock=PatientClock(),
            marks_folder=self.marks_folder,
            options=options.pop("options", FAST),
            **options,
        )

    async def findings(self) -> dict[Kind, Finding]:
        report = await self.audit()
        found = {finding.kind: finding for finding in report.findings}
        assert report.ok == (not found)
        return found

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Change the books by hand, past every guard of the software."""
        with contextlib.closing(sqlite3.connect(self.folder / "ledger.db")) as connection:
            connection.execute("PRAGMA ignore_check_constraints=ON")
            rows = connection.execute(statement, values).fetchall()
            connection.commit()
        return rows


@contextlib.asynccontextmanager
async def open_service(
    redis: Redis,
    keys: Keys,
    folder: Path,
    marks_folder: Path,
    *,
    stock_units: int = 100,
    limit_per_user: int = 3,
    sale: Sale | None = None,
    slot: str = "web-0",
) -> AsyncIterator[Service]:
    """Connect to a sale, or make one when none is given. Each has connections of its own."""
    clock = PatientClock()
    database = Database(LedgerOptions(url=f"sqlite:///{folder}/ledger.db"))
    await ensure_schema(database)
    reservation_ids = ReservationIds(ID_KEY)
    ledger = SQLLedger(database, reservation_ids, clock)
    sale = sale or await ledger.sales.create_sale(
        NewSale(
            goods_id=GoodsId("g1"),
            stock_units=stock_units,
            limit_per_user=limit_per_user,
            starts_at_ms=1,
        ),
        actor="test",
    )
    bucket_id = BucketId(sale.sale_id, 0)
    scripts = Scripts(redis)
    buckets = Buckets(redis, scripts, keys)
    outbox_log = OutboxLog(redis, keys)
    keeper = FenceKeeper(
        redis=redis,
        buckets=buckets,
        keys=keys,
        ledger=LedgerFence(ledger, clock),
        channel=outbox_log,
        marks_folder=marks_folder,
        ids=reservation_ids,
        clock=clock,
    )
    await keeper.keep()
    channel = DirectChannel(
        redis=redis,
        keys=keys,
        consumer=slot,
        bucket_ids=lambda: [bucket_id],
        on_dead=lambda *_: None,
    )
    outbox_log.in_hand = channel.has_in_hand
    with MarkWriter(marks_folder, slot) as marks:
        yield Service(
            redis=redis,
            keys=keys,
            folder=folder,
            marks_folder=marks_folder,
            database=database,
            ledger=ledger,
            audit_ledger=SQLAuditLedger(database, clock),
            buckets=buckets,
            scripts=scripts,
            keeper=keeper,
            channel=channel,
            worker=OrderWorker(channel=channel, ledger=ledger, observer=_Silent()),
            sweep=Sweep(
                ledger=ledger,
                buckets=buckets,
                epochs=lambda: keeper.known_epochs,
                on_released=lambda _: None,
            ),
            sale=sale,
            reservation_ids=reservation_ids,
            marks=marks,
        )
    await ledger.dispose()
