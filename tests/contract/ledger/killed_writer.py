"""Run by test_kill.py: writes one batch again and again, each time killed one statement later.

Each attempt is a child of its own that kills itself with SIGKILL right before its n-th statement
(COMMIT counts as one). After each it says so and waits for a line, so that the test can look at
the books. It ends when a child lives long enough to commit.
"""

import asyncio
import os
import pickle
import signal
import sys

from sqlalchemy import event

from contract.ledger.kit import ID_KEY, HandClock, copies_seen
from seckill.admission.reservation_ids import ReservationIds
from seckill.ledger import Database, SQLLedger
from services.ledger_options import patient_options


async def write(url: str, events: list[object], die_before: int) -> None:
    database = Database(patient_options(url, pool_size=1))
    ledger = SQLLedger(database, ReservationIds(ID_KEY), HandClock())
    await ledger.reading.ping()  # connected, so that only the statements of the batch count
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1
        if count == die_before:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(database._engine.sync_engine, "before_cursor_execute", step)
    event.listen(database._engine.sync_engine, "commit", step)
    copies_seen(lambda _table: step())
    await ledger.write(events)  # type: ignore[arg-type]
    await database.dispose()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    url, events = sys.argv[1], pickle.loads(bytes.fromhex(sys.argv[2]))  # noqa: S301  -- ours
    die_before = 0
    while True:
        die_before += 1
        child = os.fork()
        if child == 0:
            asyncio.run(write(url, events, die_before))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            say(f"killed {die_before}")
            sys.stdin.buffer.readline()
        else:
            say(f"written {os.WEXITSTATUS(status)}")
            return


main()
