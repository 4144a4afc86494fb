"""The answers to a purchase request, built once and filled in where something varies."""

import json
from typing import Final

from seckill.admission.decision import Decision
from seckill.domain.instants import rfc3339_ms
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.web.languages import Language
from seckill.web.problems import BASE_HEADERS
from seckill.web.wire import date_line, render, status_line

__all__ = ["RETRY_OUTCOMES", "PurchaseAnswers"]

RETRY_OUTCOMES: Final = frozenset(
    {Outcome.NOT_STARTED, Outcome.PAUSED, Outcome.BLOCKED, Outcome.UNDECIDED}
)
"""Outcomes that say when to ask again."""

_RETRY_MS_DEFAULT: Final = 1_000
_REPLAYED: Final = (b"idempotency-replayed", b"true")
_ID_BYTES: Final = 32


class PurchaseAnswers:
    """Turns decisions into bytes.

    What does not vary (sold out, ended, unknown: nearly every answer of a rush) is made once a
    second, for the sake of its date; a new success is a template with three gaps.
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[Outcome, Language], bytes] = {}
        for outcome, texts in OUTCOME_TEXTS.items():
            for language, message in ((Language.ZH, texts.zh), (Language.EN, texts.en)):
                text = json.dumps(message, ensure_ascii=False)
                self._heads[outcome, language] = (
                    f'{{"code":{outcome.value},"message":{text},"reservation_id":'.encode()
                )
        self._success = {language: self._success_template(language) for language in Language}
        self._plain: dict[tuple[Outcome, Language], bytes] = {}
        self._date = date_line()

    def set_date(self) -> None:
        """Take note of the time: once for all answers that are made together."""
        date = date_line()
        if date is not self._date:
            self._date = date
            self._plain.clear()

    def of(self, decision: Decision, language: Language) -> bytes:
        """The whole answer to one request, without a ``Connection`` header."""
        outcome, reservation_id = decision.outcome, decision.reservation_id
        if reservation_id is None:
            plain = self._plain.get((outcome, language))
            if plain is not None:
                return plain
            answer = self._fill(decision, language)
            if outcome not in RETRY_OUTCOMES and outcome is not Outcome.NOT_ENOUGH_LEFT:
                self._plain[outcome, language] = answer
            return answer
        if outcome is Outcome.SUCCESS and not decision.replayed:
            name = reservation_id.encode("ascii")
            return self._success[language] % (self._date, name, name)
        return self._fill(decision, language)

    def _success_template(self, language: Language) -> bytes:
        """What `_fill` makes of a new success: every id is as long as any other."""
        body = b'%b"%%b"}' % self._heads[Outcome.SUCCESS, language].replace(b"%", b"%%")
        length = len(body) - len(b"%b") + _ID_BYTES
        headers = [*_headers(language), (b"location", b"/orders/%b")]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        status = status_line(OUTCOME_TEXTS[Outcome.SUCCESS].http_status)
        return b"%b%%b%bcontent-length: %d\r\n\r\n%b" % (status, lines, length, body)

    def _fill(self, decision: Decision, language: Language) -> bytes:
        outcome, reservation_id = decision.outcome, decision.reservation_id
        assert (outcome is not Outcome.SUCCESS) or reservation_id, "success without a reservation"
        headers = _headers(language)
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
        return render(OUTCOME_TEXTS[outcome].http_status, headers, body)


def _headers(language: Language) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"application/json"),
        (b"content-language", language.value.encode("ascii")),
        *BASE_HEADERS,
    ]
