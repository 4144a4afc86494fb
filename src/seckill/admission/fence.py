"""The fence: notices that Redis is not the one it was, judges each bucket, lets it go on or not.

The keeper runs beside the order worker, since it speaks for the ledger, which owns the epochs.
Every web process fences a bucket by itself, in the script, before anybody can be admitted on it
(lua/bucket.lua); the keeper decides when it may open again. What is to be thought of what it sees
is decided by pure functions (judging.py). It is written so that several keepers at once do no harm:
the ledger hands out each epoch once, and the scripts refuse a second opening.
Source: rules 3 to 9 of the fence, docs/concepts.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from redis.asyncio import Redis

from seckill.admission.bucket import Buckets, BucketView
from seckill.admission.catalogue import publish
from seckill.admission.errors import BucketFenced
from seckill.admission.fence_ports import (
    CurrentEpoch,
    Fence,
    FenceChannel,
    FenceLedger,
    Rebuild,
    Reopening,
)
from seckill.admission.host_evidence import HostEvidence
from seckill.admission.judging import (
    Evidence,
    Patience,
    Ruling,
    Sight,
    Step,
    first_sight,
    judge,
    ledger_behind,
    why_id_is_reused,
)
from seckill.admission.keys import Keys
from seckill.admission.rebuild import BucketRebuild
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Status
from seckill.domain.clock import Clock
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId
from seckill.domain.sale import Sale, SaleState

__all__ = ["FenceKeeper", "Verdict"]

_log = structlog.get_logger()

_ENDED_EVERY_MS: Final = 5_000
_OPENING_MS_MAX: Final = 1_000
"""How long a first opening that was begun may take, before it counts as lost."""

_BOOKS_EVERY_MS: Final = 1_000
"""How often a bucket that goes well is compared with how far the ledger has been."""


class Verdict(StrEnum):
    """What the keeper found out about one bucket."""

    FINE = "fine"
    REOPENED = "reopened"
    WAITING = "waiting"
    """A web process may still get a reply from before: judged at the next look."""

    MARKS_ELSEWHERE = "marks_elsewhere"
    """Another host has not said yet what it acknowledged: judged when it has, or had its time."""

    NEEDS_REBUILD = "needs_rebuild"
    NEEDS_OPERATOR = "needs_operator"
    """The ledger is older than it was, or an operator works on it: not rebuilt unasked."""


class FenceKeeper:
    """Keeps the buckets in Redis and their epochs in the ledger in step.

    Args:
        channel: what is under way between Redis and the ledger.
        marks_folder: where the web processes of this host keep their marks.
        withhold: take units off sale for purchases that a rebuild names as lost.
    """

    def __init__(
        self,
        *,
        redis: Redis,
        buckets: Buckets,
        keys: Keys,
        ledger: FenceLedger,
        channel: FenceChannel,
        marks_folder: Path,
        ids: ReservationIds,
        clock: Clock,
        patience: Patience | None = None,
        withhold: bool = True,
    ) -> None:
        self._redis = redis
        self._buckets = buckets
        self._keys = keys
        self._ledger = ledger
        self._channel = channel
        self._clock = clock
        self._patience = patience or Patience()
        self._hosts = HostEvidence(ledger, marks_folder, self._patience)
        self._ids = ids
        self._withhold = withhold
        self._seen_at_ms: dict[tuple[BucketId, int], float] = {}
        self._opening_since_ms: dict[tuple[BucketId, int], float] = {}
        self._reported: dict[BucketId, tuple[Verdict, str]] = {}
        self._epochs: dict[BucketId, int] = {}
        self._quiet_looked_at_ms: dict[BucketId, float] = {}
        self._compared: dict[BucketId, tuple[int, int, float]] = {}

    @property
    def known_epochs(self) -> Mapping[BucketId, int]:
        """Every bucket that there is, with its newest epoch, as of the last look."""
        return self._epochs

    async def keep(self) -> dict[BucketId, Verdict]:
        """Look at every bucket once: open what is to be opened, carry on what lost nothing.

        Raises:
            StockUnavailable, LedgerUnavailable, ChannelUnavailable: nothing half done; call again.
        """
        epochs = await self._ledger.current_epochs()
        fences = {fence.bucket_id: fence for fence in await self._ledger.open_fences()}
        # Read after the epochs: every epoch has its sale then.
        sales = {sale.sale_id: sale for sale in await self._ledger.sales()}
        self._epochs = {current.bucket_id: current.epoch for current in epochs}
        verdicts: dict[BucketId, Verdict] = {}
        for current in epochs:
            sale = sales[current.bucket_id.sale_id]
            fence = fences.get(current.bucket_id)
            if fence is not None or self._due(sale, current.bucket_id):
                try:
                    verdict, why = await self._keep_bucket(sale, current, fence)
                except BucketFenced as moved:
                    # Another keeper moved it: the next look sees where.
                    verdict, why = Verdict.WAITING, moved.reason
                verdicts[current.bucket_id] = verdict
                self._report(current.bucket_id, verdict, why)
        # Last: who reads of a sale there finds its bucket open.
        await publish(
            self._redis, self._keys, _on_show(sales.values()), partial(self._shown, sales)
        )
        return verdicts

    async def _shown(self, looked_at: Mapping[SaleId, Sale]) -> list[Sale] | None:
        """What is to be published; None when a sale has come whose bucket was not looked at.

        Who made that sale publishes it, and so does the next look.
        """
        newest = await self._ledger.sales()
        return _on_show(newest) if all(sale.sale_id in looked_at for sale in newest) else None

    def _due(self, sale: Sale, bucket_id: BucketId) -> bool:
        """Whether to look now: at a sale that is over only now and then, for there may be many."""
        if sale.state_at(self._clock.now_ms()) is not SaleState.ENDED:
            return True
        now = self._clock.monotonic_ms()
        if now - self._quiet_looked_at_ms.get(bucket_id, float("-inf")) < _ENDED_EVERY_MS:
            return False
        self._quiet_looked_at_ms[bucket_id] = now
        return True

    def _report(self, bucket_id: BucketId, verdict: Verdict, why: str) -> None:
        """Log a change of verdict, once."""
        before, self._reported[bucket_id] = self._reported.get(bucket_id), (verdict, why)
        if before == (verdict, why):
            return
        match verdict:
            case Verdict.FINE:
                pass
            case Verdict.REOPENED:
                _log.info("the bucket is open", bucket=bucket_id, epoch=self._epochs[bucket_id])
            case Verdict.WAITING:
                _log.info("the bucket stays closed for a moment", bucket=bucket_id, why=why)
            case Verdict.MARKS_ELSEWHERE:
                _log.warning(
                    "the bucket stays closed until every host has reported", bucket=bucket_id
                )
            case Verdict.NEEDS_REBUILD:
                _log.error(
                    "the bucket has lost data and must be rebuilt", bucket=bucket_id, why=why
                )
            case Verdict.NEEDS_OPERATOR:
                _log.error(
                    "the bucket stays closed until an operator decides: see `seckill reconcile`",
                    bucket=bucket_id,
                    why=why,
                )

    async def _keep_bucket(  # noqa: PLR0911  -- one for each step
        self, sale: Sale, current: CurrentEpoch, fence: Fence | None
    ) -> tuple[Verdict, str]:
        bucket_id = current.bucket_id
        view = await self._buckets.look(bucket_id)
        sight = first_sight(view, current, suspected=_suspected(fence, current))
        if sight.step is Step.JUDGE and view.status is Status.OK:
            # It still admits, so what is judged now would not be what goes on: stop it first.
            await self._buckets.doubt(bucket_id, view.epoch)
            view = await self._buckets.look(bucket_id)
            sight = first_sight(view, current, suspected=_suspected(fence, current))
        match sight.step:
            case Step.FINE:
                if view.version < sale.version:
                    await self._buckets.define(sale, bucket_id)
                older = await self._why_books_are_older(view, current)
                if older is not None:
                    return await self._stop_for_operator(current, older)
                # Whoever opened it may have died before the last words.
                await self._end_fence(fence, current, view)
                return Verdict.FINE, ""
            case Step.CONFIRM:
                await self._ledger.mark_open(bucket_id, current.epoch)
                await self._end_fence(fence, current, view)
                return Verdict.REOPENED, ""
            case Step.OPEN_FIRST:
                return await self._open_first(sale, current, fence)
            case Step.LEDGER_BEHIND:
                # Unless another keeper has made that epoch since the ledger was asked.
                now = await self._current(bucket_id)
                if now.epoch < view.epoch or why_id_is_reused(view, now) is not None:
                    return await self._stop_for_operator(now, sight.why)
                return Verdict.WAITING, "another keeper has moved it"
            case Step.JUDGE | Step.REBUILD:
                # Closed by the ledger, and not yet left by Redis: it is the old epoch that ends.
                ending = current.epoch if sight.to_epoch is None else view.epoch
                fence = fence or await self._ledger.notice(bucket_id, ending, sight.why)
                return await self._decide(sale, view, current, fence, sight)

    async def _decide(
        self,
        sale: Sale,
        view: BucketView,
        current: CurrentEpoch,
        fence: Fence | None,
        sight: Sight,
    ) -> tuple[Verdict, str]:
        if fence is None:
            return Verdict.WAITING, "another keeper has moved it"
        if fence.needs_operator:
            return Verdict.NEEDS_OPERATOR, fence.cause
        # Before anything else: neither a rebuild nor going on may make the older books the truth.
        written_seq = await self._ledger.known_seq(current.bucket_id, view.epoch)
        if (older := ledger_behind(view, written_seq)) is not None:
            return await self._stop_for_operator(current, older)
        if sight.step is Step.REBUILD:
            return Verdict.NEEDS_REBUILD, sight.why
        return await self._go_on(sale, view, current, fence, sight)

    async def _current(self, bucket_id: BucketId) -> CurrentEpoch:
        epochs = await self._ledger.current_epochs()
        return next(current for current in epochs if current.bucket_id == bucket_id)

    async def _why_books_are_older(self, view: BucketView, current: CurrentEpoch) -> str | None:
        """Compare the ledger with how far it has been; have Redis remember how far it is."""
        bucket_id, now = current.bucket_id, self._clock.monotonic_ms()
        epoch, seq, at_ms = self._compared.get(bucket_id, (0, 0, float("-inf")))
        if (epoch, seq) == (view.epoch, view.seq) and view.written_seq >= view.seq:
            return None  # nothing has happened since, and all of it was written
        if epoch == view.epoch and now - at_ms < _BOOKS_EVERY_MS:
            return None
        written_seq = await self._ledger.known_seq(bucket_id, view.epoch)
        if (older := ledger_behind(view, written_seq)) is not None:
            return older
        if written_seq > view.written_seq:
            await self._buckets.note_written(bucket_id, view.epoch, written_seq)
        self._compared[bucket_id] = (view.epoch, view.seq, now)
        return None

    async def _stop_for_operator(self, current: CurrentEpoch, why: str) -> tuple[Verdict, str]:
        """Close a bucket of which Redis knows more than the ledger: a rebuild would forget that."""
        fence = await self._ledger.notice(
            current.bucket_id, current.epoch, why, needs_operator=True
        )
        if fence is None:
            return Verdict.WAITING, "another keeper has moved it"
        view = await self._buckets.look(current.bucket_id)
        await self._buckets.fence_off(current.bucket_id, max(view.epoch, current.epoch))
        return Verdict.NEEDS_OPERATOR, why

    async def _open_first(
        self, sale: Sale, current: CurrentEpoch, fence: Fence | None
    ) -> tuple[Verdict, str]:
        """Open a bucket that is not there: because it never was, or because it is lost?"""
        bucket_id, epoch = current.bucket_id, current.epoch
        if current.begun or not await self._ledger.begin_opening(bucket_id, epoch):
            # Somebody opens it just now, or it was open for a moment and is lost. Under this epoch
            # it must not be opened a second time: buyers may have been admitted under it, and
            # the first of them would be named again.
            now = self._clock.monotonic_ms()
            since_ms = self._opening_since_ms.setdefault((bucket_id, epoch), now)
            if fence is None and now - since_ms < _OPENING_MS_MAX:
                hosts = await self._hosts.of_epoch(bucket_id, epoch)
                if not any(host.seq for host in hosts):
                    return Verdict.WAITING, "it is being opened"
            await self._ledger.notice(bucket_id, epoch, _GONE_AT_ONCE)
            return Verdict.NEEDS_REBUILD, _GONE_AT_ONCE
        if await self._buckets.open(sale, bucket_id, epoch, current.put_units) is not Status.OK:
            # Another keeper was faster; or only a rest of the bucket is there, which has the epoch.
            view = await self._buckets.look(bucket_id)
            if view.status is not Status.OK:
                await self._ledger.notice(bucket_id, epoch, _GONE_AT_ONCE)
                return Verdict.NEEDS_REBUILD, _GONE_AT_ONCE
        await self._ledger.mark_open(bucket_id, epoch)
        return Verdict.REOPENED, ""

    async def _go_on(
        self,
        sale: Sale,
        view: BucketView,
        current: CurrentEpoch,
        fence: Fence,
        sight: Sight,
    ) -> tuple[Verdict, str]:
        """Let a bucket that is on another server go on, if nothing is behind.

        Args:
            view: the bucket as it was judged.
        """
        bucket_id = current.bucket_id
        evidence = Evidence(
            seq=view.seq,
            hosts=await self._hosts.of_epoch(bucket_id, view.epoch),
            written_seq=await self._ledger.known_seq(bucket_id, view.epoch),
            carried_seq=await self._channel.carried_seq(bucket_id, view.epoch),
            waited_ms=self._waited_ms(bucket_id, view.epoch),
            confirmed_seq=await self._ledger.confirmed_seq(bucket_id, view.epoch),
            closed=sight.to_epoch is not None,
        )
        judgement = judge(evidence, self._patience)
        match judgement.ruling:
            case Ruling.WAIT:
                return Verdict.WAITING, judgement.why
            case Ruling.AWAIT_REPORTS:
                return Verdict.MARKS_ELSEWHERE, judgement.why
            case Ruling.REBUILD:
                return Verdict.NEEDS_REBUILD, judgement.why
            case Ruling.GO_ON:
                pass
        to_epoch = sight.to_epoch
        if to_epoch is None:
            to_epoch = await self._ledger.carry_on(bucket_id, view.epoch, view.seq)
        if not await self._buckets.carry_on(bucket_id, view.epoch, view.seq, to_epoch):
            return Verdict.WAITING, "it is not as it was judged"  # the next look sees what it is
        await self._ledger.mark_open(bucket_id, to_epoch)
        self._epochs[bucket_id] = to_epoch
        await self._buckets.define(sale, bucket_id)
        await self._end_fence(fence, replace(current, epoch=to_epoch), view)
        return Verdict.REOPENED, ""

    def _waited_ms(self, bucket_id: BucketId, epoch: int) -> float:
        now = self._clock.monotonic_ms()
        return now - self._seen_at_ms.setdefault((bucket_id, epoch), now)

    async def _end_fence(
        self, fence: Fence | None, current: CurrentEpoch, view: BucketView
    ) -> None:
        """Write the statement of a bucket that has gone on."""
        if fence is None or fence.epoch >= current.epoch:
            return
        bucket_id = current.bucket_id
        noticed_at_ms = await self._ledger.reopened(
            bucket_id,
            Reopening(
                rebuilt=current.by_rebuild,
                new_epoch=current.epoch,
                put_units=view.put_units,
                held_units=view.held_units,
                buyers=view.buyers,
            ),
        )
        if noticed_at_ms is not None:
            _log.warning(
                "the sale goes on",
                bucket=bucket_id,
                because=fence.cause,
                paused_for_ms=max(0, self._clock.now_ms() - noticed_at_ms),
                lost=0,
                compensated=0,
                oversold=0,
                left=view.stock_units,
                held=view.held_units,
            )

    async def rebuild(self, bucket_id: BucketId, *, deadline_ms: int) -> Rebuild:
        """Close a bucket, let what is under way run dry into the ledger, make it anew from there.

        Args:
            deadline_ms: longest wait for that, and for web processes with calls under way.

        Raises:
            BucketFenced: it did not run dry in time, or somebody else rebuilds it; the bucket stays
                closed, and the rebuild can be started again.
            StockUnavailable, LedgerUnavailable, ChannelUnavailable: the same.
        """
        return await BucketRebuild(
            bucket_id,
            buckets=self._buckets,
            ledger=self._ledger,
            channel=self._channel,
            hosts=self._hosts,
            ids=self._ids,
            clock=self._clock,
            withhold=self._withhold,
        ).run(deadline_ms)


_GONE_AT_ONCE: Final = "it was opened, and is not there any more"


def _on_show(sales: Iterable[Sale]) -> list[Sale]:
    return [sale for sale in sales if not sale.closed]


def _suspected(fence: Fence | None, current: CurrentEpoch) -> bool:
    """Whether the newest epoch itself is under a fence: its bucket needs a later one."""
    return fence is not None and fence.epoch == current.epoch
