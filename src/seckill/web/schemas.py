"""The shapes of the buyer API, for its OpenAPI document.

Answers are written by hand where speed counts; a test compares them with these shapes.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from seckill.domain.order import OrderState
from seckill.domain.sale import SaleState

__all__ = [
    "GoodsPage",
    "Health",
    "Item",
    "OnSale",
    "OrderPage",
    "PaymentStarted",
    "Problem",
    "Purchased",
    "Readiness",
]

Instant = Annotated[
    str,
    Field(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
        description="RFC 3339, UTC, with milliseconds",
        examples=["2026-12-01T12:00:00.000Z"],
    ),
]
Fen = Annotated[int, Field(ge=0, description="in the smallest unit of money")]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OnSale(_Shape):
    """Goods that are, were or will be on sale."""

    goods_id: str
    title: str
    state: SaleState
    starts_at: Instant
    ends_at: Instant | None = Field(description="the first instant at which one can buy no more")
    price_fen: Fen
    limit_per_user: Annotated[int, Field(ge=1, description="units that one user may hold")]
    may_buy_again: bool = Field(
        description="whether who let an order expire, or cancelled it, may buy once more"
    )
    stock: Annotated[int, Field(ge=0, description="units put on sale")]
    remaining: Annotated[int, Field(ge=0)] | None = Field(
        description="units still to be had, at most one second old; null when it is not known now"
    )
    server_time: Instant


class Item(OnSale):
    """One item, with where its units are: ``remaining + held + paid`` is ``stock``."""

    held: Annotated[int, Field(ge=0)] | None = Field(
        description="units of orders that are not paid yet; null when it is not known now"
    )
    paid: Annotated[int, Field(ge=0)] | None = Field(
        description="units of paid orders, at most five seconds old; null when it is not known"
    )
    next_release_at: Instant | None = Field(
        description="when nothing remains: the earliest instant at which units may come back"
    )


class GoodsPage(_Shape):
    """A page of goods."""

    goods: list[OnSale]
    next: str | None = Field(description="path of the next page")
    server_time: Instant


class Purchased(_Shape):
    """A purchase and where it stands."""

    reservation_id: str
    goods_id: str
    user_id: str
    quantity: Annotated[int, Field(ge=1)]
    state: OrderState
    price_fen: Fen = Field(description="of one unit")
    total_fen: Fen
    admitted_at: Instant | None = Field(description="null while it is queued")
    pay_by: Instant | None = Field(description="deadline of the payment; null while it is queued")
    paid_at: Instant | None = Field(description="when its payment was taken")
    continued_as: str | None = Field(
        description="the order that late money of this expired one has paid"
    )
    reason: str | None = Field(description="why it is in a state that the buyer did not ask for")


class PaymentStarted(_Shape):
    """Where and until when an order can be paid."""

    reservation_id: str
    state: OrderState
    payment_id: str | None = Field(description="null when the order is paid")
    page_url: str | None = Field(description="the provider's page; null when the order is paid")
    amount_fen: Fen
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")]
    pay_by: Instant = Field(description="money that comes later is late")


class OrderPage(_Shape):
    """A page of one's own orders, newest first."""

    orders: list[Purchased]
    next: str | None = Field(description="path of the next page")


class Problem(_Shape):
    """What was wrong (RFC 9457)."""

    type: Literal["about:blank"]
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    field: str | None = Field(default=None, description="the value that is wrong")
    rule: str | None = Field(default=None, description="the rule that it breaks")
    errors: list[dict[str, object]] | None = Field(
        default=None, description="where several values are wrong, each of them"
    )


class Health(_Shape):
    """This process is alive."""

    status: Literal["alive"]


class Dependency(_Shape):
    """How one dependency stands."""

    status: Literal["up", "down", "unknown"]
    since: Instant
    detail: str


class Readiness(_Shape):
    """Whether this process takes traffic, and how its dependencies stand."""

    status: Literal["ready", "degraded", "draining"]
    dependencies: dict[str, Dependency]
