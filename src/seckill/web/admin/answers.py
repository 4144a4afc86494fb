"""What the routes of the operators' API share: answers, pages, and reading what was sent."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
from fastapi import Depends, Query, Request
from fastapi.responses import Response

from seckill.domain.clock import Clock
from seckill.domain.instants import parse_instant_ms
from seckill.web.admin.guard import Operator
from seckill.web.problems import RuleBroken
from seckill.web.requests import pick_headers

__all__ = ["ME", "Limit", "answer", "change_id", "count_of", "instant_ms", "page_answer"]

_ENCODE: Final = msgspec.json.Encoder().encode
_KEY_BYTES_MAX: Final = 255
_COUNT_DIGITS_MAX: Final = 18
_PAGE_MAX: Final = 100

Limit = Annotated[int, Query(ge=1, le=_PAGE_MAX, description="entries on the page")]


def _operator(request: Request) -> Operator:
    operator = request.state.operator
    assert isinstance(operator, Operator)
    return operator


ME: Final = Depends(_operator)


def answer(row: object, status_code: int = 200, **headers: str) -> Response:
    """A JSON answer."""
    return Response(
        _ENCODE(row),
        status_code=status_code,
        media_type="application/json",
        headers=headers or None,
    )


def page_answer(
    path: str,
    name: str,
    found: Sequence[Mapping[str, Any]],
    limit: int,
    following: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> Response:
    """A page of a list, and the path of the next one or null.

    Args:
        path: of the list.
        name: what the entries are called.
        found: the entries, and one more where another page follows.
        limit: entries on the page.
        following: the parameters after ``limit`` that ask for what comes after an entry; None
            leaves one out.
    """
    page, path_of_next = found[:limit], None
    if len(found) > limit:
        parameters = {"limit": limit, **following(page[-1])}
        given = {key: value for key, value in parameters.items() if value is not None}
        path_of_next = f"{path}?{urlencode(given)}"
    return answer({name: page, "next": path_of_next})


def instant_ms(field: str, text: str, clock: Clock) -> int:
    """An instant as an operator writes it."""
    return clock.now_ms() if text == "now" else parse_instant_ms(field, text)


def count_of(field: str, text: str | None) -> int | None:
    """A number that pages go on after. Raises RuleBroken when it is none."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _COUNT_DIGITS_MAX:
        raise RuleBroken(field, "must be what a page before said")
    return int(text)


def change_id(request: Request, operator: Operator) -> str:
    """The name of a change that must not be made twice: of its Idempotency-Key, by operator.

    Raises:
        RuleBroken: there is no key, or it is no key.
    """
    key = pick_headers(request.scope["headers"]).get(b"idempotency-key")
    if key is None:
        raise RuleBroken("Idempotency-Key", "must be given: asking twice must not change it twice")
    if not 1 <= len(key) <= _KEY_BYTES_MAX or not all(33 <= byte <= 126 for byte in key):  # noqa: PLR2004  -- visible ASCII
        raise RuleBroken("Idempotency-Key", "must be 1 to 255 visible ASCII characters")
    named = hashlib.sha256(operator.name.encode() + b"\0" + key).hexdigest()
    return f"api-{named[:40]}"
