"""Users, their tokens, the first of them, and who did what: ``/admin/api/users`` and others."""

from typing import Annotated, Final

from fastapi import APIRouter, FastAPI, Path, Query, Request
from fastapi.responses import Response

from seckill.domain.operators import Role, check_role
from seckill.ledger.admins import TOKEN_DAYS
from seckill.web.admin.answers import ME, Limit, answer, count_of, page_answer
from seckill.web.admin.calls import AdminCalls
from seckill.web.admin.guard import Guard, Operator, needs
from seckill.web.admin.ports import Users
from seckill.web.admin.schemas import (
    ActionPage,
    Me,
    NewUserWish,
    SetupWish,
    TokenList,
    TokenMade,
    TokenRow,
    TokenWish,
    UserEdit,
    UserList,
    UserRow,
    numbers_as_ids,
)
from seckill.web.openapi import PROBLEM_RESPONSES
from seckill.web.problems import RuleBroken

__all__ = ["add_set_up", "add_users"]

_READS: Final = PROBLEM_RESPONSES(400, 401, 403, 422, 429, 503)
_CHANGES: Final = PROBLEM_RESPONSES(400, 401, 403, 404, 409, 413, 415, 422, 429, 503)
Reason = Annotated[str, Query(min_length=1, max_length=500, description="kept in the action log")]


def add_set_up(app: FastAPI, users: Users, calls: AdminCalls, guard: Guard) -> None:
    """Add the one route that takes no token: it makes the first."""

    @app.post(
        "/admin/api/setup",
        status_code=201,
        response_model=TokenMade,
        responses=PROBLEM_RESPONSES(400, 403, 413, 415, 422, 429, 503),
        summary="Make the first admin, with the secret of the set-up link",
        description="The link works once, for an hour, and only as long as there is no user.",
        tags=["admin"],
    )
    async def set_up(wish: SetupWish, request: Request) -> Response:
        made = await guard.try_out(
            request, lambda: calls.make(lambda: users.set_up(wish.secret, wish.name))
        )
        return answer(made, 201)


def add_users(router: APIRouter, users: Users, calls: AdminCalls) -> None:
    """Add the routes."""
    admin = needs(Role.ADMIN)

    @router.get(
        "/me",
        response_model=Me,
        responses=_READS,
        summary="Who the token names, and what it may do",
        openapi_extra=needs(Role.VIEWER),
    )
    async def show_me(me: Operator = ME) -> Response:
        return answer({"name": me.name, "role": me.role.value})

    @router.get(
        "/actions",
        response_model=ActionPage,
        responses=_READS,
        summary="The action log: who changed what, when and why; the newest first",
        openapi_extra=needs(Role.VIEWER),
    )
    async def list_actions(
        limit: Limit = 50,
        before: Annotated[
            str | None, Query(description="action id of the last entry of the page before")
        ] = None,
        actor: Annotated[
            str | None, Query(max_length=64, description="of this one only, like api:ann")
        ] = None,
    ) -> Response:
        start = count_of("before", before)
        _refuse_nul("actor", actor)
        found = await calls.make(lambda: users.actions(limit + 1, before=start, actor=actor))
        return page_answer(
            "/admin/api/actions",
            "actions",
            [numbers_as_ids(row, "action_id", "sale_id") for row in found],
            limit,
            lambda last: {"before": last["action_id"], "actor": actor},
        )

    @router.get(
        "/users",
        response_model=UserList,
        responses=_READS,
        summary="All users",
        openapi_extra=admin,
    )
    async def list_users() -> Response:
        return answer({"users": await calls.make(users.users)})

    @router.post(
        "/users",
        status_code=201,
        response_model=UserRow,
        responses=_CHANGES,
        summary="Add a user",
        description="Asking again is answered 409: there is a user of that name.",
        openapi_extra=admin,
    )
    async def add_user(wish: NewUserWish, me: Operator = ME) -> Response:
        role = check_role(wish.role)
        row = await calls.make(
            lambda: users.add_user(wish.name, role, actor=me.actor, reason=wish.reason)
        )
        return answer(row, 201)

    @router.patch(
        "/users/{name}",
        response_model=UserRow,
        responses=_CHANGES,
        summary="Give a user another role, or take all their rights away",
        description="It counts from the next request on. The last admin stays one (409).",
        openapi_extra=admin,
    )
    async def change_user(
        name: Annotated[str, Path(max_length=64)], wish: UserEdit, me: Operator = ME
    ) -> Response:
        if wish.role is None and wish.disabled is None:
            raise RuleBroken("body", "must name what is to be changed: role, disabled")
        _refuse_nul("name", name)
        role = None if wish.role is None else check_role(wish.role)
        row = await calls.make(
            lambda: users.change_user(
                name, role=role, disabled=wish.disabled, actor=me.actor, reason=wish.reason
            )
        )
        return answer(row)

    @router.get(
        "/tokens",
        response_model=TokenList,
        responses=_READS,
        summary="The tokens, without their secrets; the newest first",
        openapi_extra=admin,
    )
    async def list_tokens(
        name: Annotated[str | None, Query(max_length=64, description="of this user only")] = None,
    ) -> Response:
        _refuse_nul("name", name)
        return answer({"tokens": await calls.make(lambda: users.tokens(name))})

    @router.post(
        "/tokens",
        status_code=201,
        response_model=TokenMade,
        responses=_CHANGES,
        summary="Make a token of a user; the only time that it is shown",
        description="Where the answer was lost: revoke what was made, and make another.",
        openapi_extra=admin,
    )
    async def make_token(wish: TokenWish, me: Operator = ME) -> Response:
        role = None if wish.role is None else check_role(wish.role)
        days = TOKEN_DAYS if wish.days is None else wish.days
        row = await calls.make(
            lambda: users.make_token(wish.name, role, days=days, actor=me.actor, reason=wish.reason)
        )
        return answer(row, 201)

    @router.delete(
        "/tokens/{token_id}",
        response_model=TokenRow,
        responses=_CHANGES,
        summary="Revoke a token; again changes nothing",
        openapi_extra=admin,
    )
    async def revoke_token(
        token_id: Annotated[str, Path(max_length=16, pattern="^[0-9a-f]*$")],
        reason: Reason,
        me: Operator = ME,
    ) -> Response:
        row = await calls.make(lambda: users.revoke_token(token_id, actor=me.actor, reason=reason))
        return answer(row)


def _refuse_nul(field: str, text: str | None) -> None:
    # No database has it, and one of them refuses to be asked.
    if text is not None and not text.isprintable():
        raise RuleBroken(field, "must not contain control characters or line breaks")
