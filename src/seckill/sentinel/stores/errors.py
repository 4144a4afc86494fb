"""What a rule store raises.

::

    SentinelError
    └── RuleStoreError
        ├── RuleStoreDamaged    rules were kept, and none of them can be read any more
        ├── RuleStoreBusy       another process holds the store; safe to try again
        ├── RuleStoreAway       the service that keeps the rules does not answer; safe to try again
        └── NothingToUndo       there is no earlier version to go back to

Besides these a store raises ``seckill.sentinel.errors.RuleConflict``, and the ``OSError`` of a disk
that is full or cannot be written.
"""

from __future__ import annotations

from seckill.sentinel.errors import SentinelError


class RuleStoreError(SentinelError):
    """Rules could not be kept, or not be had back."""


class RuleStoreDamaged(RuleStoreError):  # noqa: N818  reads as what it is
    """Rules were kept here and none of them can be read any more.

    It is raised rather than answered with "no rules", which would let everything in. The text says
    where the damaged files are and what to do.
    """


class RuleStoreBusy(RuleStoreError):  # noqa: N818  as above
    """Another process holds the store for too long. Nothing was changed; safe to try again."""


class NothingToUndo(RuleStoreError):  # noqa: N818  as above
    """There is no earlier version to go back to, or not any more."""


class RuleStoreAway(RuleStoreError):  # noqa: N818  as above
    """The service that keeps the rules does not answer, or refuses.

    Whether a change that was under way has been kept is not known; saving the same again is safe.
    """
