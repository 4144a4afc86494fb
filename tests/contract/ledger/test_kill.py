"""A writer that is killed anywhere leaves nothing half done, and the next one finishes the job."""

import asyncio
import os
import pickle
import sys
from pathlib import Path

from contract.ledger.kit import ID_KEY, assert_sound, dump, open_shop, rows
from seckill.admission.reservation_ids import ReservationIds
from seckill.ledger import Database, SQLLedger
from seckill.ledger.tables import order_events
from seckill.pipeline.ports import WriteReport

IDS = ReservationIds(ID_KEY)


async def test_a_batch_is_written_whole_or_not_at_all_wherever_its_writer_is_killed(
    ledger: SQLLedger, database: Database
) -> None:
    shop = await open_shop(ledger, stock=3)
    ann = shop.admitted(1, "ann")
    await ledger.write([ann])
    await ledger.orders.cancel(IDS.encode(ann.place), ann.user_id, actor="buyer", reason="")
    await ledger.sales.request_stock_change("c-1", shop.sale.sale_id, -1, actor="op")
    events = [
        shop.released(2, ann),
        shop.stock(3, "c-1", -1),
        *(shop.admitted(seq) for seq in range(4, 8)),  # the last two find no stock
    ]
    before = await dump(database)
    tests = Path(__file__).parents[2]
    writer = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("killed_writer.py")),
        database.options.url,
        pickle.dumps(events).hex(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{tests}{os.pathsep}{tests.parent / 'src'}"},
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    killed = 0
    async for line in writer.stdout:
        if line.startswith(b"written"):
            break
        killed += 1
        assert await dump(database) == before, f"half written when killed before statement {killed}"
        await assert_sound(ledger, shop.sale.sale_id)
        writer.stdin.write(b"go on\n")
        await writer.stdin.drain()
    await writer.communicate()
    assert writer.returncode == 0
    assert killed > 12
    await assert_sound(ledger, shop.sale.sale_id)
    assert await ledger.write(events) == WriteReport(known=len(events))
    assert await shop.sold() == 2
    assert len(await ledger.pending_releases(10)) == 2
    assert await ledger.pending_stock_changes() == []
    assert len(await rows(database, order_events)) == 2 + 4
