"""The sweep: carries what the ledger has decided to Redis, until Redis has confirmed it.

It is the outbox idea in reverse. A release or a stock change is a row of the ledger first, pending;
the scripts apply it once, however often they are told; then the row is done. A process that dies
anywhere between leaves a pending row, and the next sweep goes on from there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from seckill.admission.bucket import RELEASES_PER_CALL_MAX, Buckets
from seckill.admission.scripts import Status
from seckill.domain.reservation import BucketId
from seckill.pipeline.ports import OrderLedger, PendingRelease

__all__ = ["Sweep"]

_log = structlog.get_logger()

_RELEASES_MAX: Final = 16_384
"""Releases that one sweep looks at, at most."""


class Sweep:
    """Carries pending releases and stock changes to Redis.

    Args:
        epochs: gives the epoch under which each bucket is open; a bucket that it lacks is left
            alone.
        on_released: called with the number of units given back.
    """

    def __init__(
        self,
        *,
        ledger: OrderLedger,
        buckets: Buckets,
        epochs: Callable[[], Mapping[BucketId, int]],
        on_released: Callable[[int], None],
    ) -> None:
        self._ledger = ledger
        self._buckets = buckets
        self._epochs = epochs
        self._on_released = on_released
        self._releases_max = RELEASES_PER_CALL_MAX

    async def sweep(self) -> int:
        """Carry what is pending now; returns how many rows were settled.

        A bucket that is fenced keeps its rows pending; the next sweep tries again.

        Raises:
            StockUnavailable, LedgerAway: what was not confirmed is carried again.
        """
        return await self._sweep_stock_changes() + await self._sweep_releases()

    async def _sweep_releases(self) -> int:
        pending = await self._ledger.pending_releases(self._releases_max)
        groups: dict[tuple[BucketId, int], list[PendingRelease]] = {}
        for release in pending:
            groups.setdefault((release.reservation.bucket_id, release.epoch), []).append(release)
        settled = 0
        for (bucket_id, epoch), releases in groups.items():
            for at in range(0, len(releases), RELEASES_PER_CALL_MAX):
                page = releases[at : at + RELEASES_PER_CALL_MAX]
                settled += await self._release(bucket_id, epoch, page)
        # Those of a fenced bucket stay the oldest. The next sweep looks past them, or the releases
        # of every other sale would wait for that one's rebuild.
        stuck = len(pending) - settled
        self._releases_max = min(stuck + RELEASES_PER_CALL_MAX, _RELEASES_MAX)
        return settled

    async def _release(
        self, bucket_id: BucketId, epoch: int, releases: Sequence[PendingRelease]
    ) -> int:
        seqs = await self._buckets.release(
            bucket_id, epoch, [(release.user_id, release.reservation) for release in releases]
        )
        if isinstance(seqs, Status):
            return 0
        both = list(zip(releases, seqs, strict=True))
        unknown = [release.reservation_id for release, seq in both if seq == 0]
        if unknown:
            _log.error("released reservations were not held", reservation_ids=unknown)
        await self._ledger.confirm_releases(
            [(release.reservation_id, seq) for release, seq in both]
        )
        self._on_released(sum(release.quantity for release, seq in both if seq))
        return len(releases)

    async def _sweep_stock_changes(self) -> int:
        settled = 0
        for change in await self._ledger.pending_stock_changes():
            bucket_id = BucketId(change.sale_id, 0)
            epoch = self._epochs().get(bucket_id)
            if epoch is None:
                continue
            applied = await self._buckets.change_stock(
                bucket_id, epoch, change.change_id, change.delta_units
            )
            if not isinstance(applied, Status):
                await self._ledger.confirm_stock_change(change.change_id, applied=applied)
                settled += 1
        return settled
