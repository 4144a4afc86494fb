"""One batch of bucket events on its way into the books, within one transaction.

The steps, in order:

1. take the rows of the sales (`statements.LOCK_SALES`) and read the openings of their buckets;
2. write every event at its place: what is there already is a repetition (the same event: nothing
   more happens) or a collision (something else: recorded, and an alarm);
3. decide what each new admission becomes, in the order of the events: an order, or a compensation
   because its epoch is over, the buyer's limit is reached or the stock is used up;
4. write the sums that follow: what users hold, what sales have sold, releases, the order's events.

A usual batch (all new, all accepted) costs eight statements, however many events it has.

That an order is new is nearly always so, and looking for it before it is written costs half as much
again as writing it. So a batch is first written as if every order were new; the keys refuse it
whole (`KeyTaken`) when one is not, and then it is written carefully, in a transaction of its own.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

import msgspec
import structlog
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.errors import InvalidValue
from seckill.domain.events import Admitted, BucketEvent, Released, StockChanged
from seckill.domain.ids import ID_CHARS_MAX, ReservationId, SaleId, UserId, check_id
from seckill.domain.order import OrderState
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import INSTANT_MS_MAX, STOCK_UNITS_MAX
from seckill.ledger import statements
from seckill.ledger.errors import UnknownSale, UnwritableEvents
from seckill.ledger.many_rows import Columns
from seckill.ledger.tables import stock_changes
from seckill.pipeline.ports import WriteReport

__all__ = ["OVER_LIMIT", "OVER_STOCK", "STALE_EPOCH", "WORKER", "Batch"]

STALE_EPOCH: Final = "The stock was rebuilt before this purchase reached the order books."
OVER_LIMIT: Final = "The buyer already holds as many units of this sale as one buyer may."
OVER_STOCK: Final = "The stock was used up when this purchase reached the order books."

WORKER: Final = "worker"
"""The actor of what the ledger decides by itself when it writes a batch."""

# What fits into a reservation id, see admission/reservation_ids.py.
_SALE_ID_END: Final = 2**32
_BUCKET_END: Final = 2**16
_EPOCH_END: Final = 2**16
_SEQ_END: Final = 2**40

# Text that is an identifier in pieces of the right length, whatever the pieces: see check_id.
_PLAIN: Final = re.compile("[!-~]+")

_AWAITING: Final = OrderState.AWAITING_PAYMENT.value
_COMPENSATED: Final = OrderState.COMPENSATED.value

_log = structlog.get_logger(__name__)

_Content = tuple[str | int, ...]
_Other = tuple[Released | StockChanged, _Content, ReservationId | None]
"""A place that is no admission: the event, what it says, and the reservation it names."""


@dataclass(slots=True)
class _SaleBook:
    """The totals of one sale while a batch is decided."""

    price_fen: int
    limit_per_user: int
    stock_units: int
    sold_units: int
    pay_window_ms: int
    more_sold: int = 0
    more_stock: int = 0
    more_version: int = 0


@dataclass(frozen=True, slots=True)
class _Collision:
    """An event whose place or reservation id belongs to something else."""

    event: BucketEvent
    content: _Content
    reservation_id: ReservationId | None
    reason: str


@dataclass(slots=True)
class _Change:
    """A stock change that the ledger knows, while a batch is decided."""

    sale_id: SaleId
    delta_units: int
    counted: bool
    applied: bool = False


class Batch:
    """Writes one batch. Made for one transaction and used once.

    Args:
        careful: ask of every order whether it is there; without it, one that is there is KeyTaken.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        reservation_ids: ReservationIds,
        now_ms: int,
        *,
        careful: bool,
    ) -> None:
        self._connection = connection
        self._inserts = statements.INSERTS[connection.dialect.name]
        self._reservation_ids = reservation_ids
        self._now_ms = now_ms
        self._careful = careful
        self._sales: dict[SaleId, _SaleBook] = {}
        self._current: dict[BucketId, int] = {}
        # Of each known (sale, epoch, bucket), as a place begins, the last seq that it accepts; 0
        # when a rebuild has counted it.
        self._last_seq: dict[tuple[int, int, int], float] = {}
        self._known = 0
        self._collisions: list[_Collision] = []
        # Events that claim what another one in the batch has claimed before them. Which of the two
        # is right, the books say once the first has been tried.
        self._rivals: list[_Collision] = []
        # What the decisions read and leave.
        self._held: dict[tuple[SaleId, UserId], int] = {}
        self._changes: dict[str, _Change] = {}
        self._accepted: set[Place] = set()
        self._added: dict[tuple[SaleId, UserId], int] = defaultdict(int)
        self._ordered: list[ReservationId] = []
        self._refused: list[tuple[Admitted, ReservationId, str]] = []
        self._released: list[tuple[str, Place]] = []
        # What has taken a place or a reservation id within this batch.
        self._contents: dict[Place, _Content] = {}
        self._ids: dict[ReservationId, Place] = {}

    async def write(self, events: Sequence[BucketEvent]) -> WriteReport:
        """Write the events.

        Raises:
            UnwritableEvents: naming every event that no admission can have made, or (UnknownSale)
                every event of a sale that is not in the books.
            KeyTaken: an order of the batch is there already; only when not ``careful``.

        Complexity: O(events), with a bounded number of statements per 5,000 of them.
        """
        unwritable = [event for event in _doubtful(events) if not _is_writable(event)]
        if unwritable:
            raise UnwritableEvents(unwritable, "hold values that no admission can have made")
        await self._lock_sales(events)
        await self._read_epochs(events)
        admissions, others = self._claim(events)
        new_admissions = await self._place_admissions(admissions)
        new_others = await self._place_others(others)
        await self._settle_rivals()
        await self._read_changes(new_others)
        await self._read_units_held(admissions, new_admissions)
        self._decide(events, new_admissions, new_others)
        await self._write_orders()
        await self._write_sums()
        await self._write_confirmations()
        collided = await self._write_collisions()
        return WriteReport(
            ordered=len(self._ordered),
            known=self._known,
            compensated=tuple(reservation_id for _, reservation_id, _ in self._refused),
            collided=collided,
        )

    def _decide(
        self,
        events: Sequence[BucketEvent],
        new_admissions: dict[Place, ReservationId],
        new_others: dict[Place, str],
    ) -> None:
        """Decide what becomes of the new events, in their order."""
        for event in events:
            place = event.place
            # Taken out, so that the second appearance of an event in a batch decides nothing.
            match event:
                case Admitted():
                    reservation_id = new_admissions.pop(place, None)
                    if reservation_id is not None:
                        self._decide_admission(event, reservation_id)
                case Released():
                    named = new_others.pop(place, None)
                    if named is not None and self._accepts(place):
                        self._released.append((named, place))
                case StockChanged():
                    named = new_others.pop(place, None)
                    if named is not None and self._accepts(place):
                        self._count_change(event)

    # 1. what the decisions stand on

    async def _lock_sales(self, events: Sequence[BucketEvent]) -> None:
        sale_ids = sorted({event.place.sale_id for event in events})
        rows = await self._connection.execute(statements.LOCK_SALES, {"sale_ids": sale_ids})
        self._sales = {SaleId(row[0]): _SaleBook(*row[1:]) for row in rows}
        unknown = [event for event in events if event.place.sale_id not in self._sales]
        if unknown:
            raise UnknownSale(unknown)

    async def _read_epochs(self, events: Sequence[BucketEvent]) -> None:
        rows = await self._connection.execute(
            statements.EPOCHS_SINCE,
            {
                "sale_ids": sorted(self._sales),
                "epoch_min": min(event.place.epoch for event in events),
            },
        )
        for sale_id, bucket, epoch, state, valid_to_seq in rows:
            bucket_id = BucketId(sale_id, bucket)
            self._current[bucket_id] = max(epoch, self._current.get(bucket_id, 0))
            last_seq = float("inf") if valid_to_seq is None else valid_to_seq
            self._last_seq[sale_id, epoch, bucket] = 0 if state == "counted" else last_seq

    def _accepts(self, place: Place) -> bool:
        """Whether what happened at a place still counts.

        It does in the current epoch, and up to its last seq in an epoch that was carried on into
        it. An epoch that a rebuild has counted, or that the ledger never opened, is gone: Redis
        does not count its units any more, so there is nothing to release either.
        """
        return place[3] <= self._last_seq.get(place[:3], 0)

    # 2. every event at its place

    def _claim(
        self, events: Sequence[BucketEvent]
    ) -> tuple[dict[Place, tuple[Admitted, ReservationId]], dict[Place, _Other]]:
        """Split the batch by kind, each place once; its repetitions are set apart."""
        named = [
            event.place if isinstance(event, Admitted) else event.reservation
            for event in events
            if not isinstance(event, StockChanged)
        ]
        ids = iter(self._reservation_ids.encode_many(named))
        admissions: dict[Place, tuple[Admitted, ReservationId]] = {}
        others: dict[Place, _Other] = {}
        for event in events:
            place = event.place
            match event:
                case Admitted():
                    reservation_id = next(ids)
                    content = _admission(event.user_id, event.quantity, event.attempt_id)
                    if self._claimed(event, content, reservation_id):
                        continue
                    first = self._ids.setdefault(reservation_id, place)
                    if first != place:
                        reason = f"its id is that of the order at {first}"
                        self._rivals.append(_Collision(event, content, reservation_id, reason))
                        continue
                    admissions[place] = (event, reservation_id)
                case Released():
                    reservation_id = next(ids)
                    content = ("release", reservation_id, event.quantity)
                    if not self._claimed(event, content, reservation_id):
                        others[place] = (event, content, reservation_id)
                case StockChanged():
                    content = ("stock", event.change_id, event.delta_units)
                    if not self._claimed(event, content, None):
                        others[place] = (event, content, None)
        return admissions, others

    def _claimed(
        self, event: BucketEvent, content: _Content, reservation_id: ReservationId | None
    ) -> bool:
        """Whether the place was claimed earlier in the batch; sorts the event out if so."""
        first = self._contents.setdefault(event.place, content)
        if first is content:
            return False
        if first == content:
            self._known += 1
        else:
            reason = "its place is taken in the same batch"
            self._rivals.append(_Collision(event, content, reservation_id, reason))
        return True

    def _collide(
        self,
        event: BucketEvent,
        content: _Content,
        reservation_id: ReservationId | None,
        reason: str,
    ) -> None:
        self._collisions.append(_Collision(event, content, reservation_id, reason))

    async def _place_admissions(
        self, admissions: dict[Place, tuple[Admitted, ReservationId]]
    ) -> dict[Place, ReservationId]:
        """Insert the orders; returns those that are new.

        Each comes as awaiting payment, or compensated when its epoch is over; step 3 may still
        refuse it.
        """
        for place in await self._taken_by_others(admissions):
            event, reservation_id = admissions.pop(place)
            self._collide(
                event, self._contents[place], reservation_id, "its place is not an admission"
            )
        if not admissions:
            return {}
        self._accepted = {place for place in admissions if self._accepts(place)}
        columns = self._order_columns(admissions)
        if not self._careful:
            await statements.NEW_ORDERS.insert(self._connection, columns)
            return {place: reservation_id for place, (_, reservation_id) in admissions.items()}
        inserted = await statements.NEW_ORDERS.insert_unless_there(self._connection, columns)
        absent = [
            reservation_id
            for _, reservation_id in admissions.values()
            if reservation_id not in inserted
        ]
        written = await self._read_orders(absent)
        new: dict[Place, ReservationId] = {}
        for place, (event, reservation_id) in admissions.items():
            if reservation_id in inserted:
                new[place] = reservation_id
            elif written.get(reservation_id) == (place, self._contents[place]):
                self._known += 1
            else:
                self._collide(
                    event,
                    self._contents[place],
                    reservation_id,
                    "its reservation id or its place belongs to another order",
                )
        return new

    def _order_columns(self, admissions: Mapping[Place, tuple[Admitted, ReservationId]]) -> Columns:
        events = [event for event, _ in admissions.values()]
        books = [self._sales[place.sale_id] for place in admissions]
        accepted = [place in self._accepted for place in admissions]
        return {
            "reservation_id": [reservation_id for _, reservation_id in admissions.values()],
            "sale_id": [place.sale_id for place in admissions],
            "bucket": [place.bucket for place in admissions],
            "epoch": [place.epoch for place in admissions],
            "seq": [place.seq for place in admissions],
            "user_id": [event.user_id for event in events],
            "quantity": [event.quantity for event in events],
            "price_fen": [book.price_fen for book in books],
            "state": [_AWAITING if yes else _COMPENSATED for yes in accepted],
            "attempt_id": [event.attempt_id for event in events],
            "admitted_at_ms": [event.at_ms for event in events],
            "created_at_ms": self._now_ms,
            "pay_by_ms": [
                event.at_ms + book.pay_window_ms for event, book in zip(events, books, strict=True)
            ],
            "state_changed_at_ms": self._now_ms,
            "reason": [None if yes else STALE_EPOCH for yes in accepted],
        }

    async def _taken_by_others(self, places: Iterable[Place]) -> list[Place]:
        """Which of the places of admissions hold a release or a stock change already."""
        taken: list[Place] = []
        for (bucket_id, epoch), seqs in _by_epoch(places).items():
            result = await self._connection.execute(
                statements.PLACES_OF_BUCKET_EVENTS,
                {
                    "sale_id": bucket_id.sale_id,
                    "bucket": bucket_id.bucket,
                    "epoch": epoch,
                    "seq_min": min(seqs),
                    "seq_max": max(seqs),
                },
            )
            taken.extend(
                Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)
                for seq in set(seqs).intersection(result.scalars())
            )
        return taken

    async def _read_orders(
        self, reservation_ids: Sequence[ReservationId]
    ) -> dict[ReservationId, tuple[Place, _Content]]:
        written: dict[ReservationId, tuple[Place, _Content]] = {}
        for some in statements.chunks(reservation_ids):
            result = await self._connection.execute(
                statements.ORDERS_BY_ID, {"reservation_ids": some}
            )
            for reservation_id, *place, user_id, quantity, attempt_id in result:
                written[reservation_id] = (Place(*place), _admission(user_id, quantity, attempt_id))
        return written

    async def _place_others(self, others: dict[Place, _Other]) -> dict[Place, str]:
        """Insert the releases and stock changes; returns the new ones with what they name."""
        for (bucket_id, epoch), seqs in _by_epoch(others).items():
            for some in statements.chunks(seqs):
                result = await self._connection.execute(
                    statements.PLACES_OF_ORDERS,
                    {
                        "sale_id": bucket_id.sale_id,
                        "bucket": bucket_id.bucket,
                        "epoch": epoch,
                        "seqs": some,
                    },
                )
                for seq in result.scalars():
                    event, content, reservation_id = others.pop(
                        Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)
                    )
                    self._collide(event, content, reservation_id, "its place is an admission")
        if not others:
            return {}
        result = await self._connection.execute(
            self._inserts.bucket_event,
            [_bucket_event_row(event, named) for event, _, named in others.values()],
        )
        inserted = {Place(*row) for row in result}
        written = await self._read_bucket_events(place for place in others if place not in inserted)
        new: dict[Place, str] = {}
        for place, (event, content, reservation_id) in others.items():
            if place in inserted:
                new[place] = str(content[1])
            elif written.get(place) == content:
                self._known += 1
            else:
                self._collide(event, content, reservation_id, "its place is taken")
        return new

    async def _read_bucket_events(self, places: Iterable[Place]) -> dict[Place, _Content]:
        written: dict[Place, _Content] = {}
        for (bucket_id, epoch), seqs in _by_epoch(places).items():
            for some in statements.chunks(seqs):
                result = await self._connection.execute(
                    statements.BUCKET_EVENTS_AT,
                    {
                        "sale_id": bucket_id.sale_id,
                        "bucket": bucket_id.bucket,
                        "epoch": epoch,
                        "seqs": some,
                    },
                )
                for seq, kind, units, reservation_id, change_id in result:
                    place = Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)
                    written[place] = (kind, reservation_id or change_id, units)
        return written

    async def _settle_rivals(self) -> None:
        """Find out whether the second claimants of a place or an id are what is written there."""
        if not self._rivals:
            return
        orders = await self._read_orders(
            [
                rival.reservation_id
                for rival in self._rivals
                if rival.reservation_id is not None and isinstance(rival.event, Admitted)
            ]
        )
        events = await self._read_bucket_events({rival.event.place for rival in self._rivals})
        for rival in self._rivals:
            place = rival.event.place
            if isinstance(rival.event, Admitted):
                assert rival.reservation_id is not None
                is_written = orders.get(rival.reservation_id) == (place, rival.content)
            else:
                is_written = events.get(place) == rival.content
            if is_written:
                self._known += 1
            else:
                self._collisions.append(rival)

    # 3. what becomes of it

    async def _read_units_held(
        self,
        admissions: Mapping[Place, tuple[Admitted, ReservationId]],
        new_admissions: Mapping[Place, ReservationId],
    ) -> None:
        buyers = {
            (event.place.sale_id, event.user_id)
            for event, _ in admissions.values()
            if event.place in self._accepted and event.place in new_admissions
        }
        if buyers:
            self._held = await statements.units_held(self._connection, buyers)

    def _decide_admission(self, event: Admitted, reservation_id: ReservationId) -> None:
        reason = self._refusal(event)
        if reason is not None:
            self._refused.append((event, reservation_id, reason))
            return
        self._sales[event.place.sale_id].more_sold += event.quantity
        self._added[event.place.sale_id, event.user_id] += event.quantity
        self._ordered.append(reservation_id)

    def _refusal(self, event: Admitted) -> str | None:
        """Why an admission may not become an order, or None."""
        if event.place not in self._accepted:
            return STALE_EPOCH
        book = self._sales[event.place.sale_id]
        buyer = (event.place.sale_id, event.user_id)
        units = self._held.get(buyer, 0) + self._added.get(buyer, 0)
        if units + event.quantity > book.limit_per_user:
            return OVER_LIMIT
        if book.sold_units + book.more_sold + event.quantity > book.stock_units + book.more_stock:
            return OVER_STOCK
        return None

    async def _read_changes(self, new_others: dict[Place, str]) -> None:
        ids = sorted(
            {named for place, named in new_others.items() if self._contents[place][0] == "stock"}
        )
        for some in statements.chunks(ids):
            result = await self._connection.execute(
                select(
                    stock_changes.c.change_id,
                    stock_changes.c.sale_id,
                    stock_changes.c.delta_units,
                    stock_changes.c.counted_at_ms,
                ).where(stock_changes.c.change_id.in_(some))
            )
            for change_id, sale_id, delta_units, counted_at_ms in result:
                self._changes[change_id] = _Change(
                    sale_id, delta_units, counted=counted_at_ms is not None
                )

    def _count_change(self, event: StockChanged) -> None:
        """Take a stock change into the totals, unless they hold it already."""
        change = self._changes.get(event.change_id)
        if (
            change is None
            or change.sale_id != event.place.sale_id
            or change.delta_units != event.delta_units
        ):
            _log.error(
                "a stock change came that nobody asked for",
                place=str(event.place),
                change_id=event.change_id,
                delta_units=event.delta_units,
                advice="the stock in Redis was changed past the ledger: run the audit",
            )
            return
        change.applied = True
        if change.counted:
            return
        change.counted = True
        book = self._sales[change.sale_id]
        stock_units = book.stock_units + book.more_stock
        # Redis takes away only what is left there, so this bites only when it has lost sales.
        least = book.sold_units + book.more_sold
        wanted = stock_units + change.delta_units
        if wanted < least:
            _log.error(
                "a stock change would leave less than is sold",
                place=str(event.place),
                change_id=event.change_id,
                wanted_units=wanted,
                sold_units=least,
                advice="Redis had more units than the ledger: run the audit",
            )
        book.more_stock += max(wanted, least) - stock_units
        book.more_version += 1

    # 4. what follows

    async def _write_orders(self) -> None:
        late = [entry for entry in self._refused if entry[2] != STALE_EPOCH]
        if late:
            await self._connection.execute(
                statements.MARK_COMPENSATED,
                [
                    {"of_reservation_id": reservation_id, "because": reason}
                    for _, reservation_id, reason in late
                ],
            )
            await self._connection.execute(
                self._inserts.release,
                [
                    self._release_row(event, reservation_id, reason)
                    for event, reservation_id, reason in late
                ],
            )
        moved = [
            *((reservation_id, _AWAITING, None) for reservation_id in self._ordered),
            *(
                (reservation_id, _COMPENSATED, reason)
                for _, reservation_id, reason in self._refused
            ),
        ]
        if moved:
            reservation_ids, states, reasons = zip(*moved, strict=True)
            await statements.NEW_ORDER_EVENTS.insert(
                self._connection,
                {
                    "reservation_id": reservation_ids,
                    "from_state": OrderState.QUEUED.value,
                    "to_state": states,
                    "at_ms": self._now_ms,
                    "actor": WORKER,
                    "reason": reasons,
                },
            )

    def _release_row(
        self, event: Admitted, reservation_id: ReservationId, reason: str
    ) -> dict[str, Any]:
        place = event.place
        return {
            "reservation_id": reservation_id,
            "sale_id": place.sale_id,
            "bucket": place.bucket,
            "r_epoch": place.epoch,
            "r_seq": place.seq,
            # An epoch that accepts the place is the current one or was carried on into it.
            "epoch": self._current[place.bucket_id],
            "user_id": event.user_id,
            "units": event.quantity,
            "state": "pending",
            "decided_at_ms": self._now_ms,
            "reason": reason,
        }

    async def _write_sums(self) -> None:
        first = [buyer for buyer in self._added if buyer not in self._held]
        more = [buyer for buyer in self._added if buyer in self._held]
        if first:
            await statements.NEW_HOLDINGS.insert(self._connection, self._holding_columns(first))
        if more:
            await statements.NEW_HOLDINGS.insert_or_add(
                self._connection, self._holding_columns(more)
            )
        totals = [
            {
                "of_sale_id": sale_id,
                "more_sold": book.more_sold,
                "more_stock": book.more_stock,
                "more_version": book.more_version,
            }
            for sale_id, book in sorted(self._sales.items())
            if book.more_sold or book.more_stock or book.more_version
        ]
        if totals:
            await self._connection.execute(statements.CHANGE_SALE_TOTALS, totals)

    def _holding_columns(self, buyers: Sequence[tuple[SaleId, UserId]]) -> Columns:
        return {
            "sale_id": [sale_id for sale_id, _ in buyers],
            "user_id": [user_id for _, user_id in buyers],
            "units": [self._added[buyer] for buyer in buyers],
            "limit_units": [self._sales[sale_id].limit_per_user for sale_id, _ in buyers],
        }

    async def _write_confirmations(self) -> None:
        """Releases and stock changes that Redis has made, as their events prove."""
        if self._released:
            await self._connection.execute(
                statements.MARK_RELEASED,
                [
                    {
                        "of_reservation_id": reservation_id,
                        "in_epoch": place.epoch,
                        "at_seq": place.seq,
                        "now_ms": self._now_ms,
                    }
                    for reservation_id, place in self._released
                ],
            )
        applied = [
            {"of_change_id": change_id, "now_ms": self._now_ms}
            for change_id, change in sorted(self._changes.items())
            if change.applied
        ]
        if applied:
            await self._connection.execute(statements.MARK_CHANGE_APPLIED, applied)

    async def _write_collisions(self) -> tuple[BucketEvent, ...]:
        """Record the collisions; returns those that were not recorded before."""
        if not self._collisions:
            return ()
        by_key = {
            (collision.event.place, _content_hash(collision.content)): collision
            for collision in self._collisions
        }
        result = await self._connection.execute(
            self._inserts.collision,
            [
                self._collision_row(collision, content_hash)
                for (_, content_hash), collision in by_key.items()
            ],
        )
        recorded = {(Place(*place), content_hash) for *place, content_hash in result}
        self._known += len(self._collisions) - len(recorded)
        new = [collision for key, collision in by_key.items() if key in recorded]
        for collision in new:
            _log.error(
                "two purchases claim one place",
                place=str(collision.event.place),
                reservation_id=collision.reservation_id,
                content=collision.content,
                reason=collision.reason,
                advice="the bucket has two histories: stop the sale and rebuild the bucket",
            )
        return tuple(collision.event for collision in new)

    def _collision_row(self, collision: _Collision, content_hash: str) -> dict[str, Any]:
        event = collision.event
        place = event.place
        return {
            "sale_id": place.sale_id,
            "bucket": place.bucket,
            "epoch": place.epoch,
            "seq": place.seq,
            "content_hash": content_hash,
            "kind": collision.content[0],
            "reservation_id": collision.reservation_id,
            "user_id": None if isinstance(event, StockChanged) else event.user_id,
            "units": event.delta_units if isinstance(event, StockChanged) else event.quantity,
            "content": msgspec.json.encode(event).decode(),
            "at_ms": event.at_ms,
            "recorded_at_ms": self._now_ms,
            "reason": collision.reason,
        }


def _doubtful(events: Sequence[BucketEvent]) -> Sequence[BucketEvent]:
    """Those events of a batch that have to be looked at one by one.

    The channel has checked all values. They are checked again because one bad one would make the
    database refuse the whole batch, and the good events with it: but first the batch as a whole,
    which costs a tenth, and finds nothing unless one of our own programs is wrong.
    """
    admissions = [event for event in events if type(event) is Admitted]
    if not admissions:
        return events
    texts = [event.user_id for event in admissions] + [event.attempt_id for event in admissions]
    sales, epochs, buckets, seqs = zip(*(event.place for event in admissions), strict=True)
    quantities = [event.quantity for event in admissions]
    instants = [event.at_ms for event in admissions]
    if (
        _PLAIN.fullmatch("".join(texts))
        and min(map(len, texts)) > 0
        and max(map(len, texts)) <= ID_CHARS_MAX
        and min(quantities) > 0
        and max(quantities) <= STOCK_UNITS_MAX
        and min(instants) >= 0
        and max(instants) <= INSTANT_MS_MAX
        and _is_place(Place(min(sales), min(epochs), min(buckets), min(seqs)))
        and _is_place(Place(max(sales), max(epochs), max(buckets), max(seqs)))
    ):
        return [event for event in events if type(event) is not Admitted]
    return events


def _is_writable(event: BucketEvent) -> bool:
    """Whether every value is one that both databases and the reservation ids can take."""
    match event:
        case Admitted():
            units, rest_fits = event.quantity, _is_id(event.user_id) and _is_id(event.attempt_id)
        case Released():
            units = event.quantity
            rest_fits = _is_id(event.user_id) and _is_place(event.reservation)
        case StockChanged():
            units, rest_fits = abs(event.delta_units), _is_id(event.change_id)
    return (
        rest_fits
        and 0 < units <= STOCK_UNITS_MAX
        and 0 <= event.at_ms <= INSTANT_MS_MAX
        and _is_place(event.place)
    )


def _is_place(place: Place) -> bool:
    return (
        0 < place.sale_id < _SALE_ID_END
        and 0 <= place.bucket < _BUCKET_END
        and 0 < place.epoch < _EPOCH_END
        and 0 < place.seq < _SEQ_END
    )


def _is_id(text: str) -> bool:
    try:
        check_id("id", text)
    except InvalidValue:
        return False
    return True


def _admission(user_id: str, quantity: int, attempt_id: str) -> _Content:
    """What an admission says. Equal content at the same place is the same admission."""
    return ("admission", user_id, quantity, attempt_id)


def _content_hash(content: _Content) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def _bucket_event_row(
    event: Released | StockChanged, reservation_id: ReservationId | None
) -> dict[str, Any]:
    place = event.place
    row: dict[str, Any] = {
        "sale_id": place.sale_id,
        "bucket": place.bucket,
        "epoch": place.epoch,
        "seq": place.seq,
        "reservation_id": reservation_id,
        "at_ms": event.at_ms,
    }
    match event:
        case Released():
            return row | {"kind": "release", "units": event.quantity, "change_id": None}
        case StockChanged():
            return row | {
                "kind": "stock",
                "units": event.delta_units,
                "change_id": event.change_id,
            }
        case _:
            assert_never(event)


def _by_epoch(places: Iterable[Place]) -> dict[tuple[BucketId, int], list[int]]:
    seqs: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for place in places:
        seqs[place.sale_id, place.bucket, place.epoch].append(place.seq)
    return {
        (BucketId(SaleId(sale_id), bucket), epoch): some
        for (sale_id, bucket, epoch), some in seqs.items()
    }
