"""Going back over versions: the same in every store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from seckill.sentinel.errors import RuleConflict
from seckill.sentinel.stores.errors import NothingToUndo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seckill.sentinel.rule_store import Change
    from seckill.sentinel.stores.version import RuleVersion

HISTORY_COUNT_MAX: Final = 50
"""Versions of one kind that are kept, unless a store is told otherwise."""

EMPTY: Final = "[]"


def check_history_count(count_max: int) -> int:
    """The bound on versions, if it can be one.

    Raises:
        ValueError: fewer than 2, the one in force and the one to go back to, or more than 1,000.
    """
    if not 2 <= count_max <= 1_000:  # noqa: PLR2004  the sentence above says why
        raise ValueError(f"at least 2 and at most 1,000 versions are kept, not {count_max}")
    return count_max


def undone(kind: str, kept: Mapping[int, RuleVersion], to: int | None) -> tuple[str, int]:
    """The rules to go back to, and the version that they are of.

    Args:
        kind: which rules.
        kept: the versions there are, by number.
        to: a version to go to; None goes to the one before. Before the first there were no rules.

    Raises:
        NothingToUndo: there is nothing before, or ``to`` is not kept (any more).
    """
    if not kept:
        raise NothingToUndo(f"no {kind} rules have been saved")
    target = _before(kept[max(kept)], kept) if to is None else to
    if target == 0 and to is None:
        return EMPTY, 0
    if target not in kept:
        raise NothingToUndo(
            f"version {target} of the {kind} rules is not kept; there are {sorted(kept)}"
        )
    return kept[target].document, kept[target].stands_for


def refuse_conflict(kind: str, change: Change, head: RuleVersion | None) -> None:
    """See that a change was made from the version in force, if it says what it was made from.

    Raises:
        RuleConflict: it was made from another one.
    """
    number, who = (0, "") if head is None else (head.number, head.change.who)
    if change.made_from is not None and change.made_from != number:
        raise RuleConflict(kind, change.made_from, number, who)


def _before(head: RuleVersion, kept: Mapping[int, RuleVersion]) -> int:
    """The version whose rules were in force before the head's were; 0 is before the first."""
    # An undo stands for an earlier version: what was before that is where the next one goes.
    current = head.stands_for
    earlier = [number for number in kept if number < current]
    if earlier:
        return max(earlier)
    if current == 1:
        return 0
    raise NothingToUndo(f"nothing before version {current} of the {head.kind} rules is kept")
