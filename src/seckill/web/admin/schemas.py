"""The shapes of the operators' API: what it takes is checked by them, what it answers described."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from seckill.domain.operators import Role
from seckill.web.schemas import Fen, Instant

__all__ = [
    "Me",
    "NewSaleWish",
    "ReasonWish",
    "SaleEdit",
    "SalePage",
    "SaleRow",
    "StockWish",
]

REASON_CHARS_MAX = 500


class Wish(BaseModel):
    """What an operator sends. Numbers are numbers and texts are texts; other fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Shape(BaseModel):
    """What is answered."""

    model_config = ConfigDict(extra="forbid")


class ReasonWish(Wish):
    """Why; every change says so."""

    reason: Annotated[
        str,
        Field(
            min_length=1,
            max_length=REASON_CHARS_MAX,
            description="kept in the action log; of an order, shown to its buyer",
        ),
    ]


InstantWish = Annotated[
    str,
    Field(
        max_length=100,
        description="now, or RFC 3339 with an offset, or local with its zone behind it:"
        " 2026-12-24T20:00:00[Asia/Shanghai]",
        examples=["2026-12-24T20:00:00+08:00"],
    ),
]


class NewSaleWish(ReasonWish):
    """A sale to be put on. The bounds are those of `seckill sale create`."""

    goods_id: Annotated[str, Field(min_length=1, max_length=64)]
    stock: int
    limit_per_user: int = 1
    title: str = ""
    price_fen: int = 0
    starts_at: InstantWish = "now"
    ends_at: InstantWish | None = None
    pay_window_s: int = 900
    late_payment: str = "take_free_unit"
    may_buy_again: bool = True


class SaleEdit(ReasonWish):
    """What is to be changed of a sale; what is left out stays.

    Only when it starts and ends can be changed once it is about to start.
    """

    title: str | None = None
    price_fen: int | None = None
    limit_per_user: int | None = None
    starts_at: InstantWish | None = None
    ends_at: InstantWish | None = None
    pay_window_s: int | None = None
    late_payment: str | None = None
    may_buy_again: bool | None = None


class StockWish(ReasonWish):
    """Units to be put on sale, or taken off it."""

    by: Annotated[int, Field(description="signed difference: 5 adds, -5 takes off; not 0")]


class SaleRow(Shape):
    """A sale and how it stands."""

    sale_id: str
    goods_id: str
    title: str
    state: Annotated[str, Field(description="scheduled, running, paused or ended")]
    starts_at: Instant
    ends_at: Instant | None
    price_fen: Fen
    limit_per_user: int
    stock: int
    remaining: int | None = Field(description="null when it is not known now")
    sold: int = Field(description="units of live orders in the ledger")
    pay_window_s: int
    late_payment: str
    may_buy_again: bool
    version: int
    bucket: Annotated[str, Field(description="ok, or why it admits nobody")]
    epoch: int
    held: int = Field(description="units that Redis knows to be held")
    outbox_entries: int


class SalePage(Shape):
    """A page of sales, the newest first."""

    sales: list[SaleRow]
    next: str | None = Field(description="path of the next page")


class Me(Shape):
    """Who is asking."""

    name: str
    role: Role


def numbers_as_ids(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """A row whose ids are texts: a large number breaks in JavaScript."""
    return row | {name: None if row[name] is None else str(row[name]) for name in names}


class SetupWish(Wish):
    """Who is to be the first admin."""

    secret: Annotated[
        str, Field(min_length=1, max_length=200, description="what the link ends with, after #")
    ]
    name: Annotated[str, Field(min_length=1, max_length=64)]


class NewUserWish(ReasonWish):
    """A user to be added."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    role: Annotated[str, Field(description="viewer, operator or admin")]


class UserEdit(ReasonWish):
    """What is to be changed of a user."""

    role: str | None = None
    disabled: bool | None = None


class TokenWish(ReasonWish):
    """A token to be made."""

    name: Annotated[str, Field(min_length=1, max_length=64, description="of this user")]
    role: str | None = Field(default=None, description="default: all that the user may")
    days: int | None = Field(default=None, description="how long it is good: 1 to 366, default 90")


class UserRow(Shape):
    """A user."""

    name: str
    role: Role
    disabled: bool
    created_at: Instant
    created_by: str


class UserList(Shape):
    """All users by name."""

    users: list[UserRow]


class TokenRow(Shape):
    """A token without its secret."""

    token_id: str
    name: str
    role: Role
    created_at: Instant
    created_by: str
    expires_at: Instant
    revoked_at: Instant | None


class TokenList(Shape):
    """Tokens, the newest first, at most 1,000."""

    tokens: list[TokenRow]


class TokenMade(TokenRow):
    """A new token, with what is shown this once."""

    token: str = Field(description="goes into Authorization: Bearer …; it is kept nowhere")


class ActionRow(Shape):
    """One change that somebody made."""

    action_id: str
    at: Instant
    actor: Annotated[
        str, Field(description="api:NAME, cli:ACCOUNT, setup-link, or a part of the service")
    ]
    action: str
    sale_id: str | None
    detail: dict[str, Any] = Field(description="the reason, and the values before and after")


class ActionPage(Shape):
    """A page of the action log."""

    actions: list[ActionRow]
    next: str | None = Field(description="path of the next page")
