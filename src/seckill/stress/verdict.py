"""What must hold after a rush, each as a named check with its reason."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from seckill.domain.outcomes import Outcome
from seckill.domain.wording import counted
from seckill.stress.click import Click, End
from seckill.stress.fates import BuyerFate, Fate
from seckill.stress.follow import Followed, OrderFate
from seckill.stress.plan import StressPlan

__all__ = ["Check", "Evidence", "demand_units", "judge"]

_FOR_LACK_OF_STOCK: Final = frozenset({Outcome.SOLD_OUT, Outcome.NOT_ENOUGH_LEFT})
_NO_SALE: Final = frozenset({Outcome.NOT_STARTED, Outcome.ENDED, Outcome.NO_SUCH_GOODS})
_SERVER_ERROR: Final = 500
_UNAVAILABLE: Final = 503


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and whether it was kept.

    Attributes:
        name: fixed, for programs.
        ok: whether it was kept, or its breach was expected.
        detail: for people: what was counted.
        tolerated: it was not kept, and the plan expects that (``faults_expected``).
    """

    name: str
    ok: bool
    detail: str
    tolerated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that a verdict stands on.

    Attributes:
        plan: the run.
        clicks: all requests, retries included.
        fates: one per buyer.
        unasked: answers that came to no request.
        followed: the orders of the reservations; None when they were not asked for.
        audit: what the audit said; None without one.
    """

    plan: StressPlan
    clicks: Sequence[Click]
    fates: Sequence[BuyerFate]
    unasked: Sequence[str] = ()
    followed: Sequence[Followed] | None = None
    audit: Mapping[str, Any] | None = None

    def units_won(self) -> int:
        """Units of all reservations; what their orders say counts where it is known."""
        said = {
            one.reservation.reservation_id: one.quantity
            for one in self.followed or ()
            if one.fate is OrderFate.ORDERED
        }
        held = {won.reservation_id: won.quantity for fate in self.fates for won in fate.won}
        return sum(said.get(reservation_id, units) for reservation_id, units in held.items())


def demand_units(clicks: Iterable[Click], limit_per_user: int) -> int:
    """Units that the buyers could have got from an endless stock, each within the limit."""
    held: Counter[int] = Counter()
    for click in sorted(clicks, key=lambda click: click.number):
        if click.retry == 0 and held[click.buyer.number] + click.quantity <= limit_per_user:
            held[click.buyer.number] += click.quantity
    return held.total()


def judge(evidence: Evidence) -> list[Check]:
    """Judge a run.

    Returns:
        Every check, always; ``orders`` and ``audit`` only when they were asked for.
    """
    checks = [
        _no_oversell(evidence),
        _no_unit_left(evidence),
        _unique_reservations(evidence),
        _limit_kept(evidence),
        _sale_open(evidence),
        _stock_to_sell(evidence),
        _answers_true(evidence),
        _errors_polite(evidence),
        _everybody_answered(evidence),
        _everybody_decided(evidence),
        _no_connection_errors(evidence),
    ]
    if evidence.followed is not None:
        checks.append(_orders(evidence.followed, tolerant=evidence.plan.faults_expected))
    if evidence.audit is not None:
        # Only True is a pass: an audit that says nothing, or 1, or "yes", has proved nothing.
        ok = evidence.audit.get("ok") is True
        checks.append(Check("audit", ok, "the books balance" if ok else str(evidence.audit)))
    return checks


def _no_oversell(evidence: Evidence) -> Check:
    units, stock = evidence.units_won(), evidence.plan.stock
    return Check("no_oversell", units <= stock, f"{counted(units, 'unit')} won of {stock:,}")


def _no_unit_left(evidence: Evidence) -> Check:
    """Nobody is turned away for lack of stock while there is stock, and nobody gets nothing."""
    plan = evidence.plan
    units = evidence.units_won()
    unknown = sum(fate.unknown_units for fate in evidence.fates)
    left_for_certain = plan.stock - units - unknown
    wrongly = [
        click
        for click in evidence.clicks
        if (click.outcome is Outcome.SOLD_OUT and left_for_certain > 0)
        or (click.outcome is Outcome.NOT_ENOUGH_LEFT and click.quantity <= left_for_certain)
    ]
    demand = demand_units(evidence.clicks, plan.limit_per_user)
    detail = f"{counted(units, 'unit')} won of a stock of {plan.stock:,}, demand {demand:,}"
    if unknown:
        detail += f"; up to {unknown:,} more may be sold to buyers who do not know it"
    if wrongly:
        detail += (
            f"; refused for lack of stock: {counted(len(wrongly), 'click')}, while"
            f" {counted(left_for_certain, 'unit')} were left (was the stock given here what the"
            " sale had left at the start?)"
        )
    turned_away = sum(fate.fate is not Fate.WON for fate in evidence.fates)
    if not wrongly and units + unknown < min(plan.stock, demand):
        detail += f"; {counted(turned_away, 'buyer')} won nothing, none for lack of stock"
    return Check("no_unit_left", not wrongly, detail)


def _unique_reservations(evidence: Evidence) -> Check:
    shared = [fate for fate in evidence.fates if fate.shared_id]
    ids = len({won.reservation_id for fate in evidence.fates for won in fate.won})
    detail = counted(ids, "reservation id")
    if shared:
        detail += f"; {counted(len(shared), 'buyer')} with one of another's: {_names(shared)}"
    return Check("unique_reservations", not shared, detail)


def _limit_kept(evidence: Evidence) -> Check:
    over = [fate for fate in evidence.fates if fate.over_limit]
    limit = evidence.plan.limit_per_user
    detail = f"nobody holds more than {limit}"
    if over:
        detail = f"{counted(len(over), 'buyer')} with more than {limit}: {_names(over)}"
    return Check("limit_kept", not over, detail)


def _sale_open(evidence: Evidence) -> Check:
    """The run meant something: there was a sale, and its buyers came to it for the first time."""
    closed = Counter(fate.outcome for fate in evidence.fates if fate.outcome in _NO_SALE)
    stale = [fate for fate in evidence.fates if fate.outcome is Outcome.DUPLICATE]
    if closed:
        outcome, count = closed.most_common(1)[0]
        assert outcome is not None
        word = outcome.name.lower().replace("_", " ")
        return Check("sale_open", False, f"told to {counted(count, 'buyer')}: {word}")
    if stale:
        detail = (
            f"{counted(len(stale), 'buyer')} had bought before this run ({_names(stale)}):"
            " take a fresh sale or another user_prefix"
        )
        return Check("sale_open", False, detail)
    return Check("sale_open", True, "the sale was open, and new to its buyers")


def _stock_to_sell(evidence: Evidence) -> Check:
    """The run meant something: there was a unit to be fought for, or none by its own choice."""
    plan = evidence.plan
    if plan.stock == 0 and plan.stock_found:
        detail = "nothing was tested: the sale had nothing left when the run began"
        return Check("stock_to_sell", False, detail)
    return Check("stock_to_sell", True, f"{counted(plan.stock, 'unit')} when the run began")


def _answers_true(evidence: Evidence) -> Check:
    wrong = [fate for fate in evidence.fates if fate.fate is Fate.VIOLATION]
    parts = []
    if wrong:
        parts.append(
            f"{counted(len(wrong), 'buyer')} told what must not be told,"
            f" {wrong[0].user_id}: {wrong[0].detail}"
        )
    if evidence.unasked:
        answers = counted(len(evidence.unasked), "answer")
        parts.append(f"{answers} to no request: {evidence.unasked[0]}")
    return Check("answers_true", not parts, "; ".join(parts) or "every answer keeps its promises")


def _errors_polite(evidence: Evidence) -> Check:
    """No 5xx but a 503 that says when to come back; no refusal for now that does not."""
    hard = Counter(
        click.status
        for click in evidence.clicks
        if click.status >= _SERVER_ERROR and click.status != _UNAVAILABLE
    )
    rude = sum(not click.polite for click in evidence.clicks)
    parts = [f"{count:,} × HTTP {status}" for status, count in sorted(hard.items())]
    if rude:
        parts.append(f"{counted(rude, 'answer')} without the Retry-After that belongs there")
    return Check("errors_polite", not parts, "; ".join(parts) or "no 5xx but a polite 503")


def _everybody_answered(evidence: Evidence) -> Check:
    silent = [fate for fate in evidence.fates if fate.fate in {Fate.TIMEOUT, Fate.CONNECTION_ERROR}]
    detail = "nobody was left without an answer"
    if silent:
        without = counted(len(silent), "buyer")
        detail = f"{without} without one: {_names(silent)} ({silent[0].detail})"
    return _unless_expected(evidence, "everybody_answered", not silent, detail)


def _everybody_decided(evidence: Evidence) -> Check:
    undecided = [fate for fate in evidence.fates if fate.fate is Fate.UNDECIDED]
    detail = "nobody was left with 'cannot decide now'"
    if undecided:
        detail = f"left with 'cannot decide now' (-2): {counted(len(undecided), 'buyer')}"
    return _unless_expected(evidence, "everybody_decided", not undecided, detail)


def _no_connection_errors(evidence: Evidence) -> Check:
    reasons = Counter(
        click.detail for click in evidence.clicks if click.end is End.CONNECTION_FAILED
    )
    detail = "no request lost its connection"
    if reasons:
        detail = ", ".join(f"{count:,} × {reason}" for reason, count in reasons.most_common(5))
    return _unless_expected(evidence, "no_connection_errors", not reasons, detail)


def _unless_expected(evidence: Evidence, name: str, kept: bool, detail: str) -> Check:  # noqa: FBT001
    tolerated = not kept and evidence.plan.faults_expected
    return Check(name, kept or tolerated, detail, tolerated)


def _orders(followed: Sequence[Followed], *, tolerant: bool) -> Check:
    counts = Counter(one.fate for one in followed)
    good = {OrderFate.ORDERED, OrderFate.COMPENSATED} if tolerant else {OrderFate.ORDERED}
    bad = [one for one in followed if one.fate not in good]
    orders = f"{counts[OrderFate.ORDERED]:,} of {counted(len(followed), 'reservation')}"
    detail = f"there is an order for {orders}"
    for fate in OrderFate:
        if fate is not OrderFate.ORDERED and counts[fate]:
            detail += f"; {counts[fate]:,} {fate.value}"
    if bad:
        first = bad[0]
        detail += f"; {first.reservation.reservation_id} of {first.reservation.user_id}"
        detail += f": {first.detail or first.state}"
    return Check(
        "orders", not bad, detail, tolerated=not bad and bool(counts[OrderFate.COMPENSATED])
    )


def _names(fates: Sequence[BuyerFate]) -> str:
    shown = ", ".join(fate.user_id for fate in fates[:3])
    return shown + (", …" if len(fates) > 3 else "")  # noqa: PLR2004
