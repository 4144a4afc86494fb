"""What an acknowledged admission survives, and whether Redis is set up to keep that.

=============  =========================================  =====================================
level          a buyer who was told yes keeps it when …   needs of Redis
=============  =========================================  =====================================
``memory``     a process of ours dies                     nothing
``fsync``      Redis or its machine dies and comes back   ``appendonly yes`` with ``appendfsync
                                                          always``, or 7.2 and later with any
                                                          append-only file: each batch then waits
                                                          for it (WAITAOF)
``replicated`` the master is lost and a replica takes     at least ``replicas_min`` replicas in
               its place                                  step: each batch waits for them (WAIT)
=============  =========================================  =====================================

Source: docs/decisions/0004-durability.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from seckill.admission.errors import DurabilityRefused, StockUnavailable

__all__ = ["Barrier", "Durability", "DurabilityReport", "check_durability"]


class Durability(StrEnum):
    """What an acknowledged admission survives."""

    MEMORY = "memory"
    FSYNC = "fsync"
    REPLICATED = "replicated"


@dataclass(frozen=True, slots=True)
class Barrier:
    """A command sent behind each batch, on the same connection, that must be satisfied.

    Attributes:
        command: the words of the command.
        copies_min: the least number that its last reply element must have.
    """

    command: tuple[str | int, ...]
    copies_min: int

    def satisfied_by(self, reply: Any) -> bool:
        """Whether the reply says that enough copies exist. WAITAOF answers [local, replicas]."""
        return int(reply[0] if isinstance(reply, list) else reply) >= self.copies_min


@dataclass(frozen=True, slots=True)
class DurabilityReport:
    """What was found at the start.

    Attributes:
        barrier: what each batch has to wait for; None where Redis itself waits before it answers.
        warnings: sentences for the log, each naming the configuration that is not as one expects.
    """

    barrier: Barrier | None
    warnings: tuple[str, ...]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


async def _configuration(redis: Redis) -> Mapping[str, str] | None:
    """The part of Redis' configuration that matters, or None where it may not be asked for."""
    try:
        found: dict[Any, Any] = await redis.config_get(
            "appendonly",
            "appendfsync",
            "maxmemory-policy",
            "maxmemory",
            "no-appendfsync-on-rewrite",
        )
    except ResponseError:
        return None  # managed services refuse CONFIG
    return {_text(key): _text(value) for key, value in found.items()}


def _check_eviction(configuration: Mapping[str, str]) -> None:
    policy = configuration.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        raise DurabilityRefused(
            f"Redis may evict keys (maxmemory-policy {policy}): stock and buyers would vanish;"
            " set it to noeviction"
        )


def _version(info: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:3])


async def check_durability(
    redis: Redis, wanted: Durability, *, replicas_min: int, timeout_ms: int
) -> DurabilityReport:
    """Compare what is promised with what Redis is configured to do.

    Args:
        redis: the server that will hold the stock.
        wanted: the promised level.
        replicas_min: with REPLICATED, how many replicas must have each batch.
        timeout_ms: the longest that a batch may wait for its copies.

    Raises:
        DurabilityRefused: the promise cannot be kept; one sentence says why and what to change.
        StockUnavailable: Redis does not answer.
    """
    try:
        info = await redis.info()
        configuration = await _configuration(redis)
    except RedisError as error:
        raise StockUnavailable("connection", str(error), outcome_known=True) from error
    warnings: list[str] = []
    if _version(info) < (6, 2):
        raise DurabilityRefused(f"Redis {info.get('redis_version')} is older than 6.2")
    if configuration is None:
        warnings.append(
            "Redis does not show its configuration (CONFIG GET is refused): durability"
            f" '{wanted}' and the eviction policy could not be checked"
        )
        configuration = {}
    _check_eviction(configuration)
    append_only = configuration.get("appendonly", "no") == "yes"
    always = append_only and configuration.get("appendfsync") == "always"
    if always and configuration.get("no-appendfsync-on-rewrite") == "yes":
        always = False
        warnings.append(
            "Redis does not fsync while it rewrites its file (no-appendfsync-on-rewrite yes)"
        )
    match wanted:
        case Durability.MEMORY:
            if not append_only:
                warnings.append(
                    "durability 'memory' and Redis keeps no append-only file: when Redis dies,"
                    " sales are fenced and must be rebuilt from the ledger, and what was still"
                    " on its way there is lost"
                )
            return DurabilityReport(None, tuple(warnings))
        case Durability.FSYNC:
            return DurabilityReport(
                _fsync_barrier(info, configuration, append_only=append_only, always=always),
                tuple(warnings),
            )
        case Durability.REPLICATED:
            _check_replicas(info, replicas_min)
            if not append_only:
                warnings.append(
                    "durability 'replicated' and the master keeps no append-only file: a master"
                    " that restarts empty before it is replaced would empty its replicas too"
                )
            return DurabilityReport(
                Barrier(("WAIT", replicas_min, timeout_ms), replicas_min), tuple(warnings)
            )


def _check_replicas(info: Mapping[str, Any], replicas_min: int) -> None:
    connected = int(info.get("connected_slaves", 0))
    if connected < replicas_min:
        raise DurabilityRefused(
            f"durability 'replicated' needs {replicas_min} replica(s), Redis has {connected}"
        )


def _fsync_barrier(
    info: Mapping[str, Any],
    configuration: Mapping[str, str],
    *,
    append_only: bool,
    always: bool,
) -> Barrier | None:
    if always or not configuration:
        return None
    if not append_only:
        raise DurabilityRefused(
            "durability 'fsync' needs an append-only file, and Redis has 'appendonly no':"
            " set 'appendonly yes' and 'appendfsync always', or choose durability 'memory'"
        )
    if _version(info) >= (7, 2):
        return Barrier(("WAITAOF", 1, 0, 1000), 1)
    raise DurabilityRefused(
        f"durability 'fsync' needs 'appendfsync always' on Redis {info.get('redis_version')}"
        f" (it is '{configuration.get('appendfsync')}'): set it, or choose durability 'memory'"
    )
