"""The inserts of the fence's books, as each dialect spells them, and the rows of losses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Insert, func
from sqlalchemy.dialects import postgresql, sqlite

from seckill.domain.ids import ReservationId
from seckill.domain.reservation import Place
from seckill.ledger.tables import fences, known_marks, losses

__all__ = ["FENCE_INSERTS", "FenceInserts", "loss_rows"]


@dataclass(frozen=True, slots=True)
class FenceInserts:
    """The inserts of the fence.

    Attributes:
        fence: unless this epoch of the bucket has one, or the bucket has an open one.
        loss: unless it is named already. Returns reservation_id.
        known_mark: raises what a folder said of an epoch; never lowers it.
    """

    fence: Insert
    loss: Insert
    known_mark: Insert


def _inserts(dialect: Any, greater: Any) -> FenceInserts:
    mark = dialect.insert(known_marks)
    return FenceInserts(
        fence=dialect.insert(fences).on_conflict_do_nothing(),
        loss=dialect.insert(losses).on_conflict_do_nothing().returning(losses.c.reservation_id),
        known_mark=mark.on_conflict_do_update(
            index_elements=[
                known_marks.c.sale_id,
                known_marks.c.bucket,
                known_marks.c.epoch,
                known_marks.c.folder_id,
            ],
            set_={
                "seq": greater(known_marks.c.seq, mark.excluded.seq),
                "answered": known_marks.c.answered | mark.excluded.answered,
                "reported_at_ms": mark.excluded.reported_at_ms,
            },
        ),
    )


FENCE_INSERTS: Final = {
    "sqlite": _inserts(sqlite, func.max),
    "postgresql": _inserts(postgresql, func.greatest),
}
"""By the name of the dialect of a connection."""


def loss_rows(
    places: Iterable[Place],
    reservation_ids: Mapping[Place, ReservationId],
    *,
    fence_epoch: int,
    now_ms: int,
) -> list[dict[str, Any]]:
    """Rows of `losses` for places."""
    return [
        {
            "reservation_id": reservation_ids[place],
            "sale_id": place.sale_id,
            "bucket": place.bucket,
            "epoch": place.epoch,
            "seq": place.seq,
            "named_at_ms": now_ms,
            "fence_epoch": fence_epoch,
        }
        for place in places
    ]
