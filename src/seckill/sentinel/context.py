"""Where a chain of calls came in, and who sent it.

A context is immutable and lives in a ``contextvars`` variable, together with the innermost entry. A
thread starts without one; a task starts with its creator's and cannot disturb it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seckill.sentinel.entry import EntryState

if TYPE_CHECKING:
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.node import ClusterNode, DefaultNode, EntranceNode

_PASSED = EntryState.PASSED


class Context:
    """A named entrance and a caller, before any resource is entered.

    Attributes:
        name: of the entrance; chain rules and the call tree go by it.
        origin: the caller's name; empty when it gave none.
        entrance: its place in the call tree.
        nodes: the resources entered in it so far, by name; the entrance's own table.
        known: see ``EntranceNode``; empty for calls with a caller's name.
    """

    __slots__ = (
        "children",
        "context",
        "entrance",
        "known",
        "name",
        "nodes",
        "origin",
        "parent",
        "state",
    )

    def __init__(self, entrance: EntranceNode, origin: str) -> None:
        self.entrance = entrance
        self.name = entrance.name
        self.origin = origin
        self.nodes: dict[str, DefaultNode] = entrance.nodes
        self.known: dict[str, ClusterNode] = {} if origin else entrance.known
        # An entry has these as well, so the engine need not ask which the innermost thing is.
        self.children: dict[str, DefaultNode] = entrance.children
        self.context = self
        self.parent: Context | Entry = self
        self.state = _PASSED
