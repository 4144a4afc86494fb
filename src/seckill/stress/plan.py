"""What a load run does: fixed, click by click, before the first byte is sent.

A buyer is somebody with one user id who clicks a few times. When each click is *meant* to leave
is decided here, from the seed alone; nothing that the server does later can move it. That is what
makes the load open: slow answers pile up at the server and never slow the buyers down.
"""

import math
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from seckill.domain.errors import InvalidValue
from seckill.domain.ids import check_user_id
from seckill.domain.sale import LIMIT_PER_USER_MAX, STOCK_UNITS_MAX

__all__ = [
    "BUYERS_MAX",
    "CLICKS_MAX",
    "DEADLINE_S_MAX",
    "QUANTITY_MAX",
    "REQUESTS_MAX",
    "RETRIES_MAX",
    "Arrival",
    "Connect",
    "PlannedClick",
    "StressPlan",
    "build_schedule",
    "parse_quantity_weights",
]

BUYERS_MAX: Final = 200_000
CLICKS_MAX: Final = 100
REQUESTS_MAX: Final = 1_000_000
"""Planned clicks of a whole run. Each costs about 400 bytes until the report is made."""
RETRIES_MAX: Final = 20
QUANTITY_MAX: Final = LIMIT_PER_USER_MAX
"""Units of one click: what the service takes at most. Above the limit of the sale is allowed, since
the refusal may be what is tested."""
DEADLINE_S_MAX: Final = 3_600
GAP_JITTER: Final = 0.5
"""A gap between two clicks lasts ``click_gap_ms`` times 1 ± this."""
BURST_DECAY: Final = 5.0
"""A burst decays by e within a fifth of ``over_s``."""


class Arrival(StrEnum):
    """How the first clicks of the buyers lie in time."""

    AT_ONCE = "at_once"
    """All in the same instant."""
    UNIFORM = "uniform"
    """Anywhere within ``over_s``, each instant as likely as any other."""
    BURST = "burst"
    """Most of them at the start, then fewer and fewer until ``over_s``."""


class Connect(StrEnum):
    """When the buyers open their connections."""

    BEFORE = "before"
    """Before the rush: people who have the page open already."""
    RUSH = "rush"
    """With the first click; latency then includes the handshake."""


def _check_range(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # also false for NaN
        raise InvalidValue(field, f"must be from {least} to {most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StressPlan:
    """A load run. Construction checks every field.

    Attributes:
        stock: units that the sale has left when the run starts; the verdict is measured by it.
        buyers: buyers, each with a user id of their own; 1 to 200,000.
        clicks: purchase requests of each buyer; 1 to 100, and 1,000,000 in the whole run.
        limit_per_user: units that the sale lets one user hold.
        quantity_weights: pairs (units of a click, weight), drawn per click by the seed.
        arrival: how the buyers' first clicks lie in time.
        over_s: the span in which they lie; 0 with ``AT_ONCE`` and above 0 otherwise.
        click_gap_ms: span between two clicks of one buyer, ± half of it at random. The next click
            leaves whether or not the one before it was answered.
        seed: all randomness of the run comes from it.
        retries: further requests a buyer makes, politely (after Retry-After, when nothing of
            theirs is under way any more), while flow control (-1), "cannot decide" (-2), a pause
            (8), a timeout or a broken connection is all that they were told. 0 to 20.
        retry_after_max_s: a longer Retry-After is cut to this.
        idempotent: each click carries an Idempotency-Key, and a retry carries the key of the
            click that it repeats.
        connect: when the connections are opened.
        connections: at most so many, shared by the buyers in turn; None takes one per buyer as
            far as the descriptors of this process reach.
        connections_per_source: so many from one source address; then 127.0.0.1, 127.0.0.2, …
            are used in turn. Only where those exist (Linux, IPv4 loopback targets); elsewhere
            25,000 come from one address, since it has some 28,000 ports in all.
        timeout_s: a click that has no answer so long after its intended instant has timed out.
            An answer that comes later is still counted, as late.
        connect_timeout_s: bound of one connection attempt.
        deadline_s: bound of the rush; what is unanswered then has timed out.
        follow: after the rush ask for the order of every reservation until it left ``queued``.
        follow_s: bound of that.
        user_prefix: user ids are this and the buyer's number. A second run on the same sale
            needs another prefix, or its buyers are told that they have bought already.
        stock_found: the stock is what a sale happened to have left, and was not chosen for this
            run: none of it then proves nothing, and fails the verdict.
        faults_expected: parts of the service are being killed meanwhile: timeouts, broken
            connections, undecided buyers and compensations do not fail the verdict. Stock,
            limits, identity of reservations and their orders are judged as always.

    Raises:
        InvalidValue: naming the field and the rule.
    """

    stock: int
    buyers: int = 10_000
    clicks: int = 3
    limit_per_user: int = 1
    quantity_weights: tuple[tuple[int, int], ...] = ((1, 1),)
    arrival: Arrival = Arrival.AT_ONCE
    over_s: float = 0.0
    click_gap_ms: float = 50.0
    seed: int = 1
    retries: int = 3
    retry_after_max_s: float = 2.0
    idempotent: bool = False
    connect: Connect = Connect.BEFORE
    connections: int | None = None
    connections_per_source: int = 5_000
    timeout_s: float = 10.0
    connect_timeout_s: float = 10.0
    deadline_s: float = 120.0
    follow: bool = True
    follow_s: float = 30.0
    user_prefix: str = "buyer-"
    stock_found: bool = False
    faults_expected: bool = False

    def __post_init__(self) -> None:
        _check_range("stock", self.stock, 0, STOCK_UNITS_MAX)
        _check_range("buyers", self.buyers, 1, BUYERS_MAX)
        _check_range("clicks", self.clicks, 1, CLICKS_MAX)
        if self.buyers * self.clicks > REQUESTS_MAX:
            raise InvalidValue("clicks", f"times buyers must be at most {REQUESTS_MAX:,}")
        _check_range("limit_per_user", self.limit_per_user, 1, LIMIT_PER_USER_MAX)
        self._check_quantities()
        _check_range("over_s", self.over_s, 0, DEADLINE_S_MAX)
        if (self.arrival is Arrival.AT_ONCE) != (self.over_s == 0):
            raise InvalidValue("over_s", "must be 0 for at_once and above 0 for uniform and burst")
        _check_range("click_gap_ms", self.click_gap_ms, 0, 60_000)
        _check_range("retries", self.retries, 0, RETRIES_MAX)
        _check_range("retry_after_max_s", self.retry_after_max_s, 0.01, 60)
        if self.connections is not None:
            _check_range("connections", self.connections, 1, self.buyers)
        _check_range("connections_per_source", self.connections_per_source, 1, 60_000)
        _check_range("timeout_s", self.timeout_s, 0.05, 600)
        _check_range("connect_timeout_s", self.connect_timeout_s, 0.05, 600)
        _check_range("deadline_s", self.deadline_s, 0.1, DEADLINE_S_MAX)
        last_click_s = self.over_s + (self.clicks - 1) * self.click_gap_ms * (1 + GAP_JITTER) / 1000
        if last_click_s >= self.deadline_s:
            raise InvalidValue(
                "deadline_s",
                f"must be later than the last click, which may be meant for {last_click_s:.1f} s",
            )
        _check_range("follow_s", self.follow_s, 0.1, DEADLINE_S_MAX)
        check_user_id(f"{self.user_prefix}{self.buyers - 1}", "user_prefix")

    def _check_quantities(self) -> None:
        if not 1 <= len(self.quantity_weights) <= CLICKS_MAX:
            raise InvalidValue("quantity_weights", f"must have 1 to {CLICKS_MAX} pairs")
        for quantity, weight in self.quantity_weights:
            _check_range("quantity", quantity, 1, QUANTITY_MAX)
            _check_range("quantity_weights", weight, 1, 1_000_000)

    def user_id(self, buyer: int) -> str:
        """The user id of buyer number ``buyer``, counted from 0."""
        return f"{self.user_prefix}{buyer}"


class PlannedClick(NamedTuple):
    """One click as it is meant to happen.

    Attributes:
        offset_us: when it is meant to leave, in µs after the start of the rush.
        buyer: whose it is, from 0.
        number: which of that buyer's, from 0.
        quantity: units wanted.
    """

    offset_us: int
    buyer: int
    number: int
    quantity: int


def build_schedule(plan: StressPlan) -> list[PlannedClick]:
    """Every click of the run in the order in which they leave. The same plan gives the same list.

    Buyers who arrive at once leave in a shuffled order, so that low numbers are not always first.
    """
    rng = random.Random(plan.seed)  # noqa: S311  -- repeatable load, no secret
    order = list(range(plan.buyers))
    rng.shuffle(order)
    units = [quantity for quantity, _ in plan.quantity_weights]
    weights = [weight for _, weight in plan.quantity_weights]
    clicks: list[PlannedClick] = []
    for buyer in order:
        offset_us = _arrival_us(plan, rng)
        for number in range(plan.clicks):
            quantity = units[0] if len(units) == 1 else rng.choices(units, weights)[0]
            clicks.append(PlannedClick(offset_us, buyer, number, quantity))
            gap = plan.click_gap_ms * rng.uniform(1 - GAP_JITTER, 1 + GAP_JITTER)
            offset_us += round(gap * 1000)
    # Sorting by the offset alone keeps the shuffled order of those who arrive together.
    clicks.sort(key=lambda click: click.offset_us)
    return clicks


def _arrival_us(plan: StressPlan, rng: random.Random) -> int:
    match plan.arrival:
        case Arrival.AT_ONCE:
            return 0
        case Arrival.UNIFORM:
            share = rng.random()
        case Arrival.BURST:
            # Inverse of the distribution function of an exponential cut off at over_s.
            share = -math.log1p(-rng.random() * -math.expm1(-BURST_DECAY)) / BURST_DECAY
    return int(share * plan.over_s * 1_000_000)


def parse_quantity_weights(text: str) -> tuple[tuple[int, int], ...]:
    """Read ``"2"`` (always 2 units) or ``"1:3,2:1"`` (1 unit three times as often as 2).

    Raises:
        InvalidValue: for the field ``quantity``.
    """
    pairs: list[tuple[int, int]] = []
    for part in text.split(","):
        quantity, colon, weight = part.strip().partition(":")
        if not (quantity.isascii() and quantity.isdigit()) or (
            colon and not (weight.isascii() and weight.isdigit())
        ):
            raise InvalidValue("quantity", "must read like 2 or 1:3,2:1 (units:weight)")
        pairs.append((int(quantity), int(weight) if colon else 1))
    return tuple(pairs)
