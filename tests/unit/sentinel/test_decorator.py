"""Functions and coroutine functions as resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import FlowException, FlowRule, ParamFlowException, ParamFlowRule

if TYPE_CHECKING:
    from unit.sentinel.engines import Bench


def test_a_function_is_a_resource_and_stays_itself(bench: Bench) -> None:
    @bench.sentinel.resource("buy")
    def buy(goods: int, *, quantity: int = 1) -> tuple[int, int]:
        """Buy."""
        return goods, quantity

    assert buy(7, quantity=2) == (7, 2)
    assert buy.__doc__ == "Buy."
    assert bench.sentinel.node("buy").window_success == 1


def test_its_name_is_its_own_by_default(bench: Bench) -> None:
    @bench.sentinel.resource()
    def plain() -> None: ...

    plain()
    assert list(bench.sentinel.resources) == [f"{__name__}.{plain.__qualname__}"]


def test_a_refusal_goes_to_the_handler_with_the_arguments(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="buy", count=0)])

    @bench.sentinel.resource("buy", block_handler=lambda goods, block: (goods, type(block)))
    def buy(goods: int) -> None:
        pytest.fail("must not run")

    assert buy(7) == (7, FlowException)


def test_without_a_handler_it_goes_to_the_fallback_or_is_raised(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="buy", count=0)])
    fallen = bench.sentinel.resource("buy", fallback=lambda _error: "sold out")(lambda: "bought")
    assert fallen() == "sold out"
    with pytest.raises(FlowException):
        bench.sentinel.resource("buy")(lambda: "bought")()


def test_an_error_is_counted_and_goes_to_the_fallback(bench: Bench) -> None:
    @bench.sentinel.resource(
        "buy", fallback=lambda goods, error: (goods, str(error)), exceptions_to_ignore=(KeyError,)
    )
    def buy(goods: int) -> None:
        raise (KeyError if goods < 0 else ValueError)(goods)

    assert buy(7) == (7, "7")
    with pytest.raises(KeyError):
        buy(-1)
    node = bench.sentinel.node("buy")
    assert (node.window_exceptions, node.window_success, node.concurrency) == (1, 2, 0)


def test_rules_see_the_arguments_however_they_are_given(bench: Bench) -> None:
    bench.sentinel.param_flow.load([ParamFlowRule(resource="buy", param_idx=1, count=1)])

    class Shop:
        @bench.sentinel.resource("buy")
        def buy(self, user: str, goods: int = 5) -> Any:
            assert user
            return goods

    shop = Shop()
    assert shop.buy("a", 5) == 5
    for call in (
        lambda: shop.buy("b"),
        lambda: shop.buy(user="b"),
        lambda: shop.buy("b", 5),
        lambda: shop.buy("b", goods=5),
        lambda: shop.buy(user="c", goods=5),
    ):
        with pytest.raises(ParamFlowException):
            call()
    assert shop.buy("b", 6) == 6


@pytest.mark.parametrize("why", ["refused", "failed"])
async def test_handlers_get_every_value_in_its_place_however_it_was_given(
    bench: Bench, why: Any
) -> None:
    if why == "refused":
        bench.sentinel.flow.load([FlowRule(resource=name, count=0) for name in ("buy", "wait")])

    def instead(*args: Any, **kwargs: Any) -> Any:
        *values, error = args
        assert isinstance(error, FlowException if why == "refused" else ValueError)
        return (values, kwargs)

    @bench.sentinel.resource("buy", block_handler=instead, fallback=instead)
    def buy(goods: int, quantity: int = 1, *, user: str = "", **more: Any) -> Any:
        raise ValueError

    @bench.sentinel.resource("wait", block_handler=instead, fallback=instead)
    async def wait(goods: int, quantity: int = 1, *, user: str = "", **more: Any) -> Any:
        raise ValueError

    for function in (buy, wait):
        for values, named in (
            ((7,), {}),
            ((), {"goods": 7}),
            ((7, 1), {}),
            ((), {"quantity": 1, "goods": 7}),
            ((7,), {"quantity": 1}),
        ):
            for more in ({}, {"user": "a"}, {"user": "a", "colour": "red"}):
                answer = function(*values, **named, **more)
                if function is wait:
                    answer = await answer
                assert answer == ([7, 1], more)


async def test_a_refusal_from_inside_goes_to_the_handler_and_is_no_failure(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="stock", count=0)])

    def look() -> None:
        with bench.sentinel.entry("stock"):
            pytest.fail("must not run")

    @bench.sentinel.resource("buy", block_handler=lambda block: block.resource)
    def buy() -> Any:
        look()

    @bench.sentinel.resource("buy", fallback=lambda block: block.resource)
    async def buy_later() -> Any:
        look()

    @bench.sentinel.resource("buy")
    def buy_bare() -> Any:
        look()

    assert buy() == "stock"
    assert await buy_later() == "stock"
    with pytest.raises(FlowException):
        buy_bare()
    node = bench.sentinel.node("buy")
    assert (node.window_exceptions, node.window_success, node.concurrency) == (0, 3, 0)


def test_arguments_that_a_function_cannot_take_are_its_own_to_refuse(bench: Bench) -> None:
    @bench.sentinel.resource("buy")
    def buy(goods: int) -> int:
        return goods

    with pytest.raises(TypeError, match=r"buy\(\) missing"):
        buy()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        buy(7, colour="red")  # type: ignore[call-arg]
    assert bench.sentinel.node("buy").concurrency == 0


async def test_coroutine_functions(bench: Bench) -> None:
    async def handled(goods: Any, block: Any) -> Any:
        return goods, block.kind

    @bench.sentinel.resource(
        "buy", block_handler=handled, fallback=lambda goods, error: (goods, repr(error))
    )
    async def buy(goods: int) -> Any:
        if goods < 0:
            raise ValueError(goods)
        return goods

    assert await buy(7) == 7
    assert await buy(-7) == (-7, "ValueError(-7)")
    bench.sentinel.flow.load([FlowRule(resource="buy", count=0)])
    assert await buy(7) == (7, "flow")
    assert bench.sentinel.node("buy").concurrency == 0


def test_a_generator_is_refused(bench: Bench) -> None:
    def generator() -> Any:
        yield 1

    with pytest.raises(TypeError, match="generator"):
        bench.sentinel.resource("g")(generator)
