"""The keys of a token issuer, read from its JWKS address, never while a buyer waits."""

import asyncio
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final, Never
from urllib.parse import urlsplit

import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from seckill.domain.clock import Clock
from seckill.domain.errors import InvalidValue
from seckill.web.auth import Algorithm, KeysNotLoaded, VerifyingKey, check_public_key

__all__ = ["JWKSKeys", "fetch_document"]

_LOG: Final = structlog.get_logger(__name__)

_DOCUMENT_BYTES_MAX: Final = 1_048_576
_FETCH_TIMEOUT_S: Final = 5.0
_KEYS_MAX: Final = 64
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead the key look-up to a place that nobody has approved."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Never:
        """Refuse."""
        raise urllib.error.HTTPError(
            req.full_url, code, f"redirects are not followed ({newurl}; {msg})", headers, fp
        )


def fetch_document(url: str) -> bytes:
    """Read the key document: one GET, bounded in time and size, no redirects. Blocks.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too long.
    """
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(url, timeout=_FETCH_TIMEOUT_S) as response:
        document: bytes = response.read(_DOCUMENT_BYTES_MAX + 1)
    if len(document) > _DOCUMENT_BYTES_MAX:
        raise ValueError(f"the key document has more than {_DOCUMENT_BYTES_MAX} bytes")
    return document


class JWKSKeys:
    """The issuer's keys of one algorithm, read again and again in a thread.

    A token signed by an unknown key asks for an early reading, at most one each ``early_gap_s``,
    and is refused meanwhile. When the address cannot be read the last keys stay good, for
    ``stale_max_s`` at most.

    Args:
        algorithm: keys of other algorithms in the document are not used.
        url: https, or http to this machine.
        clock: measures ages.
        refresh_s: a reading is so old when the next one starts (give or take a tenth).
        early_gap_s: least time between two early readings.
        stale_max_s: keys older than this are not trusted.
        fetch: reads the document; runs in a thread.

    Raises:
        InvalidValue: the address is not allowed, or the algorithm has no public keys.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        url: str,
        clock: Clock,
        *,
        refresh_s: float = 300,
        early_gap_s: float = 10,
        stale_max_s: float = 86_400,
        fetch: Callable[[str], bytes] = fetch_document,
    ) -> None:
        if algorithm == "HS256":
            raise InvalidValue("jwt_algorithm", "must be RS256 or EdDSA with jwt_jwks_url")
        parts = urlsplit(url)
        if parts.scheme != "https" and not (
            parts.scheme == "http" and (parts.hostname or "") in _LOOPBACK
        ):
            raise InvalidValue("jwt_jwks_url", "must be https (http only to this machine)")
        self._algorithm = algorithm
        self._url = url
        self._clock = clock
        self._refresh_s = refresh_s
        self._early_gap_s = early_gap_s
        self._stale_max_ms = stale_max_s * 1000
        self._fetch = fetch
        self._keys: Mapping[str | None, VerifyingKey] = {}
        self._read_at_ms: float | None = None
        self._generation = 0
        self._wanted = asyncio.Event()

    @property
    def generation(self) -> int:
        """Raised when the set of keys has changed or can no longer be trusted."""
        return self._generation

    def key_for(self, key_id: str | None) -> VerifyingKey | None:
        """The key of this id; without an id, the only key of the issuer.

        Raises:
            KeysNotLoaded: no reading has succeeded yet, or the last one is too old.
        """
        if self._read_at_ms is None:
            raise KeysNotLoaded
        if self._clock.monotonic_ms() - self._read_at_ms > self._stale_max_ms:
            self._wanted.set()
            raise KeysNotLoaded
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        key = self._keys.get(key_id)
        if key is None:
            self._wanted.set()
        return key

    async def run(self) -> None:
        """Read the keys until cancelled."""
        while True:
            await self.refresh()
            # Asked for by a token whose key was unknown: an attacker can ask at will, so the
            # least gap is kept first and the asking counts from its end.
            await asyncio.sleep(self._early_gap_s)
            if self._read_at_ms is None:
                continue
            rest_s = self._refresh_s * random.uniform(0.9, 1.1) - self._early_gap_s  # noqa: S311  -- spreads load, guards nothing
            try:
                async with asyncio.timeout(max(rest_s, 0.0)):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def refresh(self) -> None:
        """Read the keys once; on failure the last ones stay."""
        self._wanted.clear()
        try:
            document = await asyncio.to_thread(self._fetch, self._url)
            keys = self._read(document)
        except (OSError, HTTPException, ValueError, jwt.PyJWTError) as error:
            age_ms = (
                None if self._read_at_ms is None else self._clock.monotonic_ms() - self._read_at_ms
            )
            _LOG.warning(
                "the keys of tokens cannot be fetched",
                url=self._url,
                error=str(error),
                keys_age_ms=age_ms,
            )
            if age_ms is not None and age_ms > self._stale_max_ms and self._keys:
                self._keys = {}
                self._generation += 1
            return
        if _fingerprints(keys) != _fingerprints(self._keys):
            self._generation += 1
        self._keys = keys
        self._read_at_ms = self._clock.monotonic_ms()

    def _read(self, document: bytes) -> dict[str | None, VerifyingKey]:
        """The usable keys by id. A key for another algorithm or use is passed over."""
        content: Any = json.loads(document)
        entries = content.get("keys") if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise ValueError("the key document has no list of keys")  # noqa: TRY004  -- of outside data
        keys: dict[str | None, VerifyingKey] = {}
        for entry in entries[:_KEYS_MAX]:
            if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
                continue
            if entry.get("alg", self._algorithm) != self._algorithm:
                continue
            try:
                key = jwt.PyJWK(entry, self._algorithm).key
                check_public_key(self._algorithm, key)
            except (jwt.PyJWTError, InvalidValue, ValueError, TypeError):
                continue
            assert isinstance(key, RSAPublicKey | Ed25519PublicKey)
            key_id = entry.get("kid")
            keys[key_id if isinstance(key_id, str) else None] = key
        if not keys:
            raise ValueError(f"the key document has no usable key for {self._algorithm}")
        return keys


def _fingerprints(keys: Mapping[str | None, VerifyingKey]) -> dict[str | None, object]:
    return {
        key_id: key.public_numbers() if isinstance(key, RSAPublicKey) else key.public_bytes_raw()
        for key_id, key in keys.items()
        if not isinstance(key, bytes)
    }
