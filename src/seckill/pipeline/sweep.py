"""The sweep: carries what the ledger has decided to Redis, until Redis has confirmed it.

It is the outbox idea in reverse. A release or a stock change is a row of the ledger first, pending;
the scripts apply it once, however often they are told; then the row is done. A process that dies
anywhere between leaves a pending row, and the next sweep goes on from there.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from seckill.admission.bucket import MADE_EARLIER, RELEASES_PER_CALL_MAX, Buckets
from seckill.admission.errors import ScriptRefused, StockUnavailable
from seckill.admission.scripts import Status
from seckill.domain.ids import ReservationId
from seckill.domain.reservation import BucketId
from seckill.pipeline.ports import OrderLedger, PendingRelease

__all__ = ["Sweep"]

_log = structlog.get_logger()

_RELEASES_MAX: Final = 16_384
"""Releases that one sweep looks at, at most."""

_REFUSED_S_MIN: Final = 1.0
_REFUSED_S_MAX: Final = 300.0


class Sweep:
    """Carries pending releases and stock changes to Redis.

    Args:
        epochs: gives the epoch under which each bucket is open; a bucket that it lacks is left
            alone.
        on_released: called with the number of units given back.
        on_stuck: called with the number of releases that Redis refuses again and again. They stay
            pending, are tried again after a growing pause, and hold up no other.
    """

    def __init__(
        self,
        *,
        ledger: OrderLedger,
        buckets: Buckets,
        epochs: Callable[[], Mapping[BucketId, int]],
        on_released: Callable[[int], None],
        on_stuck: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._ledger = ledger
        self._buckets = buckets
        self._epochs = epochs
        self._on_released = on_released
        self._on_stuck = on_stuck
        # Those that are refused: how often, and when they are tried again (monotonic).
        self._refused: dict[ReservationId, tuple[int, float]] = {}
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
        now_s = time.monotonic()
        groups: dict[tuple[BucketId, int], list[PendingRelease]] = {}
        for release in pending:
            if self._refused.get(release.reservation_id, (0, 0.0))[1] <= now_s:
                group = (release.reservation.bucket_id, release.epoch)
                groups.setdefault(group, []).append(release)
        settled = 0
        for (bucket_id, epoch), releases in groups.items():
            for at in range(0, len(releases), RELEASES_PER_CALL_MAX):
                page = releases[at : at + RELEASES_PER_CALL_MAX]
                settled += await self._release_or_refuse(bucket_id, epoch, page)
        # Those of a fenced bucket stay the oldest, and so do refused ones. The next sweep looks
        # past them, or the releases of every other sale would wait for these.
        stuck = len(pending) - settled
        self._releases_max = min(stuck + RELEASES_PER_CALL_MAX, _RELEASES_MAX)
        if self._refused:
            self._refused = {
                release.reservation_id: self._refused[release.reservation_id]
                for release in pending
                if release.reservation_id in self._refused
            }
        self._on_stuck(len(self._refused))
        return settled

    async def _release_or_refuse(
        self, bucket_id: BucketId, epoch: int, releases: Sequence[PendingRelease]
    ) -> int:
        """Carry releases of one bucket; where one is refused, find it by halving."""
        try:
            settled = await self._release(bucket_id, epoch, releases)
        except (StockUnavailable, ScriptRefused) as error:
            # Whatever else it says is true of every bucket: there is no point in asking on.
            if isinstance(error, StockUnavailable) and error.kind != "other":
                raise
            if len(releases) > 1:
                middle = len(releases) // 2
                first = await self._release_or_refuse(bucket_id, epoch, releases[:middle])
                return first + await self._release_or_refuse(bucket_id, epoch, releases[middle:])
            self._refuse(releases[0].reservation_id, error)
            return 0
        for release in releases if settled else ():
            self._refused.pop(release.reservation_id, None)
        return settled

    def _refuse(self, reservation_id: ReservationId, error: Exception) -> None:
        tries = self._refused.get(reservation_id, (0, 0.0))[0] + 1
        pause_s = min(_REFUSED_S_MIN * 2 ** min(tries - 1, 20), _REFUSED_S_MAX)
        self._refused[reservation_id] = (tries, time.monotonic() + pause_s)
        _log.error(
            "a release is refused", reservation_id=reservation_id, tries=tries, error=str(error)
        )

    async def _release(
        self, bucket_id: BucketId, epoch: int, releases: Sequence[PendingRelease]
    ) -> int:
        seqs = await self._buckets.release(
            bucket_id,
            epoch,
            [(release.user_id, release.reservation) for release in releases],
            spent={release.reservation for release in releases if release.spent},
        )
        if isinstance(seqs, Status):
            return 0
        both = list(zip(releases, seqs, strict=True))
        unknown = [release.reservation_id for release, seq in both if seq == 0]
        if unknown:
            _log.error("released reservations were not held", reservation_ids=unknown)
        # What was made under an earlier epoch is confirmed by its event, which is on its way.
        made = [(release.reservation_id, seq) for release, seq in both if seq != MADE_EARLIER]
        await self._ledger.confirm_releases(made, epoch=epoch)
        self._on_released(sum(release.quantity for release, seq in both if seq > 0))
        return len(made)

    async def _sweep_stock_changes(self) -> int:
        settled = 0
        for change in await self._ledger.pending_stock_changes():
            bucket_id = BucketId(change.sale_id, 0)
            epoch = self._epochs().get(bucket_id)
            if epoch is None:
                continue
            seq = await self._buckets.change_stock(
                bucket_id, epoch, change.change_id, change.delta_units
            )
            if not isinstance(seq, Status) and seq != MADE_EARLIER:
                await self._ledger.confirm_stock_change(change.change_id, epoch=epoch, seq=seq)
                settled += 1
        return settled
