"""The composition root: the one place where real parts are chosen and joined.

Nothing connects at import. Each ``open_…`` is an async context manager that closes what it opened.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

from seckill.admission.bounds import Bounds
from seckill.admission.bucket import Buckets
from seckill.admission.durability import Durability, check_durability
from seckill.admission.fence import FenceKeeper
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Scripts
from seckill.domain.clock import Clock, SystemClock
from seckill.ledger.engine import Database, LedgerOptions
from seckill.ledger.fence import LedgerFence
from seckill.ledger.installation import read_installation
from seckill.ledger.schema import ensure_schema
from seckill.ledger.sql_ledger import SQLLedger
from seckill.runtime.contradictions import public_key_pem
from seckill.runtime.settings import Settings
from seckill.web.auth import DevAuth, FixedKey, JWTAuth, TokenKeys
from seckill.web.jwks import JWKSKeys
from seckill.web.ports import Authenticator

__all__ = ["Stores", "authenticator", "bounds", "open_stores"]

_LEDGER_CONNECTIONS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The two stores and what speaks to them, as every role and command uses them.

    Attributes:
        scripts: waits for the durability of the settings where it is told to.
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
    durability_warnings: tuple[str, ...]


@asynccontextmanager
async def open_stores(settings: Settings) -> AsyncIterator[Stores]:
    """Join Redis and ledger.

    Raises:
        DurabilityRefused: Redis is not configured to keep what the settings promise.
        StockUnavailable, LedgerUnavailable: a store does not answer.
    """
    clock = SystemClock()
    redis = connect(settings.redis_url, timeout_ms=settings.redis_timeout_ms)
    database = Database(LedgerOptions(url=settings.database_url, pool_size=_LEDGER_CONNECTIONS))
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
                ledger=LedgerFence(ledger),
                marks_folder=settings.data.marks,
                ids=ids,
                clock=clock,
            ),
            durability_warnings=report.warnings,
        )
    finally:
        await redis.aclose()
        await database.dispose()


def bounds(settings: Settings) -> Bounds:
    """The bounds of admission that the settings ask for."""
    return Bounds(
        batch_entries_max=settings.batch_entries_max,
        batch_bytes_max=settings.batch_bytes_max,
        queue_entries_max=settings.queue_entries_max,
        queue_wait_ms_max=settings.queue_wait_ms_max,
        sold_out_staleness_ms=settings.sold_out_staleness_ms,
    )


def authenticator(settings: Settings, clock: Clock) -> Authenticator:
    """Who says who the buyer is. The settings were checked for contradictions before."""
    if settings.auth == "dev":
        return DevAuth()
    algorithm = settings.jwt_algorithm
    keys: TokenKeys
    if settings.jwt_jwks_url:
        keys = JWKSKeys(algorithm, settings.jwt_jwks_url, clock)
    elif settings.jwt_public_key:
        keys = FixedKey(algorithm, public_key_pem(settings.jwt_public_key))
    else:
        keys = FixedKey(algorithm, settings.jwt_secret.get_secret_value().encode())
    return JWTAuth(
        algorithm,
        keys,
        clock,
        audience=settings.jwt_audience or None,
        issuer=settings.jwt_issuer or None,
    )
