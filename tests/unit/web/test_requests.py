import pytest

from seckill.web.problems import HTTPProblem, Malformed
from seckill.web.requests import (
    Purchase,
    body_announced,
    pick_headers,
    query_parameter,
    read_purchase,
    read_segment,
    read_traceparent,
)

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("body", "purchase"),
    [
        (b"", Purchase()),
        (b"{}", Purchase()),
        (b' { "quantity" : 100 } ', Purchase(quantity=100)),
        (b'{"token":"t"}', Purchase(token="t")),
        (b'{"token":"","quantity":2}', Purchase(quantity=2, token="")),
    ],
)
def test_what_a_purchase_may_say(body: bytes, purchase: Purchase) -> None:
    assert read_purchase(body) == purchase


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b'{"quantity":0}', 422, "quantity"),
        (b'{"quantity":-1}', 422, "quantity"),
        (b'{"quantity":101}', 422, "quantity"),
        (b'{"quantity":1.5}', 422, "quantity"),
        (b'{"quantity":1.0}', 422, "quantity"),
        (b'{"quantity":1e3}', 422, "quantity"),
        (b'{"quantity":1e309}', 422, "quantity"),
        (b'{"quantity":"1"}', 422, "quantity"),
        (b'{"quantity":"1e3"}', 422, "quantity"),
        (b'{"quantity":true}', 422, "quantity"),
        (b'{"quantity":null}', 422, "quantity"),
        (b'{"quantity":[]}', 422, "quantity"),
        (b'{"quantity":{}}', 422, "quantity"),
        (b'{"quantity":2147483648}', 422, "quantity"),
        (b'{"quantity":9007199254740993}', 422, "quantity"),
        (b'{"quantity":' + b"9" * 4000 + b"}", 422, "quantity"),
        (b'{"quantity":' + b"9" * 5000 + b"}", 400, "body"),
        (b'{"quantity":01}', 400, "body"),
        (b'{"quantity":+1}', 400, "body"),
        (b'{"quantity":NaN}', 400, "body"),
        (b'{"quantity":Infinity}', 400, "body"),
        (b'{"quantity":-Infinity}', 400, "body"),
        (b'{"quantity":1,"quantity":1}', 400, "body"),
        (b'{"quantity":1,"\\u0071uantity":2}', 400, "body"),
        (b'{"x":{"a":1,"a":2}}', 400, "body"),
        (b'{"token":null}', 422, "token"),
        (b'{"token":7}', 422, "token"),
        (b'{"token":"' + b"x" * 513 + b'"}', 422, "token"),
        (b'{"price_fen":1}', 422, "price_fen"),
        (b'{"\\ud800":1}', 422, "\ud800"),
        (b"[]", 400, "body"),
        (b"null", 400, "body"),
        (b"1", 400, "body"),
        (b'"quantity"', 400, "body"),
        (b"quantity=1", 400, "body"),
        (b"{", 400, "body"),
        (b" ", 400, "body"),
        (b'{"quantity":1} x', 400, "body"),
        (b"[" * 4096, 400, "body"),
        (b'{"a":' * 800, 400, "body"),
        (b"\xef\xbb\xbf{}", 400, "body"),
        (b'{"token":"\xff"}', 400, "body"),
        (b"\xff\xfe{\x00}\x00", 400, "body"),
        (b'{"token":"a\x00b"}', 400, "body"),
    ],
)
def test_what_a_purchase_may_not_say(body: bytes, status: int, field: str) -> None:
    with pytest.raises(HTTPProblem) as refused:
        read_purchase(body)
    assert (refused.value.status, refused.value.field) == (status, field)
    assert refused.value.rule
    assert refused.value.body().isascii()


def test_a_header_that_counts_is_given_once() -> None:
    with pytest.raises(Malformed) as refused:
        pick_headers([(b"idempotency-key", b"a"), (b"idempotency-key", b"a")])
    assert refused.value.field == "Idempotency-Key"
    assert pick_headers(
        [(b"accept-language", b"en"), (b"accept-language", b"zh"), (b"x", b"y")]
    ) == {b"accept-language": b"en,zh"}


@pytest.mark.parametrize(
    ("raw", "trace"),
    [
        (None, b""),
        (TRACE, TRACE),
        (b"", b""),
        (TRACE[:-1], b""),
        (TRACE + b"-more", b""),  # version 00 has nothing behind the flags
        (b"cc" + TRACE[2:], b"cc" + TRACE[2:]),
        (b"cc" + TRACE[2:] + b"-what comes later", b"cc" + TRACE[2:]),
        (b"cc" + TRACE[2:] + b"x", b""),
        (b"ff" + TRACE[2:], b""),
        (TRACE.upper(), b""),
        (b"00-" + b"0" * 32 + TRACE[35:], b""),
        (TRACE[:36] + b"0" * 16 + TRACE[52:], b""),
        (TRACE + b"\n", b""),
        (b"\xff" * 55, b""),
    ],
)
def test_a_trace_is_taken_in_its_known_form_and_else_passed_over(
    raw: bytes | None, trace: bytes
) -> None:
    assert read_traceparent(raw) == trace.decode()


def test_of_two_traces_none_counts() -> None:
    picked = pick_headers([(b"traceparent", TRACE), (b"traceparent", TRACE)])
    assert read_traceparent(picked[b"traceparent"]) == ""


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"tea", "tea"),
        (b"%E8%8C%B6", "茶"),
        (b"a%3ab", "a:b"),
        (b"a+b", "a+b"),
        (b"%7Ba%7d", "{a}"),
    ],
)
def test_a_path_segment_is_decoded(raw: bytes, text: str) -> None:
    assert read_segment(raw, "goods_id") == text


@pytest.mark.parametrize("raw", [b"%", b"%4", b"%zz", b"a%", b"%E8%8C", b"%ff", b"%ED%A0%80"])
def test_a_path_segment_that_is_not_utf8_is_refused(raw: bytes) -> None:
    with pytest.raises(Malformed) as refused:
        read_segment(raw, "goods_id")
    assert refused.value.field == "goods_id"


def test_a_query_parameter_is_given_once_and_read_strictly() -> None:
    assert query_parameter(b"", "userId") is None
    assert query_parameter(b"a=1&userId=%E8%8C%B6&b", "userId") == "茶"
    assert query_parameter(b"userId=a+b", "userId") == "a b"
    assert query_parameter(b"userId=", "userId") == ""
    for bad in (b"userId=a&userId=a", b"userId=%ff", b"userId=%", b"&" * 40):
        with pytest.raises(Malformed):
            query_parameter(bad, "userId")


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ({}, 0),
        ({b"content-length": b"0"}, 0),
        ({b"content-length": b"4096"}, 4096),
        ({b"transfer-encoding": b"chunked"}, None),
        ({b"content-type": b"application/json"}, 0),
        ({b"content-type": b"Application/JSON; charset=UTF-8", b"content-length": b"2"}, 2),
        ({b"content-type": b"application/x-www-form-urlencoded"}, 0),
        ({b"content-encoding": b"gzip"}, 0),
        ({b"content-encoding": b"identity", b"content-length": b"2"}, 2),
    ],
)
def test_bodies_that_may_come(headers: dict[bytes, bytes], length: int | None) -> None:
    assert body_announced(headers, 4096) == length


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({b"content-length": b"4097"}, 413),
        ({b"content-length": b"9" * 400}, 413),
        ({b"content-length": b"-1"}, 400),
        ({b"content-length": b"1e3"}, 400),
        ({b"content-type": b"text/plain"}, 415),
        ({b"content-type": b""}, 415),
        ({b"content-type": b"application/json; charset=gbk"}, 415),
        ({b"content-type": b"application/jsonx"}, 415),
        ({b"content-type": b"application/x-www-form-urlencoded", b"content-length": b"1"}, 415),
        (
            {
                b"content-type": b"application/x-www-form-urlencoded",
                b"transfer-encoding": b"chunked",
            },
            415,
        ),
        ({b"content-encoding": b"gzip", b"content-length": b"2"}, 415),
    ],
)
def test_bodies_that_are_refused_unread(headers: dict[bytes, bytes], status: int) -> None:
    with pytest.raises(HTTPProblem) as refused:
        body_announced(headers, 4096)
    assert refused.value.status == status
    assert refused.value.field
