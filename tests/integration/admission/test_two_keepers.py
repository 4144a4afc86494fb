"""Two keepers look at the same bucket after a restart of Redis: at every start of a service.

The fault: the slower one was told by the ledger that the epoch had moved, and its process died.
"""

import asyncio
from pathlib import Path

from seckill.admission.bucket import Buckets
from seckill.admission.fence import FenceKeeper, Verdict
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Scripts, Status
from seckill.domain.ids import GoodsId
from seckill.domain.reservation import BucketId
from seckill.domain.sale import NewSale
from seckill.ledger.engine import Database
from seckill.ledger.fence import LedgerFence
from seckill.ledger.options import LedgerOptions
from seckill.ledger.schema import ensure_schema
from seckill.ledger.sql_ledger import SQLLedger
from seckill.pipeline.outbox_log import OutboxLog
from services.patient_loop import PatientClock
from services.redis import RedisServer

ROUNDS = 8
KEEPERS = 4


async def test_many_keepers_at_once_carry_a_bucket_on_once(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    redis = connect(server.start().url, timeout_ms=60_000)
    keys, clock, ids = Keys("t"), PatientClock(), ReservationIds(b"k" * 16)
    buckets = Buckets(redis, Scripts(redis), keys)
    database = Database(LedgerOptions(url=f"sqlite:///{tmp_path / 'ledger.db'}"))
    ledger = SQLLedger(database, ids, clock)
    keepers = [
        FenceKeeper(
            redis=redis,
            buckets=buckets,
            keys=keys,
            ledger=LedgerFence(ledger, clock),
            channel=OutboxLog(redis, keys),
            marks_folder=tmp_path / "marks",
            ids=ids,
            clock=clock,
        )
        for _ in range(KEEPERS)
    ]
    try:
        await ensure_schema(database)
        new = NewSale(goods_id=GoodsId("1"), stock_units=5, starts_at_ms=1)
        sale = await ledger.sales.create_sale(new, actor="test")
        bucket_id = BucketId(sale.sale_id, 0)
        await keepers[0].keep()
        for number in range(ROUNDS):
            await redis.connection_pool.disconnect()
            server.stop()
            server.start()
            verdicts = await asyncio.gather(*(keeper.keep() for keeper in keepers))
            found = {verdict[bucket_id] for verdict in verdicts}
            assert found <= {Verdict.FINE, Verdict.REOPENED, Verdict.WAITING}, (number, found)
            assert Verdict.REOPENED in found
            view = await buckets.look(bucket_id)
            assert (view.status, view.epoch) == (Status.OK, number + 2)
    finally:
        await redis.aclose()
        await database.dispose()
        server.remove()
