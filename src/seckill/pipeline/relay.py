"""The relay: carries the outbox to Kafka, entry by entry, and forgets only what Kafka has.

Several relays may run at once, without a leader: the outbox's consumer group hands each entry to
one of them, and what a dead one held is taken over. An entry is acknowledged by the delivery
reports of exactly its messages. It may be sent twice; it is never lost.

Order: what happens to one buyer of one sale has one key, so one partition. Of one key a relay has
one message under way at a time, so nothing can overtake it when it has to be sent again.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.tasks import end_tasks
from seckill.domain.ids import SaleId
from seckill.domain.sale import Sale
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.errors import ChannelUnavailable, LedgerAway
from seckill.pipeline.kafka.messages import OrderMessage, write_messages
from seckill.pipeline.ports import Delivery
from seckill.pipeline.worker import sleep_unless

__all__ = ["MessageCarrier", "Relay", "RelayObserver", "SaleBook"]

_log = structlog.get_logger()

ENTRIES_MAX: Final = 64
"""Outbox entries in hand at a time. Each holds up to one admission batch."""

_RECEIVE_WAIT_MS: Final = 200
_HOLD_EVERY_S: Final = 1.0
_BACKOFF_MS_MIN: Final = 50
_BACKOFF_MS_MAX: Final = 2_000


class MessageCarrier(Protocol):
    """What the relay needs of a producer; see `pipeline.kafka.producer.KafkaProducer`."""

    async def publish(self, topic: str, messages: Sequence[OrderMessage]) -> Sequence[str]:
        """Publish messages and wait for the report of each: empty text when it was taken."""
        ...

    def give_up(self) -> None:
        """Let what is under way fail now."""
        ...


class RelayObserver(Protocol):
    """Receives counts from the relay."""

    def relayed(self, entries: int, messages: int) -> None:
        """So many entries are in Kafka, with so many messages."""
        ...

    def not_taken(self, messages: int) -> None:
        """So many messages were not taken and will be sent again."""
        ...


class Relay:
    """Runs until it is told to stop; then lets what is under way end, for so long.

    Args:
        sales: looks up the sales that events are of.
        grace_ms: how long what is under way may take to be taken after ``stop`` is set.
    """

    def __init__(
        self,
        *,
        outbox: DirectChannel,
        producer: MessageCarrier,
        topic: str,
        sales: "SaleBook",
        ids: ReservationIds,
        observer: RelayObserver,
        grace_ms: int,
    ) -> None:
        self._outbox = outbox
        self._producer = producer
        self._topic = topic
        self._sales = sales
        self._ids = ids
        self._observer = observer
        self._grace_ms = grace_ms

    async def run(self, stop: asyncio.Event) -> None:
        """Carry entries until ``stop`` is set."""
        stopping = asyncio.create_task(self._give_up_after(stop), name="relay grace")
        backoff_ms = _BACKOFF_MS_MIN
        try:
            while not stop.is_set():
                try:
                    await self.step()
                    backoff_ms = _BACKOFF_MS_MIN
                except (ChannelUnavailable, LedgerAway) as error:
                    if backoff_ms == _BACKOFF_MS_MIN:
                        _log.warning("relay waits", error=str(error))
                    await sleep_unless(stop, backoff_ms)
                    backoff_ms = min(backoff_ms * 2, _BACKOFF_MS_MAX)
        finally:
            await end_tasks([stopping])

    async def _give_up_after(self, stop: asyncio.Event) -> None:
        await stop.wait()
        await asyncio.sleep(self._grace_ms / 1000)
        _log.warning("Kafka did not take everything before the end; it stays in the outbox")
        self._producer.give_up()

    async def step(self) -> int:
        """Carry what is in the outbox, once; returns the number of entries taken from it.

        Raises:
            ChannelUnavailable: Redis or Kafka did not do their part; what is left comes again.
            LedgerAway: a sale had to be looked up and could not be.
        """
        entries = await self._outbox.receive(ENTRIES_MAX, _RECEIVE_WAIT_MS)
        if not entries:
            return 0
        sales = await self._sales.of({entry.bucket_id.sale_id for entry in entries})
        holding = asyncio.create_task(self._hold(entries), name="hold outbox entries")
        try:
            errors = await self._publish(entries, sales)
        finally:
            await end_tasks([holding])
        taken = [entry for entry, error in zip(entries, errors, strict=True) if not error]
        if taken:
            await self._outbox.acknowledge(taken)
            self._observer.relayed(len(taken), sum(len(entry.events) for entry in taken))
        failed = [error for error in errors if error]
        if failed:
            raise ChannelUnavailable(
                f"{len(failed)} of {len(entries)} outbox entries were not taken: {failed[0]}"
            )
        return len(taken)

    async def _hold(self, entries: Sequence[Delivery]) -> None:
        """Show the other relays that these entries are in living hands, while Kafka is away."""
        while True:
            await asyncio.sleep(_HOLD_EVERY_S)
            try:
                await self._outbox.hold(entries)
            except ChannelUnavailable as error:
                _log.debug("entries could not be held", error=str(error))

    async def _publish(
        self, entries: Sequence[Delivery], sales: Mapping[SaleId, Sale]
    ) -> list[str]:
        """Publish every message of some entries; for each entry empty text, or what went wrong."""
        errors = [""] * len(entries)
        waves: list[list[tuple[int, OrderMessage]]] = []
        seen: Counter[bytes | None] = Counter()
        for number, entry in enumerate(entries):
            for message in write_messages(entry.events, sales, self._ids, entry.traces):
                nth = seen[message.key]
                seen[message.key] += 1
                if nth == len(waves):
                    waves.append([])
                waves[nth].append((number, message))
        refused: set[bytes | None] = set()
        for wave in waves:
            # Behind a message that was not taken no other one of its buyer may go.
            going = [(number, message) for number, message in wave if message.key not in refused]
            for number, _ in (each for each in wave if each[1].key in refused):
                errors[number] = errors[number] or "an earlier message of its buyer was not taken"
            reports = await self._producer.publish(self._topic, [message for _, message in going])
            for (number, message), error in zip(going, reports, strict=True):
                if error:
                    errors[number] = error
                    refused.add(message.key)
            if not_taken := sum(map(bool, reports)):
                self._observer.not_taken(not_taken)
        return errors


class SaleBook:
    """The sales by their ids. A sale's goods never change, so what was read once is kept.

    Args:
        read: reads every sale. Raises LedgerAway when the ledger does not answer.
    """

    def __init__(self, read: Callable[[], Awaitable[Sequence[Sale]]]) -> None:
        self._read = read
        self._sales: dict[SaleId, Sale] = {}

    async def of(self, wanted: set[SaleId]) -> Mapping[SaleId, Sale]:
        """The sales, all that are wanted at least."""
        if not wanted <= self._sales.keys():
            self._sales = {sale.sale_id: sale for sale in await self._read()}
            missing = wanted - self._sales.keys()
            if missing:
                raise LedgerAway(f"the ledger does not know the sales {sorted(missing)} yet")
        return self._sales
