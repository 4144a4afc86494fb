from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from seckill.domain.instants import rfc3339_ms
from seckill.domain.sale import INSTANT_MS_MAX


@given(st.integers(0, INSTANT_MS_MAX))
def test_every_millisecond_is_written_exactly(instant_ms: int) -> None:
    text = rfc3339_ms(instant_ms)
    assert len(text) == len("2026-12-01T12:00:00.000Z")
    assert text.endswith("Z")
    read = datetime.fromisoformat(text)
    assert (read - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) == instant_ms


def test_the_edges() -> None:
    assert rfc3339_ms(0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339_ms(INSTANT_MS_MAX) == "9999-12-31T23:59:59.999Z"
