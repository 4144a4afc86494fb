"""Settings that are right one by one and wrong together."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seckill.domain.errors import InvalidValue

if TYPE_CHECKING:
    from seckill.runtime.settings import Settings

__all__ = ["contradictions", "public_key_pem"]

_HMAC_KEY_BYTES_MIN: Final = 32  # RFC 7518, section 3.2: as long as the hash of HS256


def contradictions(settings: "Settings") -> Iterator[tuple[str, str]]:
    """Each setting that has to change, with the rule that it breaks beside another one."""
    yield from _kafka_contradictions(settings)
    if settings.sentinel_dashboard and not settings.sentinel_bind:
        yield "sentinel_bind", "a sentinel_dashboard has to have a port that it can ask"
    if settings.durability == "replicated" and not settings.redis_url:
        rule = (
            "replicated needs a Redis with replicas, named by redis_url: the one that is started "
            "for you has none"
        )
        yield "durability", rule
    if settings.auth == "jwt":
        yield from _jwt_contradictions(settings)
    elif not settings.bind_address.loopback:
        rule = (
            f"dev believes whatever a request says, and bind {settings.bind} can be reached from "
            "other machines: use jwt, or a loopback bind"
        )
        yield "auth", rule
    yield from _payment_contradictions(settings)


def _payment_contradictions(settings: "Settings") -> Iterator[tuple[str, str]]:
    if settings.payment_provider == "sandbox" and not settings.bind_address.loopback:
        rule = (
            f"sandbox lets whoever opens its page say that an order is paid, and bind "
            f"{settings.bind} can be reached from other machines: use none or a real provider"
        )
        yield "payment_provider", rule
    if settings.payment_webhook_secrets.get_secret_value() and settings.payment_provider == "none":
        yield "payment_webhook_secrets", "does not go with payment_provider none: nobody sends news"
    yield from _webhook_secret_faults(settings.payment_webhook_secrets.get_secret_value())


def _kafka_contradictions(settings: "Settings") -> Iterator[tuple[str, str]]:
    if settings.channel == "direct":
        if settings.kafka_bootstrap:
            yield "kafka_bootstrap", "names a Kafka, and channel is direct: set channel to kafka"
        return
    protocol = settings.kafka_security_protocol
    if not settings.kafka_bootstrap and protocol != "plaintext":
        rule = (
            f"{protocol} needs a Kafka named by kafka_bootstrap: the one that is started for you"
            " is for this machine alone and speaks plaintext"
        )
        yield "kafka_security_protocol", rule
    yield from _login_contradictions(settings, protocol)
    yield from _certificate_contradictions(settings, protocol)


def _login_contradictions(settings: "Settings", protocol: str) -> Iterator[tuple[str, str]]:
    login = settings.kafka_sasl_username, settings.kafka_sasl_password.get_secret_value()
    if protocol.startswith("sasl"):
        if not all(login):
            rule = f"{protocol} needs kafka_sasl_username and kafka_sasl_password"
            yield "kafka_security_protocol", rule
    elif any(login):
        name = "kafka_sasl_username" if login[0] else "kafka_sasl_password"
        yield name, f"is of no use with kafka_security_protocol {protocol}: set it to sasl_ssl"


def _certificate_contradictions(settings: "Settings", protocol: str) -> Iterator[tuple[str, str]]:
    files = ("kafka_ssl_ca", "kafka_ssl_certificate", "kafka_ssl_key")
    for name in files:
        if not getattr(settings, name):
            continue
        if not protocol.endswith("ssl"):
            yield name, f"is of no use with kafka_security_protocol {protocol}: set it to ssl"
        elif not Path(getattr(settings, name)).expanduser().is_file():
            yield name, f"there is no file {getattr(settings, name)}"
    if bool(settings.kafka_ssl_key) != bool(settings.kafka_ssl_certificate):
        name = "kafka_ssl_certificate" if settings.kafka_ssl_key else "kafka_ssl_key"
        yield name, "is needed: certificate and private key belong together"


def _webhook_secret_faults(secrets: str) -> Iterator[tuple[str, str]]:
    if not secrets:
        return
    # Only a service with such secrets pays for loading the library.
    from seckill.payment.webhook import check_secret  # noqa: PLC0415

    try:
        for secret in secrets.split():
            check_secret(secret)
    except InvalidValue as invalid:
        yield "payment_webhook_secrets", invalid.rule


def _jwt_contradictions(settings: "Settings") -> Iterator[tuple[str, str]]:
    secret = settings.jwt_secret.get_secret_value()
    public = [name for name in ("jwt_public_key", "jwt_jwks_url") if getattr(settings, name)]
    algorithm = settings.jwt_algorithm
    if not secret and not public:
        rule = (
            f"jwt (bind is {settings.bind}) needs a key: set jwt_secret, jwt_public_key or "
            "jwt_jwks_url"
        )
        yield "auth", rule
    elif algorithm == "HS256":
        # A public key beside a secret is how one is taken for the other (CVE-2026-48526).
        for name in public:
            yield name, f"does not go with jwt_algorithm {algorithm}, which has a secret only"
        if len(secret.encode()) < _HMAC_KEY_BYTES_MIN:
            yield "jwt_secret", f"must have at least {_HMAC_KEY_BYTES_MIN} bytes for HS256"
    elif secret:
        yield "jwt_secret", f"does not go with jwt_algorithm {algorithm}, which has a public key"
    elif len(public) > 1:
        yield "jwt_jwks_url", "does not go with jwt_public_key: name one source of keys"
    elif settings.jwt_public_key:
        yield from _public_key_faults(settings.jwt_public_key, algorithm)


def _public_key_faults(text_or_path: str, algorithm: str) -> Iterator[tuple[str, str]]:
    # Only a service with such a key pays for loading the cryptography.
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        load_pem_public_key,
    )
    from jwt.algorithms import get_default_algorithms  # noqa: PLC0415
    from jwt.exceptions import InvalidKeyError  # noqa: PLC0415

    try:
        pem = public_key_pem(text_or_path)
        # PyJWT would take a private key as well, and then sign and verify with the same one.
        load_pem_public_key(pem)
        get_default_algorithms()[algorithm].prepare_key(pem)
    except OSError as error:
        yield "jwt_public_key", f"the file {text_or_path} cannot be read: {error.strerror}"
    except (ValueError, TypeError, InvalidKeyError):
        yield "jwt_public_key", f"must be a public key in PEM form that fits {algorithm}"


def public_key_pem(text_or_path: str) -> bytes:
    """The PEM bytes of ``jwt_public_key``, which holds them or names the file.

    Raises:
        OSError: the file cannot be read.
    """
    if text_or_path.lstrip().startswith("-----BEGIN"):
        return text_or_path.encode()
    return Path(text_or_path).expanduser().read_bytes()
