"""What happens to a stock bucket, as the outbox carries it to the ledger.

Each event has a place of its own, so the ledger can prove completeness by counting: a gap in
``seq`` is a loss or still under way. Source: rule 2 of the fence, ``docs/concepts.md``.
"""

from dataclasses import dataclass

from seckill.domain.ids import AttemptId, UserId
from seckill.domain.reservation import Place

__all__ = ["Admitted", "BucketEvent", "Released", "StockChanged"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A buyer was admitted: ``quantity`` units left the stock."""

    place: Place
    user_id: UserId
    quantity: int
    attempt_id: AttemptId
    at_ms: int


@dataclass(frozen=True, slots=True)
class Released:
    """The units of an earlier reservation came back to the stock."""

    place: Place
    reservation: Place
    user_id: UserId
    quantity: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class StockChanged:
    """An operator put ``delta_units`` more (or, negative, fewer) on sale."""

    place: Place
    change_id: str
    delta_units: int
    at_ms: int


BucketEvent = Admitted | Released | StockChanged
