"""What a relay process does."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Final

import structlog

from seckill.domain.reservation import BucketId
from seckill.pipeline.direct import DirectChannel
from seckill.pipeline.errors import ChannelUnavailable
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.topics import ensure_topics
from seckill.pipeline.relay import Relay, SaleBook
from seckill.pipeline.worker import sleep_unless
from seckill.runtime.bootstrap import Stores, open_stores
from seckill.runtime.errors import SettingsInvalid
from seckill.runtime.gc_tuning import collect_when_idle, settle_after_start
from seckill.runtime.lifeline import report_ready
from seckill.runtime.observers import RelayMetrics
from seckill.runtime.roles import LAG_EVERY_S, again, background, outbox_reader, run_role
from seckill.runtime.settings import Settings
from seckill.runtime.telemetry import Metrics

__all__ = ["know_topics", "run_relay"]

_log = structlog.get_logger(__name__)

_NICENESS: Final = 5
_BUCKETS_EVERY_S: Final = 0.25
_GRACE_MS: Final = 2_000
"""What Kafka may take to take what is under way once a stop was asked for; less than the
supervisor waits."""

_TOPICS_WAIT_MS: Final = 1_000


def run_relay(
    settings: Settings, slot: int, *, on_begin: Callable[[], object] = lambda: None
) -> None:
    """Be a relay until SIGTERM.

    Args:
        on_begin: is called once this process has its number.

    Raises:
        SettingsInvalid: the channel is not kafka.
        SlotTaken: another process is this relay.
        SeckillError: as `open_stores`.
    """
    if settings.channel != "kafka":
        raise SettingsInvalid("channel", "a relay carries to Kafka: set it to kafka")
    run_role(settings, "relay", slot, _relay, on_begin=on_begin)


async def _relay(settings: Settings, slot: int, metrics: Metrics, stop: asyncio.Event) -> None:
    os.nice(_NICENESS)
    async with open_stores(settings) as stores:
        assert stores.kafka is not None
        counts = RelayMetrics(metrics)
        buckets = _Buckets(stores)
        outbox = outbox_reader(
            stores, f"relay-{slot}@{socket.gethostname()}", buckets.ids, counts.dead_letter
        )
        relay = Relay(
            outbox=outbox,
            producer=stores.kafka.producer,
            topic=stores.kafka.options.topic,
            sales=SaleBook(lambda: stores.ledger.sales.sales(closed=True)),
            ids=stores.ids,
            observer=counts,
            grace_ms=_GRACE_MS,
        )
        settle_after_start()
        # Ready without Kafka: what is admitted meanwhile waits in the outbox, and that is all.
        report_ready()
        async with background(
            again("look for buckets", _BUCKETS_EVERY_S, buckets.look),
            again("measure the outbox", LAG_EVERY_S, lambda: _measure(outbox, counts)),
            collect_when_idle(),
        ):
            if await know_topics(stores.kafka.options, stop, tell=True):
                await relay.run(stop)


class _Buckets:
    """The buckets that there are, by the ledger's last word."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._ids: tuple[BucketId, ...] = ()

    def ids(self) -> tuple[BucketId, ...]:
        """All of them."""
        return self._ids

    async def look(self) -> None:
        """Ask the ledger. Raises LedgerUnavailable when it is away: the last word stands."""
        self._ids = tuple(
            row.bucket_id for row in await self._stores.ledger.epochs.current_epochs()
        )


async def know_topics(options: KafkaOptions, stop: asyncio.Event, *, tell: bool) -> bool:
    """Make or check the topics; wait for a Kafka that is away. False when ``stop`` came first.

    Args:
        tell: log what the topics are.

    Raises:
        TopicUnfit: a topic that is there would lose messages.
    """
    away = False
    while not stop.is_set():
        try:
            await ensure_topics(options, tell=tell)
        except ChannelUnavailable as error:
            if not away:
                _log.warning("waiting for Kafka", error=str(error))
            away = True
            await sleep_unless(stop, _TOPICS_WAIT_MS)
        else:
            return True
    return False


async def _measure(outbox: DirectChannel, counts: RelayMetrics) -> None:
    lag = await outbox.lag()
    counts.backlog(lag.entries, lag.oldest_ms, time.monotonic())
