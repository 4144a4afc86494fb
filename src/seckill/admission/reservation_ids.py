"""Reservation ids as the outside sees them: a place, enciphered.

The place (sale, epoch, bucket, seq) is packed into one block of 16 bytes and enciphered with
AES-128 under a key of the installation. That is a bijection: two places never share an id, no
random source and no clock is involved, and an id can be turned back into its place without asking
a store. Without the key ids can be neither counted nor guessed: a made-up id deciphers to an
implausible place (the block carries 24 bits that must be zero, and the seq and epoch must exist).
"""

import re
import struct
from collections.abc import Sequence
from threading import Lock
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from seckill.domain.ids import ReservationId, SaleId
from seckill.domain.reservation import BucketId, Place

__all__ = ["KEY_BYTES", "ReservationIds"]

KEY_BYTES: Final = 16
_BLOCK: Final = struct.Struct(">IHHQ")  # sale, bucket, epoch, seq; 16 bytes
_ID_CHARS: Final = 32
_ID: Final = re.compile(r"[0-9a-f]{32}")
_SEQ_MAX: Final = 2**40 - 1


class ReservationIds:
    """Turns places into reservation ids and back, under one key. Safe to use from any thread.

    ECB is right here and nowhere else: each block is unique by construction, so equal blocks,
    the weakness of that mode, cannot occur.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"the reservation id key must have {KEY_BYTES} bytes")
        cipher = Cipher(AES(key), ECB())  # noqa: S305  -- see the class docstring
        self._encryptor = cipher.encryptor()
        self._decryptor = cipher.decryptor()
        self._lock = Lock()  # neither of the two may be used by two threads at once

    def encode(self, place: Place) -> ReservationId:
        """The id of one place."""
        return self.encode_many([place])[0]

    def encode_many(self, places: Sequence[Place]) -> list[ReservationId]:
        """The ids of many places, in order; one call into the cipher for all of them."""
        return self._encipher(
            [_BLOCK.pack(place.sale_id, place.bucket, place.epoch, place.seq) for place in places]
        )

    def encode_in_bucket(
        self, bucket_id: BucketId, epochs_and_seqs: Sequence[tuple[int, int]]
    ) -> list[ReservationId]:
        """The same for places of one bucket, each given as epoch and seq: for the hot path."""
        sale_id, bucket = bucket_id.sale_id, bucket_id.bucket
        pack = _BLOCK.pack
        return self._encipher([pack(sale_id, bucket, epoch, seq) for epoch, seq in epochs_and_seqs])

    def _encipher(self, plain_blocks: list[bytes]) -> list[ReservationId]:
        plain = b"".join(plain_blocks)
        with self._lock:
            blocks = self._encryptor.update(plain)
        digits = blocks.hex()
        return [
            ReservationId(digits[at : at + _ID_CHARS]) for at in range(0, len(digits), _ID_CHARS)
        ]

    def decode(self, text: str) -> Place | None:
        """The place behind an id, or None when this installation never made such an id."""
        if not _ID.fullmatch(text):
            return None
        with self._lock:
            block = self._decryptor.update(bytes.fromhex(text))
        sale_id, bucket, epoch, seq = _BLOCK.unpack(block)
        if not (sale_id and epoch and 0 < seq <= _SEQ_MAX):
            return None
        return Place(SaleId(sale_id), epoch, bucket, seq)
