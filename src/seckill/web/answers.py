"""The answers to a purchase request, built once and filled in where something varies."""

import json
from typing import Final

from seckill.admission.decision import Decision
from seckill.domain.ids import ReservationId
from seckill.domain.instants import rfc3339_ms
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.web.languages import Language
from seckill.web.ports import Message
from seckill.web.problems import BASE_HEADERS

__all__ = ["RETRY_OUTCOMES", "PurchaseAnswers"]

RETRY_OUTCOMES: Final = frozenset(
    {Outcome.NOT_STARTED, Outcome.PAUSED, Outcome.BLOCKED, Outcome.UNDECIDED}
)
"""Outcomes that say when to ask again."""

_RETRY_MS_DEFAULT: Final = 1_000
_CLOSE: Final = (b"connection", b"close")
_REPLAYED: Final = (b"idempotency-replayed", b"true")

_ANY_SUCCESS: Final = Decision(Outcome.SUCCESS, ReservationId("0" * 32))

Answer = tuple[Message, Message]


class PurchaseAnswers:
    """Turns decisions into ASGI messages.

    What does not vary (sold out, ended, unknown: nearly every answer of a rush) is one look-up.
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[Outcome, Language], bytes] = {}
        self._plain: dict[tuple[Outcome, Language], Answer] = {}
        for outcome, texts in OUTCOME_TEXTS.items():
            for language, message in ((Language.ZH, texts.zh), (Language.EN, texts.en)):
                text = json.dumps(message, ensure_ascii=False)
                self._heads[outcome, language] = (
                    f'{{"code":{outcome.value},"message":{text},"reservation_id":'.encode()
                )
                if outcome not in RETRY_OUTCOMES | {Outcome.SUCCESS, Outcome.NOT_ENOUGH_LEFT}:
                    self._plain[outcome, language] = self._fill(Decision(outcome), language)

        success = {language: self._fill(_ANY_SUCCESS, language) for language in Language}
        self._success_headers = {
            language: [header for header in start["headers"] if header[0] != b"location"]
            for language, (start, _) in success.items()
        }

    def of(self, decision: Decision, language: Language, *, close: bool) -> Answer:
        """The whole answer to one request; ``close`` ends the connection after it."""
        if not close:
            if decision.reservation_id is None:
                plain = self._plain.get((decision.outcome, language))
                if plain is not None:
                    return plain
            elif decision.outcome is Outcome.SUCCESS and not decision.replayed:
                return self._success(decision.reservation_id.encode("ascii"), language)
        return self._fill(decision, language, close=close)

    def _success(self, reservation_id: bytes, language: Language) -> Answer:
        """What `_fill` makes of a new success: every id is as long as any other."""
        headers = [*self._success_headers[language], (b"location", b"/orders/" + reservation_id)]
        return (
            {"type": "http.response.start", "status": 202, "headers": headers},
            {
                "type": "http.response.body",
                "body": b'%b"%b"}' % (self._heads[Outcome.SUCCESS, language], reservation_id),
            },
        )

    def _fill(self, decision: Decision, language: Language, *, close: bool = False) -> Answer:
        outcome, reservation_id = decision.outcome, decision.reservation_id
        assert (outcome is not Outcome.SUCCESS) or reservation_id, "success without a reservation"
        headers = [
            (b"content-type", b"application/json"),
            (b"content-language", language.value.encode("ascii")),
            *BASE_HEADERS,
        ]
        body = self._heads[outcome, language]
        # Reservation ids are letters and digits: nothing in them needs escaping.
        body += b"null" if reservation_id is None else b'"%s"' % reservation_id.encode("ascii")
        if outcome is Outcome.SUCCESS:
            assert reservation_id is not None
            headers.append((b"location", b"/orders/" + reservation_id.encode("ascii")))
            if decision.replayed:
                headers.append(_REPLAYED)
        if outcome is Outcome.NOT_STARTED:
            body += b',"starts_at":"%s"' % rfc3339_ms(decision.starts_at_ms).encode("ascii")
        if outcome is Outcome.NOT_ENOUGH_LEFT:
            body += b',"left":%d' % decision.left_units
        if outcome in RETRY_OUTCOMES:
            retry_ms = decision.retry_after_ms if decision.retry_after_ms > 0 else _RETRY_MS_DEFAULT
            body += b',"retry_after_ms":%d' % retry_ms
            headers.append((b"retry-after", b"%d" % -(-retry_ms // 1000)))
        body += b"}"
        headers.append((b"content-length", b"%d" % len(body)))
        if close:
            headers.append(_CLOSE)
        return (
            {
                "type": "http.response.start",
                "status": OUTCOME_TEXTS[outcome].http_status,
                "headers": headers,
            },
            {"type": "http.response.body", "body": body},
        )
