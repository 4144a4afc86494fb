"""The numbers Sentinel gives to its words.

They travel in rule files and on the dashboard's wire as bare integers, so every name here is an
``IntEnum``: it reads as a word in code and writes as the original's number.

Source: the rule constants of alibaba/Sentinel 1.8.
"""

from __future__ import annotations

import enum
from typing import Final


class EntryType(enum.IntEnum):
    """Which way the traffic of an entry flows. System rules look at ``IN`` only."""

    IN = 0
    OUT = 1


class ResourceType(enum.IntEnum):
    """What a resource stands for; the dashboard sorts by it, the engine does not care."""

    COMMON = 0
    WEB = 1
    RPC = 2
    GATEWAY = 3
    SQL = 4


class FlowGrade(enum.IntEnum):
    """What a flow or hot-parameter rule counts: calls in flight, or calls per second."""

    THREAD = 0
    QPS = 1


class FlowStrategy(enum.IntEnum):
    """Whose traffic a flow rule looks at."""

    DIRECT = 0
    RELATE = 1
    CHAIN = 2


class ControlBehavior(enum.IntEnum):
    """What a flow rule does with a call over its threshold."""

    REJECT = 0
    WARM_UP = 1
    RATE_LIMITER = 2
    WARM_UP_RATE_LIMITER = 3


class DegradeGrade(enum.IntEnum):
    """What opens a circuit breaker."""

    SLOW_REQUEST_RATIO = 0
    ERROR_RATIO = 1
    ERROR_COUNT = 2


class AuthorityStrategy(enum.IntEnum):
    """Whether the callers of an authority rule are the only ones let in, or the only ones not."""

    WHITE = 0
    BLACK = 1


class ThresholdType(enum.IntEnum):
    """Whether a cluster threshold is meant for each machine or for all of them together."""

    AVERAGE_LOCAL = 0
    GLOBAL = 1


LIMIT_APP_DEFAULT: Final = "default"
"""The limitApp that means every caller, together."""

LIMIT_APP_OTHER: Final = "other"
"""The limitApp that means every caller whom no other rule of the resource names."""

CONTEXT_DEFAULT: Final = "sentinel_default_context"
"""The context of an entry made outside any named context."""

CONTEXT_SURPLUS: Final = "sentinel_surplus_context"
"""The one context that all contexts over the bound share."""

ORIGIN_SURPLUS: Final = "sentinel_surplus_origin"
"""The one caller that all callers over a resource's bound share."""

RESOURCE_ROOT: Final = "machine-root"
"""The name of the call tree's root on the dashboard's wire."""

RESOURCE_INBOUND: Final = "__total_inbound_traffic__"
"""The name under which all entries of type ``IN`` are counted together."""

DEGRADE_DEFAULT_RESOURCE: Final = "*"
"""A circuit-breaking rule for this resource serves every resource without one of its own."""
