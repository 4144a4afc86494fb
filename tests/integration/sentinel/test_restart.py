"""What outlives a process that is killed without warning."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.sentinel.command_client import get, post
from seckill.sentinel import Sentinel
from seckill.sentinel.stores import FileRuleStore, RuleFollower
from seckill.sentinel.transport import MetricFileReader
from services.child import end_child
from unit.sentinel.engines import make_bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SERVING = Path(__file__).with_name("serving.py")
DEADLINE_S = 90


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[int]:
    """A running process's command port. It is killed -9 at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVING), str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield int(await process.stdout.readline())
    finally:
        await end_child(process)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


async def test_c43_rules_pushed_to_the_port_outlive_kill_9_and_reach_new_workers(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as port:
        # A worker that was there before the change, one that joins after it.
        store = FileRuleStore(tmp_path / "rules")
        before = Sentinel(rule_store=store)
        following = asyncio.create_task(RuleFollower(before, store, interval_s=0.02).run())
        pushed = await post(
            port,
            "/setRules",
            type="flow",
            data='[{"resource":"seckill-jk","count":50.0}]',
            who="ann",
        )
        assert pushed.body == "success"
        in_force = (await get(port, "/getRules?type=flow")).body
        await until(lambda: before.dump_rules("flow") == in_force)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        joined = make_bench(rule_store=FileRuleStore(tmp_path / "rules"))
        assert joined.passes(80, "seckill-jk") == 50
    # Killed. The first second after the start obeys already.
    again = make_bench(rule_store=FileRuleStore(tmp_path / "rules"))
    assert again.passes(80, "seckill-jk") == 50
    assert again.sentinel.dump_rules("flow") == in_force
    assert [version.change.who for version in store.history("flow")] == ["ann"]
    async with serving(tmp_path) as port:
        assert (await get(port, "/getRules?type=flow")).body == in_force


async def test_seconds_that_were_shown_are_found_after_kill_9(tmp_path: Path) -> None:
    reader = MetricFileReader(tmp_path / "metrics", "shop")

    def written() -> set[int]:
        if not (tmp_path / "metrics").exists():
            return set()
        return {line.at_ms for line in reader.read(0, None, line_count_max=10_000)}

    async with serving(tmp_path) as port:
        await until(lambda: len(written()) >= 2)
        shown = (await get(port, "/metric?startTime=0&identity=buy")).body.splitlines()
    first = {int(line.split("|")[0]) for line in shown}
    assert len(first) >= 2
    assert first <= written()
    async with serving(tmp_path) as port:
        shown = (await get(port, "/metric?startTime=0&identity=buy")).body.splitlines()
        assert first <= {int(line.split("|")[0]) for line in shown}
