"""What a person sees: how honest the report is about itself, and the bars."""

import io

import pytest
from rich.console import Console

from seckill.stress import (
    Connect,
    Percentiles,
    RichProgress,
    Snapshot,
    Stage,
    StressPlan,
    __all__ as public,
)
from seckill.stress.run import _limited


@pytest.mark.parametrize(
    ("lag_us", "latency_us", "connect", "limited"),
    [
        (4_000, 4_100, Connect.BEFORE, "no"),  # too little to matter
        (6_000, 100_000, Connect.BEFORE, "no"),
        (30_000, 100_000, Connect.BEFORE, "partly"),
        (60_000, 100_000, Connect.BEFORE, "yes"),
        (60_000, 0, Connect.BEFORE, "yes"),
        (60_000, 100_000, Connect.RUSH, "no"),  # that lag is the server's handshake
    ],
)
def test_the_generator_says_when_it_was_the_bottleneck(
    lag_us: int, latency_us: int, connect: Connect, limited: str
) -> None:
    plan = StressPlan(stock=1, connect=connect)
    assert _limited(plan, Percentiles(p99_us=latency_us), Percentiles(p99_us=lag_us)) == limited


def test_a_bar_per_stage_is_drawn_where_it_is_told_to() -> None:
    out = io.StringIO()
    with RichProgress(Console(file=out, force_terminal=True, width=120)) as bars:
        bars.report(Snapshot(stage=Stage.CONNECTING, done=5, total=10))
        bars.report(
            Snapshot(stage=Stage.RUSH, done=30, total=30, sent=30, won=1, refused=28, failures=1)
        )
    shown = out.getvalue()
    assert "connecting" in shown
    assert "won 1  refused 28  failed 1" in shown
    assert "30/30" in shown


def test_every_public_name_exists_and_the_list_is_sorted() -> None:
    import seckill.stress  # noqa: PLC0415

    assert public == sorted(public)
    assert all(hasattr(seckill.stress, name) for name in public)
