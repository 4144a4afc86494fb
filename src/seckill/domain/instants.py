"""Instants as people and programs write them; inside they are UTC epoch milliseconds."""

from datetime import UTC, datetime, timedelta
from typing import Final

from seckill.domain.errors import InvalidValue

__all__ = ["parse_rfc3339_ms", "rfc3339_ms"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def rfc3339_ms(epoch_ms: int) -> str:
    """UTC epoch milliseconds as RFC 3339 with exactly three digits of a second and ``Z``.

    Integer arithmetic all the way: a float would move some milliseconds by one.
    """
    instant = _EPOCH + timedelta(milliseconds=epoch_ms)
    return instant.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def parse_rfc3339_ms(field: str, text: str) -> int:
    """Read an RFC 3339 instant as UTC epoch milliseconds.

    Raises:
        InvalidValue: naming ``field``; also for an instant that does not say its offset.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(field, "must be RFC 3339, like 2026-12-24T20:00:00+08:00") from None
    if instant.tzinfo is None:
        raise InvalidValue(field, "must say its offset from UTC, like Z or +08:00")
    return (instant - _EPOCH) // _MILLISECOND
