import json
import time
from datetime import UTC
from email.utils import parsedate_to_datetime

import pytest

from seckill.admission.decision import Decision
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.web.answers import RETRY_OUTCOMES, PurchaseAnswers
from seckill.web.languages import Language
from seckill.web.wire import with_connection
from unit.web.doubles import NOW_MS, reservation

ANSWERS = PurchaseAnswers()


def told(
    decision: Decision, language: Language = Language.ZH
) -> tuple[int, dict[str, str], dict[str, object]]:
    ANSWERS.set_date()
    head, _, body = ANSWERS.of(decision, language).partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert len(headers) == len(lines)
    assert headers["content-length"] == str(len(body))
    assert parsedate_to_datetime(headers["date"]).tzinfo is UTC
    protocol, status, _ = first.split(" ", 2)
    assert protocol == "HTTP/1.1"
    return int(status), headers, json.loads(body)


@pytest.mark.parametrize("language", list(Language))
@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_its_status_code_and_message(
    outcome: Outcome, language: Language
) -> None:
    reservation_id = reservation(5) if outcome is Outcome.SUCCESS else None
    status, headers, body = told(Decision(outcome, reservation_id), language)
    texts = OUTCOME_TEXTS[outcome]
    assert status == texts.http_status
    assert body["code"] == outcome.value
    assert body["message"] == (texts.zh if language is Language.ZH else texts.en)
    assert body["reservation_id"] == reservation_id
    assert headers["content-language"] == language.value
    assert ("retry-after" in headers) == (outcome in RETRY_OUTCOMES)
    assert ("location" in headers) == (outcome is Outcome.SUCCESS)


def test_success_says_where_to_look_and_whether_it_was_said_before() -> None:
    _, headers, _ = told(Decision(Outcome.SUCCESS, reservation(9)))
    assert headers["location"] == f"/orders/{reservation(9)}"
    assert "idempotency-replayed" not in headers
    status, headers, _ = told(Decision(Outcome.SUCCESS, reservation(9), replayed=True))
    assert (status, headers["idempotency-replayed"]) == (202, "true")


@pytest.mark.parametrize("outcome", [Outcome.DUPLICATE, Outcome.OVER_LIMIT])
def test_a_refused_buyer_reads_which_reservation_they_hold(outcome: Outcome) -> None:
    assert told(Decision(outcome, reservation(3)))[2]["reservation_id"] == reservation(3)
    assert told(Decision(outcome))[2]["reservation_id"] is None


@pytest.mark.parametrize(
    ("retry_ms", "header", "body_ms"),
    [
        (0, "1", 1000),
        (1, "1", 1),
        (1000, "1", 1000),
        (1001, "2", 1001),
        (86_400_000, "86400", 86_400_000),
    ],
)
def test_when_to_ask_again_is_whole_seconds_and_never_zero(
    retry_ms: int, header: str, body_ms: int
) -> None:
    for outcome in RETRY_OUTCOMES:
        _, headers, body = told(Decision(outcome, retry_after_ms=retry_ms))
        assert (headers["retry-after"], body["retry_after_ms"]) == (header, body_ms)


def test_details_of_single_outcomes() -> None:
    early = told(Decision(Outcome.NOT_STARTED, starts_at_ms=NOW_MS, retry_after_ms=5))[2]
    assert early["starts_at"] == "2026-12-01T12:00:00.123Z"
    assert told(Decision(Outcome.NOT_ENOUGH_LEFT, left_units=3))[2]["left"] == 3
    assert "cause" not in told(Decision(Outcome.UNDECIDED, cause="redis"))[2]


def test_a_connection_header_can_be_added_to_every_answer() -> None:
    for outcome in Outcome:
        answer = ANSWERS.of(Decision(outcome, reservation(1)), Language.ZH)
        assert b"connection:" not in answer
        first, rest = answer.split(b"\r\n", 1)
        assert with_connection(answer, b"close") == first + b"\r\nconnection: close\r\n" + rest


def test_an_answer_that_is_kept_is_dated_anew_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.time()
    seen = set()
    for passed in (0, 0, 1, 2):
        monkeypatch.setattr("time.time", lambda passed=passed: now + passed)
        seen.add(told(Decision(Outcome.SOLD_OUT))[1]["date"])
        told(Decision(Outcome.SUCCESS, reservation(1)))
    assert len(seen) == 3


def test_success_without_a_reservation_is_a_fault_of_the_program() -> None:
    with pytest.raises(AssertionError):
        ANSWERS.of(Decision(Outcome.SUCCESS), Language.ZH)
