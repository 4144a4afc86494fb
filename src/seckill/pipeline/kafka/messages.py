"""The messages of the order topic: JSON, one for each event of a bucket.

Their form is a promise to consumers outside: docs/reference/kafka-messages.md. ``schema`` is raised
by a change that an old reader would misunderstand; fields that are only added leave it alone, and
a reader passes over what it does not know.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, assert_never

import msgspec
from msgspec import Meta, Struct

from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.errors import InvalidValue
from seckill.domain.events import Admitted, BucketEvent, Released, StockChanged
from seckill.domain.ids import AttemptId, SaleId, check_id, check_user_id
from seckill.domain.reservation import Place
from seckill.domain.sale import INSTANT_MS_MAX, LIMIT_PER_USER_MAX, STOCK_UNITS_MAX, Sale
from seckill.pipeline.errors import Unreadable
from seckill.pipeline.outbox import EPOCH_MAX, SEQ_MAX

__all__ = ["SCHEMA", "TRACE_HEADER", "OrderMessage", "read_message", "write_messages"]

SCHEMA: Final = 1
TRACE_HEADER: Final = "traceparent"

_Quantity = Annotated[int, Meta(ge=1, le=LIMIT_PER_USER_MAX)]
_SaleId = Annotated[int, Meta(ge=1, le=2**32 - 1)]
_Bucket = Annotated[int, Meta(ge=0, le=2**16 - 1)]
_Epoch = Annotated[int, Meta(ge=1, le=EPOCH_MAX)]
_Seq = Annotated[int, Meta(ge=1, le=SEQ_MAX)]
_Instant = Annotated[int, Meta(ge=1, le=INSTANT_MS_MAX)]
_Delta = Annotated[int, Meta(ge=-STOCK_UNITS_MAX, le=STOCK_UNITS_MAX)]


class _Admission(Struct, rename="camel", frozen=True):
    """A buyer was admitted. The article's two fields come first: its consumer reads this one."""

    user_id: str
    goods_id: str
    quantity: _Quantity
    price_fen: int
    reservation_id: str
    attempt_id: str
    sale_id: _SaleId
    bucket: _Bucket
    epoch: _Epoch
    seq: _Seq
    at_ms: _Instant
    kind: Literal["admitted"] = "admitted"
    schema: Literal[1] = 1


class _ReleaseOf(Struct, rename="camel", frozen=True):
    """What was given back."""

    user_id: str
    goods_id: str
    quantity: _Quantity
    reservation_id: str
    epoch: _Epoch
    seq: _Seq


class _Release(Struct, rename="camel", frozen=True):
    """Units came back. No ``userId`` at the top: who knows only that must not see an order."""

    release: _ReleaseOf
    sale_id: _SaleId
    bucket: _Bucket
    epoch: _Epoch
    seq: _Seq
    at_ms: _Instant
    kind: Literal["released"] = "released"
    schema: Literal[1] = 1


class _ChangeOf(Struct, rename="camel", frozen=True):
    """What was changed."""

    goods_id: str
    change_id: str
    delta_units: _Delta


class _StockChange(Struct, rename="camel", frozen=True):
    """An operator changed the stock."""

    stock_change: _ChangeOf
    sale_id: _SaleId
    bucket: _Bucket
    epoch: _Epoch
    seq: _Seq
    at_ms: _Instant
    kind: Literal["stock_changed"] = "stock_changed"
    schema: Literal[1] = 1


class _Head(Struct, frozen=True):
    kind: str = ""
    schema: int = 0


_encode = msgspec.json.Encoder().encode
_read_head = msgspec.json.Decoder(_Head).decode
_read_admission = msgspec.json.Decoder(_Admission).decode
_Message = _Admission | _Release | _StockChange
_READERS: Final[Mapping[str, Callable[[bytes], _Message]]] = {
    "admitted": _read_admission,
    "released": msgspec.json.Decoder(_Release).decode,
    "stock_changed": msgspec.json.Decoder(_StockChange).decode,
}


@dataclass(frozen=True, slots=True)
class OrderMessage:
    """One message on its way to a topic."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


def write_messages(
    events: Sequence[BucketEvent],
    sales: Mapping[SaleId, Sale],
    ids: ReservationIds,
    traces: Mapping[int, str] | None = None,
) -> list[OrderMessage]:
    """The messages of some events, in order.

    The key is the goods id and the buyer, so that what happens to one buyer stays in order; a stock
    change has the goods id alone.

    Args:
        sales: the sales of the events, all of them.
        traces: traceparents by the seq of their events, for the headers.
    """
    places = [e.reservation if isinstance(e, Released) else e.place for e in events]
    messages = []
    for event, reservation_id in zip(events, ids.encode_many(places), strict=True):
        place = event.place
        sale = sales[place.sale_id]
        at = (place.sale_id, place.bucket, place.epoch, place.seq, event.at_ms)
        body: Struct
        match event:
            case Admitted():
                key = f"{sale.goods_id}:{event.user_id}"
                body = _Admission(event.user_id, sale.goods_id, event.quantity, sale.price_fen,
                                  reservation_id, event.attempt_id, *at)  # fmt: skip
            case Released():
                key = f"{sale.goods_id}:{event.user_id}"
                body = _Release(
                    _ReleaseOf(event.user_id, sale.goods_id, event.quantity, reservation_id,
                               event.reservation.epoch, event.reservation.seq), *at)  # fmt: skip
            case StockChanged():
                key = sale.goods_id
                body = _StockChange(
                    _ChangeOf(sale.goods_id, event.change_id, event.delta_units), *at
                )
            case _:
                assert_never(event)
        trace = traces.get(place.seq) if traces else None
        headers = ((TRACE_HEADER, trace.encode()),) if trace else ()
        messages.append(OrderMessage(key.encode(), _encode(body), headers))
    return messages


def read_message(value: bytes | None) -> BucketEvent:
    """The event of one message.

    Raises:
        Unreadable: it is none that this version can read; the text says why.
    """
    if not value:
        raise Unreadable("the message has no content")
    try:
        # Nearly all are admissions: one decoding for them, a second look at what is none.
        message = _read_admission(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _event(_read_other(value))
    return _event(message)


def _read_other(value: bytes) -> _Message:
    try:
        head = _read_head(value)
        if head.schema > SCHEMA:
            raise Unreadable(
                f"schema {head.schema} is newer than {SCHEMA}, the newest that this version knows:"
                " update, then replay it"
            )
        reader = _READERS.get(head.kind)
        if reader is None:
            raise Unreadable(f"unknown kind {head.kind[:32]!r}")
        return reader(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"not an order message: {error}") from error


def _event(message: _Message) -> BucketEvent:
    place = Place(SaleId(message.sale_id), message.epoch, message.bucket, message.seq)
    try:
        match message:
            case _Admission():
                return Admitted(
                    place,
                    check_user_id(message.user_id, "userId"),
                    message.quantity,
                    AttemptId(check_id("attemptId", message.attempt_id)),
                    message.at_ms,
                )
            case _Release(release=release):
                return Released(
                    place,
                    Place(place.sale_id, release.epoch, place.bucket, release.seq),
                    check_user_id(release.user_id, "userId"),
                    release.quantity,
                    message.at_ms,
                )
            case _StockChange(stock_change=change):
                if change.delta_units == 0:
                    raise Unreadable("deltaUnits must not be 0")
                return StockChanged(
                    place,
                    check_id("changeId", change.change_id),
                    change.delta_units,
                    message.at_ms,
                )
            case _:
                assert_never(message)
    except InvalidValue as error:
        raise Unreadable(str(error)) from error
