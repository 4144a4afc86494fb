"""What lua/lease.lua does, in plain Python: for comparison with it, and for simulations."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

SLICES = 50
BLOCK_PARTS = 10


@dataclass
class Window:
    """What was granted of one rule."""

    units: dict[int, int] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)
    born_ms: int = 0
    until_ms: int = 0


@dataclass
class LeaseModel:
    """One Redis."""

    workers: dict[str, tuple[int, bool, int]] = field(default_factory=dict)
    floor: tuple[int, int] = (0, 0)
    lost_ms: int = 0
    workers_until_ms: int = 0
    windows: dict[str, Window] = field(default_factory=dict)

    def forget(self) -> None:
        """Lose everything, as a restart without a disk does."""
        self.workers, self.floor, self.lost_ms, self.windows = {}, (0, 0), 0, {}

    def run(self, keys: list[str], body: str, now_ms: int) -> str:
        request = json.loads(body)
        me, state = request["worker"], request["state"]
        if now_ms > self.workers_until_ms:
            self.workers, self.floor, self.lost_ms = {}, (0, 0), 0
        self.workers_until_ms = now_ms + request["forget_ms"] * 2
        others = {
            name: seen
            for name, seen in self.workers.items()
            if name != me and now_ms - seen[0] <= request["forget_ms"]
        }
        known = len(others) + (state != "leaving")
        rank = sum(name < me for name in others)
        apart = [
            told
            for at_ms, on, told in others.values()
            if not on or now_ms - at_ms > request["silence_ms"]
        ]
        until_ms, floor = self.floor if now_ms <= self.floor[0] else (0, 0)
        if request["listed"] and me not in self.workers:
            self.lost_ms = now_ms
        if me not in self.workers and request["workers"] > max(floor, 1):
            until_ms, floor = now_ms + request["forget_ms"], request["workers"]
        apart += [floor] * max(0, floor - known)
        known = max(known, floor)
        counts_on = max(1, min(request["workers"], known))
        apart += [counts_on] * (state == "sharing")
        self.workers = others
        if state != "leaving":
            self.workers[me] = (now_ms, state == "leasing", counts_on)
        self.floor = (until_ms, floor)
        reply = [now_ms, known, rank]
        for key, rule in zip(keys[1:], request["rules"], strict=True):
            reply += self._rule(key, rule, me, state, known, apart, now_ms)
        return json.dumps(reply)

    def _rule(  # noqa: C901  step by step as the script, for comparison
        self, key: str, rule: Any, me: str, state: str, known: int, apart: list[int], now_ms: int
    ) -> list[int]:
        window_ms = rule["window_ms"]
        slice_ms = math.ceil(window_ms / SLICES)
        dated = now_ms - now_ms % slice_ms
        total = math.floor(rule["count"] * (known if rule["each"] else 1) + 1e-6)
        window = self.windows.get(key)
        if window is not None and now_ms > window.until_ms:
            window = None
        units: dict[int, int] = {}

        def add(start_ms: int, count: int) -> None:
            if count > 0 and start_ms + slice_ms + window_ms > now_ms:
                start_ms = min(start_ms, dated)
                units[start_ms] = units.get(start_ms, 0) + count

        if window is None:
            window = Window(born_ms=dated)
            add(self.lost_ms - self.lost_ms % slice_ms, total)
        if rule["had"] and rule["dated"] < window.born_ms:
            add(dated, total)
        for start_ms, count in window.units.items():
            add(start_ms, count)
        for age_ms, count in zip(rule["shared"][::2], rule["shared"][1::2], strict=True):
            at_ms = now_ms - age_ms
            add(at_ms - at_ms % slice_ms, count)
        if rule["dated"] in units:
            units[rule["dated"]] = max(0, units[rule["dated"]] - rule["keep"] - rule["drop"])
        add(dated, rule["keep"] + rule["owed"])
        busy = {
            name: at_ms
            for name, at_ms in window.busy.items()
            if name != me and now_ms - at_ms <= window_ms
        }
        block = max(1, total // BLOCK_PARTS // (len(busy) + 1))
        if rule["want"]:
            busy[me] = now_ms
        left = total - sum(units.values()) - sum(math.ceil(total / told) for told in apart)
        granted = 0
        if state == "leasing":
            most = max(block, min(rule["need"], total))
            granted = max(0, min(rule["want"], most - rule["keep"], left))
        retry_ms = 0
        if granted < rule["want"] and left <= granted:
            oldest = min((at_ms for at_ms, count in units.items() if count), default=None)
            retry_ms = slice_ms * 5 if oldest is None else oldest + slice_ms + window_ms - now_ms
        add(dated, granted)
        until_ms = now_ms + window_ms * 2 + 1_000
        self.windows[key] = Window(units, busy, window.born_ms, until_ms)
        return [granted, dated, block, retry_ms, int(left > granted)]
