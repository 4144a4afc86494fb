"""The rules of the fence, each with a way to take it out: to see what the simulation would say.

Nothing of this is in the service. A rule is taken out of the text of a script on its way to Redis,
or out of the function that keeps it, for as long as one simulation runs.
Source: docs/concepts.md, "When Redis forgets: the fence".
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from seckill.ledger import epochs
from seckill.ledger.batch import Batch
from seckill.ledger.fence import LedgerFence
from seckill.pipeline.outbox_log import OutboxLog

__all__ = ["SCRIPT_EDITS", "Rule", "without"]


class Rule(StrEnum):
    """What can be taken out."""

    ID_IN_SCRIPT = "id-in-script"
    """Rule 1: an order is named after its deduction. Without: after the buyer's attempt."""

    SERVER = "server"
    """Rule 3: a script compares its server with that under which the bucket was opened."""

    SEQ = "seq"
    """Rule 3: a script compares the bucket's seq with what the caller has acknowledged."""

    MARK_SURVIVES = "mark-survives"
    """Rule 5: what a process has acknowledged survives its death."""

    REPORT = "report"
    """Rule 5: nobody judges before every host has said what it acknowledged."""

    LEDGER_SEQ = "ledger-seq"
    """Rule 6: a bucket is also judged by what the ledger has and what is on its way there."""

    DRAIN = "drain"
    """Rule 8: what is under way runs dry before a bucket is made anew."""

    LATE = "late"
    """Rule 8: what an older epoch brings after that is compensated, never an order."""


SCRIPT_EDITS = {
    Rule.SERVER: ("bucket.server ~= server_identity()", "false"),
    Rule.SEQ: ("bucket.seq < acked_seq", "false"),
}


def taken_out(module: Any, name: str, instead: Any, patches: list[Callable[[], None]]) -> None:
    """Put something in the place of a function, until the patches are undone."""
    real = getattr(module, name)
    setattr(module, name, instead)
    patches.append(lambda: setattr(module, name, real))


@contextmanager
def without(rules: frozenset[Rule]) -> Iterator[None]:
    """Take rules out that live in Python, for as long as the block runs."""
    patches: list[Callable[[], None]] = []

    async def nothing(*_args: Any, **_options: Any) -> None:
        pass

    async def zero(*_args: Any, **_options: Any) -> int:
        return 0

    try:
        if Rule.LEDGER_SEQ in rules:
            for name in ("known_seq", "confirmed_seq"):
                taken_out(LedgerFence, name, zero, patches)
            taken_out(OutboxLog, "carried_seq", zero, patches)
            # The ledger looks once more when it is asked to carry on.
            taken_out(epochs, "last_written", zero, patches)
            taken_out(epochs, "_last_confirmed", zero, patches)
        if Rule.DRAIN in rules:
            taken_out(OutboxLog, "run_dry", nothing, patches)
        if Rule.LATE in rules:
            taken_out(Batch, "_accepts", lambda _batch, _place: True, patches)
        yield
    finally:
        for undo in reversed(patches):
            undo()
