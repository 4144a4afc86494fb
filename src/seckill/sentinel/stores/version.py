"""One version of the rules of one kind, and its file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from seckill.sentinel.rule_store import Change
from seckill.sentinel.rules import DOCUMENT_BYTES_MAX

FORMAT: Final = 1
MS_PER_S: Final = 1000
FILE_BYTES_MAX: Final = 8 * DOCUMENT_BYTES_MAX
"""A version's file is its rules written wide; what is larger was not written by us."""


class Unreadable(ValueError):  # noqa: N818  reads as what it is
    """A file does not hold a version; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVersion:
    """The rules of one kind as somebody left them.

    Attributes:
        kind: which rules.
        number: counts up from 1 within the kind; never used twice.
        at_ms: when, in milliseconds since the epoch.
        change: who, and why.
        restores: the version whose rules these are again, if this was an undo; 0 is the empty list
            before the first.
        document: the rules, as a JSON list.
    """

    kind: str
    number: int
    at_ms: int
    change: Change
    document: str
    restores: int | None = None

    @property
    def stands_for(self) -> int:
        """The version whose rules these are: its own number, unless it was an undo."""
        return self.number if self.restores is None else self.restores


def write_version(version: RuleVersion) -> bytes:
    """The file of a version: JSON that people can read too.

    Raises:
        ValueError: the document is not a JSON list.
    """
    rules = json.loads(version.document)
    if not isinstance(rules, list):
        raise TypeError("the rules to be kept are not a JSON list")
    return json.dumps(
        {
            "format": FORMAT,
            "kind": version.kind,
            "number": version.number,
            "at": datetime.fromtimestamp(version.at_ms / MS_PER_S, UTC).isoformat(),
            "at_ms": version.at_ms,
            "who": version.change.who,
            "why": version.change.why,
            "restores": version.restores,
            "sha256": _digest(rules),
            "rules": rules,
        },
        ensure_ascii=False,
        indent=1,
    ).encode()


def read_version(raw: bytes, kind: str, number: int) -> RuleVersion:
    """A version from its file.

    Args:
        raw: what the file holds.
        kind: which the file's folder stands for.
        number: which the file's name says.

    Raises:
        Unreadable: it is not what was written.
    """
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise Unreadable(f"not of format {FORMAT}")
    if (found.get("kind"), found.get("number")) != (kind, number):
        raise Unreadable(f"says it is {found.get('kind')!r} {found.get('number')!r}")
    rules, at_ms, restores = found.get("rules"), found.get("at_ms"), found.get("restores")
    if not isinstance(rules, list) or found.get("sha256") != _digest(rules):
        raise Unreadable("the rules are not those that were written (the checksum differs)")
    if not isinstance(at_ms, int) or not (restores is None or isinstance(restores, int)):
        raise Unreadable("at_ms or restores is not a whole number")
    return RuleVersion(
        kind=kind,
        number=number,
        at_ms=at_ms,
        change=Change(str(found.get("who", "")), str(found.get("why", ""))),
        document=_compact(rules),
        restores=restores,
    )


def _compact(rules: list[object]) -> str:
    return json.dumps(rules, ensure_ascii=False, separators=(",", ":"))


def _digest(rules: list[object]) -> str:
    return hashlib.sha256(_compact(rules).encode()).hexdigest()
