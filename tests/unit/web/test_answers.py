import json

import pytest

from seckill.admission.decision import Decision
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.web.answers import RETRY_OUTCOMES, PurchaseAnswers
from seckill.web.languages import Language
from unit.web.doubles import NOW_MS, reservation

ANSWERS = PurchaseAnswers()


def told(
    decision: Decision, language: Language = Language.ZH, *, close: bool = False
) -> tuple[int, dict[str, str], dict[str, object]]:
    start, body = ANSWERS.of(decision, language, close=close)
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert len(headers) == len(start["headers"])
    assert headers["content-length"] == str(len(body["body"]))
    return start["status"], headers, json.loads(body["body"])


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


def test_a_draining_process_ends_the_connection() -> None:
    for outcome in Outcome:
        decision = Decision(outcome, reservation(1))
        assert told(decision, close=True)[1]["connection"] == "close"
        assert "connection" not in told(decision)[1]


def test_success_without_a_reservation_is_a_fault_of_the_program() -> None:
    with pytest.raises(AssertionError):
        ANSWERS.of(Decision(Outcome.SUCCESS), Language.ZH, close=False)
