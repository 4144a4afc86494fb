"""One call of ``lua/lease.lua``: what is sent, and what comes back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seckill.sentinel.redis.lease import Lease


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of ``lua/lease.lua``.

    Attributes:
        keys: of the script.
        body: its argument.
        leases: what it speaks of.
        sent_ns: when.
        leasing: whether this worker lives on leases; False: on its share, or it leaves.
        leaving: whether it is the last.
    """

    keys: tuple[str, ...]
    body: str
    leases: tuple[Lease, ...]
    sent_ns: int
    leasing: bool
    leaving: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What Redis said of one rule: ``lua/lease.lua``."""

    granted: int
    dated_ms: int
    block: int
    retry_ms: int
    room: bool


def read_reply(raw: bytes | str, rule_count: int) -> tuple[int, int, list[Answer]]:
    """What a reply says: workers known, this one's rank, and an answer for each rule.

    Raises:
        ValueError: it is not such a reply.
        TypeError: the same.
    """
    found = json.loads(raw)
    if not isinstance(found, list) or len(found) != 3 + 5 * rule_count:
        raise ValueError(f"not of {rule_count} rules: {raw[:200]!r}")
    numbers = [int(number) for number in found]
    answers = [
        Answer(
            granted=numbers[at],
            dated_ms=numbers[at + 1],
            block=numbers[at + 2],
            retry_ms=numbers[at + 3],
            room=bool(numbers[at + 4]),
        )
        for at in range(3, len(numbers), 5)
    ]
    return numbers[1], numbers[2], answers
