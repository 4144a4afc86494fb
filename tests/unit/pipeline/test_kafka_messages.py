"""The messages of the order topic: what is written is read, and what is none is refused in words."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.errors import InvalidValue
from seckill.domain.events import Admitted, BucketEvent, Released, StockChanged
from seckill.domain.ids import AttemptId, SaleId, UserId, check_id
from seckill.domain.reservation import Place
from seckill.pipeline.errors import Unreadable
from seckill.pipeline.kafka.messages import OrderMessage, read_message, write_messages
from services.stage import ID_KEY, make_sale

SALE = make_sale()
IDS = ReservationIds(ID_KEY)
ANN = Admitted(Place(SALE.sale_id, 1, 0, 17), UserId("ann"), 2, AttemptId("try"), 1_800_000_000_000)


def write(event: BucketEvent) -> OrderMessage:
    (message,) = write_messages([event], {SALE.sale_id: SALE}, IDS)
    return message


def written(event: BucketEvent) -> dict[str, Any]:
    value = write(event).value
    assert value is not None
    found: dict[str, Any] = json.loads(value)
    return found


def _is_id(text: str) -> bool:
    try:
        check_id("id", text)
    except InvalidValue:
        return False
    return True


ids = st.text(min_size=1, max_size=64).filter(_is_id)
places = st.builds(
    Place, st.just(SaleId(1)), st.integers(1, 2**16 - 1), st.integers(0, 2**16 - 1),
    st.integers(1, 2**40 - 1),
)  # fmt: skip
instants = st.integers(1, 253_402_300_799_999)
events = st.one_of(
    st.builds(Admitted, places, ids.map(UserId), st.integers(1, 100), ids.map(AttemptId), instants),
    st.builds(
        lambda place, epoch, seq, user, units, at: Released(
            place, Place(place.sale_id, epoch, place.bucket, seq), user, units, at
        ),
        places, st.integers(1, 2**16 - 1), st.integers(1, 2**40 - 1), ids.map(UserId),
        st.integers(1, 100), instants,
    ),
    st.builds(StockChanged, places, ids, st.integers(-(10**8), 10**8).filter(bool), instants),
)  # fmt: skip


@given(events)
def test_what_is_written_is_read(event: BucketEvent) -> None:
    assert read_message(write(event).value) == event


def test_a_purchase_has_the_articles_two_fields_first_and_ours_beside_them() -> None:
    message = written(ANN)
    assert list(message)[:2] == ["userId", "goodsId"]
    assert message == {
        "userId": "ann", "goodsId": "1", "quantity": 2, "priceFen": 100,
        "reservationId": IDS.encode(ANN.place), "attemptId": "try", "saleId": 1, "bucket": 0,
        "epoch": 1, "seq": 17, "atMs": 1_800_000_000_000, "kind": "admitted", "schema": 1,
    }  # fmt: skip


def test_a_trace_stands_in_the_headers_and_changes_nothing_else() -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    (traced,) = write_messages([ANN], {SALE.sale_id: SALE}, IDS, {17: trace, 18: "another"})
    assert traced.headers == (("traceparent", trace.encode()),)
    assert (traced.key, traced.value) == (write(ANN).key, write(ANN).value)
    assert write(ANN).headers == ()


def test_a_release_is_no_purchase_to_who_knows_only_the_articles_fields() -> None:
    released = Released(Place(SALE.sale_id, 2, 0, 3), ANN.place, UserId("ann"), 2, 5)
    message = written(released)
    assert not {"userId", "goodsId"} & message.keys()
    assert message["release"]["reservationId"] == IDS.encode(ANN.place)
    assert not {"userId", "goodsId"} & written(
        StockChanged(Place(SALE.sale_id, 1, 0, 1), "more", 5, 5)
    ).keys()  # fmt: skip


def test_all_that_happens_to_one_buyer_has_one_key() -> None:
    released = Released(Place(SALE.sale_id, 2, 0, 3), ANN.place, UserId("ann"), 2, 5)
    assert write(ANN).key == write(released).key == b"1:ann"
    assert write(StockChanged(ANN.place, "more", 5, 5)).key == b"1"


def test_a_field_that_a_later_version_adds_is_passed_over() -> None:
    message = written(ANN) | {"colour": "red", "nested": {"a": [1]}}
    assert read_message(json.dumps(message).encode()) == ANN


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": 2}, "schema 2 is newer than 1, the newest that this version knows"),
        ({"schema": 2, "kind": "gifted"}, "schema 2 is newer than 1"),
        ({"schema": 0}, "not an order message"),
        ({"kind": "gifted"}, "unknown kind 'gifted'"),
        ({"quantity": "1"}, "quantity"),
        ({"quantity": 0}, "quantity"),
        ({"quantity": -1}, "quantity"),
        ({"quantity": 101}, "quantity"),
        ({"quantity": 1.5}, "quantity"),
        ({"quantity": True}, "quantity"),
        ({"quantity": None}, "quantity"),
        ({"userId": ""}, "userId: must not be empty"),
        ({"userId": "a\u0000b"}, "userId: must not contain"),
        ({"userId": "x" * 65}, "userId: must have at most 64 characters"),
        ({"userId": 7}, "userId"),
        ({"attemptId": " "}, "attemptId: must not contain white space"),
        ({"seq": 0}, "seq"),
        ({"seq": 2**40}, "seq"),
        ({"epoch": 0}, "epoch"),
        ({"bucket": -1}, "bucket"),
        ({"saleId": 0}, "saleId"),
        ({"atMs": 0}, "atMs"),
        ({"atMs": 1e309}, "not an order message"),
    ],
)
def test_a_message_that_breaks_a_rule_is_refused_with_it(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(Unreadable) as refused:
        read_message(json.dumps(written(ANN) | changes).encode())
    assert said in str(refused.value)


@pytest.mark.parametrize("missing", ["userId", "quantity", "seq", "epoch", "saleId", "atMs"])
def test_a_message_without_a_field_is_refused_with_its_name(missing: str) -> None:
    message = written(ANN)
    del message[missing]
    with pytest.raises(Unreadable, match=missing):
        read_message(json.dumps(message).encode())


@pytest.mark.parametrize(
    "value",
    [None, b"", b"{}", b"[]", b"null", b"1", b"\xff\x00garbage", b"{" * 100_000, b'{"userId":"ann"',
     b'{"kind":"admitted"}', b'{"kind":7}', b'{"userId":"\\ud800"}', b"x" * 2_000_000],
)  # fmt: skip
def test_what_is_no_message_is_refused(value: bytes | None) -> None:
    with pytest.raises(Unreadable):
        read_message(value)


def test_a_stock_change_of_nothing_is_refused() -> None:
    message = written(StockChanged(ANN.place, "more", 5, 5))
    message["stockChange"]["deltaUnits"] = 0
    with pytest.raises(Unreadable, match="deltaUnits must not be 0"):
        read_message(json.dumps(message).encode())
