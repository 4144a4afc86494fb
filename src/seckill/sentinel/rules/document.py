"""From bytes to a list of things that may be rules.

What is understood: a list; a list inside an object (``rules`` or ``data``, as the dashboard's own
API answers); one rule alone; each rule bare, or wrapped with its machine as ``{app, ip, port,
rule}``; and comments, which rule files of Spring projects begin with. What comes from outside is
bounded first.
"""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

from seckill.sentinel.errors import RuleDocumentError
from seckill.sentinel.rule_set import RULE_COUNT_MAX

DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
DEPTH_MAX: Final = 16
ITEM_COUNT_MAX: Final = RULE_COUNT_MAX
BYTE_ORDER_MARK: Final = "\ufeff"

_LIST_NAMES: Final = ("rules", "data")
_OPENING: Final = "[{"
_CLOSING: Final = "]}"
_MARK: Final = re.compile(r'["#\[\]{}]|/[*/]')
_QUOTE: Final = re.compile(r'["\\]')


def read_document(document: bytes | str) -> list[object]:
    """The things that may be rules, in order, unwrapped but otherwise as they were written.

    Args:
        document: UTF-8, or text; at most ``DOCUMENT_BYTES_MAX``.

    Raises:
        RuleDocumentError: too large, too deep, too many, not UTF-8, not JSON, a name twice in an
            object, or no list of rules in it.

    Complexity: linear in the size.
    """
    text = _decode(document)
    try:
        found = json.loads(
            _without_comments(text), object_pairs_hook=_object, parse_constant=_constant
        )
    except RuleDocumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise RuleDocumentError("$", f"not JSON: {error}") from error
    items = _list_in(found)
    if len(items) > ITEM_COUNT_MAX:
        raise RuleDocumentError("$", f"{len(items)} rules are more than {ITEM_COUNT_MAX}")
    return [_unwrapped(item) for item in items]


def _decode(document: bytes | str) -> str:
    raw = document.encode(errors="surrogatepass") if isinstance(document, str) else document
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise RuleDocumentError("$", f"{len(raw)} bytes are more than {DOCUMENT_BYTES_MAX}")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise RuleDocumentError("$", f"not UTF-8: {error.reason} at byte {error.start}") from error
    return text.removeprefix(BYTE_ORDER_MARK)


def _without_comments(text: str) -> str:
    """The text with ``/* */``, ``//`` and (at the start of a line) ``#`` comments taken out.

    Also refuses what is nested too deep, before anything recursive sees it.
    """
    kept: list[str] = []
    depth = 0
    position = 0
    line_is_blank = True
    # From mark to mark: a character at a time would take seconds for the largest document.
    while position < len(text):
        found = _MARK.search(text, position)
        start = len(text) if found is None else found.start()
        between = text[position:start]
        kept.append(between)
        last_line = between[between.rfind("\n") + 1 :]
        line_is_blank = not last_line.strip() and (line_is_blank or "\n" in between)
        if found is None:
            break
        mark = found[0]
        if mark == "/*":
            position = text.find("*/", start + 2) + 2
            if position == 1:
                raise RuleDocumentError("$", "a comment is not closed")
            continue
        if mark == "//" or (mark == "#" and line_is_blank):
            newline = text.find("\n", start)
            position = len(text) if newline < 0 else newline
            continue
        position = _end_of_string(text, start) if mark == '"' else start + 1
        if mark in _OPENING:
            depth += 1
            if depth > DEPTH_MAX:
                raise RuleDocumentError("$", f"nested deeper than {DEPTH_MAX}")
        elif mark in _CLOSING:
            depth -= 1
        line_is_blank = False
        kept.append(text[start:position])
    return "".join(kept)


def _end_of_string(text: str, start: int) -> int:
    position = start + 1
    while (found := _QUOTE.search(text, position)) is not None:
        if found[0] == '"':
            return found.end()
        # Whatever stands behind a backslash does not end the string.
        position = found.start() + 2
    return len(text)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RuleDocumentError(twice[:100], "stands twice in one object")
    return found


def _constant(name: str) -> NoReturn:
    raise RuleDocumentError("$", f"{name} is not a number")


def _list_in(found: object) -> list[object]:
    if isinstance(found, list):
        return found
    if isinstance(found, dict):
        for name in _LIST_NAMES:
            inner = found.get(name)
            if isinstance(inner, list):
                return inner
        if "resource" in found or isinstance(found.get("rule"), dict):
            return [found]
    raise RuleDocumentError("$", "neither a list of rules nor an object with one")


def _unwrapped(item: object) -> object:
    """A rule out of its wrapping. The wrapping's id is the rule's, if the rule has none."""
    if not isinstance(item, dict) or "resource" in item:
        return item
    inner = item.get("rule")
    if not isinstance(inner, dict):
        return item
    return inner if inner.get("id") is not None else {**inner, "id": item.get("id")}
