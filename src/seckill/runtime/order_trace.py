"""The whole life of one purchase, from the POST to the release, out of all stores.

The places of truth are asked in the order in which a purchase moves, so that what moves meanwhile
is seen at least once: Redis, the outbox, the dead letters, the ledger.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from seckill.admission.bucket import BucketView, Holding
from seckill.audit.collect import BucketReader, holding_at
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import ReservationId, UserId
from seckill.domain.instants import rfc3339_ms
from seckill.domain.reservation import Place
from seckill.ledger.tracing import BookedStory, StoryReading
from seckill.runtime.bootstrap import Stores

__all__ = ["OrderTrace", "Step", "trace_order"]

_UNKNOWN_TIME: Final = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened, or that is so now.

    Attributes:
        at_ms: when; 0 for what is so now.
        where: ``redis``, ``outbox``, ``dead letters``, ``ledger`` or ``fence``.
    """

    at_ms: int
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class OrderTrace:
    """The story of one reservation.

    Attributes:
        state: what its buyer reads.
        steps: what happened, by time, and after that what is so now.
        redis: what Redis says now, by name.
        books: the rows of the ledger.
    """

    reservation_id: ReservationId
    place: Place
    state: str
    steps: list[Step]
    redis: dict[str, Any]
    books: BookedStory

    def to_dict(self) -> dict[str, Any]:
        """As JSON shows it."""
        place = self.place
        return {
            "reservation_id": self.reservation_id,
            "place": f"{place.sale_id}.{place.bucket}.{place.epoch}.{place.seq}",
            "state": self.state,
            "steps": [
                {
                    "at": rfc3339_ms(step.at_ms) if step.at_ms else None,
                    "where": step.where,
                    "what": step.what,
                }
                for step in self.steps
            ],
            "redis": self.redis,
            "ledger": {name: getattr(self.books, name) for name in BookedStory.__slots__},
        }

    def to_text(self) -> str:
        """As a person reads it, on one screen."""
        place = self.place
        lines = [
            f"{self.reservation_id}: {self.state}",
            f"  sale {place.sale_id}, bucket {place.bucket}, epoch {place.epoch}, seq {place.seq}",
            "",
        ]
        width = max((len(step.where) for step in self.steps), default=0)
        for step in self.steps:
            when = rfc3339_ms(step.at_ms) if step.at_ms else "now".ljust(24)
            lines.append(f"{when}  {step.where:<{width}}  {step.what}")
        return "\n".join(lines)


async def trace_order(stores: Stores, text: str) -> OrderTrace:
    """Tell the story of a reservation.

    Raises:
        InvalidValue: naming ``ID``: this installation never made such an id.
        StockUnavailable, LedgerUnavailable: a store does not answer.
    """
    place = stores.ids.decode(text)
    if place is None:
        raise InvalidValue("ID", "is not a reservation id that this installation has made")
    reservation_id = ReservationId(text)
    reader = BucketReader(stores.redis, stores.buckets, stores.keys)
    view = await reader.look(place.bucket_id)
    log = await reader.unwritten(place.bucket_id, 1 << 62, 0)
    books = await StoryReading(stores.database).story(reservation_id, place)
    held = None
    if books.order is not None:
        (record,) = await reader.records(place.bucket_id, [UserId(books.order["user_id"])])
        held = holding_at(place, record)
    in_outbox = place.epoch in log.outbox and place.seq in log.outbox[place.epoch].seqs
    dead = [
        letter.reason
        for letter in log.dead_letters
        if any(event.place == place for event in letter.events)
    ]
    steps = sorted(_past(books), key=lambda step: step.at_ms)
    steps += _now(view, held, books, in_outbox=in_outbox, dead=dead)
    return OrderTrace(
        reservation_id,
        place,
        _state(books, in_outbox=in_outbox, dead=dead),
        steps,
        {
            "bucket": view.status.name.lower(),
            "epoch": view.epoch,
            "seq": view.seq,
            "held": None if held is None else held.quantity,
            "in_outbox": in_outbox,
            "dead_letters": dead,
        },
        books,
    )


def _state(books: BookedStory, *, in_outbox: bool, dead: list[str]) -> str:
    if books.order is not None:
        return str(books.order["state"])
    if books.loss is not None:
        return "compensated (lost)"
    if books.collisions:
        return "compensated (its number is another buyer's)"
    if dead:
        return "queued, and among the dead letters"
    return "queued" if in_outbox else "unknown: no store knows it"


def _past(books: BookedStory) -> Iterator[Step]:
    """What happened, out of the books."""
    order = books.order
    if order is not None:
        yield Step(
            order["admitted_at_ms"],
            "redis",
            f"POST {order['attempt_id']} of {order['user_id']} admitted: {order['quantity']} units",
        )
    for event in books.events:
        reason = f" ({event['reason']})" if event["reason"] else ""
        yield Step(
            event["at_ms"],
            "ledger",
            f"{event['from_state']} -> {event['to_state']} by {event['actor']}{reason}",
        )
    release = books.release
    if release is not None:
        yield Step(
            release["decided_at_ms"],
            "ledger",
            f"release of {release['units']} units decided: {release['reason']}"
            + (", they still count against the buyer's limit" if release["spent"] else ""),
        )
        if release["state"] == "counted":
            yield Step(release["done_at_ms"], "ledger", "release counted by a rebuild")
        elif release["done_at_ms"] is not None:
            at = f" at seq {release['release_seq']}" if release["release_seq"] else ""
            what = f"released under epoch {release['epoch']}{at}"
            yield Step(release["done_at_ms"], "redis", what)
    for row in books.collisions:
        yield Step(row["recorded_at_ms"], "ledger", f"collision: {row['reason']}")
    yield from _past_of_bucket(books)


def _past_of_bucket(books: BookedStory) -> Iterator[Step]:
    """What happened to the bucket since, and whether the purchase was lost with it."""
    if books.loss is not None:
        yield Step(books.loss["named_at_ms"], "fence", "named as lost: it is in no log")
    for row in books.epochs[1:]:
        what = f"bucket {row['origin']} under epoch {row['epoch']}"
        yield Step(row["created_at_ms"], "fence", what)
    for row in books.fences:
        yield Step(row["noticed_at_ms"], "fence", f"bucket closed: {row['cause']}")
        if row["reopened_at_ms"] is not None:
            what = f"bucket open under epoch {row['new_epoch']}"
            yield Step(row["reopened_at_ms"], "fence", what)


def _now(
    view: BucketView,
    held: Holding | None,
    books: BookedStory,
    *,
    in_outbox: bool,
    dead: list[str],
) -> Iterator[Step]:
    """What is so now."""
    status = view.status.name.lower()
    yield Step(_UNKNOWN_TIME, "redis", f"bucket {status}, epoch {view.epoch}, seq {view.seq}")
    if held is not None:
        yield Step(_UNKNOWN_TIME, "redis", f"its buyer holds {held.quantity} units by it")
    elif books.order is not None:
        yield Step(_UNKNOWN_TIME, "redis", "its buyer holds nothing by it")
    if in_outbox:
        yield Step(_UNKNOWN_TIME, "outbox", "on its way to the ledger")
    for reason in dead:
        yield Step(_UNKNOWN_TIME, "dead letters", reason)
    if books.order is not None:
        yield Step(_UNKNOWN_TIME, "ledger", f"order {books.order['state']}")
    release = books.release
    if release is not None and release["state"] == "pending":
        yield Step(_UNKNOWN_TIME, "ledger", f"release pending under epoch {release['epoch']}")
