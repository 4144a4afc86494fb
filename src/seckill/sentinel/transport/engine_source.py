"""One engine in this process, as a source of numbers and a target of rules."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.transport.counts import Counts, MachineLoad, MetricRow, TreeRow
from seckill.sentinel.words import RESOURCE_INBOUND, RESOURCE_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from seckill.sentinel.engine import Sentinel
    from seckill.sentinel.node import DefaultNode, EntranceNode, Second, StatisticNode
    from seckill.sentinel.reports import LoadReport
    from seckill.sentinel.rule_store import Change

NODES_PER_HOLD: Final = 64
"""Nodes that are read while the engine's lock is held once: no call waits for a long list."""


class EngineSource:
    """A ``StatisticsSource`` and ``RuleTarget`` on one engine.

    The engine's lock is held for a few nodes at a time, and the loop gets its turn in between.
    Rules are loaded in a thread, because a large document takes long to read and a disk to write.
    """

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel

    def now_ms(self) -> int:
        """The engine's clock."""
        return self._sentinel.clock.now_ms()

    async def resources(self) -> list[Counts]:
        """Every resource."""
        nodes = self._sentinel.resources.values()
        return await self._read([(node.name, node.resource_type, node) for node in nodes])

    async def origins(self, resource: str) -> list[Counts]:
        """The callers of one resource."""
        node = self._sentinel.node(resource)
        if node is None:
            return []
        with self._sentinel.lock:
            found = [(name, 0, one) for name, one in node.origins.items()]
        return await self._read(found)

    async def inbound(self) -> Counts:
        """All entries of type ``IN`` together."""
        return (await self._read([(RESOURCE_INBOUND, 0, self._sentinel.inbound)]))[0]

    async def tree(self) -> list[TreeRow]:
        """The call tree."""
        with self._sentinel.lock:
            places = _places(self._sentinel.entrances)
        wanted = [
            (place.name, place.cluster.resource_type, place.statistic)
            for _, place in places
            if not isinstance(place, str)
        ]
        read = iter(await self._read(wanted))
        rows = [
            TreeRow(parent=parent, entrance=True, counts=Counts(name=place))
            if isinstance(place, str)
            else TreeRow(parent=parent, entrance=False, counts=next(read))
            for parent, place in places
        ]
        _sum_up(rows)
        return rows

    async def machine(self) -> MachineLoad:
        """How busy the machine is, as system rules see it."""
        with self._sentinel.lock:
            status = self._sentinel.system.status
            return MachineLoad(status.load(), status.cpu_usage())

    async def finished_seconds(self, after_ms: int) -> list[MetricRow]:
        """The seconds that began after an instant and are over; at most the last minute's."""
        sentinel = self._sentinel
        now_ns = sentinel.clock.now_ns()
        after_ns = after_ms * NANOSECONDS_PER_MS
        nodes: list[tuple[str, int, StatisticNode]] = [
            (node.name, node.resource_type, node) for node in sentinel.resources.values()
        ]
        nodes.append((RESOURCE_INBOUND, 0, sentinel.inbound))
        rows: list[MetricRow] = []
        for start in range(0, len(nodes), NODES_PER_HOLD):
            if start:
                await asyncio.sleep(0)
            with sentinel.lock:
                for name, kind, node in nodes[start : start + NODES_PER_HOLD]:
                    seconds = node.finished_since(after_ns, now_ns)
                    rows.extend(_row(name, kind, second) for second in seconds)
        rows.sort(key=lambda row: row.at_ms)
        return rows

    async def dump_rules(self, kind: str) -> str:
        """The rules in force, as a JSON list."""
        return await asyncio.to_thread(self._sentinel.dump_rules, kind)

    async def load_rules(self, kind: str, document: str, change: Change) -> LoadReport:
        """Put a whole list in force, and have it kept."""
        return await asyncio.to_thread(self._sentinel.load_rules, kind, document, change)

    async def enabled(self) -> bool:
        """Whether entries are checked and counted at all."""
        return self._sentinel.enabled

    async def set_enabled(self, *, enabled: bool) -> None:
        """Switch checking and counting on or off."""
        self._sentinel.enabled = enabled

    async def _read(self, nodes: Sequence[tuple[str, int, StatisticNode]]) -> list[Counts]:
        found: list[Counts] = []
        for start in range(0, len(nodes), NODES_PER_HOLD):
            if start:
                await asyncio.sleep(0)
            with self._sentinel.lock:
                now_ns = self._sentinel.clock.now_ns()
                found.extend(
                    _counts(name, kind, node, now_ns)
                    for name, kind, node in nodes[start : start + NODES_PER_HOLD]
                )
        return found


def _counts(name: str, resource_type: int, node: StatisticNode, now_ns: int) -> Counts:
    node.roll(now_ns)
    minute = node.minute(now_ns)
    return Counts(
        name=name,
        resource_type=resource_type,
        concurrency=node.concurrency,
        passed=node.window_passed,
        blocked=node.window_blocked,
        success=node.window_success,
        exceptions=node.window_exceptions,
        rt_ms=node.window_rt_ms,
        minute_passed=minute.passed,
        minute_blocked=minute.blocked,
        minute_exceptions=minute.exceptions,
    )


def _row(name: str, resource_type: int, second: Second) -> MetricRow:
    return MetricRow(
        second.start_ns // NANOSECONDS_PER_MS,
        name,
        second.passed,
        second.blocked,
        second.success,
        second.exceptions,
        second.rt_ms,
        second.occupied,
        # The original has the field and always writes 0.
        0,
        resource_type,
    )


def _places(entrances: dict[str, EntranceNode]) -> list[tuple[int, str | DefaultNode]]:
    """The tree in order of a walk, each place with its parent's index; contexts by name only."""
    places: list[tuple[int, str | DefaultNode]] = [(-1, RESOURCE_ROOT)]
    for name, entrance in entrances.items():
        places.append((0, name))
        # Not by recursion: a chain of calls may be as deep as there are resources.
        waiting = [(len(places) - 1, child) for child in _backwards(entrance.children.values())]
        while waiting:
            parent, place = waiting.pop()
            places.append((parent, place))
            here = len(places) - 1
            waiting.extend((here, child) for child in _backwards(place.children.values()))
    return places


def _backwards(children: Iterable[DefaultNode]) -> list[DefaultNode]:
    return list(children)[::-1]


def _sum_up(rows: list[TreeRow]) -> None:
    """Give contexts the sums of their children, then the root the sums of the contexts."""
    for wanted in (False, True):
        for row in rows:
            parent = row.parent
            if parent < 0 or row.entrance is not wanted or not rows[parent].entrance:
                continue
            above = rows[parent]
            rows[parent] = TreeRow(
                parent=above.parent, entrance=True, counts=above.counts.plus(row.counts)
            )
