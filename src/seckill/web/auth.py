"""Who the buyer is where it counts: whom a signed token names (while developing: dev_auth.py)."""

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from seckill.domain.clock import Clock
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import UserId, check_user_id
from seckill.web.problems import Unauthenticated, Unavailable

__all__ = [
    "LEEWAY_S",
    "Algorithm",
    "FixedKey",
    "JWTAuth",
    "KeysNotLoaded",
    "TokenKeys",
    "VerifyingKey",
]

LEEWAY_S: Final = 60
"""By how much clocks of issuer and service may differ: a token counts for so long after ``exp``."""

Algorithm = Literal["HS256", "RS256", "EdDSA"]
VerifyingKey = bytes | RSAPublicKey | Ed25519PublicKey

_SECRET_BYTES_MIN: Final = 32
_RSA_BITS_MIN: Final = 2048
_TOKEN_BYTES_MAX: Final = 4_096
_TOKENS_MAX: Final = 16_384
_BEARER_CHALLENGE: Final = 'Bearer realm="seckill"'


class KeysNotLoaded(Exception):  # noqa: N818  -- a state, turned into 503 in one place
    """The issuer's keys have not been read yet, or are too old to be trusted."""


class TokenKeys(Protocol):
    """Where the keys come from that tokens are checked with."""

    @property
    def generation(self) -> int:
        """Raised by each change of the keys: what was verified before counts no more."""
        ...

    def key_for(self, key_id: str | None) -> VerifyingKey | None:
        """The key that signed, by the ``kid`` of the token; None: there is no such key.

        Raises:
            KeysNotLoaded: no key is known yet.
        """
        ...

    async def run(self) -> None:
        """Keep the keys fresh until cancelled."""
        ...


class FixedKey:
    """The one key out of the settings.

    Raises:
        InvalidValue: it does not fit the algorithm, or is too weak.
    """

    generation = 0

    def __init__(self, algorithm: Algorithm, key: bytes) -> None:
        self._key = _read_key(algorithm, key)

    def key_for(self, key_id: str | None) -> VerifyingKey:  # noqa: ARG002  -- one key for all
        """The key."""
        return self._key

    async def run(self) -> None:
        """Nothing needs to be kept fresh."""


def _read_key(algorithm: Algorithm, key: bytes) -> VerifyingKey:
    if algorithm == "HS256":
        if len(key) < _SECRET_BYTES_MIN:
            raise InvalidValue("jwt_secret", f"must have at least {_SECRET_BYTES_MIN} bytes")
        if key.lstrip().startswith(b"-----BEGIN"):
            raise InvalidValue("jwt_secret", "must not be a PEM key: HS256 takes a secret")
        return key
    try:
        public_key = load_pem_public_key(key)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidValue("jwt_public_key", "must be a public key in PEM form") from None
    check_public_key(algorithm, public_key)
    assert isinstance(public_key, RSAPublicKey | Ed25519PublicKey)
    return public_key


def check_public_key(algorithm: Algorithm, key: object) -> None:
    """Check that a key is of the family of the algorithm, and strong enough.

    Raises:
        InvalidValue: it is not.
    """
    match algorithm, key:
        case "RS256", RSAPublicKey(key_size=bits):
            if bits < _RSA_BITS_MIN:
                raise InvalidValue("jwt_public_key", f"must have at least {_RSA_BITS_MIN} bits")
        case "EdDSA", Ed25519PublicKey():
            pass
        case _:
            raise InvalidValue("jwt_public_key", f"must be a key for {algorithm}")


class JWTAuth:
    """Reads the user out of a bearer token; the claim ``sub`` is the user id.

    Exactly one algorithm is accepted, so a public key can never be taken for a secret. ``exp`` is
    required. ``iss`` is checked when an issuer is set. ``aud`` is checked when an audience is set;
    when none is set a token that names one is refused, since it was made for somebody else.

    Tokens that were verified are remembered until they expire, at most ``tokens_max`` of them, the
    least used forgotten first; a change of the keys forgets them all.

    Args:
        algorithm: the only one.
        keys: where the keys come from.
        clock: tells when a remembered token expires.
        audience: what ``aud`` must contain.
        issuer: what ``iss`` must be.
        leeway_s: see `LEEWAY_S`.
        tokens_max: verified tokens that are remembered.
    """

    security_schemes: Mapping[str, Mapping[str, str]] = MappingProxyType(
        {
            "bearer": {
                "type": "http",
                "scheme": "bearer",
                "bearerFormat": "JWT",
                "description": "`sub` is the user id",
            }
        }
    )

    def __init__(
        self,
        algorithm: Algorithm,
        keys: TokenKeys,
        clock: Clock,
        *,
        audience: str | None = None,
        issuer: str | None = None,
        leeway_s: int = LEEWAY_S,
        tokens_max: int = _TOKENS_MAX,
    ) -> None:
        self._algorithm = algorithm
        self._keys = keys
        self._clock = clock
        self._audience = audience
        self._issuer = issuer
        self._leeway_s = leeway_s
        self._tokens_max = tokens_max
        self._verified: OrderedDict[bytes, tuple[UserId, int]] = OrderedDict()
        self._generation = keys.generation

    async def run(self) -> None:
        """Keep the keys fresh until cancelled."""
        await self._keys.run()

    def identify(self, headers: Mapping[bytes, bytes], query_string: bytes) -> UserId:  # noqa: ARG002  -- a token does not belong into a URL
        """The user whom the bearer token names.

        Raises:
            Unauthenticated: there is no token, or it is not valid now.
            Unavailable: the issuer's keys have not been loaded yet.
        """
        raw = headers.get(b"authorization")
        if raw is None:
            raise Unauthenticated("Send a bearer token.", _BEARER_CHALLENGE)
        scheme, _, token = raw.partition(b" ")
        token = token.strip()
        if scheme.lower() != b"bearer" or not token:
            raise Unauthenticated("Send a bearer token.", _BEARER_CHALLENGE)
        if self._generation != self._keys.generation:
            self._verified.clear()
            self._generation = self._keys.generation
        known = self._verified.get(token)
        if known is not None:
            user_id, expires_ms = known
            if self._clock.now_ms() < expires_ms:
                self._verified.move_to_end(token)
                return user_id
            del self._verified[token]
        user_id, expires_ms = self._verify(token)
        if len(self._verified) >= self._tokens_max:
            self._verified.popitem(last=False)
        self._verified[token] = (user_id, expires_ms)
        return user_id

    def _verify(self, token: bytes) -> tuple[UserId, int]:
        if len(token) > _TOKEN_BYTES_MAX:
            raise _refused(f"The token has more than {_TOKEN_BYTES_MAX} bytes.")
        try:
            claims = self._claims(token)
            user_id = check_user_id(claims["sub"], "sub")
            return user_id, (int(claims["exp"]) + self._leeway_s) * 1000
        except KeysNotLoaded:
            raise Unavailable("The keys of the token issuer are not loaded yet.") from None
        except InvalidValue as invalid:
            raise _refused(f"The token's sub {invalid.rule}.") from None
        # PyJWT lets some odd claims (an exp beyond all bounds) through as errors of Python.
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise _refused(_why(error)) from None

    def _claims(self, token: bytes) -> dict[str, Any]:
        header = jwt.get_unverified_header(token)
        if header.get("alg") != self._algorithm:
            raise _refused("The token is signed by another algorithm.")
        key = self._keys.key_for(header.get("kid"))
        if key is None:
            raise _refused("The token is signed by a key that is not known.")
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[self._algorithm],
            audience=self._audience,
            issuer=self._issuer,
            leeway=self._leeway_s,
            options={"require": ["exp", "sub"]},
        )
        return claims


def _why(error: Exception) -> str:
    match error:
        case jwt.ExpiredSignatureError():
            return "The token has expired."
        case jwt.ImmatureSignatureError():
            return "The token is not valid yet."
        case jwt.MissingRequiredClaimError():
            return f"The token has no {error.claim}."
        case jwt.InvalidAudienceError():
            return "The token is meant for another audience."
        case jwt.InvalidIssuerError():
            return "The token is from another issuer."
        case _:
            return "The token cannot be verified."


def _refused(detail: str) -> Unauthenticated:
    description = detail.rstrip(".").encode("ascii", "replace").decode("ascii").replace('"', "'")
    return Unauthenticated(
        detail,
        f'{_BEARER_CHALLENGE}, error="invalid_token", error_description="{description}"',
    )
