"""A rebuild: closes a bucket, lets what is under way run dry, makes it anew from the ledger.

One rebuild of a bucket at a time: whoever holds the claim in the ledger and lets it beat. It may
die at any point. The next one starts over; the ledger names each loss once, and gives each epoch
once.
Source: rules 5, 8 and 9 of the fence, docs/concepts.md.
"""

import asyncio
import os
import socket
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog

from seckill.admission.bucket import Buckets, BucketView, held_units
from seckill.admission.errors import BucketFenced
from seckill.admission.fence_ports import (
    CurrentEpoch,
    Fence,
    FenceChannel,
    FenceLedger,
    Rebuild,
    RebuildPlan,
    Recovered,
    Reopening,
)
from seckill.admission.host_evidence import HostEvidence
from seckill.admission.judging import unknown_hosts, why_id_is_reused
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Status
from seckill.domain.clock import Clock
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import Sale

__all__ = ["BucketRebuild"]

_log = structlog.get_logger()

_LOOK_EVERY_S: Final = 0.05
_BEAT_EVERY_S: Final = 1.0
_CLAIM_STANDS_STILL_S: Final = 5.0
"""How long a claim may stand still before it is taken over."""


class BucketRebuild:
    """One rebuild of one bucket."""

    def __init__(
        self,
        bucket_id: BucketId,
        *,
        buckets: Buckets,
        ledger: FenceLedger,
        channel: FenceChannel,
        hosts: HostEvidence,
        ids: ReservationIds,
        clock: Clock,
        withhold: bool,
    ) -> None:
        self._bucket_id = bucket_id
        self._buckets = buckets
        self._ledger = ledger
        self._channel = channel
        self._hosts = hosts
        self._ids = ids
        self._clock = clock
        self._withhold = withhold
        self._who = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex[:8]}"

    async def run(self, deadline_ms: int) -> Rebuild:
        """Do it. See `FenceKeeper.rebuild`."""
        started_ms = self._clock.monotonic_ms()
        current = await self._current()
        fence = await self._ledger.notice(self._bucket_id, current.epoch, "a rebuild was asked for")
        if fence is None:
            raise self._fenced("it has just gone on; look again")
        await self._claim(fence)
        beating = asyncio.create_task(self._beat(fence))
        try:
            return await self._rebuild(current, fence, started_ms, deadline_ms)
        finally:
            beating.cancel()
            await asyncio.wait({beating})
            if not beating.cancelled():
                beating.exception()  # a store that was away: whoever rebuilds has met it too
            # Best effort: a claim that is left behind stands still, and is taken over then.
            with suppress(Exception):
                await self._ledger.unclaim(self._bucket_id, self._who)

    def _fenced(self, why: str) -> BucketFenced:
        return BucketFenced(self._bucket_id, why)

    async def _current(self) -> CurrentEpoch:
        for current in await self._ledger.current_epochs():
            if current.bucket_id == self._bucket_id:
                return current
        raise self._fenced("the ledger does not know it")

    async def _sale(self) -> Sale:
        sales = await self._ledger.sales()
        return next(sale for sale in sales if sale.sale_id == self._bucket_id.sale_id)

    # The claim

    async def _claim(self, fence: Fence) -> None:
        """Take the claim; from somebody else only when it stands still."""
        if fence.claimed_by is not None:
            await asyncio.sleep(_CLAIM_STANDS_STILL_S)
        if await self._ledger.claim(fence, self._who) is None:
            raise self._fenced("another rebuild of it is under way")

    async def _beat(self, fence: Fence) -> None:
        while True:
            await asyncio.sleep(_BEAT_EVERY_S)
            await self._ledger.claim(fence, self._who)

    # The work

    async def _rebuild(
        self, current: CurrentEpoch, fence: Fence, started_ms: float, deadline_ms: int
    ) -> Rebuild:
        bucket_id = self._bucket_id
        before = await self._buckets.look(bucket_id)
        if (reused := why_id_is_reused(before, current)) is not None:
            # Its outbox and its buyers are those of the other sale.
            raise self._fenced(reused)
        await self._buckets.fence_off(bucket_id, max(before.epoch, current.epoch))
        unknown = await self._settle(before, current, deadline_ms)
        # Again, now that nothing can be admitted any more.
        before = await self._buckets.look(bucket_id)
        given = dict(await self._hosts.by_epoch(bucket_id))
        if before.status is not Status.MISSING:
            given[before.epoch] = max(before.seq, given.get(before.epoch, 0))
            if before.epoch > current.epoch:
                await self._ledger.adopt_epochs(bucket_id, before.epoch)
        recovered = await self._recover(given)
        await self._ledger.found_out(self._bucket_id, recovered_orders=recovered, unknown=unknown)
        newest = max(current.epoch, before.epoch)
        plan = await self._ledger.plan_rebuild(
            bucket_id, newest=newest, given=given, withhold=self._withhold
        )
        sale = await self._sale()
        status = await self._buckets.open(sale, bucket_id, plan.epoch, plan.put_units, plan.buyers)
        if status is not Status.OK:
            raise self._fenced(
                f"another rebuild was faster: Redis refused epoch {plan.epoch}"
                f" ({status.name.lower()})"
            )
        await self._ledger.mark_open(bucket_id, plan.epoch)
        return await self._state(sale, fence, plan, recovered, unknown, started_ms)

    async def _settle(
        self, before: BucketView, current: CurrentEpoch, deadline_ms: int
    ) -> list[str]:
        """Wait for reports, for replies under way, and until nothing is left in the channel.

        Returns:
            What could not be known.
        """
        epochs = {before.epoch, current.epoch} - {0}
        patience = self._hosts.patience
        waited_from = self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                while True:
                    hosts = [
                        host
                        for epoch in epochs
                        for host in await self._hosts.of_epoch(self._bucket_id, epoch)
                    ]
                    waited_ms = self._clock.monotonic_ms() - waited_from
                    awaited = any(host.awaited for host in hosts)
                    in_flight = any(host.in_flight for host in hosts)
                    if not (awaited and waited_ms < patience.reports_ms) and not (
                        in_flight and waited_ms < patience.quiet_ms
                    ):
                        break
                    await asyncio.sleep(_LOOK_EVERY_S)
                await self._channel.run_dry(self._bucket_id)
        except TimeoutError:
            raise self._fenced(
                f"its outbox did not run dry within {deadline_ms} ms (does an order worker run?);"
                " it stays closed: start the rebuild again"
            ) from None
        return sorted(set(unknown_hosts(hosts)))

    async def _recover(self, given: dict[int, int]) -> int:
        """Write what Redis holds for buyers and no book has; returns how many became orders."""
        missing = {
            Place(self._bucket_id.sale_id, epoch, self._bucket_id.bucket, seq)
            for epoch, seq_max in given.items()
            for seq in await self._ledger.unwritten(self._bucket_id, epoch, seq_max)
        }
        if not missing:
            return 0
        found: dict[Place, Recovered] = {}
        async for holders in self._buckets.holders(self._bucket_id):
            for user_id, holdings in holders:
                for one in holdings:
                    if one.place in missing and not one.spent:
                        found[one.place] = Recovered(
                            one.place, user_id, one.quantity, one.attempt_id
                        )
        if not found:
            return 0
        return await self._ledger.recover([found[place] for place in sorted(found)])

    async def _state(
        self,
        sale: Sale,
        fence: Fence,
        plan: RebuildPlan,
        recovered: int,
        unknown: Sequence[str],
        started_ms: float,
    ) -> Rebuild:
        """Write the statement into the ledger and the log."""
        held = sum(held_units(holdings) for _, holdings in plan.buyers)
        await self._ledger.reopened(
            self._bucket_id,
            Reopening(
                rebuilt=True,
                new_epoch=plan.epoch,
                put_units=plan.put_units,
                held_units=held,
                buyers=len(plan.buyers),
            ),
        )
        done = Rebuild(
            goods_id=sale.goods_id,
            bucket_id=self._bucket_id,
            epoch=plan.epoch,
            put_units=plan.put_units,
            held_units=held,
            buyers=len(plan.buyers),
            lost=self._ids.encode_many(plan.lost) if plan.lost else [],
            recovered_orders=recovered,
            withheld_units=plan.withheld_units,
            unknown=unknown,
            paused_ms=max(0, self._clock.now_ms() - fence.noticed_at_ms),
            rebuild_ms=int(self._clock.monotonic_ms() - started_ms),
        )
        _log.warning(
            "the bucket is rebuilt and the sale goes on",
            bucket=self._bucket_id,
            because=fence.cause,
            epoch=plan.epoch,
            paused_for_ms=done.paused_ms,
            rebuilt_in_ms=done.rebuild_ms,
            left=plan.put_units - held,
            held=held,
            recovered=recovered,
            withheld=plan.withheld_units,
            oversold=0,
            lost=len(plan.lost),
            not_known=list(unknown),
        )
        for at in range(0, len(done.lost), _NAMED_PER_LINE):
            _log.error(
                "acknowledged purchases are lost",
                bucket=self._bucket_id,
                reservation_ids=list(done.lost[at : at + _NAMED_PER_LINE]),
            )
        return done


_NAMED_PER_LINE: Final = 50
