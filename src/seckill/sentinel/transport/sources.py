"""The seam between who is asked and who counts.

The command center knows these two protocols only. ``EngineSource`` is both for one engine in this
process; ``SummedSource`` shows several sources as one machine, which is how the worker processes of
a host become one line in the dashboard.

For many processes, one of them (or their supervisor) has the command port, and needs

* a ``StatisticsSource`` per process, and ``SummedSource`` over them. All values are plain (see
  ``counts``), so a process may push what its own ``EngineSource`` answers through a pipe or a file
  and the source may answer from what was pushed last. A push once a second is enough; see
  ``settle_s`` of ``MetricRecorder``.
* a ``RuleTarget`` that saves rules where all processes find them, and says success once they are
  saved. Over a shared ``FileRuleStore`` the target of the one engine is enough: the others take the
  rules up by a ``RuleFollower`` within half a second. ``set_enabled`` has to reach all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from seckill.sentinel.reports import LoadReport
    from seckill.sentinel.rule_store import Change
    from seckill.sentinel.transport.counts import Counts, MachineLoad, MetricRow, TreeRow


class StatisticsSource(Protocol):
    """Where numbers come from. Each answer is of about one instant and adds up with others'."""

    def now_ms(self) -> int:
        """The clock that the numbers go by, in milliseconds since the epoch."""
        ...

    async def resources(self) -> list[Counts]:
        """Every resource."""
        ...

    async def tree(self) -> list[TreeRow]:
        """The call tree, its root first and every row after its parent."""
        ...

    async def origins(self, resource: str) -> list[Counts]:
        """The callers of one resource that gave their names; empty if it is not known."""
        ...

    async def inbound(self) -> Counts:
        """All entries of type ``IN`` together."""
        ...

    async def machine(self) -> MachineLoad:
        """How busy the machine is."""
        ...

    async def finished_seconds(self, after_ms: int) -> list[MetricRow]:
        """The seconds that began after an instant and are over, in order, without idle ones.

        A source remembers at least the last 20 seconds. It has to be asked once a minute at least
        by who wants them all.
        """
        ...


class RuleTarget(Protocol):
    """Where rules are read from and put in force."""

    async def dump_rules(self, kind: str) -> str:
        """The rules in force, as a JSON list.

        Raises:
            ValueError: no kind of rules is called so.
        """
        ...

    async def load_rules(self, kind: str, document: str, change: Change) -> LoadReport:
        """Put a whole list in force in place of the old one, and have it kept.

        Raises:
            RuleDocumentError: it cannot be read at all; the old rules stay.
            ValueError: no kind of rules is called so.
        """
        ...

    async def enabled(self) -> bool:
        """Whether entries are checked and counted at all."""
        ...

    async def set_enabled(self, *, enabled: bool) -> None:
        """Switch checking and counting on or off."""
        ...
