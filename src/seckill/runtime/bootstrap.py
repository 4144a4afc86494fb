"""The composition root: the one place where real parts are chosen and joined.

Nothing connects at import. Each ``open_…`` is an async context manager that closes what it opened.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from redis.asyncio import Redis

from seckill.admission.bucket import Buckets
from seckill.admission.durability import Durability, check_durability
from seckill.admission.fence import FenceKeeper
from seckill.admission.judging import Patience
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Scripts
from seckill.domain.clock import Clock, SystemClock
from seckill.ledger.engine import Database
from seckill.ledger.fence import LedgerFence
from seckill.ledger.installation import read_installation
from seckill.ledger.options import LedgerOptions
from seckill.ledger.schema import ensure_schema
from seckill.ledger.sql_ledger import SQLLedger
from seckill.pipeline.outbox_log import OutboxLog
from seckill.runtime.errors import SettingsInvalid
from seckill.runtime.settings import Settings, wants_own_postgres

if TYPE_CHECKING:
    from seckill.runtime.kafka_parts import KafkaParts

__all__ = ["Stores", "open_stores"]

_LEDGER_CONNECTIONS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The two stores and what speaks to them, as every role and command uses them.

    Attributes:
        outbox_log: what the fence knows to be under way; a worker adds what it has in hand.
        scripts: waits for the durability of the settings where it is told to.
        kafka: what speaks to Kafka; None with the direct channel.
        durability_warnings: what of Redis' configuration is not as one expects.
    """

    settings: Settings
    clock: Clock
    redis: Redis
    keys: Keys
    scripts: Scripts
    buckets: Buckets
    database: Database
    ledger: SQLLedger
    ids: ReservationIds
    fence: FenceKeeper
    fence_ledger: LedgerFence
    outbox_log: OutboxLog
    kafka: "KafkaParts | None"
    durability_warnings: tuple[str, ...]


@asynccontextmanager
async def open_stores(settings: Settings) -> AsyncIterator[Stores]:
    """Join Redis and ledger.

    Raises:
        DurabilityRefused: Redis is not configured to keep what the settings promise.
        StockUnavailable, LedgerUnavailable: a store does not answer.
        SettingsInvalid: the ledger is to be in a server of our own, and none has been started.
    """
    if wants_own_postgres(settings):
        raise SettingsInvalid(
            "database_url", "a PostgreSQL of our own is started by `seckill serve`: run that first"
        )
    clock = SystemClock()
    redis = connect(settings.redis_url, timeout_ms=settings.redis_timeout_ms)
    database = Database(LedgerOptions(url=settings.database_url, pool_size=_LEDGER_CONNECTIONS))
    kafka = None
    if settings.channel == "kafka":
        # Only who has one pays for loading its library.
        from seckill.runtime.kafka_parts import KafkaParts  # noqa: PLC0415

        kafka = KafkaParts.of(settings)
    try:
        await ensure_schema(database)
        installation = await read_installation(database)
        report = await check_durability(
            redis,
            Durability(settings.durability),
            replicas_min=settings.replicas_min,
            timeout_ms=settings.redis_timeout_ms,
        )
        keys = Keys(settings.key_prefix)
        scripts = Scripts(redis, report.barrier)
        buckets = Buckets(redis, scripts, keys)
        ids = ReservationIds(installation.reservation_id_key)
        ledger = SQLLedger(database, ids, clock)
        fence_ledger = LedgerFence(ledger, clock)
        outbox_log = OutboxLog(redis, keys, behind=kafka.under_way if kafka else None)
        yield Stores(
            settings=settings,
            clock=clock,
            redis=redis,
            keys=keys,
            scripts=scripts,
            buckets=buckets,
            database=database,
            ledger=ledger,
            ids=ids,
            fence=FenceKeeper(
                redis=redis,
                buckets=buckets,
                keys=keys,
                ledger=fence_ledger,
                channel=outbox_log,
                marks_folder=settings.data.marks,
                ids=ids,
                clock=clock,
                patience=Patience(reports_ms=settings.fence_report_wait_ms),
                withhold=settings.fence_lost_units == "withhold",
            ),
            fence_ledger=fence_ledger,
            outbox_log=outbox_log,
            kafka=kafka,
            durability_warnings=report.warnings,
        )
    finally:
        if kafka is not None:
            await kafka.close()
        await redis.aclose()
        await database.dispose()
