import base64
import hashlib
import hmac
import json
import time
from datetime import UTC, datetime, tzinfo
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from seckill.domain.clock import SystemClock
from seckill.domain.errors import InvalidValue
from seckill.web.auth import Algorithm, FixedKey, JWTAuth
from seckill.web.dev_auth import DevAuth
from seckill.web.problems import HTTPProblem
from unit.web.doubles import headers_of

SECRET = b"0123456789abcdef0123456789abcdef"
RSA = generate_private_key(65537, 2048)
ED = Ed25519PrivateKey.generate()


def pem(key: Any) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def hs256(**settings: Any) -> JWTAuth:
    return JWTAuth("HS256", FixedKey("HS256", SECRET), SystemClock(), **settings)


def token(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    payload = {"sub": "ann", "exp": int(time.time()) + 600} | claims
    return jwt.encode(
        {name: value for name, value in payload.items() if value is not None},
        key,
        algorithm=algorithm,
    )


def who(auth: JWTAuth, bearer: str) -> str:
    return auth.identify(headers_of(authorization=f"Bearer {bearer}"), b"")


def test_dev_believes_header_or_query() -> None:
    auth = DevAuth()
    assert auth.identify({b"x-user-id": "茶".encode()}, b"") == "茶"
    assert auth.identify({}, b"userId=%E8%8C%B6") == "茶"
    assert auth.identify({b"x-user-id": b"ann"}, b"userId=ann") == "ann"


@pytest.mark.parametrize(
    ("header", "query", "status", "field"),
    [
        (None, b"", 401, None),
        (None, b"user=ann", 401, None),
        (b"ann", b"userId=bob", 400, "X-User-Id"),
        (b"\xff", b"", 400, "X-User-Id"),
        (None, b"userId=%ff", 400, "userId"),
        (None, b"userId=a&userId=b", 400, "userId"),
        (b"", b"", 422, "X-User-Id"),
        (b" ", b"", 422, "X-User-Id"),
        (b"a b", b"", 422, "X-User-Id"),
        (None, b"userId=a+b", 422, "userId"),
        (b"x" * 65, b"", 422, "X-User-Id"),
        (None, b"userId=a%00b", 422, "userId"),
        (None, b"userId=a%0Ab", 422, "userId"),
        (None, b"userId=%E2%80%8F", 422, "userId"),
    ],
)
def test_dev_refuses_names_that_are_none(
    header: bytes | None, query: bytes, status: int, field: str | None
) -> None:
    with pytest.raises(HTTPProblem) as refused:
        DevAuth().identify({} if header is None else {b"x-user-id": header}, query)
    assert (refused.value.status, refused.value.field) == (status, field)


@pytest.mark.parametrize(
    ("algorithm", "signer", "key"),
    [("HS256", SECRET, SECRET), ("RS256", RSA, pem(RSA)), ("EdDSA", ED, pem(ED))],
)
def test_a_good_token_names_its_user(algorithm: Algorithm, signer: Any, key: bytes) -> None:
    auth = JWTAuth(algorithm, FixedKey(algorithm, key), SystemClock())
    good = token(signer, algorithm)
    assert who(auth, good) == "ann"
    assert who(auth, good) == "ann"


def forged(header: dict[str, Any], payload: dict[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(payload).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


LATER = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "a",
        "a.b.c",
        "é",
        "x" * 5000,
        forged({"alg": "none"}, {"sub": "ann", "exp": LATER}),
        forged({"alg": "HS256"}, {"sub": "ann", "exp": LATER}, b"wrong"),
        forged({"alg": ["HS256"]}, {"sub": "ann", "exp": LATER}),
        token(b"another secret of 32 bytes length"),
        token(algorithm="HS512", key=SECRET * 2),
        token(exp=None),
        token(sub=None),
        token(sub=7),
        token(sub=""),
        token(sub="a b"),
        token(sub="x" * 65),
        token(exp=int(time.time()) - 61),
        token(exp="soon"),
        token(exp=float("inf")),
        token(nbf=LATER - 1),
        token(aud="shop"),
    ],
)
def test_a_bad_token_is_refused(bad: str) -> None:
    with pytest.raises(HTTPProblem) as refused:
        hs256().identify({b"authorization": b"Bearer " + bad.encode()}, b"")
    assert refused.value.status == 401
    name, challenge = refused.value.headers[0]
    assert name == b"www-authenticate"
    assert challenge.startswith(b'Bearer realm="seckill"')


@pytest.mark.parametrize("header", [None, b"Basic YTpi", b"Bearer", b"token x"])
def test_no_token_is_a_401_without_error(header: bytes | None) -> None:
    with pytest.raises(HTTPProblem) as refused:
        hs256().identify({} if header is None else {b"authorization": header}, b"userId=ann")
    assert refused.value.status == 401
    assert b"error" not in refused.value.headers[0][1]


def test_a_public_key_is_never_taken_for_a_secret() -> None:
    auth = JWTAuth("RS256", FixedKey("RS256", pem(RSA)), SystemClock())
    # Signed by hand: PyJWT itself refuses to use a PEM as a secret.
    unsigned = forged({"alg": "HS256"}, {"sub": "ann", "exp": LATER}).rpartition(".")[0]
    signature = hmac.new(pem(RSA), unsigned.encode(), hashlib.sha256).digest()
    bad = unsigned + "." + base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    with pytest.raises(HTTPProblem):
        who(auth, bad)


class StandingTime(datetime):
    """Today's date, at one and the same instant."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "StandingTime":
        return cls.fromtimestamp(NOW_S, tz)


class StandingClock(SystemClock):
    at_ms = 0

    def now_ms(self) -> int:
        return self.at_ms


NOW_S = 1_796_126_400


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    """A clock that is moved by hand; the library's own stands where it starts."""
    monkeypatch.setattr("jwt.api_jwt.datetime", StandingTime)
    clock = StandingClock()
    clock.at_ms = NOW_S * 1000
    return clock


@pytest.mark.parametrize(
    ("claims", "good"),
    [
        ({"exp": NOW_S - 59}, True),
        ({"exp": NOW_S - 60}, False),
        ({"exp": NOW_S + 600, "nbf": NOW_S + 60}, True),
        ({"exp": NOW_S + 600, "nbf": NOW_S + 61}, False),
    ],
)
def test_clocks_may_differ_by_a_minute_and_no_more(
    standing_clock: StandingClock, claims: dict[str, int], good: bool
) -> None:
    auth = JWTAuth("HS256", FixedKey("HS256", SECRET), standing_clock)
    if good:
        assert who(auth, token(**claims)) == "ann"
    else:
        with pytest.raises(HTTPProblem) as refused:
            who(auth, token(**claims))
        assert refused.value.status == 401


def test_audience_and_issuer_are_checked_when_set() -> None:
    auth = hs256(audience="shop", issuer="https://id.example")
    assert who(auth, token(aud=["shop", "x"], iss="https://id.example")) == "ann"
    for bad in (
        token(iss="https://id.example"),
        token(aud="other", iss="https://id.example"),
        token(aud="shop"),
        token(aud="shop", iss="https://evil.example"),
    ):
        with pytest.raises(HTTPProblem):
            who(auth, bad)


def test_a_remembered_token_expires_too(
    monkeypatch: pytest.MonkeyPatch, standing_clock: StandingClock
) -> None:
    auth = JWTAuth("HS256", FixedKey("HS256", SECRET), standing_clock)
    good = token(exp=NOW_S + 5)
    assert who(auth, good) == "ann"
    verified = []

    def refuse(bearer: bytes) -> Any:
        verified.append(bearer)
        raise LookupError

    monkeypatch.setattr(auth, "_verify", refuse)
    standing_clock.at_ms += 64_999
    assert who(auth, good) == "ann", "still within the leeway, and remembered"
    standing_clock.at_ms += 1
    with pytest.raises(LookupError):
        who(auth, good)
    assert verified == [good.encode()]
    assert not auth._verified


def test_the_memory_of_tokens_is_bounded_and_forgets_the_least_used() -> None:
    auth = hs256(tokens_max=2)
    first, second, third = (token(sub=name) for name in ("a", "b", "c"))
    for bearer in (first, second, first, third):
        who(auth, bearer)
    assert list(auth._verified) == [first.encode(), third.encode()]


class Rotating:
    def __init__(self) -> None:
        self.generation = 0
        self.key: bytes | None = SECRET

    def key_for(self, key_id: str | None) -> bytes | None:  # noqa: ARG002  -- the port's
        return self.key

    async def run(self) -> None: ...


def test_a_change_of_keys_forgets_what_was_verified() -> None:
    keys = Rotating()
    auth = JWTAuth("HS256", keys, SystemClock())
    good = token()
    assert who(auth, good) == "ann"
    keys.key, keys.generation = b"x" * 32, 1
    with pytest.raises(HTTPProblem) as refused:
        who(auth, good)
    assert refused.value.status == 401


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("HS256", b"short"),
        ("HS256", pem(RSA)),
        ("RS256", pem(ED)),
        ("EdDSA", pem(RSA)),
        ("RS256", b"nonsense"),
        ("RS256", pem(generate_private_key(65537, 1024))),  # noqa: S505  -- too weak on purpose
    ],
)
def test_a_key_that_does_not_fit_stops_the_start(algorithm: Algorithm, key: bytes) -> None:
    with pytest.raises(InvalidValue) as refused:
        FixedKey(algorithm, key)
    assert refused.value.field.startswith("jwt_")
