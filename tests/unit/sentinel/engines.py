"""An engine on a virtual clock, with short words for what tests do all the time."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass

from seckill.sentinel import (
    BlockException,
    Difference,
    Entry,
    Sentinel,
    Settings,
    VirtualClock,
    VirtualWaiter,
)


@dataclass
class Bench:
    """An engine with its clock and its waiter, and short words for what tests do all the time."""

    sentinel: Sentinel
    clock: VirtualClock
    waiter: VirtualWaiter
    start_ms: int

    def at(self, ms: int) -> None:
        """Move to so many ms after the start."""
        self.clock.set_ms(self.start_ms + ms)

    def passes(self, calls: int, name: str = "r", **how: object) -> int:
        """So many calls at once, each ended at once: how many are let in."""
        return sum(self.passes_one(name, **how) for _ in range(calls))

    def passes_one(self, name: str = "r", **how: object) -> bool:
        entry = self.sentinel.try_entry(name, **how)  # type: ignore[arg-type]
        if isinstance(entry, BlockException):
            return False
        entry.exit()
        return True

    def enter(self, name: str = "r", *args: object, **how: object) -> Entry:
        """A call that has to be let in, and stays open; as if in a task of its own."""
        entry = contextvars.copy_context().run(
            lambda: self.sentinel.try_entry(name, *args, **how)  # type: ignore[arg-type]
        )
        assert isinstance(entry, Entry), entry
        return entry

    def refusal(self, name: str = "r", *args: object, **how: object) -> BlockException:
        """A call that has to be refused."""
        block = self.sentinel.try_entry(name, *args, **how)  # type: ignore[arg-type]
        assert isinstance(block, BlockException)
        return block


def make_bench(
    *, undone: frozenset[Difference] = frozenset(), advance: bool = True, **more: object
) -> Bench:
    clock = VirtualClock()
    waiter = VirtualWaiter(clock, advance=advance)
    settings = more.pop("settings", None) or Settings(undone=undone)
    sentinel = Sentinel(settings=settings, clock=clock, waiter=waiter, **more)  # type: ignore[arg-type]
    return Bench(sentinel, clock, waiter, clock.now_ms())
