"""What the operators' API needs. The real ones are in ``runtime``, and the commands use them too.

What a method answers with is a row as programs read it (``--json`` of the same command). Besides
what is said there, every method raises the `SeckillError` of a store that is away.
"""

# ruff: noqa: D102  -- what a method means is said once, where it is implemented

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from seckill.domain.operators import Role
from seckill.domain.sale import NewSale
from seckill.ledger.admins import HeldToken
from seckill.ledger.sales import SaleTerms

__all__ = ["AdminParts", "Row", "Sales", "TokenBook", "Users", "Verb"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminParts:
    """What the operators' side is made of."""

    tokens: TokenBook
    users: Users
    sales: Sales
