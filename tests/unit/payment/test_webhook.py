"""What is believed of a message that says it comes from the payment provider."""

import base64
import json
import time
from typing import Any

import pytest

from seckill.domain.errors import InvalidValue
from seckill.domain.payment import Money, NewsKind
from seckill.payment.errors import BadSignature, UnreadableNews
from seckill.payment.webhook import TOLERANCE_S, WebhookReader, check_secret, sign


def secret(byte: int) -> str:
    return "whsec_" + base64.b64encode(bytes([byte]) * 32).decode()


OLD, NEW, FOREIGN = secret(1), secret(2), secret(3)
READER = WebhookReader([NEW, OLD])
PAID = {
    "type": "payment.paid",
    "timestamp": "2026-12-01T12:00:00.500Z",
    "data": {"payment_id": "pay1", "amount_fen": 9900, "currency": "CNY"},
}


def message(
    document: Any = PAID, *, by: str = NEW, event: str = "msg_1", late_s: float = 0
) -> tuple[dict[str, str], bytes]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    at_s = int(time.time() - late_s)
    headers = {"webhook-id": event, "webhook-timestamp": str(at_s)}
    try:
        headers["webhook-signature"] = sign(by, event, at_s, body)
    except UnicodeDecodeError:
        headers["webhook-signature"] = "v1,AAAA"
    return headers, body


@pytest.mark.parametrize("by", [OLD, NEW])
def test_news_signed_by_any_of_the_secrets_is_read(by: str) -> None:
    news = READER.read(*message(by=by))
    assert news is not None
    assert (news.event_id, news.kind, news.payment_id) == ("msg_1", NewsKind.PAID, "pay1")
    assert news.money == Money(9900)
    assert news.at_ms == 1_796_126_400_500


def test_several_signatures_of_one_message_are_looked_through() -> None:
    headers, body = message()
    theirs = message(by=FOREIGN)[0]["webhook-signature"]
    for given in (
        f"{theirs} {headers['webhook-signature']}",
        f"v2,xx junk {headers['webhook-signature']}",
    ):
        assert READER.read(headers | {"webhook-signature": given}, body) is not None


@pytest.mark.parametrize("late_s", [-TOLERANCE_S + 100, 0, TOLERANCE_S - 100])
def test_a_clock_that_is_a_little_off_is_borne(late_s: float) -> None:
    assert READER.read(*message(late_s=late_s)) is not None


@pytest.mark.parametrize("late_s", [-TOLERANCE_S - 100, TOLERANCE_S + 100])
def test_a_message_of_another_time_is_not_believed(late_s: float) -> None:
    with pytest.raises(BadSignature):
        READER.read(*message(late_s=late_s))


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": "msg_2"},
        {"webhook-id": ""},
        {"webhook-id": "a b"},
        {"webhook-id": "x" * 129},
        {"webhook-timestamp": "1"},
        {"webhook-timestamp": "nan"},
        {"webhook-timestamp": "1e9"},
        {"webhook-timestamp": "9" * 40},
        {"webhook-signature": ""},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1,!!!"},
        {"webhook-signature": "v1,a,b"},
        {"webhook-signature": " "},
        {"webhook-signature": "v1,\u00e9"},
        {"webhook-signature": "v1," + "A" * 5_000},
        {"webhook-signature": " ".join(["v1,AAAA"] * 17)},
    ],
)
def test_what_is_not_signed_as_it_stands_is_not_believed(changed: dict[str, str]) -> None:
    headers, body = message()
    with pytest.raises(BadSignature):
        READER.read(headers | changed, body)


def test_the_signature_is_that_of_the_very_bytes() -> None:
    headers, body = message()
    for other in (body + b" ", body.replace(b"9900", b"9901"), b"", b"\xff\xfe"):
        with pytest.raises(BadSignature):
            READER.read(headers, other)
    with pytest.raises(BadSignature):
        READER.read(*message(by=FOREIGN))
    with pytest.raises(BadSignature):
        READER.read({}, body)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[" * 100_000, "body"),
        ([], "type"),
        ({"type": 5, "data": {}}, "type"),
        ({"type": "payment.paid"}, "data"),
        (PAID | {"data": {"payment_id": "pay1"}}, "data.amount_fen"),
        (
            PAID | {"data": {"payment_id": "p a", "amount_fen": 1, "currency": "CNY"}},
            "data.payment_id",
        ),
        (
            PAID | {"data": {"payment_id": "p", "amount_fen": -1, "currency": "CNY"}},
            "data.amount_fen",
        ),
        (
            PAID | {"data": {"payment_id": "p", "amount_fen": 1.5, "currency": "CNY"}},
            "data.amount_fen",
        ),
        (
            PAID | {"data": {"payment_id": "p", "amount_fen": True, "currency": "CNY"}},
            "data.amount_fen",
        ),
        (
            PAID | {"data": {"payment_id": "p", "amount_fen": 10**16, "currency": "CNY"}},
            "data.amount_fen",
        ),
        (PAID | {"data": {"payment_id": "p", "amount_fen": 1, "currency": "cny"}}, "data.currency"),
        (PAID | {"data": {"payment_id": "p", "amount_fen": 1}}, "data.currency"),
        (PAID | {"timestamp": "yesterday"}, "timestamp"),
    ],
)
def test_a_signed_message_that_breaks_a_rule_says_which(document: Any, field: str) -> None:
    with pytest.raises(UnreadableNews) as caught:
        READER.read(*message(document))
    assert caught.value.field == field


def test_events_that_are_no_news_of_a_payment_are_passed_over() -> None:
    assert READER.read(*message({"type": "customer.created", "data": {}})) is None


def test_the_provider_s_words_are_cut_to_what_can_be_shown() -> None:
    data = {"payment_id": "p", "reason": "no\nmoney\x00" + "x" * 500}
    news = READER.read(*message({"type": "payment.failed", "data": data}))
    assert news is not None
    assert (news.reason or "").startswith("no money x")
    assert len(news.reason or "") == 200


LONG = "whsec_" + base64.b64encode(bytes(80)).decode()


@pytest.mark.parametrize("text", ["", "hush-hush", "whsec_", "whsec_AAAA", "whsec_é", LONG])
def test_a_secret_that_cannot_serve_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        check_secret(text)
    assert not text or text == "whsec_" or text not in str(caught.value)
    assert check_secret(secret(9)) == secret(9)
