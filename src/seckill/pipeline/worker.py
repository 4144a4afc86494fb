"""The order worker: carries deliveries from the channel to the ledger, each exactly once in effect.

Written, then acknowledged, never the other way round: a worker that dies between the two leaves a
delivery that comes again and changes nothing. A ledger that is away is waited for; only what it
says it can never write goes to the dead letters.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from seckill.pipeline.errors import ChannelUnavailable, EventRefused, LedgerAway
from seckill.pipeline.ports import Delivery, OrderChannel, OrderLedger, WriteReport

__all__ = ["AtOnce", "OrderWorker", "Pace", "WorkerObserver", "sleep_unless"]

_log = structlog.get_logger()

DELIVERIES_MAX: Final = 64
"""Deliveries in one transaction. Each holds up to one admission batch, so a few thousand rows."""

_RECEIVE_WAIT_MS: Final = 200
_BACKOFF_MS_MIN: Final = 50
_BACKOFF_MS_MAX: Final = 2_000


class WorkerObserver(Protocol):
    """Receives counts from the worker."""

    def written(self, report: WriteReport) -> None:
        """One transaction was committed."""
        ...

    def ledger_away(self) -> None:
        """One transaction could not be made and will be tried again."""
        ...


class Pace(Protocol):
    """How soon a worker's next batch follows; see `pipeline.giving_way.GivingWay`."""

    def begin(self, deliveries_max: int) -> int:
        """A batch begins. Returns how many deliveries it may hold, of so many at most."""
        ...

    async def rest(self, stop: asyncio.Event, *, caught_up: bool) -> None:
        """A batch has ended. Returns when the next may begin, at once when ``stop`` is set.

        Args:
            caught_up: nothing was waiting.
        """
        ...


class AtOnce:
    """Implements `Pace`: the next batch follows at once."""

    def begin(self, deliveries_max: int) -> int:
        """See Pace."""
        return deliveries_max

    async def rest(self, stop: asyncio.Event, *, caught_up: bool) -> None:
        """See Pace."""


_AT_ONCE: Final = AtOnce()


class OrderWorker:
    """Runs until it is told to stop, and then ends between two transactions.

    Args:
        deliveries_max: deliveries in one transaction, for a channel whose deliveries are small.
        pace: how soon a batch follows the one before.
    """

    def __init__(
        self,
        *,
        channel: OrderChannel,
        ledger: OrderLedger,
        observer: WorkerObserver,
        deliveries_max: int = DELIVERIES_MAX,
        pace: Pace = _AT_ONCE,
    ) -> None:
        self._channel = channel
        self._ledger = ledger
        self._observer = observer
        self._deliveries_max = deliveries_max
        self._pace = pace
        self._got_on = False

    async def run(self, stop: asyncio.Event) -> None:
        """Carry deliveries until ``stop`` is set."""
        backoff_ms = _BACKOFF_MS_MIN
        while not stop.is_set():
            try:
                carried = await self.step()
                backoff_ms = _BACKOFF_MS_MIN
                await self._pace.rest(stop, caught_up=not carried)
            except (ChannelUnavailable, LedgerAway) as error:
                if isinstance(error, LedgerAway):
                    self._observer.ledger_away()
                if self._got_on:  # part of a batch was written: no reason to wait for longer
                    backoff_ms = _BACKOFF_MS_MIN
                if backoff_ms == _BACKOFF_MS_MIN:
                    _log.warning("order worker waits", error=str(error))
                await sleep_unless(stop, backoff_ms)
                backoff_ms = min(backoff_ms * 2, _BACKOFF_MS_MAX)

    async def step(self) -> int:
        """Receive once, write, acknowledge; returns the number of deliveries.

        Raises:
            ChannelUnavailable, LedgerAway: what was received comes again.
        """
        self._got_on = False
        most = self._pace.begin(self._deliveries_max)
        deliveries = await self._channel.receive(most, _RECEIVE_WAIT_MS)
        if deliveries:
            await self._carry(deliveries)
        return len(deliveries)

    async def _carry(self, deliveries: Sequence[Delivery]) -> None:
        """Write deliveries in one transaction; where one is refused, find it by halving."""
        try:
            report = await self._ledger.write([e for d in deliveries for e in d.events])
        except EventRefused as error:
            if len(deliveries) == 1:
                await self._channel.set_aside(deliveries[0], str(error))
                return
            middle = len(deliveries) // 2
            await self._carry(deliveries[:middle])
            await self._carry(deliveries[middle:])
            return
        self._observer.written(report)
        _tell_traces(deliveries)
        if report.compensated:
            _log.warning("admissions compensated", reservation_ids=report.compensated)
        await self._channel.acknowledge(deliveries)
        self._got_on = True


def _tell_traces(deliveries: Sequence[Delivery]) -> None:
    """One line for each event that belongs to a trace: here it has reached the order books.

    For who looks closely: buyers choose whether they send a trace, and a line costs as much as an
    order.
    """
    for delivery in deliveries:
        for seq, traceparent in (delivery.traces or {}).items():
            _log.debug(
                "written to the order books",
                traceparent=traceparent, bucket=delivery.bucket_id, seq=seq,
            )  # fmt: skip


async def sleep_unless(stop: asyncio.Event, wait_ms: float) -> None:
    """Wait for so long, or until ``stop`` is set."""
    try:
        async with asyncio.timeout(wait_ms / 1000):
            await stop.wait()
    except TimeoutError:
        return
