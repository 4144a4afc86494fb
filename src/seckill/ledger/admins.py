"""Who may run the shop: users, their tokens, and the link that makes the first one.

A token reads ``sk_admin_<id>_<secret>``. The id finds its row; of the secret, 256 random bits, only
the SHA-256 is kept. It is fast on purpose: nobody can try 2**256 secrets, and every request of an
operator is checked.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.clock import Clock
from seckill.domain.errors import InvalidValue
from seckill.domain.operators import Role, check_admin_name
from seckill.ledger.engine import Database
from seckill.ledger.errors import (
    KeyTaken,
    LastAdmin,
    NoSuchToken,
    NoSuchUser,
    SetupLinkDead,
    UserExists,
)
from seckill.ledger.records import check_actor, check_reason, record_action
from seckill.ledger.tables import admin_tokens, admin_users, setup_links

__all__ = [
    "SETUP_LINK_MS",
    "TOKEN_DAYS",
    "TOKEN_DAYS_MAX",
    "AdminBook",
    "AdminToken",
    "AdminUser",
    "HeldToken",
    "read_token",
]

TOKEN_DAYS: Final = 90
TOKEN_DAYS_MAX: Final = 366
SETUP_LINK_MS: Final = 3_600_000
"""How long a set-up link is good."""

_USERS_MAX: Final = 1_000
_TOKENS_SHOWN_MAX: Final = 1_000
_DAY_MS: Final = 86_400_000
_TOKEN: Final = re.compile(r"sk_admin_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


def read_token(text: str) -> tuple[str, str] | None:
    """Id and secret of a token; None when it cannot be one of ours."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else (match[1], match[2])


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class AdminUser:
    """A user of the operators' side.

    Attributes:
        disabled_at_ms: since when they may do nothing; None when they may.
    """

    name: str
    role: Role
    created_at_ms: int
    created_by: str
    disabled_at_ms: int | None


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A token without its secret."""

    token_id: str
    name: str
    role: Role
    created_at_ms: int
    created_by: str
    expires_at_ms: int
    revoked_at_ms: int | None


@dataclass(frozen=True, slots=True)
class HeldToken:
    """What the ledger says of a token that somebody shows.

    Attributes:
        role: what it may do now: no more than its user may.
        dead: why it opens nothing; empty when it does.
    """

    name: str
    role: Role
    secret_hash: str
    expires_at_ms: int
    dead: str

    def fits(self, secret: str) -> bool:
        """Whether this is its secret. Takes the same time whatever is wrong with it."""
        return hmac.compare_digest(self.secret_hash, _hash(secret))


class AdminBook:
    """The users of the operators' side. Raises LedgerUnavailable when it cannot be asked now."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    # Tokens that are shown

    async def held(self, token_ids: Sequence[str]) -> dict[str, HeldToken]:
        """What is known of these tokens, whoever shows them; unknown ones are left out."""
        now_ms = self._clock.now_ms()
        query = (
            select(
                admin_tokens,
                admin_users.c.role.label("user_role"),
                admin_users.c.disabled_at_ms,
            )
            .join(admin_users, admin_users.c.name == admin_tokens.c.name)
            .where(admin_tokens.c.token_id.in_(token_ids))
        )

        async def work(connection: AsyncConnection) -> dict[str, HeldToken]:
            return {row.token_id: _held(row, now_ms) for row in await connection.execute(query)}

        return await self._database.read(f"read {len(token_ids)} tokens", work)

    # Users

    async def users(self) -> list[AdminUser]:
        """All users by name, at most 1,000."""
        query = select(admin_users).order_by(admin_users.c.name).limit(_USERS_MAX)

        async def work(connection: AsyncConnection) -> list[AdminUser]:
            return [_user(row) for row in await connection.execute(query)]

        return await self._database.read("read the users", work)

    async def add_user(self, name: str, role: Role, *, actor: str, reason: str = "") -> AdminUser:
        """Add a user.

        Raises:
            UserExists: there is one of this name.
            InvalidValue: naming ``name``, ``actor`` or ``reason``, or there are 1,000 users.
        """
        check_admin_name(name)
        check_actor(actor)
        check_reason(reason)
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> AdminUser:
            count = await connection.scalar(select(func.count()).select_from(admin_users))
            if int(count or 0) >= _USERS_MAX:
                raise InvalidValue("name", f"cannot be added: there are {_USERS_MAX} users")
            await _add_user(connection, name, role, now_ms, actor, reason)
            return await _read_user(connection, name)

        try:
            return await self._database.write(f"add user {name}", work)
        except KeyTaken:
            raise UserExists(name) from None

    async def change_user(
        self,
        name: str,
        *,
        role: Role | None = None,
        disabled: bool | None = None,
        actor: str,
        reason: str = "",
    ) -> AdminUser:
        """Give a user another role, or take and give back all their rights. None: as it is.

        Raises:
            NoSuchUser: there is none of this name.
            LastAdmin: nobody would be left who can say who may do what.
            InvalidValue: naming ``actor`` or ``reason``.
        """
        check_actor(actor)
        check_reason(reason)
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> AdminUser:
            # All rows are locked, in order: two admins must not take each other's rights at once.
            locked = await connection.execute(
                select(admin_users).order_by(admin_users.c.name).with_for_update()
            )
            found = {row.name: _user(row) for row in locked}
            before = found.get(name)
            if before is None:
                raise NoSuchUser(name)
            disabled_at_ms = before.disabled_at_ms
            if disabled is not None:
                disabled_at_ms = (disabled_at_ms or now_ms) if disabled else None
            after = AdminUser(
                name, role or before.role, before.created_at_ms, before.created_by, disabled_at_ms
            )
            if after == before:
                return before
            found[name] = after
            if not any(_is_admin(one) for one in found.values()):
                raise LastAdmin(name)
            await connection.execute(
                update(admin_users)
                .where(admin_users.c.name == name)
                .values(role=after.role.value, disabled_at_ms=after.disabled_at_ms)
            )
            await record_action(
                connection,
                at_ms=now_ms,
                actor=actor,
                action="change_user",
                sale_id=None,
                detail={
                    "reason": reason,
                    "name": name,
                    "before": _rights(before),
                    "after": _rights(after),
                },
            )
            return after

        return await self._database.write(f"change user {name}", work)

    # Tokens that are made

    async def tokens(self, name: str | None = None) -> list[AdminToken]:
        """The tokens, of one user or of all, newest first, at most 1,000."""
        query = (
            select(admin_tokens)
            .order_by(admin_tokens.c.created_at_ms.desc(), admin_tokens.c.token_id)
            .limit(_TOKENS_SHOWN_MAX)
        )
        if name is not None:
            query = query.where(admin_tokens.c.name == name)

        async def work(connection: AsyncConnection) -> list[AdminToken]:
            return [_token(row) for row in await connection.execute(query)]

        return await self._database.read("read the tokens", work)

    async def make_token(
        self,
        name: str,
        role: Role | None = None,
        *,
        days: int = TOKEN_DAYS,
        add_user: bool = False,
        actor: str,
        reason: str = "",
    ) -> tuple[AdminToken, str]:
        """Make a token of a user.

        Args:
            name: whose it is.
            role: what it may do; None is all that its user may.
            days: how long it is good, 1 to 366.
            add_user: make the user too, with this role, when there is none.
            actor: who makes it.
            reason: why.

        Returns:
            The token, and its text: the only time that it is known.

        Raises:
            NoSuchUser: there is none of this name.
            InvalidValue: naming ``name``, ``days``, ``role`` (more than its user may), ``actor`` or
                ``reason``.
        """
        check_admin_name(name)
        _check_days(days)
        check_actor(actor)
        check_reason(reason)
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> tuple[AdminToken, str]:
            row = (
                await connection.execute(
                    select(admin_users).where(admin_users.c.name == name).with_for_update()
                )
            ).one_or_none()
            if row is None:
                if not add_user or role is None:
                    raise NoSuchUser(name)
                await _add_user(connection, name, role, now_ms, actor, reason)
                user_role = role
            else:
                user_role = Role(row.role)
            wanted = role or user_role
            if not user_role.allows(wanted):
                raise InvalidValue("role", f"must not be more than that of {name}: {user_role}")
            return await _make_token(connection, name, wanted, days, now_ms, actor, reason)

        return await self._database.write(f"make a token of {name}", work)

    async def revoke_token(self, token_id: str, *, actor: str, reason: str = "") -> AdminToken:
        """Let a token open nothing any more, from the next request on. Twice is as good as once.

        Raises:
            NoSuchToken: there is none with this id.
            InvalidValue: naming ``actor`` or ``reason``.
        """
        check_actor(actor)
        check_reason(reason)
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> AdminToken:
            query = select(admin_tokens).where(admin_tokens.c.token_id == token_id)
            row = (await connection.execute(query.with_for_update())).one_or_none()
            if row is None:
                raise NoSuchToken(token_id)
            if row.revoked_at_ms is None:
                await connection.execute(
                    update(admin_tokens)
                    .where(admin_tokens.c.token_id == token_id)
                    .values(revoked_at_ms=now_ms)
                )
                await record_action(
                    connection,
                    at_ms=now_ms,
                    actor=actor,
                    action="revoke_token",
                    sale_id=None,
                    detail={"reason": reason, "token_id": token_id, "name": row.name},
                )
            return _token((await connection.execute(query)).one())

        return await self._database.write(f"revoke token {token_id}", work)

    # The first admin

    async def make_setup_link(self) -> str | None:
        """The secret of a new set-up link; None when there is a user already."""
        secret = secrets.token_urlsafe(32)
        now_ms = self._clock.now_ms()

        async def work(connection: AsyncConnection) -> str | None:
            if await _has_users(connection):
                return None
            await connection.execute(
                delete(setup_links).where(setup_links.c.expires_at_ms <= now_ms)
            )
            await connection.execute(
                insert(setup_links).values(
                    secret_hash=_hash(secret),
                    created_at_ms=now_ms,
                    expires_at_ms=now_ms + SETUP_LINK_MS,
                )
            )
            return secret

        return await self._database.write("make a set-up link", work)

    async def set_up(
        self, secret: str, name: str, *, days: int = TOKEN_DAYS
    ) -> tuple[AdminToken, str]:
        """Make the first admin, by a set-up link that ends with this, and a token of theirs.

        Raises:
            SetupLinkDead: it is wrong, too old or used, or there is a user already.
            InvalidValue: naming ``name`` or ``days``.
        """
        check_admin_name(name)
        _check_days(days)
        now_ms = self._clock.now_ms()
        actor = "setup-link"

        async def work(connection: AsyncConnection) -> tuple[AdminToken, str]:
            # Every link is taken away, good or old: of two who come at once the second finds none.
            taken = await connection.execute(
                delete(setup_links).returning(
                    setup_links.c.secret_hash, setup_links.c.expires_at_ms
                )
            )
            good = [row.secret_hash for row in taken if row.expires_at_ms > now_ms]
            wanted = _hash(secret)
            fits = [hmac.compare_digest(one, wanted) for one in good]
            if not any(fits) or await _has_users(connection):
                raise SetupLinkDead  # which leaves the links as they were
            reason = "the first admin"
            await _add_user(connection, name, Role.ADMIN, now_ms, actor, reason)
            return await _make_token(connection, name, Role.ADMIN, days, now_ms, actor, reason)

        return await self._database.write("set the first admin up", work)


def _held(row: Row[Any], now_ms: int) -> HeldToken:
    role = min(Role(row.role), Role(row.user_role), key=tuple(Role).index)
    dead = ""
    if row.disabled_at_ms is not None:
        dead = "Its user has been disabled."
    elif row.revoked_at_ms is not None:
        dead = "The token has been revoked."
    elif row.expires_at_ms <= now_ms:
        dead = "The token has expired."
    return HeldToken(row.name, role, row.secret_hash, row.expires_at_ms, dead)


def _check_days(days: int) -> None:
    if not 1 <= days <= TOKEN_DAYS_MAX:
        raise InvalidValue("days", f"must be from 1 to {TOKEN_DAYS_MAX}")


def _is_admin(user: AdminUser) -> bool:
    return user.role is Role.ADMIN and user.disabled_at_ms is None


def _rights(user: AdminUser) -> dict[str, object]:
    return {"role": user.role.value, "disabled": user.disabled_at_ms is not None}


async def _has_users(connection: AsyncConnection) -> bool:
    return await connection.scalar(select(admin_users.c.name).limit(1)) is not None


async def _add_user(
    connection: AsyncConnection, name: str, role: Role, now_ms: int, actor: str, reason: str
) -> None:
    await connection.execute(
        insert(admin_users).values(
            name=name, role=role.value, created_at_ms=now_ms, created_by=actor
        )
    )
    await record_action(
        connection,
        at_ms=now_ms,
        actor=actor,
        action="add_user",
        sale_id=None,
        detail={"reason": reason, "name": name, "role": role.value},
    )


async def _make_token(
    connection: AsyncConnection,
    name: str,
    role: Role,
    days: int,
    now_ms: int,
    actor: str,
    reason: str,
) -> tuple[AdminToken, str]:
    token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    await connection.execute(
        insert(admin_tokens).values(
            token_id=token_id,
            name=name,
            role=role.value,
            secret_hash=_hash(secret),
            created_at_ms=now_ms,
            created_by=actor,
            expires_at_ms=now_ms + days * _DAY_MS,
        )
    )
    await record_action(
        connection,
        at_ms=now_ms,
        actor=actor,
        action="make_token",
        sale_id=None,
        detail={"reason": reason, "token_id": token_id, "name": name, "role": role.value},
    )
    row = await connection.execute(select(admin_tokens).where(admin_tokens.c.token_id == token_id))
    return _token(row.one()), f"sk_admin_{token_id}_{secret}"


async def _read_user(connection: AsyncConnection, name: str) -> AdminUser:
    row = await connection.execute(select(admin_users).where(admin_users.c.name == name))
    return _user(row.one())


def _user(row: Row[Any]) -> AdminUser:
    return AdminUser(
        row.name, Role(row.role), row.created_at_ms, row.created_by, row.disabled_at_ms
    )


def _token(row: Row[Any]) -> AdminToken:
    return AdminToken(
        row.token_id,
        row.name,
        Role(row.role),
        row.created_at_ms,
        row.created_by,
        row.expires_at_ms,
        row.revoked_at_ms,
    )
