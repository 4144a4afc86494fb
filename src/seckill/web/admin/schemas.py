"""The shapes of the operators' API: what it takes is checked by them, what it answers described."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from seckill.domain.operators import Role
from seckill.domain.order import OrderState
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


class RuleList(Shape):
    """The rules of one kind that are in force."""

    kind: str
    version: int | None = Field(description="null: the default ones, nothing has been saved")
    rules: list[dict[str, Any]]


class RuleLists(Shape):
    """The rules of every kind."""

    kinds: list[RuleList]


class RuleFault(Shape):
    """One rule of a list, and what is wrong with it."""

    index: int = Field(description="its place in the list, from 0")
    resource: str
    reasons: list[str]


class RuleReport(Shape):
    """What became of a list of rules."""

    kind: str
    ok: bool
    applied: bool
    saved: bool
    given: int
    in_force: int
    refused: list[RuleFault]
    warnings: list[RuleFault]
    version: int | None


class RuleVersionRow(Shape):
    """A version of the rules of one kind."""

    version: int
    at: Instant
    who: str
    why: str
    restores: int | None = Field(description="the version whose rules these are again")
    rules: int = Field(description="how many")


class RuleHistory(Shape):
    """The versions that are kept, oldest first."""

    versions: list[RuleVersionRow]


class GoBackWish(ReasonWish):
    """Which version is to be in force again."""

    to: Annotated[int, Field(ge=1, le=10**9)]


class OrderFound(Shape):
    """An order, whoever's it is."""

    reservation_id: str
    goods_id: str
    user_id: str
    quantity: int
    state: OrderState
    price_fen: Fen
    total_fen: Fen
    admitted_at: Instant
    pay_by: Instant | None
    paid_at: Instant | None
    continued_as: str | None
    reason: str | None


class OrdersFound(Shape):
    """A page of orders."""

    orders: list[OrderFound]
    next: str | None = Field(description="path of the next page")


class OrderMove(Shape):
    """One move of an order."""

    from_state: str
    to_state: str
    at_ms: int
    actor: str
    reason: str | None


class OrderStory(Shape):
    """An order with its moves and its payments."""

    order: OrderFound
    moves: list[OrderMove]
    payments: list[dict[str, Any]] = Field(description="as `seckill orders show --json` has them")


class TraceStep(Shape):
    """One thing that happened to a purchase, or that is so now."""

    at: Instant | None = Field(description="null for what is so now")
    where: str
    what: str


class OrderTraced(Shape):
    """The life of a purchase."""

    reservation_id: str
    place: str
    state: str
    steps: list[TraceStep]
    redis: dict[str, Any]
    ledger: dict[str, Any]


class LetterRow(Shape):
    """A message that could not become an order."""

    name: str
    origin: str
    reason: str
    at_ms: int = Field(description="when it was first sent; 0 where nobody knows")
    key: str
    bytes: int | None = Field(description="null where there was no content at all")


class LetterShown(LetterRow):
    """A dead letter with its content."""

    content_base64: str | None


class LetterPage(Shape):
    """A page of dead letters, by shelf, oldest first."""

    dead_letters: list[LetterRow]
    next: str | None = Field(description="path of the next page")


class AuditRun(Shape):
    """An audit and when it was made."""

    at: Instant | None = Field(description="null: the background audit has not run yet")
    report: dict[str, Any] | None = Field(description="as `seckill audit --json` answers")


class Statements(Shape):
    """What the fence did, the newest first, at most 200."""

    statements: list[dict[str, Any]] = Field(
        description="as `seckill rebuild --statements --json` has them"
    )


class ReconcileWish(ReasonWish):
    """What is to be set right."""

    goods_id: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="only of these goods; default: every sale"
    )
    apply: bool = Field(default=False, description="do it; else nothing is changed")


class ReconcileDone(Shape):
    """The plan, what was done of it, and what is left."""

    ok: bool
    plan: list[dict[str, Any]]
    done: list[dict[str, Any]]
    findings_after: list[dict[str, Any]]
