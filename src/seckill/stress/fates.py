"""What became of each buyer: exactly one fate, found from everything that they were told.

Pure functions over the ends of the clicks; nothing here knows of time or connections.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from seckill.domain.outcomes import Outcome
from seckill.stress.click import End

__all__ = ["BuyerFate", "ClickEnd", "Fate", "Won", "find_fates"]

_NAMES_A_HOLDING: Final = frozenset({Outcome.DUPLICATE, Outcome.OVER_LIMIT, Outcome.KEY_REUSED})


class Fate(StrEnum):
    """How the rush ended for one buyer."""

    WON = "won"
    """They hold a reservation and know its id."""
    REFUSED = "refused"
    """They were told a final no, or were turned away by flow control or a pause to the end."""
    UNDECIDED = "undecided"
    """All they heard is that the service cannot decide now (-2)."""
    CONNECTION_ERROR = "connection_error"
    """Their connection could not be made, or broke, and no answer came by another."""
    TIMEOUT = "timeout"
    """They waited in vain."""
    VIOLATION = "violation"
    """They were told something that must never be told."""


class ClickEnd(Protocol):
    """What is known of a request when the rush is over; see `seckill.stress.click.Click`."""

    @property
    def number(self) -> int: ...  # noqa: D102
    @property
    def quantity(self) -> int: ...  # noqa: D102
    @property
    def done_us(self) -> int: ...  # noqa: D102
    @property
    def end(self) -> End: ...  # noqa: D102
    @property
    def outcome(self) -> Outcome | None: ...  # noqa: D102
    @property
    def reservation_id(self) -> str | None: ...  # noqa: D102
    @property
    def detail(self) -> str: ...  # noqa: D102
    @property
    def unknown(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Won:
    """One reservation of one buyer.

    Attributes:
        reservation_id: its id.
        quantity: units that were asked for; a lower bound when it was recovered.
        recovered: the answer "success" was lost, and a later "duplicate" named the reservation.
    """

    reservation_id: str
    quantity: int
    recovered: bool = False


@dataclass(frozen=True, slots=True)
class BuyerFate:
    """The fate of one buyer.

    Attributes:
        user_id: whose.
        fate: what it is.
        outcome: with ``REFUSED``, the last thing they were told.
        won: the reservations they hold as far as they know, also with ``VIOLATION``.
        unknown_units: units that they may hold without knowing it.
        detail: with ``VIOLATION``, ``TIMEOUT`` and ``CONNECTION_ERROR``: what happened.
        shared_id: another buyer was told the same reservation id.
        over_limit: they hold more units than the sale lets one user hold.
    """

    user_id: str
    fate: Fate
    outcome: Outcome | None = None
    won: tuple[Won, ...] = ()
    unknown_units: int = 0
    detail: str = ""
    shared_id: bool = False
    over_limit: bool = False


def find_fates(
    buyers: Iterable[tuple[str, Sequence[ClickEnd]]],
    *,
    limit_per_user: int,
    idempotent: bool,
) -> list[BuyerFate]:
    """The fate of each buyer, in the given order.

    Args:
        buyers: user id and all requests of each buyer.
        limit_per_user: units that the sale lets one user hold.
        idempotent: requests carried an Idempotency-Key, so a click and its retries may be given
            the same success again.
    """
    listed = list(buyers)
    # Who was told an id first, by whichever answer; a second name beside it is a violation.
    holder: dict[str, str] = {}
    shared: set[str] = set()
    for user_id, clicks in listed:
        for click in clicks:
            reservation_id = click.reservation_id
            if reservation_id is not None and holder.setdefault(reservation_id, user_id) != user_id:
                shared.add(reservation_id)
    return [
        _fate_of(user_id, clicks, limit_per_user, shared, idempotent=idempotent)
        for user_id, clicks in listed
    ]


def _fate_of(
    user_id: str,
    clicks: Sequence[ClickEnd],
    limit_per_user: int,
    shared: set[str],
    *,
    idempotent: bool,
) -> BuyerFate:
    won, complaints = _winnings(clicks, idempotent=idempotent)
    _recover(clicks, won, complaints, limit_per_user)
    held_units = sum(one.quantity for one in won.values())
    over_limit = held_units > limit_per_user
    if over_limit:
        complaints.append(f"holds {held_units} units where {limit_per_user} are allowed")
    shared_ids = sorted(
        {click.reservation_id for click in clicks if click.reservation_id is not None} & shared
    )
    if shared_ids:
        complaints.append(f"another buyer was told the same reservation id: {shared_ids[0]}")
    complaints.extend(click.detail for click in clicks if click.end is End.MISANSWERED)
    wanted = {click.number: click.quantity for click in clicks if click.unknown}
    # A recovered reservation is what came of one of the unknown clicks.
    unknown_units = sum(wanted.values()) - sum(
        one.quantity for one in won.values() if one.recovered
    )
    fate, outcome, detail = _told(clicks)
    if won:
        fate, outcome, detail = Fate.WON, None, ""
    if complaints:
        fate, outcome, detail = Fate.VIOLATION, None, complaints[0]
    return BuyerFate(
        user_id=user_id,
        fate=fate,
        outcome=outcome,
        won=tuple(won.values()),
        unknown_units=max(0, min(unknown_units, limit_per_user - held_units)),
        detail=detail,
        shared_id=bool(shared_ids),
        over_limit=over_limit,
    )


def _winnings(clicks: Sequence[ClickEnd], *, idempotent: bool) -> tuple[dict[str, Won], list[str]]:
    """The reservations that were answered "success", and what is wrong with those answers."""
    won: dict[str, Won] = {}
    won_by: dict[str, int] = {}
    complaints: list[str] = []
    for click in clicks:
        if click.outcome is not Outcome.SUCCESS or click.reservation_id is None:
            continue
        reservation_id = click.reservation_id
        if reservation_id not in won:
            won[reservation_id] = Won(reservation_id, click.quantity)
            won_by[reservation_id] = click.number
        elif not (idempotent and won_by[reservation_id] == click.number):
            complaints.append(f"two purchases were answered with one reservation: {reservation_id}")
    return won, complaints


def _recover(
    clicks: Sequence[ClickEnd],
    won: dict[str, Won],
    complaints: list[str],
    limit_per_user: int,
) -> None:
    """Add the reservations that a "duplicate" named after the "success" itself was lost."""
    lost = [click.quantity for click in clicks if click.unknown]
    for click in clicks:
        reservation_id = click.reservation_id
        if click.outcome not in _NAMES_A_HOLDING or reservation_id is None or reservation_id in won:
            continue
        if lost:
            won[reservation_id] = Won(reservation_id, min(lost), recovered=True)
        elif sum(one.quantity for one in won.values()) >= limit_per_user:
            complaints.append(
                f"was told of a reservation beyond the limit: {reservation_id}"
                f" beside {', '.join(won)}"
            )


def _told(clicks: Sequence[ClickEnd]) -> tuple[Fate, Outcome | None, str]:
    """The fate of somebody who holds nothing: the firmest thing that they were told last."""
    in_time = sorted(clicks, key=lambda click: click.done_us)
    outcomes = [click.outcome for click in in_time if click.outcome is not None]
    final = [
        outcome
        for outcome in outcomes
        if outcome not in {Outcome.BLOCKED, Outcome.PAUSED, Outcome.UNDECIDED}
    ]
    if final:
        return Fate.REFUSED, final[-1], ""
    turned_away = [outcome for outcome in outcomes if outcome is not Outcome.UNDECIDED]
    if turned_away:
        return Fate.REFUSED, turned_away[-1], ""
    if outcomes:
        return Fate.UNDECIDED, None, ""
    last = in_time[-1]
    if last.end is End.TIMED_OUT:
        return Fate.TIMEOUT, None, last.detail
    return Fate.CONNECTION_ERROR, None, last.detail
