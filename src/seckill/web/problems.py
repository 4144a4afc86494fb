"""Errors as buyers and programs read them: RFC 9457 ``application/problem+json``.

The tree::

    SeckillError
    └── HTTPProblem              an answer: status, detail, field and rule
        ├── Malformed            400  cannot be read at all
        ├── RuleBroken           422  can be read and breaks a rule
        ├── Unauthenticated      401  with WWW-Authenticate
        ├── Forbidden            403  known, and not allowed to do this
        ├── NotFound             404  unknown, or not yours: the two look alike on purpose
        ├── MethodNotAllowed     405  with Allow
        ├── Fault                500  an error of the program; the log has the rest
        └── Unavailable          503  with Retry-After
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from seckill.domain.errors import SeckillError
from seckill.web.ports import Message
from seckill.web.wire import phrase, render

__all__ = [
    "BASE_HEADERS",
    "Fault",
    "Forbidden",
    "HTTPProblem",
    "Malformed",
    "MethodNotAllowed",
    "NotFound",
    "RuleBroken",
    "Unauthenticated",
    "Unavailable",
    "respond",
]

Headers = Sequence[tuple[bytes, bytes]]

BASE_HEADERS: Final[Headers] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
"""On every answer that is made for one buyer at one moment."""

_ECHO_CHARS_MAX: Final = 64


class HTTPProblem(SeckillError):  # noqa: N818  -- named as RFC 9457 names it
    """An answer that says what is wrong.

    Attributes:
        status: HTTP status.
        detail: one sentence for people.
        field: the name of the value that is wrong, as the caller wrote it.
        rule: the rule that it breaks.
        headers: further headers of the answer.
        errors: where several values are wrong, each of them.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        rule: str | None = None,
        headers: Headers = (),
        errors: Sequence[Mapping[str, object]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.rule = rule
        self.headers = headers
        self.errors = errors

    def body(self) -> bytes:
        """The answer's body.

        Plain ASCII with JSON escapes: a field name may come from outside and hold anything, lone
        surrogates included, and still this never fails.
        """
        members: dict[str, object] = {
            "type": "about:blank",
            "title": phrase(self.status),
            "status": self.status,
            "detail": self.detail,
        }
        if self.field is not None:
            members["field"] = self.field[:_ECHO_CHARS_MAX].encode("utf-8", "replace").decode()
            members["rule"] = self.rule
        if self.errors:
            members["errors"] = list(self.errors)
        return json.dumps(members, separators=(",", ":")).encode("ascii")

    def answer(self, *, head: bool = False) -> bytes:
        """The whole answer as bytes; ``head`` has no body."""
        headers = [*self.headers, (b"content-type", b"application/problem+json")]
        return respond(self.status, self.body(), headers, head=head)

    def messages(self) -> tuple[Message, Message]:
        """The answer as two ASGI messages."""
        body = self.body()
        headers = [*self.headers, (b"content-type", b"application/problem+json")]
        return (
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": answer_headers(headers, body),
            },
            {"type": "http.response.body", "body": body},
        )


def answer_headers(headers: Headers, body: bytes) -> list[tuple[bytes, bytes]]:
    """Headers with those that every answer has."""
    return [*headers, *BASE_HEADERS, (b"content-length", b"%d" % len(body))]


def respond(status: int, body: bytes, headers: Headers, *, head: bool = False) -> bytes:
    """A whole answer as bytes; ``head`` has no body."""
    return render(status, answer_headers(headers, body), b"" if head else body)


class Malformed(HTTPProblem):
    """What was sent cannot be read."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(400, f"{_readable(field)} {rule}", field=field, rule=rule)


class RuleBroken(HTTPProblem):
    """What was sent can be read and breaks a rule."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(422, f"{_readable(field)} {rule}", field=field, rule=rule)


class Unauthenticated(HTTPProblem):
    """Nobody knows who is asking."""

    def __init__(self, detail: str, challenge: str) -> None:
        super().__init__(401, detail, headers=((b"www-authenticate", challenge.encode("ascii")),))


class Forbidden(HTTPProblem):
    """We know who is asking, and they may not do this."""

    def __init__(self, detail: str) -> None:
        super().__init__(403, detail)


class NotFound(HTTPProblem):
    """There is no such thing, or it is not the caller's: both look the same on purpose."""

    def __init__(self, detail: str = "There is nothing here under this name.") -> None:
        super().__init__(404, detail)


class MethodNotAllowed(HTTPProblem):
    """The path exists and does not take this method."""

    def __init__(self, allowed: str) -> None:
        super().__init__(
            405,
            f"This path takes only {allowed}.",
            headers=((b"allow", allowed.encode("ascii")),),
        )


class Fault(HTTPProblem):
    """The program has an error."""

    def __init__(self) -> None:
        super().__init__(500, "The service met a fault of its own. It has been recorded.")


class Unavailable(HTTPProblem):
    """Cannot be answered now; asking again is safe and worthwhile."""

    def __init__(self, detail: str, retry_after_s: int = 1) -> None:
        super().__init__(503, detail, headers=((b"retry-after", b"%d" % retry_after_s),))


def _readable(field: str) -> str:
    return field[:_ECHO_CHARS_MAX].encode("ascii", "backslashreplace").decode("ascii")
