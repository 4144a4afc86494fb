"""The chain of slots that a call goes through, each with an explicit place.

A slot is asked once per resource what it has to say about it (``links``) and answers with
functions; a slot without rules for the resource answers with none and costs nothing. The answers of
all slots are laid end to end in slot order and kept at the resource until the rules change.

The places before the checks are the engine's own work and cannot be moved: the call tree (-10000),
the resource's node and the caller's (-9000), the block listeners (-8000), the counting (-7000).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from seckill.sentinel.entry import Entry
    from seckill.sentinel.errors import BlockException
    from seckill.sentinel.node import ClusterNode


class SlotOrder(enum.IntEnum):
    """The places of the original's slots. A check goes anywhere after ``STATISTIC``."""

    NODE_SELECTOR = -10000
    CLUSTER_BUILDER = -9000
    LOG = -8000
    STATISTIC = -7000
    AUTHORITY = -6000
    SYSTEM = -5000
    GATEWAY_FLOW = -4000
    PARAM_FLOW = -3000
    FLOW = -2000
    DEFAULT_CIRCUIT_BREAKER = -1500
    DEGRADE = -1000


class Links(NamedTuple):
    """What a slot has to say about one resource. All are called under the engine's lock.

    Attributes:
        checks: each is given the entry and the time in nanoseconds, and answers None (pass), a
            ``BlockException`` (refused; it is counted and raised), or a number of nanoseconds above
            0 (passed, after waiting so long; the checks that follow see the time after the wait).
        on_pass: told of an entry that was let in.
        on_exit: told of an entry that was let in and ends now, with the time in nanoseconds.
        ceiling: given if every one of the checks lets a call pass as long as the units that passed
            in the window, and those wanted, are no more than this. The engine then answers the
            usual call itself and asks the checks only about one that does not fit.
    """

    checks: tuple[Callable[[Entry, int], BlockException | int | None], ...] = ()
    on_pass: tuple[Callable[[Entry], None], ...] = ()
    on_exit: tuple[Callable[[Entry, int], None], ...] = ()
    ceiling: int | None = None


NO_LINKS = Links()


class Slot(Protocol):
    """One place in the chain."""

    @property
    def order(self) -> int:
        """Its place; lower comes first, and it must be above ``SlotOrder.STATISTIC``."""
        ...

    def links(self, resource: ClusterNode) -> Links:
        """What it has to say about a resource; asked again whenever rules change."""
        ...
