import asyncio
import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from seckill.domain.clock import SystemClock
from seckill.domain.errors import InvalidValue
from seckill.web import jwks
from seckill.web.auth import JWTAuth, KeysNotLoaded
from seckill.web.jwks import JWKSKeys, fetch_document
from seckill.web.problems import HTTPProblem
from unit.web.doubles import FixedClock, headers_of

URL = "https://id.example/keys"
OLD, NEW = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
RSA = generate_private_key(65537, 2048)


def jwk(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    algorithm = jwt.get_algorithm_by_name("EdDSA" if key is not RSA else "RS256")
    entry: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    entry.pop("key_ops", None)
    if kid is not None:
        entry["kid"] = kid
    return entry | more


class Issuer:
    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys: list[Any] | None = list(keys)
        self.fetches = 0
        self.threads: set[int] = set()

    def fetch(self, url: str) -> bytes:
        assert url == URL
        self.fetches += 1
        self.threads.add(threading.get_ident())
        if self.keys is None:
            raise OSError("connection refused")
        return json.dumps({"keys": self.keys}).encode()


def signed(key: Any, kid: str | None, **claims: Any) -> dict[bytes, bytes]:
    payload = {"sub": "ann", "exp": int(time.time()) + 600} | claims
    text = jwt.encode(payload, key, "EdDSA", headers={"kid": kid} if kid else None)
    return dict(headers_of(authorization=f"Bearer {text}"))


async def test_keys_are_read_in_a_thread_and_never_by_a_request() -> None:
    issuer = Issuer(jwk(OLD, "1"))
    keys = JWKSKeys("EdDSA", URL, SystemClock(), fetch=issuer.fetch)
    auth = JWTAuth("EdDSA", keys, SystemClock())
    with pytest.raises(HTTPProblem) as early:
        auth.identify(signed(OLD, "1"), b"")
    assert early.value.status == 503
    assert issuer.fetches == 0
    await keys.refresh()
    assert issuer.threads == issuer.threads - {threading.get_ident()}
    assert auth.identify(signed(OLD, "1"), b"") == "ann"
    assert auth.identify(signed(OLD, None), b"") == "ann"
    assert issuer.fetches == 1


async def test_a_new_key_is_found_and_a_withdrawn_one_counts_no_more() -> None:
    issuer = Issuer(jwk(OLD, "1"))
    keys = JWKSKeys(
        "EdDSA", URL, SystemClock(), fetch=issuer.fetch, refresh_s=3600, early_gap_s=0.01
    )
    auth = JWTAuth("EdDSA", keys, SystemClock())
    running = asyncio.create_task(keys.run())
    try:
        while issuer.fetches == 0 or keys.generation == 0:
            await asyncio.sleep(0.001)
        old = signed(OLD, "1")
        assert auth.identify(old, b"") == "ann"
        issuer.keys = [jwk(NEW, "2")]
        with pytest.raises(HTTPProblem) as unknown:
            auth.identify(signed(NEW, "2", sub="bob"), b"")
        assert unknown.value.status == 401
        async with asyncio.timeout(60):
            while keys.generation == 1:
                await asyncio.sleep(0.001)
        assert auth.identify(signed(NEW, "2", sub="bob"), b"") == "bob"
        with pytest.raises(HTTPProblem) as withdrawn:
            auth.identify(old, b"")
        assert withdrawn.value.status == 401
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_unknown_keys_cannot_make_us_hammer_the_issuer() -> None:
    issuer = Issuer(jwk(OLD, "1"))
    keys = JWKSKeys("EdDSA", URL, SystemClock(), fetch=issuer.fetch, early_gap_s=3600)
    running = asyncio.create_task(keys.run())
    try:
        async with asyncio.timeout(60):
            while keys.generation == 0:
                await asyncio.sleep(0.001)
        for number in range(1000):
            assert keys.key_for(f"made-up-{number}") is None
        for _ in range(100):
            await asyncio.sleep(0)
        assert issuer.fetches == 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_issuer_that_is_away_leaves_the_keys_good_for_a_while() -> None:
    issuer, clock = Issuer(jwk(OLD, "1")), FixedClock()
    keys = JWKSKeys("EdDSA", URL, clock, fetch=issuer.fetch, stale_max_s=100)
    await keys.refresh()
    issuer.keys = None
    clock.monotonic = 99_000
    await keys.refresh()
    assert keys.key_for("1") is not None
    before = keys.generation
    clock.monotonic = 100_001
    with pytest.raises(KeysNotLoaded):
        keys.key_for("1")
    await keys.refresh()
    assert keys.generation > before


async def test_only_keys_of_the_one_algorithm_are_used() -> None:
    issuer = Issuer(
        jwk(OLD, "sig"),
        jwk(NEW, "enc", use="enc"),
        jwk(NEW, "other", alg="ES256"),
        jwk(RSA, "rsa"),
        {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "kid": "oct"},
        {"kty": "OKP", "kid": "broken"},
    )
    issuer.keys = [*(issuer.keys or []), "nonsense", 7]
    keys = JWKSKeys("EdDSA", URL, SystemClock(), fetch=issuer.fetch)
    await keys.refresh()
    assert keys.key_for("sig") is not None
    assert [name for name in ("enc", "other", "rsa", "oct", "broken") if keys.key_for(name)] == []


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[]}', b"\xff"])
async def test_a_document_that_is_none_changes_nothing(document: bytes) -> None:
    issuer = Issuer(jwk(OLD, "1"))
    answers = [issuer.fetch(URL), document]
    keys = JWKSKeys("EdDSA", URL, SystemClock(), fetch=lambda _: answers.pop(0))
    await keys.refresh()
    await keys.refresh()
    assert keys.key_for("1") is not None
    assert keys.generation == 1


@pytest.mark.parametrize(
    "url", ["http://id.example/keys", "ftp://id.example/keys", "file:///etc/passwd", "keys"]
)
def test_keys_are_not_read_over_an_open_wire(url: str) -> None:
    with pytest.raises(InvalidValue):
        JWKSKeys("EdDSA", url, SystemClock())
    with pytest.raises(InvalidValue):
        JWKSKeys("HS256", URL, SystemClock())


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = 2_000_000 if self.path == "/huge" else 12
        body = b'{"keys": []}'.ljust(size)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, *args: object) -> None: ...


def test_the_real_reader_is_bounded_and_follows_no_redirect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jwks, "_FETCH_TIMEOUT_S", 60.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            base = f"http://127.0.0.1:{server.server_port}"
            assert json.loads(fetch_document(f"{base}/keys")) == {"keys": []}
            with pytest.raises(OSError, match="redirects are not followed"):
                fetch_document(f"{base}/moved")
            with pytest.raises(ValueError, match="more than"):
                fetch_document(f"{base}/huge")
        finally:
            server.shutdown()
            thread.join()
