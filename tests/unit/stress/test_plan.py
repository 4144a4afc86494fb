"""What a plan fixes, and what it refuses."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from seckill.domain.errors import InvalidValue
from seckill.stress import Arrival, StressPlan, parse_quantity_weights
from seckill.stress.plan import build_schedule


@st.composite
def plans(draw: st.DrawFn) -> StressPlan:
    arrival = draw(st.sampled_from(Arrival))
    return StressPlan(
        stock=draw(st.integers(0, 100)),
        buyers=draw(st.integers(1, 40)),
        clicks=draw(st.integers(1, 5)),
        quantity_weights=tuple(
            draw(
                st.dictionaries(st.integers(1, 9), st.integers(1, 5), min_size=1, max_size=3)
            ).items()
        ),
        arrival=arrival,
        over_s=0 if arrival is Arrival.AT_ONCE else draw(st.floats(0.01, 50)),
        click_gap_ms=draw(st.sampled_from([0, 1, 50])),
        seed=draw(st.integers(0, 2**32)),
    )


@given(plans())
def test_the_same_seed_gives_the_same_clicks(plan: StressPlan) -> None:
    assert build_schedule(plan) == build_schedule(plan)


@given(plans())
def test_every_buyer_has_their_clicks_in_order_and_within_the_span(plan: StressPlan) -> None:
    schedule = build_schedule(plan)
    offsets = [click.offset_us for click in schedule]
    assert offsets == sorted(offsets)
    by_buyer: dict[int, list] = {}
    for click in schedule:
        by_buyer.setdefault(click.buyer, []).append(click)
    assert sorted(by_buyer) == list(range(plan.buyers))
    allowed = {quantity for quantity, _ in plan.quantity_weights}
    for clicks in by_buyer.values():
        assert [click.number for click in clicks] == list(range(plan.clicks))
        assert 0 <= clicks[0].offset_us <= plan.over_s * 1e6
        for earlier, later in pairwise(clicks):
            gap_us = later.offset_us - earlier.offset_us
            assert plan.click_gap_ms * 500 - 1 <= gap_us <= plan.click_gap_ms * 1500 + 1
        assert {click.quantity for click in clicks} <= allowed


def test_another_seed_gives_another_order_of_buyers() -> None:
    orders = {
        tuple(click.buyer for click in build_schedule(StressPlan(stock=1, buyers=50, seed=seed)))
        for seed in range(5)
    }
    assert len(orders) == 5


def test_a_burst_comes_mostly_at_its_start_and_a_uniform_arrival_does_not() -> None:
    def share_in_first_fifth(arrival: Arrival) -> float:
        plan = StressPlan(stock=1, buyers=2_000, clicks=1, arrival=arrival, over_s=10)
        return sum(click.offset_us < 2_000_000 for click in build_schedule(plan)) / 2_000

    # An exponential that decays by e in a fifth: 1 - 1/e of it lies there.
    assert share_in_first_fifth(Arrival.BURST) == pytest.approx(1 - 1 / math.e, abs=0.05)
    assert share_in_first_fifth(Arrival.UNIFORM) == pytest.approx(0.2, abs=0.05)


def test_quantities_follow_their_weights() -> None:
    plan = StressPlan(stock=1, buyers=3_000, clicks=1, quantity_weights=((1, 3), (2, 1)))
    ones = sum(click.quantity == 1 for click in build_schedule(plan))
    assert ones / 3_000 == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("stock", {"stock": -1}),
        ("buyers", {"buyers": 0}),
        ("buyers", {"buyers": 200_001}),
        ("clicks", {"clicks": 0}),
        ("clicks", {"clicks": 101}),
        ("clicks", {"buyers": 200_000, "clicks": 6}),
        ("limit_per_user", {"limit_per_user": 0}),
        ("quantity_weights", {"quantity_weights": ()}),
        ("quantity", {"quantity_weights": ((0, 1),)}),
        ("quantity", {"quantity_weights": ((101, 1),)}),
        ("quantity_weights", {"quantity_weights": ((1, 0),)}),
        ("over_s", {"over_s": 1}),
        ("over_s", {"arrival": Arrival.UNIFORM}),
        ("over_s", {"arrival": Arrival.BURST, "over_s": math.nan}),
        ("over_s", {"over_s": -1}),
        ("click_gap_ms", {"click_gap_ms": -1}),
        ("retries", {"retries": 21}),
        ("retry_after_max_s", {"retry_after_max_s": 0}),
        ("connections", {"buyers": 5, "connections": 6}),
        ("connections", {"connections": 0}),
        ("connections_per_source", {"connections_per_source": 0}),
        ("timeout_s", {"timeout_s": 0}),
        ("connect_timeout_s", {"connect_timeout_s": math.inf}),
        ("deadline_s", {"deadline_s": 3_601}),
        ("deadline_s", {"arrival": Arrival.UNIFORM, "over_s": 30, "deadline_s": 30}),
        ("follow_s", {"follow_s": 0}),
        ("user_prefix", {"user_prefix": "two words "}),
        ("user_prefix", {"user_prefix": "x" * 64}),
    ],
)
def test_a_plan_out_of_bounds_is_refused_by_field_and_rule(field: str, changes: dict) -> None:
    with pytest.raises(InvalidValue) as caught:
        StressPlan(**{"stock": 1, **changes})
    assert caught.value.field == field
    assert caught.value.rule


@pytest.mark.parametrize(
    ("text", "pairs"),
    [("2", ((2, 1),)), ("1:3,2:1", ((1, 3), (2, 1))), (" 1:3 , 2 ", ((1, 3), (2, 1)))],
)
def test_quantities_can_be_written_as_text(text: str, pairs: tuple) -> None:
    assert parse_quantity_weights(text) == pairs


@pytest.mark.parametrize("text", ["", "x", "1:", "1:x", "-1", "1;2", "1:2:3", "²"])
def test_unreadable_quantities_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="quantity"):
        parse_quantity_weights(text)
