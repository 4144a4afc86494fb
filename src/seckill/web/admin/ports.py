"""What the operators' API needs. The real ones are in ``runtime``, and the commands use them too.

What a method answers with is a row as programs read it (``--json`` of the same command). Besides
what is said there, every method raises the `SeckillError` of a store that is away.
"""

# ruff: noqa: D102  -- what a method means is said once, where it is implemented

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from seckill.domain.ids import GoodsId, ReservationId, UserId
from seckill.domain.operators import Role
from seckill.domain.order import OrderState
from seckill.domain.sale import NewSale
from seckill.ledger.admins import HeldToken
from seckill.ledger.sales import SaleTerms

__all__ = [
    "AdminParts",
    "Letters",
    "Orders",
    "Proof",
    "Row",
    "Rules",
    "Sales",
    "TokenBook",
    "Users",
    "Verb",
]

Row = dict[str, Any]
Verb = Literal["open", "pause", "resume", "end"]


class TokenBook(Protocol):
    """Knows the tokens that operators show."""

    async def held(self, token_ids: Sequence[str]) -> Mapping[str, HeldToken]:
        """What is known of these tokens; unknown ones are left out."""
        ...


class Users(Protocol):
    """Users, tokens, the first admin and the action log; see `ledger.admins`."""

    async def set_up(self, secret: str, name: str) -> Row: ...
    async def users(self) -> list[Row]: ...
    async def add_user(self, name: str, role: Role, *, actor: str, reason: str) -> Row: ...
    async def change_user(
        self, name: str, *, role: Role | None, disabled: bool | None, actor: str, reason: str
    ) -> Row: ...
    async def tokens(self, name: str | None) -> list[Row]: ...
    async def make_token(
        self, name: str, role: Role | None, *, days: int, actor: str, reason: str
    ) -> Row: ...
    async def revoke_token(self, token_id: str, *, actor: str, reason: str) -> Row: ...
    async def actions(
        self, actions_max: int, *, before: int | None, actor: str | None
    ) -> list[Row]: ...


class Sales(Protocol):
    """Sales; see `runtime.sale_desk`."""

    async def page(self, sales_max: int, *, before: int | None, closed: bool) -> list[Row]: ...
    async def show(self, goods_id: str) -> Row: ...
    async def create(self, new: NewSale, *, actor: str, reason: str) -> Row: ...
    async def act(self, goods_id: str, verb: Verb, *, actor: str, reason: str) -> Row: ...
    async def edit(
        self,
        goods_id: str,
        terms: SaleTerms,
        *,
        starts_at_ms: int | None,
        ends_at_ms: int | None,
        actor: str,
        reason: str,
    ) -> Row: ...
    async def change_stock(
        self, goods_id: str, by_units: int, *, change_id: str, actor: str, reason: str
    ) -> Row: ...


class Rules(Protocol):
    """The rules of flow control; see `runtime.rule_desk`."""

    async def all(self) -> list[Row]: ...
    async def show(self, kind: str) -> Row: ...
    async def history(self, kind: str) -> list[Row]: ...
    async def put(
        self,
        kind: str,
        document: bytes,
        *,
        partial: bool,
        made_from: int | None,
        actor: str,
        reason: str,
    ) -> Row: ...
    async def go_back(self, kind: str, to: int, *, actor: str, reason: str) -> Row: ...


class Orders(Protocol):
    """Orders; see `runtime.order_desk`."""

    async def page(
        self,
        orders_max: int,
        *,
        goods_id: GoodsId | None,
        user_id: UserId | None,
        state: OrderState | None,
        before: ReservationId | None,
    ) -> list[Row]: ...
    async def show(self, reservation_id: str) -> Row: ...
    async def trace(self, reservation_id: str) -> Row: ...
    async def cancel(self, reservation_id: str, *, actor: str, reason: str) -> Row: ...
    async def refund(self, reservation_id: str, *, actor: str, reason: str) -> Row: ...


class Letters(Protocol):
    """Dead letters; see `runtime.letters`."""

    async def page(self, letters_max: int, *, after: str | None) -> list[Row]: ...
    async def show(self, name: str) -> Row: ...
    async def settle(
        self, name: str, how: Literal["replay", "discard"], *, actor: str, reason: str
    ) -> Row: ...


class Proof(Protocol):
    """The audit, the fence and repairs; see `runtime.proof_desk`."""

    async def latest_audit(self) -> Row: ...
    async def audit(self) -> Row: ...
    async def statements(self, goods_id: str | None) -> list[Row]: ...
    async def reconcile(
        self, goods_id: str | None, *, apply: bool, actor: str, reason: str
    ) -> Row: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminParts:
    """What the operators' side is made of."""

    tokens: TokenBook
    users: Users
    sales: Sales
    rules: Rules
    orders: Orders
    letters: Letters
    proof: Proof
