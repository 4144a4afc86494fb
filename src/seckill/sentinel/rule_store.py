"""Where rules live when the process does not.

The engine itself forgets its rules with the process, as the original does, which is what its users
complain about most. Given a store, it has the stored rules in force before the first entry, and
hands every change to the store before it reports success. A store that needs no other service is in
``stores``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

WHO_LENGTH_MAX: Final = 200
WHY_LENGTH_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Change:
    """Who changes rules, and why. Both come from outside: they are cut and cleaned, never refused.

    Attributes:
        who: a person or a program, as far as it is known.
        why: in words.
        made_from: the number of the version that the person looked at; 0 stands for none. A store
            refuses the change if another is in force by now. None: replace whatever is there.
    """

    who: str = ""
    why: str = ""
    made_from: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", _one_line(self.who, WHO_LENGTH_MAX))
        object.__setattr__(self, "why", _one_line(self.why, WHY_LENGTH_MAX))


class RuleStore(Protocol):
    """Keeps one document per kind of rules. May do I/O: called when rules change, only."""

    def load(self, kind: str) -> str | None:
        """The document kept for a kind; None if there is none yet."""
        ...

    def save(self, kind: str, document: str, change: Change) -> None:
        """Keep a document in place of the one before, at once or not at all.

        Raises:
            RuleConflict: the change was made from a version that is no longer in force. The engine
                puts the rules back that it had.
            Exception: it could not be kept. The rules are in force all the same, and the report
                says so.
        """
        ...


def _one_line(text: str, length_max: int) -> str:
    """A text that can stand in a log line: no control characters, not too long."""
    printable = "".join(one if one.isprintable() else " " for one in text[:length_max])
    return printable.strip()


NOBODY: Final = Change()
"""A change of which nobody said anything."""
