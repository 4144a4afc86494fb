"""Eight forked processes make ids of a million places; prints how many different ones there are.

A program of its own: a test process has threads of client libraries, whose locks and connections a
forked child would inherit without them.
"""

import multiprocessing
import random
import sys
from multiprocessing.connection import Connection

from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.ids import SaleId
from seckill.domain.reservation import Place

IDS_PER_PROCESS = 125_000
PROCESSES = 8


def make_ids(key: bytes, number: int, send: Connection) -> None:
    """A forked child: the parent's random generator was seeded, and no clock is asked."""
    ids = ReservationIds(key)
    made = []
    for at in range(0, IDS_PER_PROCESS, 500):
        made += ids.encode_many(
            [Place(SaleId(1), 1, number, seq + 1) for seq in range(at, at + 500)]
        )
    send.send_bytes("".join(made).encode("ascii"))
    send.close()


def main() -> None:
    key = bytes.fromhex(sys.argv[1])
    random.seed(1)
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in range(PROCESSES)]
    children = [
        fork.Process(target=make_ids, args=(key, number, send))
        for number, (_, send) in enumerate(pipes)
    ]
    for child in children:
        child.start()
    for _, send in pipes:
        send.close()
    length = len(ReservationIds(key).encode(Place(SaleId(1), 1, 0, 1)))
    seen: set[bytes] = set()
    for receive, _ in pipes:
        made = receive.recv_bytes()
        receive.close()
        assert len(made) == length * IDS_PER_PROCESS
        seen.update(made[at : at + length] for at in range(0, len(made), length))
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    sys.stdout.write(f"{len(seen)}\n")


if __name__ == "__main__":
    main()
