"""An outbox entry and its way back to events: exact for what a script writes, Unreadable for the rest."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from seckill.domain.events import Admitted, Released, StockChanged
from seckill.domain.ids import AttemptId, UserId
from seckill.domain.reservation import Place
from seckill.pipeline.errors import Unreadable
from seckill.pipeline.outbox import FIELD, TRACES_FIELD, read_entry, read_traces
from services.stage import BUCKET

pack = msgspec.msgpack.encode
plain = st.text(
    st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1, max_size=64
)
seqs = st.integers(1, 2**40 - 1)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)
nearly = st.tuples(
    st.sampled_from(["a", "r", "s", "x"]),
    st.integers(-1, 70_000),
    st.integers(-1, 2**50),
    st.lists(st.integers(-5, 2**41) | st.text(max_size=70) | anything, max_size=10),
)


@given(st.binary(max_size=200) | anything.map(pack) | nearly.map(pack))
def test_no_bytes_raise_anything_but_unreadable(raw: bytes) -> None:
    try:
        events = read_entry(BUCKET, {FIELD: raw})
    except Unreadable as error:
        assert str(error)  # noqa: PT017  -- either way out is right
    else:
        assert events


@given(st.dictionaries(st.binary(max_size=3), st.binary(max_size=10), max_size=3))
def test_no_fields_raise_anything_but_unreadable(fields: dict[bytes, bytes]) -> None:
    fields.pop(FIELD, None)
    with pytest.raises(Unreadable, match="no field 'e'"):
        read_entry(BUCKET, fields)


@given(
    st.integers(1, 65_535),
    st.integers(1, 253_402_300_799_999),
    st.lists(st.tuples(seqs, plain, st.integers(1, 100), plain), min_size=1, max_size=8),
)
def test_admissions_come_back_as_they_were(
    epoch: int, at_ms: int, rows: list[tuple[int, str, int, str]]
) -> None:
    raw = pack(["a", epoch, at_ms, [value for row in rows for value in row]])
    assert read_entry(BUCKET, {FIELD: raw}) == tuple(
        Admitted(Place(BUCKET.sale_id, epoch, 0, s), UserId(u), q, AttemptId(a), at_ms)
        for s, u, q, a in rows
    )


@given(
    st.lists(
        st.tuples(seqs, plain, st.integers(1, 100), st.integers(1, 65_535), seqs),
        min_size=1,
        max_size=8,
    )
)
def test_releases_come_back_as_they_were(rows: list[tuple[int, str, int, int, int]]) -> None:
    raw = pack(["r", 3, 5, [value for row in rows for value in row]])
    assert read_entry(BUCKET, {FIELD: raw}) == tuple(
        Released(Place(BUCKET.sale_id, 3, 0, s), Place(BUCKET.sale_id, e, 0, r), UserId(u), q, 5)
        for s, u, q, e, r in rows
    )


@given(seqs, plain, st.integers(-100_000_000, 100_000_000).filter(bool))
def test_stock_changes_come_back_as_they_were(seq: int, change_id: str, delta: int) -> None:
    raw = pack(["s", 3, 5, [seq, change_id, delta]])
    assert read_entry(BUCKET, {FIELD: raw}) == (
        StockChanged(Place(BUCKET.sale_id, 3, 0, seq), change_id, delta, 5),
    )


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (["a", 1, 1, [1, "u", 1, 7]], "attempt_id must be text"),
        (["a", 1, 1, [1, 7, 1, "t"]], "user_id must be text"),
        (["s", 1, 1, [1, 7, 1]], "change_id must be text"),
        (["s", 1, 1, [1, "c", 0]], "difference must not be 0"),
        (["a", 1, 1, [1, "u", 101, "t"]], "quantity must be an integer from 1 to 100"),
        (["r", 1, 1, [1, "u", 1, 0, 1]], "reservation epoch must be"),
        (["q", 1, 1, [1]], "unknown kind 'q'"),
        (["a", 1, 1, [1, "u", 1]], "has 4 values for each event, found 3"),
    ],
)
def test_the_reason_names_the_rule_that_is_broken(value: Any, rule: str) -> None:
    with pytest.raises(Unreadable, match=rule):
        read_entry(BUCKET, {FIELD: pack(value)})


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_traces_of_an_entry_come_back_by_the_seq_of_their_events() -> None:
    assert read_traces({FIELD: b"?"}) is None
    assert read_traces({TRACES_FIELD: pack([7, TRACE, 9, TRACE])}) == {7: TRACE, 9: TRACE}


@given(st.binary(max_size=100) | anything.map(pack))
def test_a_trace_that_nobody_can_read_is_no_trouble(raw: bytes) -> None:
    assert not read_traces({TRACES_FIELD: raw})
