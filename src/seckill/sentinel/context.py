"""Where a chain of calls came in, and who sent it.

A context is immutable and lives in a ``contextvars`` variable, together with the innermost entry. A
thread starts without one; a task starts with its creator's and cannot disturb it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seckill.sentinel.node import DefaultNode, EntranceNode


class Context:
    """A named entrance and a caller, before any resource is entered.

    Attributes:
        name: of the entrance; chain rules and the call tree go by it.
        origin: the caller's name; empty when it gave none.
        entrance: its place in the call tree.
        nodes: the resources entered in it so far, by name; the entrance's own table.
    """

    __slots__ = ("children", "context", "entrance", "name", "nodes", "origin")

    def __init__(self, entrance: EntranceNode, origin: str) -> None:
        self.entrance = entrance
        self.name = entrance.name
        self.origin = origin
        self.nodes: dict[str, DefaultNode] = entrance.nodes
        # An entry has these two as well, so the engine need not ask which the innermost thing is.
        self.children: dict[str, DefaultNode] = entrance.children
        self.context = self
