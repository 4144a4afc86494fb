"""Instants as people and programs write them; inside they are UTC epoch milliseconds."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from seckill.domain.errors import InvalidValue

__all__ = ["parse_instant_ms", "parse_rfc3339_ms", "rfc3339_ms"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_WITH_ZONE: Final = re.compile(r"(?P<local>[^\[\]]+)\[(?P<zone>[A-Za-z0-9_+/-]{1,64})\]")


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


def parse_instant_ms(field: str, text: str) -> int:
    """Read an instant as an operator writes it, as UTC epoch milliseconds.

    Either RFC 3339 with an offset, or a local time with the name of its zone behind it, as RFC 9557
    writes that: ``2027-03-28T10:00:00[Europe/London]``. Never the zone of the server.

    Raises:
        InvalidValue: naming ``field``: it names no zone, or an hour that the zone's clocks skip, or
            one that they show twice and no offset says which.
    """
    match = _WITH_ZONE.fullmatch(text)
    if match is None:
        return parse_rfc3339_ms(field, text)
    try:
        zone = ZoneInfo(match["zone"])
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidValue(field, f"names the zone {match['zone']}, which is not known") from None
    try:
        local = datetime.fromisoformat(match["local"])
    except ValueError:
        rule = "must be like 2027-03-28T10:00:00[Europe/London]"
        raise InvalidValue(field, rule) from None
    if local.tzinfo is not None:
        if local.utcoffset() != local.astimezone(zone).utcoffset():
            raise InvalidValue(field, f"has an offset that {match['zone']} does not have then")
        return parse_rfc3339_ms(field, match["local"])
    first, second = local.replace(tzinfo=zone), local.replace(tzinfo=zone, fold=1)
    if first.utcoffset() == second.utcoffset():
        return (first - _EPOCH) // _MILLISECOND
    # The clocks are moved about then. Where they go forward, what they skip does not come back.
    if first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != local:
        raise InvalidValue(
            field, f"does not exist in {match['zone']}: the clocks go forward over it"
        )
    either = " or ".join(instant.isoformat() for instant in (first, second))
    raise InvalidValue(field, f"exists twice in {match['zone']}: write {either}")
