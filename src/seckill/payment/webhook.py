"""News of a payment provider, signed as Standard Webhooks: https://www.standardwebhooks.com.

The signature covers the id of the event, its time and the body as it came, byte for byte. Several
secrets may be valid at once, so that one can be replaced by the next without losing news.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from standardwebhooks import Webhook, WebhookVerificationError

from seckill.domain.errors import InvalidValue
from seckill.domain.instants import parse_rfc3339_ms
from seckill.domain.payment import Money, NewsKind, PaymentId, PaymentNews
from seckill.payment.errors import BadSignature, UnreadableNews

__all__ = ["BODY_BYTES_MAX", "HEADERS", "TOLERANCE_S", "WebhookReader", "check_secret", "sign"]

BODY_BYTES_MAX: Final = 65_536
TOLERANCE_S: Final = 300
"""How far the provider's clock, and the way of a message, may be off. Fixed by the library."""

HEADERS: Final = ("webhook-id", "webhook-timestamp", "webhook-signature")

_EVENT_ID: Final = re.compile(r"[!-~]{1,128}")
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_PAYMENT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_SIGNATURES_MAX: Final = 16
_SIGNATURE_HEADER_MAX: Final = 4_096
_AMOUNT_MAX: Final = 10**15
_REASON_CHARS_MAX: Final = 200
_SECRET_BYTES: Final = (24, 64)


def check_secret(secret: str) -> str:
    """Return a secret that may serve: ``whsec_`` and 24 to 64 bytes in base64.

    Raises:
        InvalidValue: naming the rule, never the secret.
    """
    least, most = _SECRET_BYTES
    rule = f"each must be whsec_ and {least} to {most} bytes in base64"
    if not secret.startswith("whsec_"):
        raise InvalidValue("payment_webhook_secrets", rule)
    try:
        key = Webhook(secret)._whsecret  # noqa: SLF001  -- how the library reads it is what counts
    except Exception:  # noqa: BLE001  -- it raises what its parts raise
        raise InvalidValue("payment_webhook_secrets", rule) from None
    if not least <= len(key) <= most:
        raise InvalidValue("payment_webhook_secrets", rule)
    return secret


def sign(secret: str, event_id: str, at_s: int, body: bytes) -> str:
    """The ``webhook-signature`` of a message."""
    return Webhook(secret).sign(event_id, datetime.fromtimestamp(at_s, UTC), body.decode())


@dataclass(frozen=True, slots=True)
class _Message:
    event_id: str
    at_ms: int
    body: bytes


class WebhookReader:
    """Checks and reads the messages of a provider.

    Args:
        secrets: any of them may have signed; at least one.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        assert secrets, "without a secret nobody's news can be believed"
        self._webhooks = [Webhook(secret) for secret in secrets]

    def read(self, headers: Mapping[str, str], body: bytes) -> PaymentNews | None:
        """Check a message and read it.

        Args:
            headers: by lower-case name; each given once.
            body: as it came, at most 64 kB.

        Returns:
            The news; None for a kind of event that is no news of a payment.

        Raises:
            BadSignature: it is not the provider's, or five minutes off.
            UnreadableNews: it is, and breaks a rule.
        """
        message = self._verified(headers, body)
        return _news(message)

    def _verified(self, headers: Mapping[str, str], body: bytes) -> _Message:
        event_id, timestamp, signature = (headers.get(name, "") for name in HEADERS)
        if not _EVENT_ID.fullmatch(event_id) or not _TIMESTAMP.fullmatch(timestamp):
            raise BadSignature("webhook-id and webhook-timestamp must be there and readable")
        if (
            len(signature) > _SIGNATURE_HEADER_MAX
            or signature.count(" ") >= _SIGNATURES_MAX
            or not signature
        ):
            raise BadSignature("webhook-signature must hold 1 to 16 signatures")
        # What is no signature at all would make the library stumble instead of say no.
        parts = [part for part in signature.split(" ") if part.count(",") == 1]
        given = {**dict(zip(HEADERS, (event_id, timestamp, " ".join(parts)), strict=True))}
        for webhook in self._webhooks:
            try:
                webhook.verify(body, given, json_parse=False)
            except (WebhookVerificationError, ValueError):
                continue
            return _Message(event_id, int(timestamp) * 1000, body)
        raise BadSignature("no signature is right, or the time is more than five minutes off")


def _news(message: _Message) -> PaymentNews | None:
    try:
        document = json.loads(message.body)
    except (ValueError, RecursionError):
        raise UnreadableNews("body", "must be JSON") from None
    kind, data = _member(document, "type", str), _member(document, "data", dict)
    if kind not in set(NewsKind):
        return None
    payment_id = _member(data, "payment_id", str)
    if not _PAYMENT_ID.fullmatch(payment_id):
        raise UnreadableNews("data.payment_id", "must be 1 to 64 letters, digits, - or _")
    money = _money(data)
    if kind == NewsKind.PAID and money is None:
        raise UnreadableNews("data.amount_fen", "must be there: money without an amount is none")
    return PaymentNews(
        event_id=message.event_id,
        kind=NewsKind(kind),
        payment_id=PaymentId(payment_id),
        money=money,
        at_ms=_instant(document, message.at_ms),
        content_hash=hashlib.sha256(message.body).hexdigest(),
        reason=_reason(data),
    )


def _member(document: Any, name: str, kind: type[Any]) -> Any:
    value = document.get(name) if isinstance(document, dict) else None
    if not isinstance(value, kind):
        raise UnreadableNews(name, f"must be there, a {kind.__name__}")
    return value


def _money(data: Mapping[str, Any]) -> Money | None:
    amount, currency = data.get("amount_fen"), data.get("currency")
    if amount is None and currency is None:
        return None
    # bool is an int in Python and not in JSON.
    if not isinstance(amount, int) or isinstance(amount, bool) or not 0 <= amount <= _AMOUNT_MAX:
        raise UnreadableNews("data.amount_fen", "must be a whole number in the smallest unit")
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
        raise UnreadableNews("data.currency", "must be three capital letters")
    return Money(amount, currency)


def _instant(document: Mapping[str, Any], otherwise_ms: int) -> int:
    text = document.get("timestamp")
    if not isinstance(text, str):
        return otherwise_ms
    try:
        return parse_rfc3339_ms("timestamp", text)
    except InvalidValue as invalid:
        raise UnreadableNews(invalid.field, invalid.rule) from None


def _reason(data: Mapping[str, Any]) -> str | None:
    reason = data.get("reason")
    if not isinstance(reason, str) or not reason:
        return None
    shown = "".join(c if c.isprintable() else " " for c in reason[:_REASON_CHARS_MAX])
    return shown.encode("utf-8", "replace").decode()
