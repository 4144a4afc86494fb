"""Admits money that came late: one purchase by the reaper, for a buyer whose order has expired.

It is an admission like any other, by the same script: a place of its own, counted by ``seq``,
refused when the sale is over, the stock gone or the buyer at the limit. So every rule of the fence
holds for it without a word about it. Nobody is told yes by this: the buyer reads it when the ledger
has it.
"""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from seckill.admission.bucket import Buckets
from seckill.admission.keys import Keys
from seckill.admission.scripts import ADMIT, Scripts, Status
from seckill.domain.ids import AttemptId, SaleId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import BucketId

__all__ = ["LateAdmission", "LateAnswer"]

_HEAD: Final = 5
_REFUSALS: Final = {
    Outcome.SOLD_OUT: "nothing is left",
    Outcome.NOT_ENOUGH_LEFT: "not enough is left",
    Outcome.DUPLICATE: "the buyer has bought again since",
    Outcome.OVER_LIMIT: "the buyer has bought as much as one may since",
    Outcome.ENDED: "the sale is over",
    Outcome.NOT_STARTED: "the sale has not begun",
}


class LateAnswer(StrEnum):
    """What the stock says to late money."""

    TAKEN = "taken"
    """A unit is taken, now or by an earlier call of the same attempt."""
    REFUSED = "refused"
    NOT_NOW = "not now"
    """The sale is paused, or its bucket may not be trusted at present."""


class LateAdmission:
    """Takes free units for late money.

    Args:
        is_retired: whether a sale is over for ever: its bucket is not lost then, but gone.
    """

    def __init__(
        self,
        scripts: Scripts,
        buckets: Buckets,
        keys: Keys,
        is_retired: Callable[[SaleId], Awaitable[bool]] | None = None,
    ) -> None:
        self._scripts = scripts
        self._buckets = buckets
        self._keys = keys
        self._is_retired = is_retired

    async def take(
        self, bucket_id: BucketId, user_id: UserId, quantity: int, attempt_id: AttemptId
    ) -> tuple[LateAnswer, str]:
        """Take units for a buyer; the same attempt takes them once, however often it is asked.

        Returns:
            The answer, and why in a few words.

        Raises:
            StockUnavailable: Redis cannot answer now; ask again with the same attempt.
        """
        view = await self._buckets.look(bucket_id)
        gone = view.status is Status.MISSING
        if gone and self._is_retired and await self._is_retired(bucket_id.sale_id):
            return LateAnswer.REFUSED, _REFUSALS[Outcome.ENDED]
        if view.status is not Status.OK:
            return LateAnswer.NOT_NOW, f"the bucket is {view.status.name.lower()}"
        keys = self._keys.bucket(bucket_id)
        request = (view.epoch, view.seq, self._scripts.touch, user_id, attempt_id, quantity)
        reply = await self._scripts.run(
            ADMIT, (keys.meta, keys.buyers, keys.outbox), request, durable=True
        )
        if Status(reply[0]) is not Status.OK:
            return LateAnswer.NOT_NOW, f"the bucket is {Status(reply[0]).name.lower()}"
        outcome = Outcome(reply[_HEAD])
        if outcome is Outcome.SUCCESS:
            return LateAnswer.TAKEN, "a free unit was taken"
        if outcome in _REFUSALS:
            return LateAnswer.REFUSED, _REFUSALS[outcome]
        return LateAnswer.NOT_NOW, outcome.name.lower()
