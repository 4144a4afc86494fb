"""What the client library says when it cannot do what it is asked, in words that name our settings.

A call that fails says "Broker transport failure" and no more. Why (a certificate that nobody
trusts, a password that is wrong) the library says beside it, in a callback.
"""

import re
import time
from typing import Any, Final, Protocol

import structlog
from confluent_kafka import KafkaError, KafkaException

__all__ = ["Complaints", "advice_on"]

_log = structlog.get_logger()

_TELL_EVERY_S: Final = 60.0
_FRESH_S: Final = 30.0
"""What was heard so long before a call failed may be its reason; what is older was another trouble.
"""

_SETTINGS: Final = {
    "ssl.ca.location": "kafka_ssl_ca",
    "ssl.certificate.location": "kafka_ssl_certificate",
    "ssl.key.location": "kafka_ssl_key",
    "ssl.key.password": "kafka_ssl_key_password",
    "sasl.mechanism": "kafka_sasl_mechanism",
    "sasl.username": "kafka_sasl_username",
    "sasl.password": "kafka_sasl_password",
    "security.protocol": "kafka_security_protocol",
    "bootstrap.servers": "kafka_bootstrap",
}
_SETTING: Final = re.compile("|".join(map(re.escape, _SETTINGS)))

_ADVICE: Final = (
    (
        KafkaError._SSL,  # noqa: SLF001  -- the library's own name for it
        "certificate verify failed",
        "the broker's certificate is not signed by an authority that kafka_ssl_ca names",
    ),
    (
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        "Unsupported SASL mechanism",
        "the broker does not offer this kafka_sasl_mechanism",
    ),
    (
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        "",
        "the broker refuses the login: look at kafka_sasl_username and kafka_sasl_password",
    ),
    (
        KafkaError._TRANSPORT,  # noqa: SLF001
        "SSL connection closed by peer",
        "the broker does not speak TLS at this address: look at kafka_security_protocol",
    ),
    (
        KafkaError._TRANSPORT,  # noqa: SLF001
        "ssl/tls alert",
        "the broker refuses our kafka_ssl_certificate, or wants one where there is none",
    ),
)


class _Served(Protocol):
    def poll(self, timeout: float) -> Any: ...


def advice_on(error: KafkaError) -> str:
    """Which setting is to be looked at; empty when it is none of them, or cannot be told."""
    text = error.str()
    for code, words, advice in _ADVICE:
        if error.code() == code and words in text:
            return advice
    return ""


class Complaints:
    """Hears what one client has to say, and tells each kind of it once a minute in the log.

    Args:
        client: what it is called there.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._told_at_s: dict[int, float] = {}
        self._last: KafkaError | None = None
        self._last_at_s = 0.0

    def hear(self, error: KafkaError) -> None:
        """The client's ``error_cb``."""
        now_s = time.monotonic()
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  -- says nothing of why
            self._last, self._last_at_s = error, now_s
        told_at_s = self._told_at_s.get(error.code(), -_TELL_EVERY_S)
        if error.fatal() or now_s - told_at_s >= _TELL_EVERY_S:
            self._told_at_s[error.code()] = now_s
            advice = advice_on(error)
            _log.warning(
                "Kafka", client=self._client, error=error.str(), fatal=error.fatal(),
                **({"advice": advice} if advice else {}),
            )  # fmt: skip

    def words(self, failure: KafkaException, client: _Served | None = None) -> str:
        """A failed call in one sentence, with what was heard beside it.

        Args:
            client: is asked for what it has not said yet; None where there is none.
        """
        if client is not None:
            client.poll(0)
        error: KafkaError = failure.args[0]
        said = _SETTING.sub(lambda match: _SETTINGS[match[0]], error.str())
        if self._last is None or time.monotonic() - self._last_at_s > _FRESH_S:
            return said
        advice = advice_on(self._last)
        return f"{advice} ({self._last.str()})" if advice else f"{said} ({self._last.str()})"
