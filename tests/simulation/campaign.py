"""Runs schedules, one or thousands, and says what they broke.

python -m simulation.campaign [SCHEDULES] [--seed N] [--without RULE ...]
"""

import argparse
import asyncio
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from simulation import rules
from simulation.loop import SteppedLoop
from simulation.promises import broken_promises
from simulation.rules import Rule
from simulation.stores import Stores
from simulation.world import STOCK_UNITS, World

__all__ = ["Campaign", "main"]

STEPS = 220


class Campaign:
    """Runs schedules on stores that it keeps."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        asyncio.run(stores.make_tables())

    def run(
        self,
        seed: int,
        *,
        without: frozenset[Rule] = frozenset(),
        trace: Callable[[str], None] | None = None,
        happen: Callable[[World], Awaitable[None]] = lambda world: world.storm(STEPS),
    ) -> list[str]:
        """One schedule; returns the promises that it broke.

        Args:
            happen: what happens in it; usually what the seed decides.
        """
        with rules.without(without), asyncio.Runner(loop_factory=SteppedLoop) as runner:
            return runner.run(self._run(seed, without, trace, happen))

    async def _run(
        self,
        seed: int,
        without: frozenset[Rule],
        trace: Callable[[str], None] | None,
        happen: Callable[[World], Awaitable[None]],
    ) -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        folder = self._stores.folder / "marks"
        shutil.rmtree(folder, ignore_errors=True)
        world = World(self._stores, seed, folder, without=without, trace=trace)
        await world.begin(loop)
        try:
            await happen(world)
            if not await world.settle():
                return ["never quiet"]
            return await broken_promises(world, self._stores.engine, stock_units=STOCK_UNITS)
        finally:
            await world.end()

    def find(
        self, seeds: Iterable[int], *, without: frozenset[Rule] = frozenset()
    ) -> dict[str, list[int]]:
        """Broken promises, each with the seeds that broke it."""
        found: dict[str, list[int]] = defaultdict(list)
        for seed in seeds:
            for what in self.run(seed, without=without):
                found[what].append(seed)
        return dict(found)


def replay(seed: int, without: Iterable[Rule] = ()) -> str:
    """The command that runs a schedule again, with everything that happens in it."""
    return " ".join(["scripts/simulate", "--seed", str(seed), *(f"--without {r}" for r in without)])


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("schedules", nargs="?", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this schedule alone, with all that happens")
    parser.add_argument(
        "--without", action="append", default=[], type=Rule, help=", ".join(Rule), metavar="RULE"
    )
    asked = parser.parse_args(arguments)
    without = frozenset(asked.without)
    with Stores() as stores:
        campaign = Campaign(stores)
        if asked.seed is not None:
            broken = campaign.run(asked.seed, without=without, trace=print)
            print(*(broken or ["every promise is kept"]), sep="\n")
            return bool(broken)
        began_s = time.monotonic()
        seeds = range(asked.first, asked.first + asked.schedules)
        found = campaign.find(seeds, without=without)
        spent_s = time.monotonic() - began_s
    print(f"{asked.schedules} schedules in {spent_s:.0f} s")
    for what, broke in sorted(found.items()):
        print(f"{what}: {len(broke)} times; {replay(broke[0], asked.without)}")
    if not found:
        print("every promise is kept in all of them")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
