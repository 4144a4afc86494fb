"""The form of an outbox entry, as the scripts write it, and its way back to events.

An entry has a field ``e``: a msgpack array of kind, epoch, instant in ms and a flat list. Where
buyers of the batch belong to traces it has ``t`` too: a flat list of seq and traceparent of each.

=====  ==============================  =====================================================
kind   written by                      the flat list
=====  ==============================  =====================================================
``a``  admit.lua, one a batch          seq, user id, quantity, attempt id; for each admission
``r``  release.lua, one a batch        seq, user id, units, epoch and seq of the reservation
``s``  change_stock.lua                seq, change id, signed difference
=====  ==============================  =====================================================
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from seckill.domain.errors import InvalidValue
from seckill.domain.events import Admitted, BucketEvent, Released, StockChanged
from seckill.domain.ids import AttemptId, check_id, check_user_id
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import INSTANT_MS_MAX, LIMIT_PER_USER_MAX, STOCK_UNITS_MAX
from seckill.pipeline.errors import Unreadable

__all__ = ["EPOCH_MAX", "FIELD", "SEQ_MAX", "TRACES_FIELD", "read_entry", "read_traces"]

FIELD: Final = b"e"
TRACES_FIELD: Final = b"t"
EPOCH_MAX: Final = 2**16 - 1
SEQ_MAX: Final = 2**40 - 1
_WIDTHS: Final = {"a": 4, "r": 5, "s": 3}
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_decode_traces = msgspec.msgpack.Decoder(list[int | str]).decode
_decode = msgspec.msgpack.Decoder(tuple[str, int, int, list[int | str]]).decode


def _integer(name: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise Unreadable(f"{name} must be an integer from {least} to {most}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Unreadable(f"{name} must be text")
    return value


def _event(
    kind: str, bucket_id: BucketId, epoch: int, at_ms: int, row: Sequence[Any]
) -> BucketEvent:
    seq = _integer("seq", row[0], 1, SEQ_MAX)
    place = Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)
    match kind:
        case "a":
            quantity = _integer("quantity", row[2], 1, LIMIT_PER_USER_MAX)
            attempt_id = AttemptId(check_id("attempt_id", _text("attempt_id", row[3])))
            user_id = check_user_id(_text("user_id", row[1]))
            return Admitted(place, user_id, quantity, attempt_id, at_ms)
        case "r":
            reservation = Place(
                bucket_id.sale_id,
                _integer("reservation epoch", row[3], 1, EPOCH_MAX),
                bucket_id.bucket,
                _integer("reservation seq", row[4], 1, SEQ_MAX),
            )
            units = _integer("units", row[2], 1, LIMIT_PER_USER_MAX)
            user_id = check_user_id(_text("user_id", row[1]))
            return Released(place, reservation, user_id, units, at_ms)
        case _:
            delta = _integer("difference", row[2], -STOCK_UNITS_MAX, STOCK_UNITS_MAX)
            if delta == 0:
                raise Unreadable("difference must not be 0")
            change_id = check_id("change_id", _text("change_id", row[1]))
            return StockChanged(place, change_id, delta, at_ms)


def read_entry(bucket_id: BucketId, fields: Mapping[bytes, bytes]) -> tuple[BucketEvent, ...]:
    """The events of one outbox entry, at least one.

    Raises:
        Unreadable: it is not what a script writes; the text says which rule it breaks.
    """
    try:
        kind, epoch, at_ms, flat = _decode(fields[FIELD])
    except KeyError:
        raise Unreadable("the entry has no field 'e'") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreadable(
            f"not a msgpack array of kind, epoch, instant and list: {error}"
        ) from error
    width = _WIDTHS.get(kind)
    if width is None:
        raise Unreadable(f"unknown kind {kind[:16]!r}")
    if not flat or len(flat) % width:
        raise Unreadable(f"kind {kind!r} has {width} values for each event, found {len(flat)}")
    _integer("epoch", epoch, 1, EPOCH_MAX)
    _integer("instant", at_ms, 1, INSTANT_MS_MAX)
    try:
        return tuple(
            _event(kind, bucket_id, epoch, at_ms, flat[at : at + width])
            for at in range(0, len(flat), width)
        )
    except InvalidValue as error:
        raise Unreadable(str(error)) from error


def read_traces(fields: Mapping[bytes, bytes]) -> Mapping[int, str] | None:
    """The traces that events of an entry belong to, by their seq; None where it names none.

    A trace is no part of an order: one that cannot be read is left out.
    """
    raw = fields.get(TRACES_FIELD)
    if raw is None:
        return None
    try:
        flat = _decode_traces(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return {
        seq: trace
        for seq, trace in zip(flat[::2], flat[1::2], strict=False)
        if isinstance(seq, int) and isinstance(trace, str) and _TRACEPARENT.fullmatch(trace)
    }
