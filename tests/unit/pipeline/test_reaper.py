"""The reaper with a ledger, a stock and a provider in memory that fail as they are told."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from integration.payment.kit import Provider, ReaperCounts
from seckill.admission.errors import StockUnavailable
from seckill.admission.late import LateAnswer
from seckill.domain.ids import AttemptId, ReservationId, SaleId, UserId
from seckill.domain.payment import Money, PaymentId, PaymentState
from seckill.domain.reservation import BucketId
from seckill.ledger import payments
from seckill.payment.errors import ProviderAway, ProviderRefused
from seckill.payment.provider import RefundRequest
from seckill.pipeline import reaper
from seckill.pipeline.errors import ExpiryFailed, LedgerAway
from seckill.pipeline.ports import DuePayment, ExpiryLag, LateVerdict
from seckill.pipeline.reaper import BATCH_MAX, BATCHES_A_RUN_MAX, Reaper
from unit.web.doubles import NOW_MS, FixedClock


@dataclass
class Shelf:
    """The ledger's two sides for the reaper."""

    unpaid: list[ReservationId] = field(default_factory=list)
    bad: set[ReservationId] = field(default_factory=set)
    aside: dict[ReservationId, str] = field(default_factory=dict)
    busy: set[ReservationId] = field(default_factory=set)
    transactions: int = 0
    away: bool = False
    payments: dict[PaymentId, DuePayment] = field(default_factory=dict)
    verdicts: dict[PaymentId, list[LateVerdict]] = field(default_factory=dict)
    gone_back: dict[PaymentId, str] = field(default_factory=dict)
    has_one_after_all: bool = False
    done: list[PaymentId] = field(default_factory=list)
    postponed: list[tuple[PaymentId, int, str]] = field(default_factory=list)

    async def due(self, orders_max: int) -> list[ReservationId]:
        if self.away:
            raise LedgerAway("away")
        return [o for o in self.unpaid if o not in self.aside][:orders_max]

    async def expire(self, reservation_ids: Sequence[ReservationId]) -> int:
        assert len(reservation_ids) <= BATCH_MAX
        self.transactions += 1
        if self.bad & set(reservation_ids):
            raise ExpiryFailed("the books do not add up")
        gone = set(reservation_ids) - self.busy
        before = len(self.unpaid)
        self.unpaid = [o for o in self.unpaid if o not in gone]
        return before - len(self.unpaid)

    async def set_aside(self, reservation_id: ReservationId, error: str) -> None:
        self.aside[reservation_id] = error

    async def lag(self) -> ExpiryLag:
        return ExpiryLag(len(self.unpaid), len(self.aside))

    async def claim(self, payments_max: int) -> list[DuePayment]:
        return list(self.payments.values())[:payments_max]

    async def settle_late(self, payment_id: PaymentId) -> LateVerdict:
        return self.verdicts[payment_id].pop(0)

    async def give_up_late(self, payment_id: PaymentId, reason: str) -> bool:
        self.gone_back[payment_id] = reason
        return not self.has_one_after_all

    async def refunded(self, payment_id: PaymentId) -> None:
        self.done.append(payment_id)

    async def postpone(self, payment_id: PaymentId, pause_ms: int, why: str) -> None:
        self.postponed.append((payment_id, pause_ms, why))

    def add(
        self, state: PaymentState, name: str = "p1", *, tries: int = 1, age_ms: int = 0
    ) -> PaymentId:
        payment_id = PaymentId(name)
        self.payments[payment_id] = DuePayment(
            payment_id=payment_id,
            state=state,
            money=Money(9900),
            received_at_ms=NOW_MS - age_ms,
            refund_id=f"{name}-r1",
            tries=tries,
            bucket_id=BucketId(SaleId(1), 0),
            user_id=UserId("ann"),
            quantity=1,
            attempt_id=AttemptId(f"late-{name}"),
        )
        return payment_id


@dataclass
class Stock:
    answer: tuple[LateAnswer, str] | Exception = (LateAnswer.TAKEN, "a free unit was taken")
    asked: list[AttemptId] = field(default_factory=list)

    async def take(
        self,
        bucket_id: BucketId,  # noqa: ARG002  -- the port asks for it
        user_id: UserId,  # noqa: ARG002  -- as above
        quantity: int,  # noqa: ARG002  -- as above
        attempt_id: AttemptId,
    ) -> tuple[LateAnswer, str]:
        self.asked.append(attempt_id)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class World:
    def __init__(self) -> None:
        self.shelf, self.stock, self.provider = Shelf(), Stock(), Provider()
        self.counts = ReaperCounts()

    def reaper(self, *, provider: bool = True) -> Reaper:
        return Reaper(
            expiry=self.shelf,
            payments=self.shelf,
            late_units=self.stock,
            provider=self.provider if provider else None,
            clock=FixedClock(),
            observer=self.counts,
        )


def names(count: int) -> list[ReservationId]:
    return [ReservationId(f"r{n:05}") for n in range(count)]


async def test_all_that_is_due_expires_in_batches() -> None:
    world = World()
    world.shelf.unpaid = names(BATCH_MAX * 3 + 1)
    assert await world.reaper().expire_due() == BATCH_MAX * 3 + 1
    assert world.shelf.transactions == 4
    assert world.counts.expired_orders == BATCH_MAX * 3 + 1
    assert (world.counts.runs, world.counts.lag) == (1, ExpiryLag(0, 0))


async def test_a_run_has_an_end_however_much_is_due() -> None:
    world = World()
    world.shelf.unpaid = names(BATCH_MAX * (BATCHES_A_RUN_MAX + 2))
    assert await world.reaper().expire_due() == BATCH_MAX * BATCHES_A_RUN_MAX
    assert world.counts.lag.oldest_ms > 0


async def test_bad_orders_are_found_by_halving_and_hold_up_no_other() -> None:
    """C80: three of a full batch."""
    world = World()
    world.shelf.unpaid = names(BATCH_MAX)
    world.shelf.bad = {ReservationId(f"r{n:05}") for n in (0, 117, 249)}
    assert await world.reaper().expire_due() == BATCH_MAX - 3
    assert set(world.shelf.aside) == world.shelf.bad
    assert world.shelf.transactions < 60
    assert world.counts.lag.set_aside == 3
    assert await world.reaper().expire_due() == 0


async def test_orders_that_somebody_else_is_at_do_not_make_it_turn_in_circles() -> None:
    world = World()
    world.shelf.unpaid = names(BATCH_MAX)
    world.shelf.busy = set(world.shelf.unpaid)
    assert await world.reaper().expire_due() == 0
    assert world.shelf.transactions == 1


async def test_a_ledger_that_is_away_sets_nothing_aside() -> None:
    world = World()
    world.shelf.away = True
    with pytest.raises(LedgerAway):
        await world.reaper().expire_due()
    assert (world.shelf.aside, world.counts.runs) == ({}, 0)


async def test_late_money_takes_a_unit_and_waits_for_its_order() -> None:
    world = World()
    p = world.shelf.add(PaymentState.LATE)
    world.shelf.verdicts[p] = [LateVerdict.WANTING, LateVerdict.WANTING, LateVerdict.SETTLED]
    for _ in range(3):
        await world.reaper().finish_payments()
    assert world.stock.asked == ["late-p1", "late-p1"]
    assert [pause for _, pause, _ in world.shelf.postponed] == [200, 200]
    assert (world.counts.taken, world.shelf.gone_back) == ([True], {})


async def test_late_money_that_finds_nothing_goes_back() -> None:
    world = World()
    p = world.shelf.add(PaymentState.LATE)
    world.shelf.verdicts[p] = [LateVerdict.WANTING]
    world.stock.answer = (LateAnswer.REFUSED, "nothing is left")
    await world.reaper().finish_payments()
    assert world.shelf.gone_back == {p: "nothing is left"}
    assert world.counts.taken == [False]


async def test_late_money_that_has_a_unit_after_all_is_looked_at_again() -> None:
    world = World()
    p = world.shelf.add(PaymentState.LATE)
    world.shelf.verdicts[p] = [LateVerdict.WANTING]
    world.stock.answer = (LateAnswer.REFUSED, "the sale is over")
    world.shelf.has_one_after_all = True
    await world.reaper().finish_payments()
    assert world.shelf.postponed == [(p, 200, "it has one")]
    assert world.counts.taken == []


async def test_late_money_whose_order_was_refused_goes_back() -> None:
    world = World()
    p = world.shelf.add(PaymentState.LATE)
    world.shelf.verdicts[p] = [LateVerdict.MISSED]
    await world.reaper().finish_payments()
    assert p in world.shelf.gone_back
    assert world.stock.asked == []


@pytest.mark.parametrize(("age_ms", "given_up"), [(0, False), (599_000, False), (601_000, True)])
async def test_late_money_waits_for_a_paused_sale_for_ten_minutes(
    age_ms: int, given_up: bool
) -> None:
    world = World()
    p = world.shelf.add(PaymentState.LATE, age_ms=age_ms)
    world.shelf.verdicts[p] = [LateVerdict.WANTING]
    world.stock.answer = (LateAnswer.NOT_NOW, "paused")
    await world.reaper().finish_payments()
    assert (p in world.shelf.gone_back) == given_up
    assert bool(world.shelf.postponed) != given_up


async def test_redis_being_away_costs_late_money_nothing_but_time() -> None:
    world = World()
    late = world.shelf.add(PaymentState.LATE, tries=9)
    back = world.shelf.add(PaymentState.REFUND_DUE, "p2")
    world.shelf.verdicts[late] = [LateVerdict.WANTING]
    world.stock.answer = StockUnavailable("connection", "refused", outcome_known=False)
    assert await world.reaper().finish_payments() == 2
    assert [(p, pause) for p, pause, _ in world.shelf.postponed] == [(late, 1_000)]
    assert world.shelf.done == [back]


async def test_a_refund_is_asked_under_one_name_until_it_is_done() -> None:
    world = World()
    p = world.shelf.add(PaymentState.REFUND_DUE)
    world.provider.done = False
    await world.reaper().finish_payments()
    assert world.shelf.postponed == [(p, 600_000, "news will follow")]
    world.provider.done = True
    await world.reaper().finish_payments()
    assert [r.refund_id for r in world.provider.refunds] == ["p1-r1", "p1-r1"]
    assert world.shelf.done == [p]
    assert world.counts.refunds == 2


@pytest.mark.parametrize(
    ("error", "tries", "pause_ms"),
    [
        (ProviderAway("busy"), 1, 1_000),
        (ProviderAway("busy"), 4, 8_000),
        (ProviderAway("busy"), 50, 300_000),
        (ProviderRefused("never"), 1, 3_600_000),
        (KeyError("a fault of the provider's program"), 1, 1_000),
    ],
)
async def test_a_provider_that_fails_is_asked_again_and_holds_up_no_other(
    error: Exception, tries: int, pause_ms: int
) -> None:
    world = World()
    world.provider.error = error
    p = world.shelf.add(PaymentState.REFUND_DUE, tries=tries)
    late = world.shelf.add(PaymentState.LATE, "p2")
    world.shelf.verdicts[late] = [LateVerdict.SETTLED]
    await world.reaper().finish_payments()
    assert [(name, pause) for name, pause, _ in world.shelf.postponed] == [(p, pause_ms)]
    assert world.counts.taken == [True]


async def test_a_provider_that_never_answers_holds_up_no_late_money_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its program was to bound its own waiting, and does not."""
    monkeypatch.setattr(reaper, "REFUND_WAIT_S", 0.05)
    world = World()
    backs = [world.shelf.add(PaymentState.REFUND_DUE, f"p{n}") for n in range(12)]
    late = world.shelf.add(PaymentState.LATE, "p-late")
    world.shelf.verdicts[late] = [LateVerdict.SETTLED]
    world.provider.silent = True
    async with asyncio.timeout(20):
        await world.reaper().finish_payments()
    assert world.counts.taken == [True]
    # As many as are asked at once; the others are due again when their claim is over.
    whys = {name: why for name, _, why in world.shelf.postponed}
    assert list(whys) == backs[: reaper.REFUNDS_AT_ONCE_MAX]
    assert set(whys.values()) == {"the payment provider gave no answer in time"}
    assert world.shelf.done == []


async def test_refunds_are_asked_five_at_once_and_no_late_money_waits_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever is due first. The provider here answers five together, and never fewer."""
    monkeypatch.setattr(reaper, "REFUND_WAIT_S", 30)  # bounds the failure, and no success
    world = World()
    for n in range(10):
        world.shelf.add(PaymentState.REFUND_DUE, f"back-{n}")
        late = world.shelf.add(PaymentState.LATE, f"late-{n}")
        world.shelf.verdicts[late] = [LateVerdict.SETTLED]
    five = asyncio.Barrier(5)
    under_way: list[int] = []
    taken_before: set[int] = set()

    async def refund(request: RefundRequest) -> bool:
        under_way.append(under_way[-1] + 1 if under_way else 1)
        taken_before.add(len(world.counts.taken))
        await five.wait()
        under_way.append(under_way[-1] - 1)
        return bool(request.refund_id)

    monkeypatch.setattr(world.provider, "refund", refund)
    await world.reaper().finish_payments()
    assert len(world.shelf.done) == 10
    assert max(under_way) == 5
    assert taken_before == {10}


def test_nobody_takes_a_payment_over_while_its_provider_is_waited_for() -> None:
    """Not needed for it to be right, refunds have a name, but each would be asked twice."""
    assert reaper.REFUND_WAIT_S * 1000 < payments._CLAIM_MS


async def test_a_refund_that_is_not_answered_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaper, "REFUND_WAIT_S", 0.05)
    world = World()
    backs = [world.shelf.add(PaymentState.REFUND_DUE, f"p{n}") for n in range(12)]
    world.provider.silent_for = {backs[0]}
    await world.reaper().finish_payments()
    assert [name for name, _, _ in world.shelf.postponed] == backs[:1]
    assert sorted(world.shelf.done) == sorted(backs[1:])


async def test_a_ledger_that_is_away_while_refunds_are_made_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    for n in range(3):
        world.shelf.add(PaymentState.REFUND_DUE, f"p{n}")

    async def away(_payment_id: PaymentId) -> None:
        raise LedgerAway("away")

    monkeypatch.setattr(world.shelf, "refunded", away)
    with pytest.raises(LedgerAway):
        await world.reaper().finish_payments()
    assert world.shelf.postponed == []


async def test_without_a_provider_refunds_wait_and_say_why() -> None:
    world = World()
    p = world.shelf.add(PaymentState.REFUND_DUE)
    await world.reaper(provider=False).finish_payments()
    ((name, _, why),) = world.shelf.postponed
    assert name == p
    assert "payment_provider" in why
