"""Where rules live when the process does not.

The engine itself forgets its rules with the process, as the original does, which is what its users
complain about most. Given a store, it has the stored rules in force before the first entry, and
hands every change to the store before it reports success.
"""

from __future__ import annotations

from typing import Protocol


class RuleStore(Protocol):
    """Keeps one document per kind of rules. May do I/O: called when rules change, only."""

    def load(self, kind: str) -> str | None:
        """The document kept for a kind; None if there is none yet."""
        ...

    def save(self, kind: str, document: str) -> None:
        """Keep a document in place of the one before, at once or not at all.

        Raises:
            Exception: it could not be kept. The rules are in force all the same, and the report
                says so.
        """
        ...
