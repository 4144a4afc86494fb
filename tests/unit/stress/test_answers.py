"""The shape of the answers: what api promises is accepted, anything else is named."""

import json

import pytest

from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.stress.answers import Answer, Purchase, read_purchase
from seckill.stress.follow import OrderFate, Reservation, judge_order


def answer(status: int, body: object, *, location: bytes | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, raw, location, None, 0)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_of_the_domain_is_read(outcome: Outcome) -> None:
    text = OUTCOME_TEXTS[outcome]
    named = "r1" if outcome in {Outcome.SUCCESS, Outcome.DUPLICATE} else None
    found = read_purchase(
        answer(
            text.http_status,
            {"code": outcome, "message": text.zh, "reservation_id": named, "extra": [1]},
            location=b"/orders/r1" if outcome is Outcome.SUCCESS else None,
        )
    )
    assert found == Purchase(outcome, named)


GOOD = {"code": 1, "message": "yes", "reservation_id": "r1"}


@pytest.mark.parametrize(
    ("status", "body", "location", "word"),
    [
        (202, b"", b"/orders/r1", "not a purchase answer"),
        (202, b"[]", b"/orders/r1", "not a purchase answer"),
        (202, b"\xff", b"/orders/r1", "not a purchase answer"),
        (
            202,
            b'{"code":1,"message":"\xff","reservation_id":"r1"}',
            b"/orders/r1",
            "not a purchase",
        ),
        (202, {**GOOD, "code": "1"}, b"/orders/r1", "not a purchase answer"),
        (202, {**GOOD, "code": True}, b"/orders/r1", "not a purchase answer"),
        (202, {**GOOD, "code": 1.5}, b"/orders/r1", "not a purchase answer"),
        (202, {**GOOD, "message": None}, b"/orders/r1", "not a purchase answer"),
        (202, {**GOOD, "reservation_id": 5}, b"/orders/r1", "not a purchase answer"),
        (202, {"code": 1, "message": "yes"}, b"/orders/r1", "not a purchase answer"),
        (202, {**GOOD, "code": 99}, b"/orders/r1", "not known"),
        (200, GOOD, b"/orders/r1", "do not belong together"),
        (202, {**GOOD, "reservation_id": None}, b"/orders/r1", "is missing"),
        (202, {**GOOD, "reservation_id": ""}, b"/orders/", "means nothing"),
        (409, {**GOOD, "code": 0}, None, "means nothing"),
        (409, {**GOOD, "code": 2, "reservation_id": None}, None, "is missing"),
        (202, GOOD, None, "Location"),
        (202, GOOD, b"/orders/r2", "Location"),
    ],
)
def test_a_broken_promise_is_named(
    status: int, body: object, location: bytes | None, word: str
) -> None:
    found = read_purchase(answer(status, body, location=location))
    assert isinstance(found, str)
    assert word in found
    assert f"HTTP {status}" in found


@pytest.mark.parametrize(
    ("text", "seconds"), [(b"3", 3), (b"0", 0), (b"-1", None), (b"soon", None)]
)
def test_retry_after_is_read_in_whole_seconds(text: bytes, seconds: int | None) -> None:
    assert Answer(503, b"", None, text, 0).retry_after_s() == seconds


def test_an_order_is_judged_by_what_it_names() -> None:
    reservation = Reservation("r1", "u1", 0, frozenset({1, 2}))
    order = {
        "reservation_id": "r1",
        "goods_id": "g",
        "user_id": "u1",
        "quantity": 2,
        "state": "paid",
    }
    assert judge_order("g", reservation, answer(200, order)).fate is OrderFate.ORDERED
    other = judge_order("h", reservation, answer(200, order))
    assert other.fate is OrderFate.WRONG
    assert "goods_id is 'g'" in other.detail
    assert judge_order("g", reservation, answer(404, {})).fate is OrderFate.MISSING
    assert judge_order("g", reservation, answer(500, {})).fate is OrderFate.UNREACHABLE
    assert judge_order("g", reservation, answer(200, b"{")).fate is OrderFate.WRONG
