"""Never run, only type-checked: what users of the public types may rely on."""

from typing import assert_type

from seckill.admission.decision import Decision
from seckill.domain.ids import GoodsId, ReservationId, UserId, check_goods_id, check_user_id
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome, OutcomeText
from seckill.domain.sale import NewSale, Sale, SaleState
from seckill.sentinel import BlockException, Entry, Sentinel
from seckill.stress import StressPlan, StressReport, Target, run_stress

assert_type(check_user_id("ann"), UserId)
assert_type(check_goods_id("1"), GoodsId)
assert_type(OUTCOME_TEXTS[Outcome.SUCCESS], OutcomeText)


def a_decision_says_what_and_for_whom(decision: Decision) -> None:
    assert_type(decision.outcome, Outcome)
    assert_type(decision.reservation_id, ReservationId | None)
    decision.outcome = Outcome.SOLD_OUT  # type: ignore[misc]  # decisions are frozen


def a_sale_stands_somewhere(sale: Sale, wished: NewSale) -> None:
    assert_type(sale.state_at(0), SaleState)
    assert_type(wished.ends_at_ms, int | None)
    NewSale(goods_id="1", stock_units=1, starts_at_ms=0)  # type: ignore[arg-type]  # any text is no goods id


async def a_load_run_reports(plan: StressPlan) -> None:
    assert_type(await run_stress(plan, Target()), StressReport)


def flow_control_keeps_signatures(sentinel: Sentinel) -> None:
    @sentinel.resource("buy")
    def buy(goods_id: str, quantity: int = 1) -> bool:
        return bool(goods_id) and quantity > 0

    assert_type(buy("1", 2), bool)
    buy(1)  # type: ignore[arg-type]  # the decorated function is still checked


async def and_of_coroutine_functions(sentinel: Sentinel) -> None:
    @sentinel.resource("price", fallback=lambda _goods_id, _error: 0)
    async def price_fen(goods_id: str) -> int:
        return len(goods_id)

    assert_type(await price_fen("1"), int)
    await price_fen(1)  # type: ignore[arg-type]  # the decorated function is still checked
    async with sentinel.entry("stock", 1) as entry:
        assert_type(entry, Entry)
    assert_type(sentinel.try_entry("stock"), Entry | BlockException)
