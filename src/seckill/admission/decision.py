"""What the gate answers to one purchase request."""

import msgspec

from seckill.domain.ids import ReservationId
from seckill.domain.outcomes import Outcome

__all__ = ["Decision"]


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The answer to one purchase request. A Struct, since one is made for each: ten times cheaper.

    Attributes:
        outcome: what was decided.
        reservation_id: with SUCCESS the new one; with DUPLICATE and OVER_LIMIT the latest one
            that the user holds, if any.
        replayed: SUCCESS that had been given before to the same idempotency key.
        retry_after_ms: with NOT_STARTED, PAUSED, BLOCKED and UNDECIDED: when to ask again.
        starts_at_ms: with NOT_STARTED.
        left_units: with NOT_ENOUGH_LEFT.
        cause: with UNDECIDED, a word for the log and the metrics: ``redis``, ``fenced``,
            ``queue_full``, ``timeout``, ``unknown_sales``, ``not_durable``, ``circuit_open``.
    """

    outcome: Outcome
    reservation_id: ReservationId | None = None
    replayed: bool = False
    retry_after_ms: int = 0
    starts_at_ms: int = 0
    left_units: int = 0
    cause: str = ""
