"""Attempt ids: what names one POST of one buyer."""

import base64
import hashlib
import os
import re
from collections.abc import Callable
from typing import Final

from seckill.domain.ids import AttemptId
from seckill.web.problems import Malformed

__all__ = ["KEY_FIELD", "AttemptIds"]

KEY_FIELD: Final = "Idempotency-Key"

_ID_BYTES: Final = 12
_ID_CHARS: Final = 16
_IDS_PER_REFILL: Final = 256
_KEY: Final = re.compile(rb"[!-~]{1,255}")


class AttemptIds:
    """Makes 16 base64url characters (96 bits) for each POST.

    With an idempotency key they are a digest of it, so that the same key names the same attempt in
    every process; without one they are fresh random bits. The random bits come from the operating
    system in blocks; a process that is forked off throws the block away that it inherits.
    """

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._random_bytes = random_bytes
        self._stock: list[AttemptId] = []
        os.register_at_fork(after_in_child=self._stock.clear)

    def of_key(self, key: bytes) -> AttemptId:
        """The attempt that an ``Idempotency-Key`` names.

        Raises:
            Malformed: the key is not 1 to 255 visible ASCII characters.
        """
        if not _KEY.fullmatch(key):
            raise Malformed(KEY_FIELD, "must be 1 to 255 visible ASCII characters without spaces")
        digest = hashlib.blake2b(key, digest_size=_ID_BYTES).digest()
        return AttemptId(base64.urlsafe_b64encode(digest).decode("ascii"))

    def fresh(self) -> AttemptId:
        """An attempt that nobody has named."""
        if not self._stock:
            text = base64.urlsafe_b64encode(self._random_bytes(_ID_BYTES * _IDS_PER_REFILL)).decode(
                "ascii"
            )
            self._stock += [
                AttemptId(text[at : at + _ID_CHARS]) for at in range(0, len(text), _ID_CHARS)
            ]
        return self._stock.pop()
