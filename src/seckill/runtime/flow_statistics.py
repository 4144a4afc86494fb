"""What each web process counts, told to the one process that speaks for the host.

Once a second a web process leaves its numbers in a small file, whole; the process with the command
port reads the files of all and shows their sum as one machine. A file, and not a pipe: neither has
to wait for the other, and either may be started again at any time.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from seckill.runtime.data_dir import DataDir, write_atomically
from seckill.sentinel import Sentinel
from seckill.sentinel.transport import Counts, EngineSource, MachineLoad, MetricRow, TreeRow

__all__ = ["PublishedStatistics", "Snapshot", "StatisticsPublisher", "statistics_file"]

_LOG: Final = structlog.get_logger(__name__)

_MS_PER_S: Final = 1_000
_SECONDS_TOLD: Final = 30
_AFTER_SECOND_S: Final = 0.01
_AGE_MS_MAX: Final = 3_000
"""Older numbers are those of a process that is gone, or hangs."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one process as of one instant; see `StatisticsSource` for each."""

    at_ms: int
    resources: list[Counts]
    tree: list[TreeRow]
    inbound: Counts
    machine: MachineLoad
    origins: dict[str, list[Counts]]
    seconds: list[MetricRow]


_ENCODE: Final = msgspec.json.Encoder().encode
_DECODE: Final = msgspec.json.Decoder(Snapshot).decode


def statistics_file(data: DataDir, slot: int) -> Path:
    """Where a web process leaves its numbers."""
    return data.flow / f"web-{slot}.json"


class StatisticsPublisher:
    """Leaves the numbers of one engine in a file, once a second.

    Args:
        sentinel: the engine.
        path: the file.
    """

    def __init__(self, sentinel: Sentinel, path: Path) -> None:
        self._source = EngineSource(sentinel)
        self._path = path
        self._fails = False

    async def run(self) -> None:
        """Publish just after each second, until cancelled. A full disk costs the charts only."""
        while True:
            now_ms = self._source.now_ms()
            await asyncio.sleep((_MS_PER_S - now_ms % _MS_PER_S) / _MS_PER_S + _AFTER_SECOND_S)
            await self.publish()

    async def publish(self) -> None:
        """Write the numbers of now."""
        content = _ENCODE(await self._look())
        try:
            await asyncio.to_thread(write_atomically, self._path, content)
        except OSError as error:
            if not self._fails:
                _LOG.warning("the numbers of flow control cannot be told", error=str(error))
            self._fails = True
        else:
            self._fails = False

    async def _look(self) -> Snapshot:
        source = self._source
        at_ms = source.now_ms()
        resources = await source.resources()
        origins = {one.name: await source.origins(one.name) for one in resources}
        return Snapshot(
            at_ms=at_ms,
            resources=resources,
            tree=await source.tree(),
            inbound=await source.inbound(),
            machine=await source.machine(),
            origins={name: found for name, found in origins.items() if found},
            seconds=await source.finished_seconds(at_ms - _SECONDS_TOLD * _MS_PER_S),
        )


class NumbersMissing(Exception):  # noqa: N818  -- reads as what it is
    """A process has not told its numbers lately: it is gone, hangs, or has just begun."""


class PublishedStatistics:
    """A `StatisticsSource`: what one web process told last.

    Args:
        path: its file.
        now_ms: the clock of the host.
    """

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        self._path = path
        self.now_ms = now_ms
        self._seen: tuple[int, int] = (0, 0)
        self._snapshot: Snapshot | None = None

    def __repr__(self) -> str:
        return self._path.stem

    def is_there(self) -> bool:
        """Whether the process has told anything yet."""
        return self._path.exists()

    async def resources(self) -> list[Counts]:
        """See StatisticsSource."""
        return (await self._latest()).resources

    async def tree(self) -> list[TreeRow]:
        """See StatisticsSource."""
        return (await self._latest()).tree

    async def origins(self, resource: str) -> list[Counts]:
        """See StatisticsSource."""
        return (await self._latest()).origins.get(resource, [])

    async def inbound(self) -> Counts:
        """See StatisticsSource."""
        return (await self._latest()).inbound

    async def machine(self) -> MachineLoad:
        """See StatisticsSource."""
        return (await self._latest()).machine

    async def finished_seconds(self, after_ms: int) -> list[MetricRow]:
        """See StatisticsSource. What is over stays true, however long ago it was told."""
        snapshot = await asyncio.to_thread(self._read)
        return [] if snapshot is None else [r for r in snapshot.seconds if r.at_ms > after_ms]

    async def _latest(self) -> Snapshot:
        """The numbers, read again if they are new.

        Raises:
            NumbersMissing: there are none, or they are old.
        """
        snapshot = await asyncio.to_thread(self._read)
        if snapshot is None or self.now_ms() - snapshot.at_ms > _AGE_MS_MAX:
            raise NumbersMissing(f"{self._path.stem} has told no numbers lately")
        return snapshot

    def _read(self) -> Snapshot | None:
        try:
            stat = self._path.stat()
            if (stat.st_ino, stat.st_mtime_ns) != self._seen:
                self._snapshot = _DECODE(self._path.read_bytes())
                self._seen = (stat.st_ino, stat.st_mtime_ns)
        except (OSError, msgspec.MsgspecError):
            # Being written for the first time, or by another version.
            return None
        return self._snapshot
