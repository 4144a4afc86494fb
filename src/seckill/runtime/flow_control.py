"""The flow control of one process: its engine with the stored rules, and what goes around it.

Every process with an engine has the rules of the data directory in force before it serves, follows
what others save, and tells what it counts.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Self

import structlog

from seckill.admission.circuit import CircuitCall
from seckill.admission.marks import make_folder_id
from seckill.admission.redis_client import connect_blocking
from seckill.runtime.data_dir import DataDir
from seckill.runtime.errors import RulesUnusable
from seckill.runtime.flow_metrics import FlowMetrics
from seckill.runtime.flow_statistics import StatisticsPublisher, statistics_file
from seckill.runtime.rule_stores import open_rules
from seckill.runtime.settings import Settings
from seckill.runtime.telemetry import Metrics
from seckill.sentinel import (
    BlockException,
    BreakerState,
    Entry,
    RuleStore,
    Sentinel,
    SentinelError,
    Settings as SentinelSettings,
    StateChange,
    TokenSource,
)
from seckill.sentinel.redis import ThreadedRedisTokenSource
from seckill.sentinel.stores import RuleFollower
from seckill.sentinel.transport import BlockLog
from seckill.web.addresses import Addresses
from seckill.web.caller_limits import limit_callers
from seckill.web.flow import ADDRESS_INDEX, ENTRANCE, GOODS_INDEX, PURCHASE_RESOURCE, USER_INDEX

__all__ = ["REDIS_RESOURCE", "FlowControlParts", "RedisCircuit", "make_sentinel"]

_LOG: Final = structlog.get_logger(__name__)

REDIS_RESOURCE: Final = "seckill-redis"
"""The resource around each batch of purchases that is sent to Redis."""

SERVICE_RESOURCES: Final = frozenset({PURCHASE_RESOURCE})
"""Flow rules on these hold for all web processes together."""

PARAMETER_NAMES: Final = {
    (PURCHASE_RESOURCE, GOODS_INDEX): "goods",
    (PURCHASE_RESOURCE, USER_INDEX): "user",
    (PURCHASE_RESOURCE, ADDRESS_INDEX): "address",
}
"""What hot-parameter rules may look at, by resource and paramIdx."""

_LEASE_TIMEOUT_MS: Final = 500
"""A Redis that takes longer is away, as far as tokens go; each process keeps its share then."""

_WATCH_EVERY_S: Final = 0.5
_CLOSED: Final = BreakerState.CLOSED
_BYTES_PER_MB: Final = 1_000_000
_BLOCK_LOG: Final = "sentinel-block.log"
_SWITCHED_OFF: Final = "off"


def make_sentinel(store: RuleStore, tokens: TokenSource | None = None) -> Sentinel:
    """An engine with the rules of a store in force.

    Args:
        store: of the rules.
        tokens: of the thresholds that are for the whole service; None in a process that serves
            nothing.

    Raises:
        RulesUnusable: they cannot be read. To go on without them would let everybody in.
    """
    try:
        sentinel = Sentinel(
            settings=SentinelSettings(
                service_resources=SERVICE_RESOURCES, cluster_fallback="share"
            ),
            token_source=tokens,
            rule_store=store,
        )
    except (SentinelError, OSError, ValueError) as error:
        raise RulesUnusable(str(error)) from error
    for report in sentinel.restored.values():
        if report.refused or not report.applied:
            _LOG.warning("stored rules are not in force", kind=report.kind, report=str(report))
    return sentinel


class RedisCircuit:
    """Implements `admission.circuit.Circuit` by the rules on ``seckill-redis``."""

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        with sentinel.context(ENTRANCE) as context:
            self._context = context
        self._rules = sentinel.degrade.rules
        self._breakers = self._find()

    def refuses(self) -> bool:
        """See Circuit."""
        sentinel = self._sentinel
        if sentinel.degrade.rules is not self._rules:
            self._breakers = self._find()
        # Asked for every purchase, so nothing is asked that a closed breaker need not know.
        for breaker in self._breakers:
            if breaker.state is not _CLOSED and not breaker.admits(sentinel.clock.now_ns()):
                return sentinel.enabled
        return False

    async def begin(self) -> CircuitCall | None:
        """See Circuit."""
        self._sentinel.current.set(self._context)
        entered = await self._sentinel.try_entry_async(REDIS_RESOURCE)
        return None if isinstance(entered, BlockException) else _CircuitCall(entered)

    @property
    def is_open(self) -> bool:
        """Whether a breaker is not closed."""
        return any(breaker.state is not BreakerState.CLOSED for breaker in self._breakers)

    def _find(self) -> tuple[Any, ...]:
        degrade = self._sentinel.degrade
        with self._sentinel.lock:
            self._rules = degrade.rules
            return (
                *degrade.breakers_for(REDIS_RESOURCE),
                *degrade.default_breakers_for(REDIS_RESOURCE),
            )


class _UndecidedBatch(Exception):  # noqa: N818  -- names what happened
    """Redis could not decide a batch: what a breaker counts as a failure."""


class _CircuitCall:
    """Implements `CircuitCall` by an entry."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def end(self, *, failed: bool) -> None:
        """See CircuitCall."""
        if failed:
            self._entry.set_error(_UndecidedBatch())
        self._entry.exit()

    def abandon(self) -> None:
        """See CircuitCall."""
        self._entry.set_error(asyncio.CancelledError())
        self._entry.exit()


class FlowControlParts:
    """The flow control of one web process. Used as a context manager, which leases tokens inside.

    Tokens are leased by a thread: in a rush the event loop is busy for longer than a token is good,
    and would let through a tenth of what the limit allows.

    Args:
        settings: of the service.
        metrics: of the process.
        slot: its number.

    Raises:
        RulesUnusable: the stored rules cannot be read.

    Attributes:
        sentinel: the engine, with the stored rules in force.
        circuit: guards the batches.
        addresses: tells where a request came from.
    """

    def __init__(self, settings: Settings, metrics: Metrics, slot: int) -> None:
        self._settings = settings
        self._slot = slot
        self._store = open_rules(settings)
        self._redis = connect_blocking(settings.redis_url, timeout_ms=_LEASE_TIMEOUT_MS)
        self._tokens = ThreadedRedisTokenSource(
            self._redis,
            namespace=settings.key_prefix,
            # Kept over a restart, so that nobody has to wait until the dead one is forgotten.
            worker_id=f"{make_folder_id(settings.data.marks)}-{slot}",
            workers_expected=settings.workers,
        )
        self.sentinel = make_sentinel(self._store, self._tokens)
        limit_callers(
            self.sentinel,
            per_user_per_s=settings.limit_per_user_per_s,
            per_address_per_s=settings.limit_per_address_per_s,
        )
        self.circuit = RedisCircuit(self.sentinel)
        self.addresses = Addresses(
            settings.trusted_proxies,
            header=settings.proxy_header,
            ipv6_prefix_bits=settings.ipv6_prefix_bits,
        )
        self._counts = FlowMetrics(metrics)
        self.sentinel.block_listeners.append(lambda _entry, block: self._counts.blocked(block))
        self.sentinel.degrade.observers.append(_tell_breaker)

    def __enter__(self) -> Self:
        self._tokens.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tokens.stop()
        self._redis.close()

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run as long as the process serves."""
        works = [
            RuleFollower(self.sentinel, self._store).run(),
            self._watch(),
        ]
        if self._settings.sentinel_bind:
            path = statistics_file(self._settings.data, self._slot)
            works.append(StatisticsPublisher(self.sentinel, path).run())
        if self._settings.block_log_mb:
            works.append(self._log_blocks())
        return works

    async def _log_blocks(self) -> None:
        """Keep the log of refusals. Where there can be none, the sale goes on without."""
        folder = self._settings.data.flow_blocks
        try:
            log = BlockLog(
                self.sentinel,
                folder,
                file_name=f"{_BLOCK_LOG}.web-{self._slot}",
                file_bytes_max=self._settings.block_log_mb * _BYTES_PER_MB,
            )
        except OSError as error:
            _LOG.warning("refusals are not logged", folder=str(folder), error=str(error))
            return
        await log.run()

    async def _watch(self) -> None:
        """Count, and obey the switch of the command port."""
        switch = FlowSwitch(self._settings.data)
        while True:
            self._counts.look(self.sentinel)
            self._counts.circuit_open(is_open=self.circuit.is_open)
            self._counts.tokens_away(are_away=not self._tokens.status().in_contact)
            enabled = switch.enabled()
            if enabled is not self.sentinel.enabled:
                self.sentinel.enabled = enabled
                _LOG.warning("flow control is switched", on=enabled)
            await asyncio.sleep(_WATCH_EVERY_S)


class FlowSwitch:
    """Whether calls are checked at all: set by the command port, obeyed by every process of a host.

    It lasts as long as the command port's process: one that is started anew switches on.
    """

    def __init__(self, data: DataDir) -> None:
        self._path = data.flow / _SWITCHED_OFF

    def enabled(self) -> bool:
        """Whether calls are checked."""
        return not self._path.exists()

    def set(self, *, enabled: bool) -> None:
        """Switch. Raises OSError when it cannot be written."""
        if enabled:
            self._path.unlink(missing_ok=True)
        else:
            self._path.touch()


def _tell_breaker(change: StateChange) -> None:
    _LOG.warning(
        "a circuit breaker changed",
        resource=change.resource,
        now=change.current.value,
        before=change.previous.value,
        value=change.value,
    )
