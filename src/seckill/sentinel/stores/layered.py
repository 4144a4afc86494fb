"""Several places for rules, in order: what the first does not have, the next one knows.

The usual pair is a store that all hosts see (Redis), and a folder on this host's disk. The first
decides; the others hold a copy. So rules outlive a Redis that lost its data or does not answer:
they are in force from the first request after a start, and Redis is told of them again, with their
history.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from seckill.sentinel.rule_store import NOBODY
from seckill.sentinel.rules import KINDS
from seckill.sentinel.stores.errors import RuleStoreDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seckill.sentinel.rule_store import Change
    from seckill.sentinel.stores.version import RuleVersion

_LOG: Final = logging.getLogger(__name__)


class VersionedStore(Protocol):
    """A store with a history; ``FileRuleStore`` and ``RedisRuleStore`` are some."""

    def load(self, kind: str) -> str | None:
        """The rules of a kind; None if there are none."""
        ...

    def head(self, kind: str) -> RuleVersion | None:
        """The version in force."""
        ...

    def head_number(self, kind: str) -> int:
        """A number that rises when there is something new."""
        ...

    def history(self, kind: str) -> tuple[RuleVersion, ...]:
        """The versions that are kept, oldest first."""
        ...

    def save(self, kind: str, document: str, change: Change = NOBODY) -> None:
        """Keep rules as a new version."""
        ...

    def undo(self, kind: str, change: Change = NOBODY, *, to: int | None = None) -> RuleVersion:
        """Go back to an earlier version."""
        ...

    def adopt(self, kind: str, versions: Iterable[RuleVersion]) -> int:
        """Keep versions of another store under their own numbers, if newer than all here."""
        ...


class LayeredRuleStore:
    """A ``RuleStore`` made of others.

    * Reading: the first that has something of a kind decides, and the others are brought up to it.
      One that fails is left out, with a line in the log. If the first fails, and the others have
      never been given anything, its failure is raised.
    * A first store that has nothing, where a later one has versions, is given all of these.
    * Writing: the first store decides whether a change is kept. The others are brought up to it;
      one that fails at that is named in the log, and caught up with the next change.

    Rule files of other programs (``seeds``) belong to the last store: where they are given to an
    earlier one, they come before the rules that a later one has kept.

    Args:
        first: decides.
        others: hold copies, in the order in which they are asked.
    """

    def __init__(self, first: VersionedStore, *others: VersionedStore) -> None:
        self._first = first
        self._others = others
        self._stores = (first, *others)

    # Reading.

    def load(self, kind: str) -> str | None:
        """The rules of a kind from the first store that has any; None if none has.

        Raises:
            Exception: what the first store that failed raised, if the others have nothing at all.
        """
        failure: Exception | None = None
        for store in self._stores:
            try:
                document = store.load(kind)
            except Exception as error:  # noqa: BLE001  whatever ails a store, the next may know
                failure = failure or error
                _LOG.warning("%s rules cannot be had from %s: %s", kind, _name(store), error)
                continue
            if document is None:
                continue
            if store is self._first:
                self._copy(kind)
            elif failure is None:
                self._fill_first(kind, store)
            return document
        if failure is not None and not self._others_keep_anything():
            # Not "no rules": that would let everything in.
            raise failure
        if failure is not None:
            _LOG.warning("the copy has no %s rules, so none are taken to be in force", kind)
        return None

    def _others_keep_anything(self) -> bool:
        """Whether the others are a copy that lacks this kind, rather than no copy at all."""
        return any(store.head_number(kind) for store in self._others for kind in KINDS)

    def head(self, kind: str) -> RuleVersion | None:
        """The version in force in the first store that has one.

        Raises:
            Exception: whatever a store raises.
        """
        for store in self._stores:
            head = store.head(kind)
            if head is not None:
                return head
        return None

    def head_number(self, kind: str) -> int:
        """The first store's.

        Raises:
            Exception: whatever the first store raises.
        """
        return self._first.head_number(kind)

    def history(self, kind: str) -> tuple[RuleVersion, ...]:
        """The versions of the first store that has any, oldest first.

        Raises:
            Exception: whatever a store raises.
        """
        for store in self._stores:
            versions = store.history(kind)
            if versions:
                return versions
        return ()

    # Writing.

    def save(self, kind: str, document: str, change: Change = NOBODY) -> None:
        """Keep rules in the first store, and copy them into the others.

        Raises:
            RuleConflict: they were made from a version that is no longer in force.
            Exception: whatever the first store raises.
        """
        self._refill(kind)
        self._first.save(kind, document, change)
        self._copy(kind)

    def undo(self, kind: str, change: Change = NOBODY, *, to: int | None = None) -> RuleVersion:
        """Go back to an earlier version in the first store, and copy that into the others.

        Raises:
            NothingToUndo: there is nothing before, or ``to`` is not kept (any more).
            RuleConflict: the undo was meant for a version that is no longer in force.
            Exception: whatever the first store raises.
        """
        self._refill(kind)
        version = self._first.undo(kind, change, to=to)
        self._copy(kind)
        return version

    def adopt(self, kind: str, versions: Iterable[RuleVersion]) -> int:
        """Keep versions of another store in the first, and copy them into the others.

        Raises:
            Exception: whatever the first store raises.
        """
        adopted = self._first.adopt(kind, versions)
        self._copy(kind)
        return adopted

    def _refill(self, kind: str) -> None:
        """Give the first store the history of another before it begins a new one."""
        try:
            if self._first.head(kind) is not None:
                return
        except RuleStoreDamaged:
            # What is there cannot be read, and is about to be replaced.
            return
        for store in self._others:
            if self._fill_first(kind, store):
                return

    def _fill_first(self, kind: str, store: VersionedStore) -> int:
        try:
            adopted = self._first.adopt(kind, store.history(kind))
        except Exception as error:  # noqa: BLE001  the rules are in force all the same
            _LOG.warning("%s cannot be given the %s rules: %s", _name(self._first), kind, error)
            return 0
        if adopted:
            _LOG.warning(
                "%s had no %s rules; it was given %d versions of %s",
                _name(self._first), kind, adopted, _name(store),
            )  # fmt: skip
        return adopted

    def _copy(self, kind: str) -> None:
        for store in self._others:
            try:
                head, known = self._first.head(kind), store.head(kind)
                if head is None or head == known:
                    continue
                store.adopt(kind, self._first.history(kind))
                known = store.head(kind)
                if known is None or known.document != head.document:
                    # It counts further on than the first, which was made anew in the meantime.
                    store.save(kind, head.document, head.change)
            except Exception as error:  # noqa: BLE001  the rules are kept where it counts
                _LOG.warning("%s has no copy of the %s rules: %s", _name(store), kind, error)


def _name(store: VersionedStore) -> str:
    return type(store).__name__
