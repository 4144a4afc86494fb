"""The sums of a complete log are the counters of the bucket, wherever each event is read from."""

from dataclasses import dataclass, field

from hypothesis import given, strategies as st

from seckill.admission.bucket import BucketView
from seckill.admission.scripts import Status
from seckill.audit import invariants
from seckill.audit.collect import EpochLog, UnwrittenLog
from seckill.audit.counting import AuditedBucket
from seckill.audit.invariants import Ref
from seckill.audit.ports import AuditedEvent, AuditedOrder, AuditedRelease, EpochRow
from seckill.audit.seqs import SeqSet
from seckill.domain.events import Admitted, BucketEvent, Released, StockChanged
from seckill.domain.ids import AttemptId, GoodsId, ReservationId, SaleId, UserId
from seckill.domain.order import OrderState
from seckill.domain.reservation import BucketId, Place

SALE = SaleId(1)
BUCKET = BucketId(SALE, 0)
OPENING_UNITS = 1_000


@dataclass
class Model:
    """A bucket that is moved event by event, and keeps every event and every state."""

    epoch: int = 1
    seq: int = 0
    put: int = OPENING_UNITS
    held: int = 0
    events: list[BucketEvent] = field(default_factory=list)
    views: list[BucketView] = field(default_factory=list)
    epochs: list[EpochRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._look()

    def _look(self) -> None:
        self.views.append(
            BucketView(
                Status.OK, 1, self.epoch, self.seq, self.put - self.held, self.put, self.held
            )
        )

    def _place(self) -> Place:
        self.seq += 1
        return Place(SALE, self.epoch, 0, self.seq)

    def admit(self, units: int) -> None:
        place = self._place()
        self.held += units
        self.events.append(Admitted(place, UserId(f"u{place}"), units, AttemptId("a"), 1))
        self._look()

    def release(self, which: int) -> None:
        released = {event.reservation for event in self.events if isinstance(event, Released)}
        held = [
            event
            for event in self.events
            if isinstance(event, Admitted) and event.place not in released
        ]
        if held:
            event = held[which % len(held)]
            self.held -= event.quantity
            self.events.append(
                Released(self._place(), event.place, event.user_id, event.quantity, 1)
            )
            self._look()

    def change(self, units: int) -> None:
        self.put += units
        self.events.append(StockChanged(self._place(), f"c{self.seq}", units, 1))
        self._look()

    def carry_on(self) -> None:
        self.epochs.append(
            EpochRow(SALE, 0, self.epoch, "closed", self._origin, self._opening, self.seq)
        )
        self.epoch, self.seq = self.epoch + 1, 0
        self._look()

    @property
    def _origin(self) -> str:
        return "created" if self.epoch == 1 else "carried_on"

    @property
    def _opening(self) -> int:
        return OPENING_UNITS if self.epoch == 1 else 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(1, 3)),
        st.tuples(st.just("admit"), st.integers(1, 3)),
        st.tuples(st.just("release"), st.integers(0, 20)),
        st.tuples(st.just("change"), st.sampled_from([5, -2])),
        st.tuples(st.just("carry_on"), st.none()),
    ),
    max_size=40,
)


def read(model: Model, view: BucketView, where: dict[Place, str]) -> AuditedBucket:
    """What the audit reads when each event stands where it is said to stand."""
    log = UnwrittenLog()
    rows: list[tuple[Place, AuditedOrder | AuditedEvent]] = []
    for event in model.events:
        place = event.place
        seen = (place.epoch, place.seq) <= (view.epoch, view.seq)
        if where[place] in {"outbox", "both"} and seen:
            log.outbox.setdefault(place.epoch, EpochLog()).add(event)
        if where[place] in {"ledger", "both"}:
            rows.append((place, _row(event)))
    epochs = [row for row in model.epochs if row.epoch < view.epoch]
    origin = "created" if view.epoch == 1 else "carried_on"
    opening = OPENING_UNITS if view.epoch == 1 else 0
    epochs.append(EpochRow(SALE, 0, view.epoch, "open", origin, opening, None))
    bucket = AuditedBucket(Ref(SALE, GoodsId("g"), 0), BUCKET, {}, view, log, [])
    bucket.judge_trust(epochs, closed=False)
    assert bucket.trusted
    for _, row in sorted(rows, key=lambda pair: pair[0]):
        if isinstance(row, AuditedOrder):
            bucket.count_order(row)
        else:
            bucket.count_event(row)
    return bucket


def _row(event: BucketEvent) -> AuditedOrder | AuditedEvent:
    match event:
        case Admitted():
            return AuditedOrder(
                event.place,
                ReservationId("r"),
                event.user_id,
                event.quantity,
                OrderState.AWAITING_PAYMENT,
            )
        case Released():
            return AuditedEvent(event.place, "release", event.quantity, ReservationId("r"), None)
        case StockChanged():
            return AuditedEvent(event.place, "stock", event.delta_units, None, event.change_id)


def run(taken: list[tuple[str, int | None]]) -> Model:
    model = Model()
    for name, argument in taken:
        step = getattr(model, name)
        step() if argument is None else step(argument)
    return model


@given(taken=steps, data=st.data())
def test_the_log_adds_up_at_any_look_wherever_its_events_are(
    taken: list[tuple[str, int | None]], data: st.DataObject
) -> None:
    model = run(taken)
    view = data.draw(st.sampled_from(model.views), label="look")
    where = {
        event.place: data.draw(st.sampled_from(["outbox", "ledger", "both"]))
        for event in model.events
    }
    bucket = read(model, view, where)
    # What happened after the look may be written by now; it must not count.
    assert not bucket.find_gaps()
    assert list(invariants.check_log(bucket.ref, view, bucket.log_sums())) == []
    in_flight = sum(
        event.quantity
        for event in model.events
        if isinstance(event, Admitted)
        and where[event.place] == "outbox"
        and (event.place.epoch, event.place.seq) <= (view.epoch, view.seq)
    )
    assert bucket.in_flight_units == in_flight


@given(taken=steps.filter(bool), data=st.data())
def test_an_event_that_stands_nowhere_is_the_gap_and_no_other(
    taken: list[tuple[str, int | None]], data: st.DataObject
) -> None:
    model = run([("admit", 1), *taken])
    view = model.views[-1]
    lost = data.draw(st.sampled_from(model.events), label="lost").place
    where = {event.place: "both" if event.place != lost else "nowhere" for event in model.events}
    bucket = read(model, view, where)
    assert bucket.find_gaps() == {lost.epoch: SeqSet([lost.seq])}


def test_of_a_rebuilt_bucket_only_what_was_live_at_the_rebuild_was_held_from_the_start() -> None:
    view = BucketView(Status.OK, 1, 2, 0, 95, 100, 5)
    epochs = [
        EpochRow(SALE, 0, 1, "counted", "created", 100, 9),
        EpochRow(SALE, 0, 2, "open", "rebuilt", 100, None),
    ]
    bucket = AuditedBucket(Ref(SALE, GoodsId("g"), 0), BUCKET, {}, view, UnwrittenLog(), [])
    bucket.judge_trust(epochs, closed=False)

    def order(seq: int, state: OrderState) -> AuditedOrder:
        place = Place(SALE, 1, 0, seq)
        return AuditedOrder(place, ReservationId(f"r{seq}"), UserId(f"u{seq}"), 1, state)

    def release(seq: int, epoch: int, state: str, at: int | None) -> AuditedRelease:
        place = Place(SALE, 1, 0, seq)
        return AuditedRelease(
            ReservationId(f"r{seq}"), place, epoch, UserId(f"u{seq}"), 1, state, at, 1
        )

    for seq in (1, 2, 3):
        bucket.count_order(order(seq, OrderState.PAID))
    for seq in (4, 5, 6, 7, 8):
        bucket.count_order(order(seq, OrderState.CANCELLED))
    bucket.count_release(release(4, 1, "done", 9))  # before the rebuild
    bucket.count_release(release(5, 1, "counted", None))  # by the rebuild
    bucket.count_release(release(6, 2, "pending", None))  # after it, not made yet
    bucket.count_release(release(7, 2, "done", 1))  # after it
    bucket.count_release(release(8, 2, "done", None))  # after it, and Redis did not hold it
    assert bucket.log_sums().opening_held == 5
