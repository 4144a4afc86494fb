"""Which tests go to one process together when several share the run."""

from collections.abc import Mapping, Sequence

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

__all__ = ["ByModule"]


class ByModule(LoadScopeScheduling):
    """A module goes to one process, since its tests may share a service.

    So do modules that share something dear (`groups`: beginning of a path -> name), and each test
    below `alone` (beginnings of paths) goes by itself.

    Not by marks and `loadgroup`: xdist 3.8 finds no group with pytest 9.
    """

    def __init__(
        self,
        config: pytest.Config,
        log: Producer | None,
        groups: Mapping[str, str] | None = None,
        alone: Sequence[str] = (),
    ) -> None:
        super().__init__(config, log)
        self._groups = groups or {}
        self._alone = tuple(alone)

    def _split_scope(self, nodeid: str) -> str:
        for begins, group in self._groups.items():
            if nodeid.startswith(begins):
                return group
        return nodeid if nodeid.startswith(self._alone) else nodeid.partition("::")[0]

    def schedule(self) -> None:
        """Hand out work; twice, since a process keeps its last test until it knows what follows.

        xdist 3.8 gives a process that replaces another one module, and waits for ever for the
        result if that is a single test.
        """
        super().schedule()
        super().schedule()

    def remove_node(self, node: WorkerController) -> str | None:
        """Hand on what a process that died had left, and return the test that it died of.

        xdist 3.8 hands on all that it ever had. A new process that is given nothing but finished
        tests has no result to send, and the run waits for it for ever; and the deadly test kills
        one process after the other.
        """
        work = self.assigned_work.pop(node)
        left = [(scope, test) for scope, tests in work.items() for test in tests if not tests[test]]
        if not left:
            return None
        scope, deadly = left[0]
        work[scope][deadly] = True
        self.workqueue.update(
            (scope, tests) for scope, tests in work.items() if not all(tests.values())
        )
        for other in self.nodes:
            self._reschedule(other)
        return deadly
