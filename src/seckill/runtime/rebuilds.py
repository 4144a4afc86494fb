"""Rebuilds without being asked: what needs it, by the keeper's word, a few buckets at a time."""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from seckill.admission.errors import BucketFenced, StockUnavailable
from seckill.admission.fence import FenceKeeper, Verdict
from seckill.domain.reservation import BucketId
from seckill.pipeline.errors import ChannelUnavailable, LedgerAway

__all__ = ["Rebuilds"]

_log = structlog.get_logger(__name__)

_AT_ONCE_MAX: Final = 2
_DEADLINE_MS: Final = 60_000
_PAUSE_S: Final = 1.0
"""Before a bucket whose rebuild came to no end is taken again."""


class Rebuilds:
    """Takes the keeper's verdicts and rebuilds what needs it, beside the worker that runs dry.

    Args:
        automatic: False leaves everything to an operator.
    """

    def __init__(self, fence: FenceKeeper, *, automatic: bool) -> None:
        self._fence = fence
        self._automatic = automatic
        self._waiting: asyncio.Queue[BucketId] = asyncio.Queue()
        self._taken: set[BucketId] = set()

    def take(self, verdicts: Mapping[BucketId, Verdict]) -> None:
        """Note what has to be rebuilt; each bucket once."""
        if not self._automatic:
            return
        for bucket_id, verdict in verdicts.items():
            if verdict is Verdict.NEEDS_REBUILD and bucket_id not in self._taken:
                self._taken.add(bucket_id)
                self._waiting.put_nowait(bucket_id)

    async def run(self) -> None:
        """Rebuild, for ever."""
        async with asyncio.TaskGroup() as lanes:
            for _ in range(_AT_ONCE_MAX):
                lanes.create_task(self._lane())

    async def _lane(self) -> None:
        while True:
            bucket_id = await self._waiting.get()
            try:
                await self._fence.rebuild(bucket_id, deadline_ms=_DEADLINE_MS)
            except (BucketFenced, StockUnavailable, ChannelUnavailable, LedgerAway) as error:
                # It stays closed; the keeper names it again as long as it needs a rebuild.
                _log.warning(
                    "a rebuild came to no end, and is tried again",
                    bucket=bucket_id,
                    why=str(error),
                )
                await asyncio.sleep(_PAUSE_S)
            finally:
                self._taken.discard(bucket_id)
