"""The rules of flow control: ``/admin/api/rules``."""

import re
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from seckill.domain.operators import Role
from seckill.web.admin.answers import ME, answer
from seckill.web.admin.calls import AdminCalls
from seckill.web.admin.guard import Operator, needs
from seckill.web.admin.ports import Rules
from seckill.web.admin.schemas import (
    REASON_CHARS_MAX,
    GoBackWish,
    RuleHistory,
    RuleList,
    RuleLists,
    RuleReport,
    RuleVersionRow,
)
from seckill.web.openapi import PROBLEM_RESPONSES
from seckill.web.problems import RuleBroken

__all__ = ["add_rules"]

Kind = Literal["flow", "degrade", "system", "authority", "param-flow"]
Reason = Annotated[
    str,
    Query(min_length=1, max_length=REASON_CHARS_MAX, description="kept in the history and the log"),
]

_READS: Final = PROBLEM_RESPONSES(400, 401, 403, 422, 429, 503)
_CHANGES: Final = PROBLEM_RESPONSES(400, 401, 403, 409, 412, 413, 415, 422, 429, 503)
_VERSION: Final = re.compile(rb'"?(\d{1,9})"?')
_DOCUMENT: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "array",
                    "items": {"type": "object"},
                    "description": "rules in Sentinel's own shape",
                    "examples": [[{"resource": "seckill-jk", "count": 1000}]],
                }
            }
        },
    },
    "parameters": [
        {
            "name": "If-Match",
            "in": "header",
            "required": False,
            "description": "the version that was looked at, 0 for none: another one is refused",
            "schema": {"type": "string"},
        }
    ],
}


def add_rules(router: APIRouter, rules: Rules, calls: AdminCalls) -> None:
    """Add the routes."""
    look = needs(Role.VIEWER)

    @router.get(
        "/rules",
        response_model=RuleLists,
        responses=_READS,
        summary="The rules in force, of every kind",
        openapi_extra=look,
    )
    async def list_rules() -> Response:
        return answer({"kinds": await calls.make(rules.all)})

    @router.get(
        "/rules/{kind}",
        response_model=RuleList,
        responses=_READS,
        summary="The rules in force of one kind, in Sentinel's own shape",
        openapi_extra=look,
    )
    async def show_rules(kind: Kind) -> Response:
        row = await calls.make(lambda: rules.show(kind))
        return answer(row, etag=f'"{row["version"] or 0}"')

    @router.put(
        "/rules/{kind}",
        response_model=RuleReport,
        responses=_CHANGES,
        summary="Replace all rules of a kind; [] takes them all away",
        description=(
            "A list with a bad rule is refused as a whole, each bad rule named in `errors`, and the"
            " old rules stay; with `partial` the good ones are taken. Every web process obeys"
            " within a second."
        ),
        openapi_extra=needs(Role.OPERATOR) | _DOCUMENT,
    )
    async def put_rules(
        kind: Kind,
        request: Request,
        reason: Reason,
        partial: Annotated[  # noqa: FBT002  -- the framework reads the signature
            bool, Query(description="take the good rules of a list with bad ones")
        ] = False,
        me: Operator = ME,
    ) -> Response:
        made_from = _made_from(request)
        if not reason.isprintable():
            raise RuleBroken("reason", "must not contain control characters or line breaks")
        document = await request.body()
        row = await calls.make(
            lambda: rules.put(
                kind,
                document,
                partial=partial,
                made_from=made_from,
                actor=me.actor,
                reason=reason,
            )
        )
        return answer(row, etag=f'"{row["version"] or 0}"')

    @router.get(
        "/rules/{kind}/history",
        response_model=RuleHistory,
        responses=_READS,
        summary="The last 50 versions: when, by whom, why; oldest first",
        openapi_extra=look,
    )
    async def show_history(kind: Kind) -> Response:
        return answer({"versions": await calls.make(lambda: rules.history(kind))})

    @router.post(
        "/rules/{kind}/undo",
        response_model=RuleVersionRow,
        responses=_CHANGES,
        summary="Put the rules of an earlier version in force again; again changes nothing",
        openapi_extra=needs(Role.OPERATOR),
    )
    async def go_back(kind: Kind, wish: GoBackWish, me: Operator = ME) -> Response:
        if not wish.reason.isprintable():
            raise RuleBroken("reason", "must not contain control characters or line breaks")
        row = await calls.make(
            lambda: rules.go_back(kind, wish.to, actor=me.actor, reason=wish.reason)
        )
        return answer(row)


def _made_from(request: Request) -> int | None:
    values = [value for name, value in request.scope["headers"] if name == b"if-match"]
    if not values:
        return None
    match = _VERSION.fullmatch(values[0]) if len(values) == 1 else None
    if match is None:
        raise RuleBroken("If-Match", 'must be one version, like "3"')
    return int(match[1])
