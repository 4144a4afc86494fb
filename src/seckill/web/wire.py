"""Answers as they go over the wire: status line, headers, body, made of bytes."""

import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

__all__ = ["CONTINUE", "date_line", "phrase", "render", "status_line", "with_connection"]

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_RENAMED: Final = {413: "Content Too Large", 422: "Unprocessable Content"}
"""Names of RFC 9110 that Python knows only from 3.13 on."""

_STATUS_LINES: dict[int, bytes] = {}


def phrase(status: int) -> str:
    """The name of an HTTP status."""
    if status in _RENAMED:
        return _RENAMED[status]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def status_line(status: int) -> bytes:
    """The first line of an answer, its end included."""
    line = _STATUS_LINES.get(status)
    if line is None:
        line = f"HTTP/1.1 {status} {phrase(status)}\r\n".encode("ascii")
        _STATUS_LINES[status] = line
    return line


class _Date:
    """The ``Date`` header, written anew once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"date: %b\r\n" % formatdate(second, usegmt=True).encode("ascii")
        return self._line


date_line: Final = _Date().line
"""The ``Date`` header of an answer that is made now. RFC 9110, 6.6.1 asks for it."""


def render(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """A whole answer. The headers name its length; `with_connection` adds what is due."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    return b"%b%b%b\r\n%b" % (status_line(status), date_line(), lines, body)


def with_connection(answer: bytes, option: bytes) -> bytes:
    """The same answer with a ``Connection`` header."""
    return answer.replace(b"\r\n", b"\r\nconnection: %b\r\n" % option, 1)
