"""A sale: what is refused when it is made, and where it stands at an instant."""

from typing import Any

import pytest

from seckill.domain.errors import InvalidValue
from seckill.domain.ids import GoodsId
from seckill.domain.order import EDGES, HOLDING_STATES, TERMINAL_STATES, OrderState
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.domain.sale import NewSale, SaleState
from services.stage import make_sale


def new_sale(**changes: Any) -> NewSale:
    return NewSale(**{"goods_id": GoodsId("1"), "stock_units": 1, "starts_at_ms": 1_000, **changes})


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("goods_id", "a/b", "goods_id"),
        ("stock_units", -1, "stock"),
        ("stock_units", 100_000_001, "stock"),
        ("limit_per_user", 0, "limit_per_user"),
        ("limit_per_user", 101, "limit_per_user"),
        ("price_fen", -1, "price_fen"),
        ("price_fen", 10**12 + 1, "price_fen"),
        ("starts_at_ms", -1, "starts_at"),
        ("starts_at_ms", 253_402_300_800_000, "starts_at"),
        ("ends_at_ms", 1_000, "ends_at"),
        ("ends_at_ms", 999, "ends_at"),
        ("pay_window_ms", 999, "pay_window_s"),
        ("pay_window_ms", 2_592_001_000, "pay_window_s"),
        ("title", "x" * 201, "title"),
        ("title", "a\nb", "title"),
    ],
)
def test_a_field_out_of_its_bounds_is_named(field: str, value: Any, named: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        new_sale(**{field: value})
    assert refused.value.field == named


def test_the_bounds_themselves_are_allowed() -> None:
    new_sale(stock_units=0)
    new_sale(
        stock_units=100_000_000,
        limit_per_user=100,
        price_fen=10**12,
        starts_at_ms=0,
        ends_at_ms=253_402_300_799_999,
        pay_window_ms=2_592_000_000,
        title="秒" * 200,
    )


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (999, SaleState.SCHEDULED),
        (1_000, SaleState.RUNNING),
        (1_999, SaleState.RUNNING),
        (2_000, SaleState.ENDED),
        (2_001, SaleState.ENDED),
    ],
)
def test_the_window_includes_its_start_and_not_its_end(now: int, state: SaleState) -> None:
    """C53, in the one place that the pages read."""
    sale = make_sale(starts_at_ms=1_000, ends_at_ms=2_000)
    assert sale.state_at(now) is state
    if state is SaleState.RUNNING:
        assert make_sale(starts_at_ms=1_000, ends_at_ms=2_000, paused=True).state_at(now) is (
            SaleState.PAUSED
        )
    assert make_sale(closed=True).state_at(now) is SaleState.ENDED


def test_a_sale_without_end_runs_on() -> None:
    assert make_sale(ends_at_ms=None).state_at(253_402_300_799_999) is SaleState.RUNNING


def test_every_outcome_has_a_message_in_both_languages_and_a_status() -> None:
    assert set(OUTCOME_TEXTS) == set(Outcome)
    for outcome, text in OUTCOME_TEXTS.items():
        assert text.zh
        assert text.en
        assert 200 <= text.http_status < 600, outcome
    assert (Outcome.SOLD_OUT, Outcome.SUCCESS, Outcome.DUPLICATE) == (0, 1, 2)


def test_order_states_move_along_their_edges_only_and_end() -> None:
    assert set(EDGES) == set(OrderState)
    assert all(OrderState.QUEUED not in after for after in EDGES.values()), "no way back"
    assert OrderState.AWAITING_PAYMENT in HOLDING_STATES
    assert OrderState.QUEUED not in TERMINAL_STATES
    for state in TERMINAL_STATES:
        assert EDGES[state] <= {OrderState.REFUND_DUE}, "only late money moves what is final"
    for state in OrderState:
        reached, frontier = {state}, {state}
        while frontier:
            frontier = {after for s in frontier for after in EDGES[s]} - reached
            reached |= frontier
        assert reached & TERMINAL_STATES
