"""Lines of the metric log, to the byte."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from seckill.sentinel.transport.counts import MetricRow
from seckill.sentinel.transport.metric_line import (
    MetricLine,
    fat,
    in_line,
    line_of,
    read_fat,
    read_thin,
    thin,
)

SHANGHAI = timezone(timedelta(hours=8))
LINE = MetricLine(1_533_818_400_000, "/seckill", 3, 1, 3, 0, 12, 0, 0, 1)


def test_the_reference_lines() -> None:
    # The two lines of the original's own classes.
    assert fat(LINE, SHANGHAI) == "1533818400000|2018-08-09 20:40:00|/seckill|3|1|3|0|12|0|0|1"
    assert thin(LINE) == "1533818400000|/seckill|3|1|3|0|12|0|0|1"


@pytest.mark.parametrize("fields", [8, 9, 10, 11, 12, 15])
def test_fat_lines_of_every_version_are_read(fields: int) -> None:
    text = "1533818400000|2018-08-09 20:40:00|/seckill|3|1|3|0|12|5|6|1|8|9|10|11"
    line = read_fat("|".join(text.split("|")[:fields]))
    wanted = [1_533_818_400_000, "/seckill", 3, 1, 3, 0, 12, 5, 6, 1][: min(fields, 11) - 1]
    assert line == MetricLine(*wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [7, 8, 9, 10, 11])
def test_thin_lines_of_every_version_are_read(fields: int) -> None:
    text = "1533818400000|/seckill|3|1|3|0|12|5|6|1|8"
    line = read_thin("|".join(text.split("|")[:fields]))
    wanted = [1_533_818_400_000, "/seckill", 3, 1, 3, 0, 12, 5, 6, 1][: min(fields, 10)]
    assert line == MetricLine(*wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "|", "1|2|3", "a|b|c|1|1|1|1|1", "1|t|r|1|x|1|1|1", "1|t|r|1||1|1|1", "\x00" * 50]
)
def test_what_is_no_line_is_none(text: str) -> None:
    assert read_fat(text) is None
    assert read_thin(text[:10]) is None


def test_names_cannot_break_a_line() -> None:
    assert in_line("a|b\nc\r\u2028d\x00") == "a_b_c__d_"
    assert in_line("GET:/商品/{id} x+y%41") == "GET:/商品/{id} x+y%41"


def test_rt_is_the_whole_milliseconds_per_finished_unit() -> None:
    row = MetricRow(1_000, "r", 3, 1, 4, 1, 11, 2, 0, 1)
    assert line_of(row) == MetricLine(1_000, "r", 3, 1, 4, 1, 2, 2, 0, 1)
    assert line_of(row._replace(success=0)).rt_ms == 11


counters = st.integers(0, 2**62)


@given(
    st.builds(
        MetricLine,
        st.integers(0, 4_000_000_000).map(lambda second: second * 1_000),
        st.text().map(in_line),
        *[counters] * 8,
    )
)
def test_every_line_comes_back_as_it_was(line: MetricLine) -> None:
    assert read_fat(fat(line)) == line
    assert read_thin(thin(line)) == line
