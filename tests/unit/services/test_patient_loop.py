"""The clock of the tests' own loop: what it counts, and what not."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from unit.services.inner_run import run_pytest

_HANGS = """
import asyncio
from services.patient_loop import PatientLoop

async def wait_for_what_never_comes():
    never = asyncio.Event()
    await never.wait()

async def both():
    await asyncio.gather(wait_for_what_never_comes(), asyncio.sleep(0))

def test_hangs():
    loop = PatientLoop()
    try:
        loop.run_until_complete(both())
    finally:
        loop.close()
"""


async def test_what_holds_the_loop_up_is_no_time_that_passed() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    async with asyncio.timeout(0.2):
        for _ in range(3):
            time.sleep(0.15)  # noqa: ASYNC251  -- this is the stall
            await asyncio.sleep(0)
    assert loop.time() - before < 0.2


async def test_time_never_goes_back() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    time.sleep(0.15)  # noqa: ASYNC251  -- as above
    within = loop.time()
    await asyncio.sleep(0)
    assert before <= within <= loop.time()
    assert within - before < 0.05


async def test_a_wait_that_lasts_longer_than_it_was_to_counts_as_long_as_it_was_to() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    stop_us = f"trap '' INT TERM; kill -STOP {os.getpid()}; sleep 0.4; kill -CONT {os.getpid()}"
    stopped = await asyncio.create_subprocess_exec("sh", "-c", stop_us)
    await asyncio.sleep(0.1)
    assert 0.09 < loop.time() - before < 0.3
    assert await stopped.wait() == 0


async def test_a_time_out_comes_all_the_same() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.Event().wait()
    assert time.monotonic() - began > 0.19


def test_a_test_that_hangs_shows_what_each_of_its_tasks_waits_for(tmp_path: Path) -> None:
    (tmp_path / "test_hang.py").write_text(_HANGS)
    told = run_pytest(tmp_path, "-p pytest_timeout --timeout 2 --timeout-method signal")
    assert "1 failed" in told, told
    assert "Timeout (>2.0s)" in told
    assert "await never.wait()" in told
