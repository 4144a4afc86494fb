"""Messages that could not become orders: ``/admin/api/dead-letters``."""

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from seckill.domain.operators import Role
from seckill.web.admin.answers import ME, Limit, answer, page_answer
from seckill.web.admin.calls import AdminCalls
from seckill.web.admin.guard import Operator, needs
from seckill.web.admin.ports import Letters
from seckill.web.admin.schemas import LetterPage, LetterRow, LetterShown, ReasonWish
from seckill.web.openapi import PROBLEM_RESPONSES

__all__ = ["add_letters"]

_READS: Final = PROBLEM_RESPONSES(400, 401, 403, 404, 422, 429, 503)
_CHANGES: Final = PROBLEM_RESPONSES(400, 401, 403, 404, 413, 415, 422, 429, 503)
_NAME: Final = r"^[!-~]{1,255}$"
Name = Annotated[str, Path(pattern=_NAME)]


def add_letters(router: APIRouter, letters: Letters, calls: AdminCalls) -> None:
    """Add the routes."""
    look = needs(Role.VIEWER)

    @router.get(
        "/dead-letters",
        response_model=LetterPage,
        responses=_READS,
        summary="Dead letters that nothing was done about yet, without their content",
        openapi_extra=look,
    )
    async def list_letters(
        limit: Limit = 50,
        after: Annotated[
            str | None, Query(pattern=_NAME, description="name of the last one of the page before")
        ] = None,
    ) -> Response:
        found = await calls.make(lambda: letters.page(limit + 1, after=after))
        return page_answer(
            "/admin/api/dead-letters",
            "dead_letters",
            found,
            limit,
            lambda last: {"after": last["name"]},
        )

    @router.get(
        "/dead-letters/{name}",
        response_model=LetterShown,
        responses=_READS,
        summary="One dead letter with its content",
        openapi_extra=look,
    )
    async def show_letter(name: Name) -> Response:
        return answer(await calls.make(lambda: letters.show(name)))

    @router.post(
        "/dead-letters/{name}/{how}",
        response_model=LetterRow,
        responses=_CHANGES,
        summary="Send a dead letter once more the way it came, or do away with it for good",
        description="One that was settled already is answered 404.",
        openapi_extra=needs(Role.OPERATOR),
    )
    async def settle_letter(
        name: Name, how: Literal["replay", "discard"], wish: ReasonWish, me: Operator = ME
    ) -> Response:
        row = await calls.make(
            lambda: letters.settle(name, how, actor=me.actor, reason=wish.reason)
        )
        return answer(row)
