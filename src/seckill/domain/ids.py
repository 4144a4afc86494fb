"""The identifiers of the system and the one rule for those that come from outside.

User ids, goods ids and idempotency keys are opaque text. They are compared byte for byte and are
never normalised: the composed and the decomposed form of ``é`` are two users on purpose, because
whoever issued the ids tells them apart too.
"""

import re
import unicodedata
from typing import Final, NewType

from seckill.domain.errors import InvalidValue

__all__ = [
    "ID_BYTES_MAX",
    "ID_CHARS_MAX",
    "AttemptId",
    "GoodsId",
    "ReservationId",
    "SaleId",
    "UserId",
    "check_goods_id",
    "check_id",
    "check_user_id",
]

SaleId = NewType("SaleId", int)
"""One sale of one goods id. Counted by the ledger, from 1."""

GoodsId = NewType("GoodsId", str)
"""The thing sold, named by the shop."""

UserId = NewType("UserId", str)
"""The buyer, named by whoever authenticated them."""

AttemptId = NewType("AttemptId", str)
"""One POST of one buyer. The same attempt sent twice gets the same answer."""

ReservationId = NewType("ReservationId", str)
"""The admitted right to one order, as shown outside: opaque, neither countable nor guessable."""

ID_CHARS_MAX: Final = 64
ID_BYTES_MAX: Final = 192

_PLAIN = re.compile(r"[!-~]{1,64}")
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"})
_GOODS_ID_REFUSED: Final = frozenset("/\\%?#")


def check_id(field: str, text: str) -> str:
    """Return ``text`` when it may serve as an identifier.

    Allowed are 1 to 64 characters and at most 192 bytes of UTF-8 of any letters, digits, marks,
    punctuation and symbols. Refused are white space, control and format characters, surrogates
    and private-use characters: one store takes them and the next does not, and nobody can read
    them in a log.

    Raises:
        InvalidValue: naming ``field`` and the rule that is broken.
    """
    if _PLAIN.fullmatch(text):
        return text
    if not text:
        raise InvalidValue(field, "must not be empty")
    if len(text) > ID_CHARS_MAX:
        raise InvalidValue(field, f"must have at most {ID_CHARS_MAX} characters")
    for character in text:
        if unicodedata.category(character) in _REFUSED_CATEGORIES:
            raise InvalidValue(
                field,
                "must not contain white space, control, format, surrogate or private-use"
                f" characters (found U+{ord(character):04X})",
            )
    if len(text.encode()) > ID_BYTES_MAX:
        raise InvalidValue(field, f"must have at most {ID_BYTES_MAX} bytes of UTF-8")
    return text


def check_user_id(text: str, field: str = "user_id") -> UserId:
    """Return ``text`` as a user id. Raises InvalidValue as `check_id` does."""
    return UserId(check_id(field, text))


def check_goods_id(text: str, field: str = "goods_id") -> GoodsId:
    r"""Return ``text`` as a goods id: `check_id`, and none of ``/ \ % ? #``, since it is a path.

    Raises:
        InvalidValue: naming ``field`` and the rule that is broken.
    """
    check_id(field, text)
    if not _GOODS_ID_REFUSED.isdisjoint(text) or text in {".", ".."}:
        raise InvalidValue(field, r"must not contain any of / \ % ? # nor be a dot segment")
    return GoodsId(text)
