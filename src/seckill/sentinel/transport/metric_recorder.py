"""What happened in each second: the last minutes in memory, all of it in files.

The dashboard asks for each second once, two to nine seconds after it is over, and never again. So a
second can be had from memory as soon as it is over, whether or not it is written yet.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import chain
from typing import TYPE_CHECKING, Final

from seckill.sentinel.transport.counts import MS_PER_S
from seckill.sentinel.transport.metric_line import MetricLine, in_line, line_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seckill.sentinel.transport.counts import MetricRow
    from seckill.sentinel.transport.metric_files import MetricFileReader, MetricFileWriter
    from seckill.sentinel.transport.sources import StatisticsSource

MEMORY_SECONDS: Final = 360
MEMORY_SECONDS_MIN: Final = 20
MEMORY_ROWS_MAX: Final = 150_000
"""Rows beyond it push the oldest seconds out, but never the last ``MEMORY_SECONDS_MIN``."""

SOURCE_SECONDS: Final = 59
"""How far back a source remembers."""

AFTER_SECOND_S: Final = 0.02

_LOG: Final = logging.getLogger(__name__)


class MetricRecorder:
    """Takes the seconds that are over from a source, remembers them, and writes them.

    Args:
        source: of the numbers.
        writer: of files; None for memory only. It is closed at the end of ``run``.
        reader: of files, for what memory no longer has.
        settle_s: whole seconds to wait before a second is written, for sources that learn of a
            second some time after it is over. Until then it is asked for again and again.

    Attributes:
        write_errors: times that seconds could not be written, since the start; for metrics.
    """

    def __init__(
        self,
        source: StatisticsSource,
        *,
        writer: MetricFileWriter | None = None,
        reader: MetricFileReader | None = None,
        settle_s: int = 0,
    ) -> None:
        self._source = source
        self._writer = writer
        self._reader = reader
        self._settle_ms = settle_s * MS_PER_S
        self._rows: dict[int, list[MetricRow]] = {}
        self._row_count = 0
        self._turn = asyncio.Lock()
        self._write_fails = False
        self.write_errors = 0
        # Everything up to here is written and settled.
        self._settled_ms = self._last_over_ms() - SOURCE_SECONDS * MS_PER_S
        if writer is not None:
            self._settled_ms = max(self._settled_ms, min(writer.last_ms(), self._last_over_ms()))
        # Everything after this is in memory.
        self._forgotten_ms = self._settled_ms
        self._refreshed_ms = self._settled_ms

    async def run(self) -> None:
        """Record each second as it ends, until cancelled; then write what there is."""
        try:
            while True:
                now_ms = self._source.now_ms()
                await asyncio.sleep((MS_PER_S - now_ms % MS_PER_S) / MS_PER_S + AFTER_SECOND_S)
                await self._try_refresh(settle=False)
        finally:
            await self._try_refresh(settle=True)
            if self._writer is not None:
                self._writer.close()

    async def refresh(self, *, settle: bool = False) -> None:
        """Take up the seconds that are over, and write those that are settled.

        Args:
            settle: count all of them as settled, because there will be no other time.
        """
        async with self._turn:
            over_ms = self._last_over_ms()
            if over_ms <= self._refreshed_ms and not self._settle_ms:
                return
            rows = await self._source.finished_seconds(self._settled_ms)
            rows = [row for row in rows if self._settled_ms < row.at_ms <= over_ms]
            self._remember(rows)
            settled_ms = over_ms if settle else over_ms - self._settle_ms
            due = [line_of(row) for row in rows if row.at_ms <= settled_ms]
            self._refreshed_ms = over_ms
            self._settled_ms = max(self._settled_ms, settled_ms)
            if due and self._writer is not None:
                await self._write(self._writer, due)

    async def _try_refresh(self, *, settle: bool) -> None:
        """Refresh, but never fail: a chart is not worth a service, and is tried anew."""
        try:
            await self.refresh(settle=settle)
        except Exception:  # noqa: BLE001  whatever it is, it is in the log
            _LOG.exception("the last second could not be recorded")

    async def lines(
        self,
        start_ms: int,
        end_ms: int | None,
        *,
        identity: str = "",
        line_count_max: int,
    ) -> list[MetricLine]:
        """The lines of a span of whole seconds, both ends among them, in order of time.

        Args:
            start_ms: any instant of the first second.
            end_ms: any instant of the last; None for all that come.
            identity: one resource only; empty for all.
            line_count_max: after so many no further second is begun. None is cut in half.

        Raises:
            OSError: files had to be read, and cannot be.
        """
        await self.refresh()
        found: list[MetricLine] = []
        forgotten_ms = self._forgotten_ms
        if self._reader is not None and start_ms < forgotten_ms + MS_PER_S:
            until_ms = forgotten_ms if end_ms is None else min(end_ms, forgotten_ms)
            found = await asyncio.to_thread(
                self._reader.read,
                start_ms,
                until_ms,
                identity=identity,
                line_count_max=line_count_max,
            )
        wanted = in_line(identity)
        start_ms -= start_ms % MS_PER_S
        for at_ms in sorted(self._rows):
            if len(found) >= line_count_max or (end_ms is not None and at_ms > end_ms):
                break
            if at_ms < start_ms or at_ms <= forgotten_ms:
                continue
            lines = map(line_of, self._rows[at_ms])
            found.extend(line for line in lines if not wanted or line.resource == wanted)
        return found

    def _last_over_ms(self) -> int:
        """The last second that is over."""
        now_ms = self._source.now_ms()
        return now_ms - now_ms % MS_PER_S - MS_PER_S

    def _remember(self, rows: Iterable[MetricRow]) -> None:
        """Put seconds in place of what was known of them."""
        fresh: dict[int, list[MetricRow]] = {}
        for row in rows:
            fresh.setdefault(row.at_ms, []).append(row)
        for at_ms, found in fresh.items():
            self._row_count += len(found) - len(self._rows.get(at_ms, ()))
            self._rows[at_ms] = found
        newest_ms = max(chain(self._rows, (self._forgotten_ms,)))
        for at_ms in sorted(self._rows):
            age_s = (newest_ms - at_ms) // MS_PER_S
            too_many = self._row_count > MEMORY_ROWS_MAX and age_s >= MEMORY_SECONDS_MIN
            if age_s < MEMORY_SECONDS and not too_many:
                break
            self._row_count -= len(self._rows.pop(at_ms))
            self._forgotten_ms = max(self._forgotten_ms, at_ms)

    async def _write(self, writer: MetricFileWriter, lines: list[MetricLine]) -> None:
        try:
            await asyncio.to_thread(writer.write, lines)
        except OSError as error:
            self.write_errors += 1
            if not self._write_fails:
                _LOG.warning("seconds cannot be written to metric files: %s", error)
            self._write_fails = True
        else:
            self._write_fails = False
