"""What the service may say, and whether it said just that.

Source: the public face of the service, ``docs/reference/http.md``.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome

__all__ = ["Answer", "OrderAnswer", "Purchase", "read_order", "read_purchase"]

_SHOWN_CHARS_MAX: Final = 120
_MUST_CARRY_ID: Final = frozenset({Outcome.SUCCESS, Outcome.DUPLICATE})
_MAY_CARRY_ID: Final = _MUST_CARRY_ID | {Outcome.OVER_LIMIT, Outcome.KEY_REUSED}


class Answer(msgspec.Struct, frozen=True, gc=False):
    """One HTTP answer as it came.

    Attributes:
        status: the HTTP status.
        body: the whole body.
        location: the Location header.
        retry_after: the Retry-After header.
        at_us: when its last byte was here (monotonic µs).
    """

    status: int
    body: bytes
    location: bytes | None
    retry_after: bytes | None
    at_us: int

    def retry_after_s(self) -> int | None:
        """Seconds of Retry-After, or None when there is none in whole seconds."""
        text = self.retry_after
        return int(text) if text is not None and text.isdigit() else None

    def shown(self) -> str:
        """The answer in one short line, for a report."""
        text = self.body[:_SHOWN_CHARS_MAX].decode("utf-8", "backslashreplace")
        return f"HTTP {self.status} {text}"


class _PurchaseBody(msgspec.Struct, frozen=True, gc=False):
    code: int
    message: str
    reservation_id: str | None


class OrderAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to ``GET /orders/{reservation_id}``, as far as it is checked."""

    reservation_id: str
    goods_id: str
    user_id: str
    quantity: int
    state: str


_purchase_decoder: Final = msgspec.json.Decoder(_PurchaseBody)
_order_decoder: Final = msgspec.json.Decoder(OrderAnswer)
_OUTCOMES: Final = {int(outcome): outcome for outcome in Outcome}


@dataclass(frozen=True, slots=True)
class Purchase:
    """A purchase answer that has the promised shape."""

    outcome: Outcome
    reservation_id: str | None


def read_purchase(answer: Answer) -> Purchase | str:
    """Read a purchase answer, or say in one line which promise about its shape it breaks."""
    try:
        body = _purchase_decoder.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"not a purchase answer ({error}): {answer.shown()}"
    outcome = _OUTCOMES.get(body.code)
    if outcome is None:
        return f"the code is not known: {answer.shown()}"
    broken = _broken_promise(outcome, body.reservation_id, answer)
    return f"{broken}: {answer.shown()}" if broken else Purchase(outcome, body.reservation_id)


def _broken_promise(outcome: Outcome, reservation_id: str | None, answer: Answer) -> str:
    if answer.status != OUTCOME_TEXTS[outcome].http_status:
        return "code and HTTP status do not belong together"
    if reservation_id is None:
        return "the reservation id is missing" if outcome in _MUST_CARRY_ID else ""
    if outcome not in _MAY_CARRY_ID or not reservation_id:
        return "a reservation id with this code means nothing"
    if outcome is Outcome.SUCCESS and answer.location != f"/orders/{reservation_id}".encode():
        return "Location does not name the order of the reservation"
    return ""


def read_order(answer: Answer) -> OrderAnswer | str:
    """Read an order's state, or say in one line why that is none."""
    try:
        return _order_decoder.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"not an order ({error}): {answer.shown()}"
