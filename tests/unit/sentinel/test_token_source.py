"""Rules in cluster mode: tokens from outside, and what happens without them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import (
    BlockException,
    ClusterConfig,
    DegradeException,
    DegradeGrade,
    DegradeRule,
    Entry,
    FlowRule,
    ParamFlowRule,
    Settings,
    TokenStatus,
)
from seckill.sentinel.words import ThresholdType

if TYPE_CHECKING:
    from collections.abc import Callable

    from unit.sentinel.engines import Bench


GLOBAL = ClusterConfig(flow_id=1, threshold_type=ThresholdType.GLOBAL)
LOCAL = ClusterConfig(flow_id=1)
OPEN = ClusterConfig(
    flow_id=1, threshold_type=ThresholdType.GLOBAL, fallback_to_local_when_fail=False
)


class Leases:
    """A source as one over Redis would be: a block of tokens in memory, and none while it is cut off."""

    def __init__(self, tokens: int = 0, workers: int = 8) -> None:
        self.tokens = tokens
        self.workers = workers
        self.connected = True
        self.asked: list[tuple[object, ...]] = []

    def acquire(self, rule: Any, count: Any, values: Any = ()) -> Any:
        assert rule.cluster_config.flow_id
        self.asked.append(values)
        if not self.connected:
            return TokenStatus.UNAVAILABLE
        if self.tokens < count:
            return TokenStatus.BLOCKED
        self.tokens -= count
        return TokenStatus.OK

    def give_back(self, _rule: Any, count: Any, _values: Any = ()) -> None:
        self.tokens += count

    def share(self, _rule: Any) -> Any:
        return 1 / self.workers


def rule(config: Any, count: Any = 1000) -> Any:
    return FlowRule(resource="r", count=count, cluster_mode=True, cluster_config=config)


def test_tokens_decide_and_not_this_process_alone(benches: Callable[..., Bench]) -> None:
    source = Leases(tokens=3)
    it = benches(token_source=source)
    it.sentinel.flow.load([rule(GLOBAL, count=1)])
    assert it.passes(9) == 3
    block = it.refusal()
    assert isinstance(block, BlockException)
    assert (block.measured, block.limit) == (3, 1)


def test_c44_without_tokens_all_workers_together_keep_the_threshold(
    benches: Callable[..., Bench],
) -> None:
    workers = []
    for _ in range(8):
        source = Leases(workers=8)
        source.connected = False
        it = benches(token_source=source)
        it.sentinel.flow.load([rule(GLOBAL)])
        workers.append(it)
    for second in range(3):
        passed = 0
        for it in workers:
            it.at(second * 1000)
            passed += it.passes(300)
        assert passed == 1000


def test_c44_or_closed_by_setting(benches: Callable[..., Bench]) -> None:
    source = Leases()
    source.connected = False
    it = benches(token_source=source, settings=Settings(cluster_fallback="closed"))
    it.sentinel.flow.load([rule(GLOBAL)])
    assert it.passes(5) == 0
    source.connected, source.tokens = True, 2
    assert it.passes(5) == 2, "recovered at once, without anything saved up"


def test_a_rule_may_say_to_let_pass(benches: Callable[..., Bench]) -> None:
    source = Leases()
    source.connected = False
    it = benches(token_source=source)
    it.sentinel.flow.load([rule(OPEN, count=1)])
    assert it.passes(5) == 5
    shared = benches(token_source=source, settings=Settings(cluster_fallback="share"))
    shared.sentinel.flow.load([rule(OPEN, count=8)])
    assert shared.passes(5) == 1


def test_the_share_follows_the_number_of_workers(benches: Callable[..., Bench]) -> None:
    source = Leases(workers=2)
    source.connected = False
    it = benches(token_source=source)
    it.sentinel.flow.load([rule(GLOBAL, count=100)])
    assert it.passes(200) == 50
    source.workers = 4
    it.at(1000)
    assert it.passes(200) == 25


def test_a_threshold_per_machine_is_this_ones_already(benches: Callable[..., Bench]) -> None:
    source = Leases()
    source.connected = False
    it = benches(token_source=source)
    it.sentinel.flow.load([rule(LOCAL, count=5)])
    assert it.passes(9) == 5


def test_without_any_source_a_cluster_rule_is_a_local_one(bench: Bench) -> None:
    bench.sentinel.flow.load([rule(GLOBAL, count=5)])
    assert bench.passes(9) == 5


@pytest.mark.parametrize(("fallback", "passes"), [(None, 3), (True, 1), (False, 3)])
def test_values_ask_for_tokens_too(
    benches: Callable[..., Bench], fallback: Any, passes: Any
) -> None:
    source = Leases(tokens=2)
    it = benches(token_source=source)
    config = ClusterConfig(flow_id=2, fallback_to_local_when_fail=fallback)
    it.sentinel.param_flow.load(
        [
            ParamFlowRule(
                resource="r", param_idx=0, count=1, cluster_mode=True, cluster_config=config
            )
        ]
    )
    assert sum(isinstance(it.sentinel.try_entry("r", ["a", "b"]), Entry) for _ in range(3)) == 2
    assert source.asked[0] == ("a", "b")
    source.connected = False
    assert sum(isinstance(it.sentinel.try_entry("r", "c"), Entry) for _ in range(3)) == passes


def test_a_source_that_breaks_does_not_stop_the_caller(benches: Callable[..., Bench]) -> None:
    class Broken(Leases):
        def acquire(self, *_what: Any) -> None:
            raise ConnectionError

    it = benches(token_source=Broken())
    it.sentinel.flow.load([rule(GLOBAL)])
    assert it.passes_one()
    assert it.sentinel.alarms.internal_errors == 1


def value_rule(config: Any, **more: Any) -> Any:
    return ParamFlowRule(
        resource="r", param_idx=0, cluster_mode=True, cluster_config=config, **more
    )


def test_c44_without_tokens_a_value_has_its_share_too(benches: Callable[..., Bench]) -> None:
    passed = 0
    for _ in range(4):
        source = Leases(workers=4)
        source.connected = False
        it = benches(token_source=source, settings=Settings(cluster_fallback="share"))
        it.sentinel.param_flow.load([value_rule(GLOBAL, count=12, burst_count=5)])
        passed += sum(isinstance(it.sentinel.try_entry("r", "a"), Entry) for _ in range(20))
    assert passed == 12, "neither the threshold nor the burst is multiplied"


def test_a_token_that_a_breaker_made_useless_is_given_back(benches: Callable[..., Bench]) -> None:
    source = Leases(tokens=3)
    it = benches(token_source=source)
    it.sentinel.flow.load([rule(GLOBAL)])
    it.sentinel.param_flow.load([value_rule(ClusterConfig(flow_id=2), count=5)])
    it.sentinel.degrade.load(
        [
            DegradeRule(
                resource="r", grade=DegradeGrade.ERROR_COUNT, count=0, min_request_amount=1,
                time_window=10,
            )
        ]
    )  # fmt: skip
    entry = it.enter("r")
    entry.set_error(ValueError())
    entry.exit()
    assert source.tokens == 2
    assert isinstance(it.refusal("r", "a"), DegradeException)
    assert source.asked[-2:] == [("a",), ()], "both rules were asked"
    assert source.tokens == 2


def test_a_token_of_a_call_that_was_let_in_is_not_given_back_when_it_is_cancelled(
    benches: Callable[..., Bench],
) -> None:
    source = Leases(tokens=3)
    it = benches(token_source=source)
    it.sentinel.flow.load([rule(GLOBAL)])
    with pytest.raises(asyncio.CancelledError), it.sentinel.entry("r"):
        raise asyncio.CancelledError
    assert source.tokens == 2
