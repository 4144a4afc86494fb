"""Which of our two languages a buyer wants to read."""

from enum import StrEnum
from typing import Final

__all__ = ["Language", "Languages"]

_HEADER_BYTES_MAX: Final = 256
_RANGES_MAX: Final = 16


class Language(StrEnum):
    """A language that messages are written in."""

    ZH = "zh-CN"
    EN = "en"


class Languages:
    """Reads ``Accept-Language``, remembering what it has read.

    Browsers send a handful of different values, so almost every request is one dictionary look-up.
    The memory is bounded: when it is full it is emptied, which a client can provoke and which
    costs no more than reading each value anew.
    """

    def __init__(self, entries_max: int = 1024) -> None:
        self._entries_max = entries_max
        self._known: dict[bytes, Language] = {}

    def choose(self, header: bytes | None) -> Language:
        """The language for one header value. Chinese unless English is wanted more."""
        if header is None:
            return Language.ZH
        known = self._known.get(header)
        if known is None:
            known = _choose(header)
            if len(header) <= _HEADER_BYTES_MAX:
                if len(self._known) >= self._entries_max:
                    self._known.clear()
                self._known[header] = known
        return known


def _choose(header: bytes) -> Language:
    """Source: RFC 9110, 12.5.4, with the basic filtering of RFC 4647."""
    best: dict[str, float] = {}
    text = header[:_HEADER_BYTES_MAX].decode("latin-1").lower()
    for part in text.split(",", _RANGES_MAX)[:_RANGES_MAX]:
        language_range, *parameters = (piece.strip() for piece in part.split(";"))
        quality = _quality(parameters)
        primary = language_range.partition("-")[0]
        if quality is not None and primary in {"zh", "en", "*"}:
            best[primary] = max(best.get(primary, 0.0), quality)
    rest = best.get("*", 0.0)
    zh, en = best.get("zh", rest), best.get("en", rest)
    # A tie is decided by which was named first, and Chinese where neither was.
    if zh == en:
        named = [primary for primary in best if primary != "*"]
        return Language.EN if zh > 0 and named[:1] == ["en"] else Language.ZH
    return Language.EN if en > zh else Language.ZH


def _quality(parameters: list[str]) -> float | None:
    """The weight of a range, 1 when none is given, None when it cannot be read."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() != "q":
            continue
        value = value.strip()
        if not value.replace(".", "", 1).isdecimal() or not value.isascii():
            return None
        quality = float(value)
        return quality if quality <= 1 else None
    return 1.0
