"""Flow rules of resources that a service has as a whole, without being in cluster mode."""

from __future__ import annotations

import pytest

from seckill.sentinel import (
    BlockException,
    ClusterRule,
    ControlBehavior,
    FlowGrade,
    FlowRule,
    FlowStrategy,
    Sentinel,
    Settings,
    ThresholdType,
    TokenStatus,
    VirtualClock,
    VirtualWaiter,
)
from seckill.sentinel.flow.slot import SERVICE_FLOW_ID_MIN

RESOURCE = "sale"


class Tokens:
    """A token source that says what it is told, and remembers what it was asked."""

    def __init__(self, status: TokenStatus, share: float = 0.25) -> None:
        self.status = status
        self.part = share
        self.asked: list[ClusterRule] = []

    def acquire(
        self, rule: ClusterRule, _count: int, _values: tuple[object, ...] = ()
    ) -> TokenStatus:
        self.asked.append(rule)
        return self.status

    def share(self, _rule: ClusterRule) -> float:
        return self.part


def engine(tokens: Tokens | None) -> Sentinel:
    clock = VirtualClock()
    return Sentinel(
        settings=Settings(service_resources=frozenset({RESOURCE}), cluster_fallback="share"),
        clock=clock,
        waiter=VirtualWaiter(clock, advance=False),
        token_source=tokens,
    )


def passed(sentinel: Sentinel, calls: int) -> int:
    return sum(not isinstance(sentinel.try_entry(RESOURCE), BlockException) for _ in range(calls))


def test_a_local_rule_asks_the_token_source_for_the_whole_service() -> None:
    tokens = Tokens(TokenStatus.OK)
    sentinel = engine(tokens)
    sentinel.flow.load([FlowRule(resource=RESOURCE, count=3)])
    assert passed(sentinel, 10) == 10, "tokens decide, not the counters of this process"
    tokens.status = TokenStatus.BLOCKED
    assert passed(sentinel, 10) == 0
    asked = tokens.asked[0]
    assert asked.cluster_config is not None
    assert asked.cluster_config.threshold_type == ThresholdType.GLOBAL
    assert asked.cluster_config.flow_id >= SERVICE_FLOW_ID_MIN
    assert asked.cluster_config.problems() == []
    (kept,) = sentinel.flow.rules
    assert not kept.cluster_mode, "what is shown is what was set"


def test_every_process_makes_the_same_number_of_a_rule_and_another_of_another() -> None:
    numbers = []
    for count, number in ((3, 1), (3, None), (4, 1)):
        tokens = Tokens(TokenStatus.OK)
        sentinel = engine(tokens)
        sentinel.flow.load([FlowRule(resource=RESOURCE, count=count, id=number)])
        passed(sentinel, 1)
        config = tokens.asked[0].cluster_config
        assert config is not None
        numbers.append(config.flow_id)
    assert numbers[0] == numbers[1] != numbers[2]


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_without_tokens_each_process_keeps_its_share(share: float) -> None:
    sentinel = engine(Tokens(TokenStatus.UNAVAILABLE, share))
    sentinel.flow.load([FlowRule(resource=RESOURCE, count=100)])
    assert passed(sentinel, 200) == 100 * share


def test_without_a_token_source_the_rule_is_this_process_own() -> None:
    sentinel = engine(None)
    sentinel.flow.load([FlowRule(resource=RESOURCE, count=100)])
    assert passed(sentinel, 200) == 100


def test_a_pace_and_a_warm_up_are_shared_out_and_ask_for_no_tokens() -> None:
    tokens = Tokens(TokenStatus.OK)
    sentinel = engine(tokens)
    sentinel.flow.load(
        [
            FlowRule(
                resource=RESOURCE,
                count=40,
                control_behavior=ControlBehavior.RATE_LIMITER,
                max_queueing_time_ms=500,
            )
        ]
    )
    # 10 a second are this process's: one at once, and 5 more within half a second.
    assert passed(sentinel, 50) == 6
    assert tokens.asked == []


def test_a_warmed_share_is_warm_and_outlives_a_reload_of_the_same_rule() -> None:
    sentinel = engine(Tokens(TokenStatus.OK))
    rule = FlowRule(resource=RESOURCE, count=1_200, control_behavior=ControlBehavior.WARM_UP)
    sentinel.flow.load([rule])
    assert passed(sentinel, 1_000) == 100, "a third of a quarter"
    sentinel = engine(Tokens(TokenStatus.OK))
    sentinel.flow.load([rule])
    passed(sentinel, 1)
    assert sentinel.flow.pre_warm(RESOURCE, sentinel.clock.now_ns()) == 1
    sentinel.flow.load([rule, FlowRule(resource="else", count=1)])
    assert passed(sentinel, 1_000) == 299


@pytest.mark.parametrize(
    "rule",
    [
        FlowRule(resource=RESOURCE, count=4, grade=FlowGrade.THREAD),
        FlowRule(resource="sa.*", count=4, regex=True),
        FlowRule(resource="else", count=4),
    ],
)
def test_what_cannot_be_shared_is_each_process_own(rule: FlowRule) -> None:
    tokens = Tokens(TokenStatus.BLOCKED)
    sentinel = engine(tokens)
    sentinel.flow.load([rule])
    name = "else" if rule.resource == "else" else RESOURCE
    assert not isinstance(sentinel.try_entry(name), BlockException)
    assert tokens.asked == []


def test_a_rule_for_callers_is_shared_out() -> None:
    tokens = Tokens(TokenStatus.BLOCKED)
    sentinel = engine(tokens)
    sentinel.flow.load(
        [FlowRule(resource=RESOURCE, count=8, limit_app="ann", strategy=FlowStrategy.DIRECT)]
    )
    with sentinel.context("web", "ann"):
        assert passed(sentinel, 10) == 2
    with sentinel.context("web", "bob"):
        assert passed(sentinel, 10) == 10
