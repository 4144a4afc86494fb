"""Standing in the queue for a processor, seen by a real process on a real one."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from seckill.runtime.processor_time import counts_processor_time, read_processor_time

pytestmark = pytest.mark.skipif(
    not counts_processor_time(), reason="this system does not count the time in the queue"
)

_WORKER = """
import asyncio, os
from seckill.pipeline.giving_way import GivingWay
from seckill.runtime.processor_time import read_processor_time
rests = []
async def main():
    pace = GivingWay(look=read_processor_time, longest_s=0.3, rested=rests.append)
    pace.begin(64)
    began = read_processor_time().used_s
    while read_processor_time().used_s - began < 0.1: pass
    await pace.rest(asyncio.Event(), caught_up=False)
os.nice(10)
asyncio.run(main())
print(len(rests), sum(rests))
"""


@pytest.fixture(name="crowded")
def _crowded() -> Iterator[None]:
    """This process and its children have one processor, and somebody else wants it too."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(0, processors)


def test_it_is_counted() -> None:
    before = read_processor_time()
    while time.process_time() - before.used_s < 0.05:
        pass
    now = read_processor_time()
    assert now.used_s - before.used_s >= 0.05
    assert now.ran_s > before.ran_s
    assert now.queued_s >= before.queued_s


@pytest.mark.usefixtures("crowded")
def test_a_worker_that_is_less_important_than_a_busy_one_beside_it_rests() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _WORKER], capture_output=True, text=True, timeout=120, check=True
    )
    rests, rested_s = found.stdout.split()
    assert rests == "1"
    assert float(rested_s) > 0
