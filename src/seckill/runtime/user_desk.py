"""Who may run the shop, and who did what: for the commands, and for the operators' API."""

from typing import Any

from seckill.domain.ids import SaleId
from seckill.domain.instants import rfc3339_ms
from seckill.domain.operators import Role
from seckill.ledger.actions import Action
from seckill.ledger.admins import TOKEN_DAYS, AdminToken, AdminUser
from seckill.ledger.sql_ledger import SQLLedger

__all__ = ["UserDesk"]

Row = dict[str, Any]


class UserDesk:
    """Users, tokens and the action log, as programs read them. Raises as `AdminBook` does."""

    def __init__(self, ledger: SQLLedger) -> None:
        self._admins = ledger.admins
        self._actions = ledger.actions

    async def setup_secret(self) -> str | None:
        """What a new set-up link ends with; None when there is a user already."""
        return await self._admins.make_setup_link()

    async def set_up(self, secret: str, name: str) -> Row:
        """Make the first admin, and a token of theirs."""
        token, text = await self._admins.set_up(secret, name)
        return _token(token) | {"token": text}

    async def users(self) -> list[Row]:
        """All users."""
        return [_user(user) for user in await self._admins.users()]

    async def add_user(self, name: str, role: Role, *, actor: str, reason: str) -> Row:
        """Add a user."""
        return _user(await self._admins.add_user(name, role, actor=actor, reason=reason))

    async def change_user(
        self, name: str, *, role: Role | None, disabled: bool | None, actor: str, reason: str
    ) -> Row:
        """Change what a user may do."""
        return _user(
            await self._admins.change_user(
                name, role=role, disabled=disabled, actor=actor, reason=reason
            )
        )

    async def tokens(self, name: str | None) -> list[Row]:
        """The tokens, of one user or of all."""
        return [_token(token) for token in await self._admins.tokens(name)]

    async def make_token(
        self,
        name: str,
        role: Role | None,
        *,
        days: int = TOKEN_DAYS,
        add_user: bool = False,
        actor: str,
        reason: str,
    ) -> Row:
        """Make a token; its text is shown this once."""
        token, text = await self._admins.make_token(
            name, role, days=days, add_user=add_user, actor=actor, reason=reason
        )
        return _token(token) | {"token": text}

    async def revoke_token(self, token_id: str, *, actor: str, reason: str) -> Row:
        """Revoke a token."""
        return _token(await self._admins.revoke_token(token_id, actor=actor, reason=reason))

    async def actions(
        self,
        actions_max: int,
        *,
        before: int | None = None,
        actor: str | None = None,
        sale_id: SaleId | None = None,
    ) -> list[Row]:
        """The action log, the newest first."""
        found = await self._actions.page(actions_max, before=before, actor=actor, sale_id=sale_id)
        return [_action(action) for action in found]


def _user(user: AdminUser) -> Row:
    return {
        "name": user.name,
        "role": user.role.value,
        "disabled": user.disabled_at_ms is not None,
        "created_at": rfc3339_ms(user.created_at_ms),
        "created_by": user.created_by,
    }


def _token(token: AdminToken) -> Row:
    revoked_at_ms = token.revoked_at_ms
    return {
        "token_id": token.token_id,
        "name": token.name,
        "role": token.role.value,
        "created_at": rfc3339_ms(token.created_at_ms),
        "created_by": token.created_by,
        "expires_at": rfc3339_ms(token.expires_at_ms),
        "revoked_at": None if revoked_at_ms is None else rfc3339_ms(revoked_at_ms),
    }


def _action(action: Action) -> Row:
    return {
        "action_id": action.action_id,
        "at": rfc3339_ms(action.at_ms),
        "actor": action.actor,
        "action": action.action,
        "sale_id": action.sale_id,
        "detail": action.detail,
    }
