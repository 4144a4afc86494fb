"""Reading a request strictly: headers, path segments, the query, bodies, the purchase itself."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn
from urllib.parse import unquote_to_bytes

from seckill.domain.sale import LIMIT_PER_USER_MAX
from seckill.web.problems import HTTPProblem, Malformed, RuleBroken

__all__ = [
    "TOKEN_CHARS_MAX",
    "BodyFault",
    "Purchase",
    "body_announced",
    "body_refused",
    "known_method",
    "pick_headers",
    "query_parameter",
    "read_purchase",
    "read_segment",
    "read_traceparent",
]

TOKEN_CHARS_MAX: Final = 512

_WANTED: Final = {
    b"accept-language": "Accept-Language",
    b"authorization": "Authorization",
    b"content-encoding": "Content-Encoding",
    b"content-length": "Content-Length",
    b"content-type": "Content-Type",
    b"idempotency-key": "Idempotency-Key",
    b"traceparent": "Traceparent",
    b"transfer-encoding": "Transfer-Encoding",
    b"x-user-id": "X-User-Id",
}
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_QUERY_FIELDS_MAX: Final = 32
_MEDIA_TYPE: Final = re.compile(
    r"\s*([!#$%&'*+.^_`|~\w-]+/[!#$%&'*+.^_`|~\w-]+)\s*(?:;(.*))?", re.ASCII
)


# Source: W3C Trace Context, 3.2.2. A later version may have more behind it, which is left out.
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
_TRACEPARENT_CHARS: Final = 55

_METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
)


class BodyFault(Enum):
    """Why a request is served without its body."""

    TOO_LONG = "too long"
    TOO_SLOW = "too slow"


@dataclass(frozen=True, slots=True)
class Purchase:
    """What a purchase request asks for. The token is accepted and has no effect yet."""

    quantity: int = 1
    token: str | None = None


def known_method(method: str) -> str:
    """The method, or ``OTHER``: a made-up one must not become a label of its own in the metrics."""
    return method if method in _METHODS else "OTHER"


def pick_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers that matter here, by lower-case name.

    Raises:
        Malformed: one of them is given twice, so that nobody can say which one counts.
    """
    picked: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _WANTED:
            if name not in picked:
                picked[name] = value
            elif name == b"accept-language":
                picked[name] += b"," + value
            elif name == b"traceparent":
                picked[name] = b""  # as the specification has it: it is passed over then
            else:
                raise Malformed(_WANTED[name], "must be given at most once")
    return picked


def read_traceparent(raw: bytes | None) -> str:
    """The trace that a request belongs to; empty when it names none, or in no known form."""
    if raw is None or _TRACEPARENT.fullmatch(raw) is None:
        return ""
    if raw.startswith(b"00") and len(raw) > _TRACEPARENT_CHARS:
        return ""
    return raw[:_TRACEPARENT_CHARS].decode("ascii")


def read_segment(raw: bytes, field: str) -> str:
    """One path segment or query value, percent-decoded as strict UTF-8.

    Raises:
        Malformed: an escape is broken, or the bytes are not UTF-8.
    """
    if _BAD_ESCAPE.search(raw):
        raise Malformed(field, "must have two hexadecimal digits after each %")
    try:
        return unquote_to_bytes(raw).decode("utf-8", "strict")
    except UnicodeDecodeError:
        raise Malformed(field, "must be UTF-8, percent-encoded") from None


def query_parameter(query_string: bytes, name: str) -> str | None:
    """The value of one query parameter, or None when it is not there.

    Raises:
        Malformed: it is given twice, it cannot be read, or there are too many parameters.
    """
    if not query_string:
        return None
    pairs = query_string.split(b"&", _QUERY_FIELDS_MAX)
    if len(pairs) > _QUERY_FIELDS_MAX:
        raise Malformed("query", f"must have at most {_QUERY_FIELDS_MAX} parameters")
    wanted = name.encode("ascii")
    values = [
        value.replace(b"+", b" ")
        for key, _, value in (pair.partition(b"=") for pair in pairs)
        if key == wanted
    ]
    if len(values) > 1:
        raise Malformed(name, "must be given at most once")
    return read_segment(values[0], name) if values else None


def body_announced(headers: Mapping[bytes, bytes], bytes_max: int) -> int | None:
    """Check what the headers say of the body, before any of it is read.

    Returns:
        0: there is none; above 0: its length in bytes; None: it comes in chunks.

    Raises:
        HTTPProblem: 413 when it is too long, 415 when it is not JSON.
        Malformed: the length is not a number.
    """
    length: int | None
    if b"transfer-encoding" in headers:
        length = None
    else:
        text = headers.get(b"content-length", b"0")
        if not text.isdigit():
            raise Malformed("Content-Length", "must be a whole number of bytes")
        # A number of many digits is too long whatever it is; parsing it would only cost time.
        length = int(text) if len(text) < 16 else bytes_max + 1  # noqa: PLR2004
        if length > bytes_max:
            raise _too_long(bytes_max)
    content_type = headers.get(b"content-type")
    if content_type is not None and content_type != b"application/json":
        _check_media_type(content_type, is_empty=length == 0)
    if length != 0 and headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise HTTPProblem(
            415,
            "A body must come as it is, without a content coding.",
            field="Content-Encoding",
            rule="must be absent or identity",
        )
    return length


def _check_media_type(content_type: bytes, *, is_empty: bool) -> None:
    match = _MEDIA_TYPE.fullmatch(content_type.decode("latin-1"))
    media_type = match[1].lower() if match else ""
    if media_type == "application/x-www-form-urlencoded" and is_empty:
        return  # what curl and HTML forms say of a body that is not there
    if match and media_type == "application/json":
        charset = re.search(r"charset\s*=\s*\"?([\w-]+)", match[2] or "", re.IGNORECASE)
        if charset is None or charset[1].lower() in {"utf-8", "utf8"}:
            return
    raise HTTPProblem(
        415,
        "A body must be JSON in UTF-8.",
        field="Content-Type",
        rule="must be application/json, in UTF-8, or absent",
        headers=((b"accept", b"application/json"),),
    )


def _too_long(bytes_max: int) -> HTTPProblem:
    return HTTPProblem(
        413,
        f"A body may have at most {bytes_max} bytes.",
        field="body",
        rule=f"must have at most {bytes_max} bytes",
    )


def body_refused(fault: BodyFault, bytes_max: int, timeout_ms: int) -> HTTPProblem:
    """The answer to a request whose body was not read: 413, or 408 when it did not come in time."""
    if fault is BodyFault.TOO_LONG:
        return _too_long(bytes_max)
    return HTTPProblem(
        408,
        f"The body did not arrive within {timeout_ms} ms.",
        field="body",
        rule=f"must arrive within {timeout_ms} ms",
    )


class _BrokenJSON(ValueError):  # noqa: N818  -- names what is broken
    """JSON that the parser would take and we do not; carries the rule."""


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _BrokenJSON("must not have the same key twice in one object")
    return members


def _no_constants(name: str) -> NoReturn:
    raise _BrokenJSON(f"must not contain {name}: that is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_no_twins, parse_constant=_no_constants)


def read_purchase(body: bytes) -> Purchase:
    """Read the body of a purchase request; an empty one asks for one unit.

    Raises:
        Malformed: it is not JSON in UTF-8, has a key twice, or is no object.
        RuleBroken: a field is unknown, of the wrong type or out of bounds.
    """
    if not body:
        return Purchase()
    try:
        document = _DECODER.decode(body.decode("utf-8", "strict"))
    except UnicodeDecodeError:
        raise Malformed("body", "must be UTF-8") from None
    except _BrokenJSON as broken:
        raise Malformed("body", str(broken)) from None
    except RecursionError:
        raise Malformed("body", "must not be nested so deeply") from None
    except ValueError:
        raise Malformed("body", "must be JSON") from None
    if not isinstance(document, dict):
        raise Malformed("body", "must be a JSON object")
    for name in document:
        if name not in {"quantity", "token"}:
            raise RuleBroken(name, "is not a field of a purchase (quantity, token)")
    return Purchase(
        quantity=_quantity(document.get("quantity", 1)),
        token=_token(document["token"]) if "token" in document else None,
    )


def _quantity(value: object) -> int:
    # bool is an int in Python and not in JSON.
    if not isinstance(value, int) or isinstance(value, bool):
        raise RuleBroken("quantity", "must be a whole number written without point or exponent")
    if not 1 <= value <= LIMIT_PER_USER_MAX:
        raise RuleBroken("quantity", f"must be from 1 to {LIMIT_PER_USER_MAX}")
    return value


def _token(value: object) -> str:
    if not isinstance(value, str):
        raise RuleBroken("token", "must be a string")
    if len(value) > TOKEN_CHARS_MAX:
        raise RuleBroken("token", f"must have at most {TOKEN_CHARS_MAX} characters")
    return value
