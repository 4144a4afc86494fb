"""Reports what the web processes of this host have acknowledged, into the ledger.

One process of a folder does it at a time (a lock decides), for all of them, the dead ones included:
their marks are in the same folder. Nothing of it is on the way of a purchase.

* When a bucket is fenced, at once, since nobody may judge it before. What is reported then is
  final: the script refuses every batch of that epoch, and a reply from before is not believed.
* Now and then without being asked, so that of a host that is lost as a whole little is unknown.
* At the end of the last process of the folder: a host that has left is not waited for.

Source: rule 5 of the fence, docs/concepts.md.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from seckill.admission.fence_ports import Fence, MarkLedger, ReportedMark
from seckill.admission.marks import Mark, living_slots, read_marks
from seckill.domain.clock import Clock
from seckill.domain.reservation import BucketId

__all__ = ["MarkReporter", "reports_due"]

_UNASKED_EVERY_MS: Final = 10_000
_QUIET_WAIT_MS: Final = 1_500
"""How long a reply under way is waited for before the report counts as final all the same."""

_Key = tuple[BucketId, int]


def reports_due(
    marks: Sequence[Mark],
    fences: Sequence[Fence],
    reported: dict[_Key, tuple[int, bool]],
    *,
    waited: set[_Key],
    unasked: bool,
) -> list[ReportedMark]:
    """What has to be reported now.

    Args:
        marks: of the folder.
        fences: what is not trusted now.
        reported: by bucket and epoch the seq that was reported last, and whether it was final.
        waited: fences whose replies under way have had their time.
        unasked: report also what nobody asked for.
    """
    highest: dict[_Key, int] = {}
    in_flight: set[_Key] = set()
    for mark in marks:
        key = (mark.bucket_id, mark.epoch)
        highest[key] = max(mark.seq, highest.get(key, 0))
        if mark.in_flight:
            in_flight.add(key)
    asked = {(fence.bucket_id, fence.epoch) for fence in fences}
    due = []
    for key in sorted(asked | highest.keys() if unasked else asked):
        final = key in asked and (key not in in_flight or key in waited)
        seq = highest.get(key, 0)
        before_seq, before_final = reported.get(key, (-1, False))
        if seq > before_seq or (final and not before_final):
            due.append(ReportedMark(*key, seq, final))
    return due


class MarkReporter:
    """Reports the marks of one folder.

    Args:
        folder: where the marks are.
        here: the name of the folder, see `marks.make_folder_id`.
    """

    def __init__(self, *, folder: Path, here: str, ledger: MarkLedger, clock: Clock) -> None:
        self._folder = folder
        self._here = here
        self._ledger = ledger
        self._clock = clock
        self._reported: dict[_Key, tuple[int, bool]] = {}
        self._asked_at_ms: dict[_Key, float] = {}
        self._unasked_at_ms = float("-inf")
        self._noticed: set[_Key] = set()

    async def notice(self, fenced: Sequence[tuple[BucketId, int, str]]) -> None:
        """Tell the ledger which buckets this process does not trust, each epoch once.

        Args:
            fenced: bucket, epoch, and why in plain words.

        Raises:
            LedgerUnavailable: call again.
        """
        for bucket_id, epoch, why in fenced:
            if epoch and (bucket_id, epoch) not in self._noticed:
                await self._ledger.notice(bucket_id, epoch, why)
                self._noticed.add((bucket_id, epoch))

    async def report(self) -> int:
        """Report what is due, unless another process of this folder does; returns how much.

        Raises:
            LedgerUnavailable: call again.
        """
        with _only_one(self._folder) as chosen:
            if not chosen:
                self._reported.clear()  # what the other one says, this one does not know
                return 0
            fences = await self._ledger.open_fences()
            now = self._clock.monotonic_ms()
            unasked = now - self._unasked_at_ms >= _UNASKED_EVERY_MS
            keys = {(fence.bucket_id, fence.epoch) for fence in fences}
            self._asked_at_ms = {key: self._asked_at_ms.get(key, now) for key in keys}
            if not unasked and not keys:
                return 0
            marks = await asyncio.to_thread(lambda: list(read_marks(self._folder)))
            waited = {key for key, at in self._asked_at_ms.items() if now - at > _QUIET_WAIT_MS}
            due = reports_due(marks, fences, self._reported, waited=waited, unasked=unasked)
            if due:
                await self._ledger.report_marks(self._here, due, leaving=False)
            for mark in due:
                self._reported[mark.bucket_id, mark.epoch] = (mark.seq, mark.answered)
            if unasked:
                self._unasked_at_ms = now
            return len(due)

    async def leave(self, slot: str) -> None:
        """To be called at the end of a process, when nothing is admitted any more.

        Args:
            slot: of this process, which does not count as living.

        Raises:
            LedgerUnavailable: this host will be taken for one that was lost.
        """
        marks = await asyncio.to_thread(lambda: list(read_marks(self._folder)))
        others = await asyncio.to_thread(lambda: living_slots(self._folder) - {slot})
        due = reports_due(marks, [], {}, waited=set(), unasked=True)
        await self._ledger.report_marks(self._here, due, leaving=not others)


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[bool]:
    """Whether this process is the one that reports, for as long as the block runs."""
    file = os.open(folder / "reporter.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(file)
