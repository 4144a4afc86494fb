"""Rules that another process changed, put in force here.

Each worker of a service has its own engine. The one that is told new rules saves them; the others
look after the store.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from seckill.sentinel.rules import KINDS

if TYPE_CHECKING:
    from seckill.sentinel.engine import Sentinel

FOLLOW_INTERVAL_S: Final = 0.5

_LOG: Final = logging.getLogger(__name__)


class NumberedStore(Protocol):
    """A store that can say cheaply whether there is something new."""

    def head_number(self, kind: str) -> int:
        """The number of the version in force; 0 if there is none. Never goes back."""
        ...


class RuleFollower:
    """Takes up what others save.

    Args:
        sentinel: the engine, made with the same store.
        store: says when there is something new.
        interval_s: between two looks; the longest that this process is behind.
    """

    def __init__(
        self,
        sentinel: Sentinel,
        store: NumberedStore,
        *,
        interval_s: float = FOLLOW_INTERVAL_S,
    ) -> None:
        self._sentinel = sentinel
        self._store = store
        self._interval_s = interval_s
        self._seen = dict.fromkeys(KINDS, 0)
        self._failing: set[str] = set()

    async def run(self) -> None:
        """Follow until cancelled. A fault of the store is logged once, and it is tried again."""
        while True:
            await asyncio.to_thread(lambda: [self.look(kind) for kind in KINDS])
            await asyncio.sleep(self._interval_s)

    def look(self, kind: str) -> bool:
        """Take up the newest rules of one kind, unless they are known; whether anything was new."""
        try:
            number = self._store.head_number(kind)
            if number <= self._seen[kind]:
                return False
            report = self._sentinel.restore_rules(kind)
        except Exception as error:  # noqa: BLE001  whatever ails the store
            # The old rules stay in force, and the next look may find the store well again.
            if kind not in self._failing:
                self._failing.add(kind)
                _LOG.warning(
                    "the %s rules that another saved cannot be taken up", kind, exc_info=error
                )
                self._sentinel.note_internal_error(error)
            return False
        self._failing.discard(kind)
        self._seen[kind] = number
        if report is not None and (report.refused or not report.applied):
            _LOG.warning("rules of another process: %s", report)
        return True
