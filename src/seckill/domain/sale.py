"""A sale: goods offered for a time, at a price, with a stock and a limit per buyer."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from seckill.domain.errors import InvalidValue
from seckill.domain.ids import GoodsId, SaleId, check_goods_id

__all__ = [
    "INSTANT_MS_MAX",
    "LIMIT_PER_USER_MAX",
    "PAY_WINDOW_S_MAX",
    "PRICE_FEN_MAX",
    "STOCK_UNITS_MAX",
    "TITLE_CHARS_MAX",
    "LatePayment",
    "NewSale",
    "Sale",
    "SaleState",
    "check_late_payment",
]

STOCK_UNITS_MAX: Final = 100_000_000
LIMIT_PER_USER_MAX: Final = 100
PRICE_FEN_MAX: Final = 10**12
PAY_WINDOW_S_MAX: Final = 30 * 24 * 3600
TITLE_CHARS_MAX: Final = 200
INSTANT_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


class LatePayment(StrEnum):
    """What becomes of money that comes for an order whose units went back on sale."""

    TAKE_FREE_UNIT = "take_free_unit"
    """It buys again, when its buyer may, the sale runs and has units left; else it goes back."""
    REFUND = "refund"
    """It goes back."""


def check_late_payment(text: str) -> LatePayment:
    """Read the rule for late money.

    Raises:
        InvalidValue: naming ``late_payment``.
    """
    try:
        return LatePayment(text)
    except ValueError:
        allowed = " or ".join(rule.value for rule in LatePayment)
        raise InvalidValue("late_payment", f"must be {allowed}") from None


class SaleState(StrEnum):
    """Where a sale stands at one instant."""

    SCHEDULED = "scheduled"
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


def _check_range(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidValue(field, f"must be from {least} to {most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSale:
    """A sale as an operator wishes it. Construction checks every field.

    Attributes:
        goods_id: what is sold; at most one sale of it is open at a time.
        stock_units: units put on sale.
        limit_per_user: units that one user may hold.
        title: shown to buyers.
        price_fen: price of a unit in the smallest unit of money.
        starts_at_ms: first instant at which one can buy (UTC epoch milliseconds).
        ends_at_ms: first instant at which one can buy no more; None is open end.
        pay_window_ms: how long an order may stay unpaid.
        late_payment: what becomes of money that comes after that.
        may_buy_again: whether who let an order expire, or cancelled it, may buy once more. If not,
            its units count against their limit for as long as the sale lasts, though others may
            buy them; what an operator cancels or refunds, or the ledger refuses, does not count.

    Raises:
        InvalidValue: naming the field and the rule.
    """

    goods_id: GoodsId
    stock_units: int
    limit_per_user: int = 1
    title: str = ""
    price_fen: int = 0
    starts_at_ms: int
    ends_at_ms: int | None = None
    pay_window_ms: int = 900_000
    late_payment: LatePayment = LatePayment.TAKE_FREE_UNIT
    may_buy_again: bool = True

    def __post_init__(self) -> None:
        check_goods_id(self.goods_id)
        _check_range("stock", self.stock_units, 0, STOCK_UNITS_MAX)
        _check_range("limit_per_user", self.limit_per_user, 1, LIMIT_PER_USER_MAX)
        _check_range("price_fen", self.price_fen, 0, PRICE_FEN_MAX)
        _check_range("starts_at", self.starts_at_ms, 0, INSTANT_MS_MAX)
        _check_range("pay_window_s", self.pay_window_ms // 1000, 1, PAY_WINDOW_S_MAX)
        if len(self.title) > TITLE_CHARS_MAX:
            raise InvalidValue("title", f"must have at most {TITLE_CHARS_MAX} characters")
        if not self.title.isprintable():
            raise InvalidValue("title", "must not contain control characters or line breaks")
        if self.ends_at_ms is not None:
            _check_range("ends_at", self.ends_at_ms, 0, INSTANT_MS_MAX)
            if self.ends_at_ms <= self.starts_at_ms:
                raise InvalidValue("ends_at", "must be later than starts_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sale:
    """A sale as the ledger holds it.

    Attributes:
        sale_id: counted by the ledger.
        stock_units: units put on sale so far, changes included.
        paused: stopped by an operator; nobody is admitted.
        version: raised by each change, so that a late projection never overwrites a newer one.
        closed: a later sale of the same goods has taken its place, or its books are closed.
        retired: it is over, its books are closed for ever, and its keys leave Redis.

    The other attributes are those of `NewSale`.
    """

    sale_id: SaleId
    goods_id: GoodsId
    title: str
    price_fen: int
    limit_per_user: int
    stock_units: int
    starts_at_ms: int
    ends_at_ms: int | None
    pay_window_ms: int
    paused: bool
    version: int
    bucket_count: int = 1
    closed: bool = False
    late_payment: LatePayment = LatePayment.TAKE_FREE_UNIT
    retired: bool = False
    may_buy_again: bool = True

    def state_at(self, now_ms: int) -> SaleState:
        """Where the sale stands at ``now_ms``. The window is [starts_at, ends_at)."""
        if (
            self.closed
            or self.retired
            or (self.ends_at_ms is not None and now_ms >= self.ends_at_ms)
        ):
            return SaleState.ENDED
        if now_ms < self.starts_at_ms:
            return SaleState.SCHEDULED
        return SaleState.PAUSED if self.paused else SaleState.RUNNING
