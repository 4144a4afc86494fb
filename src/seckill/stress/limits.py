"""What this machine allows: descriptors of the process, ports of a source address."""

import resource
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from seckill.domain.errors import InvalidValue
from seckill.stress.plan import StressPlan
from seckill.stress.target import Endpoint

__all__ = ["SPARE_DESCRIPTORS", "ConnectionBudget", "connection_budget", "raise_descriptor_limit"]

SPARE_DESCRIPTORS: Final = 64
"""Left free for logs, the audit and whatever else the process opens."""
_SOURCES_MAX: Final = 254
_CONNECTIONS_OF_ONE_SOURCE: Final = 25_000
_DESCRIPTORS_ENOUGH: Final = 1_048_576


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open descriptors to the hard one, for good; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some kernels (macOS) refuse "unlimited" although they report it.
    wanted = _DESCRIPTORS_ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY:
        return _DESCRIPTORS_ENOUGH
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


@dataclass(frozen=True, slots=True)
class ConnectionBudget:
    """How the buyers are spread over connections.

    Attributes:
        connections: how many there are.
        shared: fewer than buyers, so buyers take turns on them.
        allowed: as many as this process may have.
        sources: source addresses to bind to, in turn; empty lets the kernel choose.
    """

    connections: int
    shared: bool
    allowed: int
    sources: tuple[str, ...]


def connection_budget(
    plan: StressPlan, endpoint: Endpoint, *, descriptors: int
) -> ConnectionBudget:
    """Spread the buyers over as many connections as the machine and the plan allow.

    Args:
        plan: the run.
        endpoint: where the connections lead.
        descriptors: open descriptors that this process may have in all.

    Raises:
        InvalidValue: the plan asks for more connections than there are descriptors or ports.
    """
    allowed = descriptors - _open_descriptors() - SPARE_DESCRIPTORS
    if allowed < 1:
        raise InvalidValue(
            "connections",
            f"none can be opened: this process may hold {descriptors:,} descriptors"
            " (ulimit -n) and uses them already",
        )
    if plan.connections is not None and plan.connections > allowed:
        raise InvalidValue(
            "connections",
            f"must be at most {allowed:,}: this process may hold {descriptors:,} descriptors"
            " (ulimit -Hn); leave it out to share what there is",
        )
    connections = min(plan.buyers, allowed) if plan.connections is None else plan.connections
    return ConnectionBudget(
        connections=connections,
        shared=connections < plan.buyers,
        allowed=allowed,
        sources=_sources(plan, endpoint, connections),
    )


def _sources(plan: StressPlan, endpoint: Endpoint, connections: int) -> tuple[str, ...]:
    """The source addresses to use, so that looking for a free port stays cheap, or possible."""
    if not (sys.platform == "linux" and endpoint.loopback and endpoint.family == socket.AF_INET):
        if connections > _CONNECTIONS_OF_ONE_SOURCE:
            raise InvalidValue(
                "connections",
                f"must be at most {_CONNECTIONS_OF_ONE_SOURCE:,}: further source addresses exist"
                " only on Linux and for an IPv4 loopback target",
            )
        return ()
    count = -(-connections // plan.connections_per_source)
    if count > _SOURCES_MAX:
        raise InvalidValue(
            "connections_per_source", f"would need more than {_SOURCES_MAX} source addresses"
        )
    return tuple(f"127.0.0.{number}" for number in range(1, count + 1)) if count > 1 else ()
