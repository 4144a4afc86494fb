import json

import pytest

from seckill.web.problems import (
    Fault,
    HTTPProblem,
    Malformed,
    MethodNotAllowed,
    NotFound,
    RuleBroken,
    Unauthenticated,
    Unavailable,
)


@pytest.mark.parametrize(
    ("problem", "status", "title", "header"),
    [
        (Malformed("body", "must be JSON"), 400, "Bad Request", None),
        (RuleBroken("quantity", "must be from 1 to 100"), 422, "Unprocessable Content", None),
        (Unauthenticated("Who are you?", "Bearer"), 401, "Unauthorized", b"www-authenticate"),
        (NotFound(), 404, "Not Found", None),
        (MethodNotAllowed("GET"), 405, "Method Not Allowed", b"allow"),
        (HTTPProblem(413, "Too long."), 413, "Content Too Large", None),
        (HTTPProblem(499, "Gone."), 499, "Error", None),
        (Fault(), 500, "Internal Server Error", None),
        (Unavailable("Later."), 503, "Service Unavailable", b"retry-after"),
    ],
)
def test_each_problem_is_a_whole_answer(
    problem: HTTPProblem, status: int, title: str, header: bytes | None
) -> None:
    start, body = problem.messages()
    headers = dict(start["headers"])
    document = json.loads(body["body"])
    assert (start["status"], document["status"], document["title"]) == (status, status, title)
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    assert header is None or header in headers
    assert ("field" in document) == (problem.field is not None)
    assert b"connection" not in headers


def test_a_problem_as_bytes_is_the_same_answer_and_can_answer_head() -> None:
    problem = NotFound()
    start, body = problem.messages()
    head, _, content = problem.answer().partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    assert first == b"HTTP/1.1 404 Not Found"
    headers = dict(line.split(b": ", 1) for line in lines)
    assert headers.pop(b"date").endswith(b"GMT")
    assert headers == dict(start["headers"])
    assert content == body["body"]
    to_head = problem.answer(head=True)
    assert to_head.endswith(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(content) in to_head


@pytest.mark.parametrize("name", ["\ud800", "x" * 10_000, "a\r\nb: c", "<script>", "é", '"'])
def test_a_hostile_field_name_is_shown_short_and_as_text(name: str) -> None:
    body = RuleBroken(name, "is not a field").body()
    assert body.isascii()
    assert len(body) < 1_000
    assert len(json.loads(body)["field"]) <= 64
