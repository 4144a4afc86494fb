"""One worker's tokens: values, several at once, giving back, and what Redis answers wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from contract.sentinel.lease_model import LeaseModel
from seckill.sentinel import ClusterConfig, FlowRule, ParamFlowItem, ParamFlowRule, TokenStatus
from seckill.sentinel.redis import LeaseSettings
from seckill.sentinel.redis.keys import SentinelKeys
from seckill.sentinel.redis.lease_book import LeaseBook
from seckill.sentinel.words import ThresholdType

OK, BLOCKED, UNAVAILABLE = TokenStatus.OK, TokenStatus.BLOCKED, TokenStatus.UNAVAILABLE
GLOBAL = ClusterConfig(flow_id=3, threshold_type=ThresholdType.GLOBAL)
RULE = FlowRule(resource="r", count=100, cluster_mode=True, cluster_config=GLOBAL)


class Desk:
    """A book, a Redis, and a clock to move by hand."""

    def __init__(self, **more: Any) -> None:
        self.now_ms = 1_764_579_240_000
        self.redis = LeaseModel()
        settings = LeaseSettings(**more)
        self.book = LeaseBook(
            SentinelKeys("t"), worker_id="w", workers_expected=None, settings=settings,
            now_ns=lambda: self.now_ms * 1_000_000,
        )  # fmt: skip
        self.bodies: list[str] = []
        self.exchange()

    def exchange(self, *, answer: str | None = None) -> bool:
        """Carry whatever is due; whether anything was."""
        exchange = self.book.exchange()
        if exchange is None:
            return False
        self.bodies.append(exchange.body)
        raw = answer
        if raw is None:
            raw = self.redis.run(list(exchange.keys), exchange.body, self.now_ms)
        self.book.answered(exchange, raw)
        return True

    def later(self, span_ms: int) -> None:
        """Let time pass, with the exchanges that are due."""
        for _ in range(span_ms):
            self.now_ms += 1
            while self.book.next_ns() <= self.now_ms * 1_000_000 and self.exchange():
                pass


def value_rule(**more: Any) -> ParamFlowRule:
    known: dict[str, Any] = {
        "resource": "r", "param_idx": 0, "count": 5, "cluster_mode": True, "cluster_config": GLOBAL
    }  # fmt: skip
    return ParamFlowRule(**{**known, **more})


def takes(desk: Desk, rule: Any, *values: object, calls: int = 40) -> int:
    """So many calls, far enough apart for an exchange between two, within one window."""
    passed = 0
    for _ in range(calls):
        passed += desk.book.acquire(rule, 1, values) is OK
        desk.later(2)
    return passed


def test_each_value_has_its_own_tokens() -> None:
    desk = Desk()
    assert [takes(desk, value_rule(), value) for value in ("a", "b")] == [5, 5]


def test_c40_a_value_with_a_threshold_of_its_own_has_it_in_every_spelling() -> None:
    item = ParamFlowItem(object="1", count=9, class_type="java.lang.Integer")
    rule = value_rule(param_flow_item_list=(item,))
    assert [takes(Desk(), rule, value) for value in (1, "1", 2)] == [9, 9, 5]


def test_one_and_one_point_zero_are_one_value() -> None:
    desk = Desk()
    assert takes(desk, value_rule(), 1) + takes(desk, value_rule(), 1.0) == 5


def test_a_duration_is_the_window() -> None:
    desk = Desk()
    rule = value_rule(duration_in_sec=3)
    assert takes(desk, rule, "a") == 5
    desk.later(1_500)
    assert takes(desk, rule, "a") == 0
    desk.later(1_500)
    assert takes(desk, rule, "a") == 5


def test_several_values_pass_together_or_not_at_all() -> None:
    desk = Desk()
    rule = value_rule()
    assert takes(desk, rule, "a") == 5
    assert takes(desk, rule, "a", "b") == 0
    assert takes(desk, rule, "b") == 5, "what was refused with the other took nothing"
    assert takes(desk, rule, None) == 40, "nothing is no value"
    assert takes(desk, rule, "c", "c") == 2, "a value twice needs two tokens"


def test_values_beyond_the_bound_do_not_cost_memory() -> None:
    desk = Desk(value_count_max=10)
    for number in range(100):
        desk.book.acquire(value_rule(), 1, (number,))
    desk.later(2)
    assert desk.book.status().leases == 10
    desk.later(5_000)
    assert desk.book.status().leases == 0, "and those that nobody asks for are forgotten"


def test_many_values_at_once_go_in_several_calls() -> None:
    desk = Desk()
    for number in range(150):
        assert desk.book.acquire(value_rule(), 1, (number,)) is OK, "first sight, on credit"
    before = len(desk.bodies)
    desk.later(1)
    assert len(desk.bodies) - before >= 3
    assert sum(sum(window.units.values()) for window in desk.redis.windows.values()) >= 150


def test_a_token_that_is_given_back_can_be_used_again() -> None:
    desk = Desk()
    desk.book.acquire(RULE, 1)
    desk.later(2)
    book = desk.book
    in_hand = 0
    while book.acquire(RULE, 1) is OK:
        in_hand += 1
    assert in_hand > 2
    for _ in range(in_hand):
        book.give_back(RULE, 1)
    assert [book.acquire(RULE, 1) for _ in range(in_hand + 1)] == [OK] * in_hand + [BLOCKED]


def test_credit_is_not_given_again_while_redis_is_being_told_of_it() -> None:
    desk = Desk()
    assert [desk.book.acquire(RULE, 1) for _ in range(11)] == [OK] * 10 + [BLOCKED]
    exchange = desk.book.exchange()
    assert exchange is not None
    assert desk.book.acquire(RULE, 1) is BLOCKED
    desk.now_ms += 500
    desk.book.unanswered(exchange, TimeoutError())
    assert desk.book.acquire(RULE, 1) is BLOCKED


def test_credit_that_is_given_back_is_not_owed() -> None:
    desk = Desk()
    assert desk.book.acquire(RULE, 3) is OK
    desk.book.give_back(RULE, 3)
    desk.later(1)
    assert '"owed": 3' not in "".join(desk.bodies)


def test_tokens_that_are_given_back_after_their_window_are_gone() -> None:
    desk = Desk()
    desk.book.acquire(RULE, 1)
    desk.later(2)
    assert desk.book.acquire(RULE, 1) is OK
    desk.now_ms += 1_100
    desk.book.give_back(RULE, 1)
    assert desk.book.acquire(RULE, 1) is BLOCKED


def test_what_was_used_on_credit_stays_owed_until_redis_has_said_so() -> None:
    desk = Desk()
    assert desk.book.acquire(RULE, 4) is OK
    for _ in range(3):
        exchange = desk.book.exchange()
        assert exchange is not None
        assert '"owed": 4' in exchange.body
        desk.book.unanswered(exchange, ConnectionError("gone"))
        desk.now_ms += 100
    assert desk.exchange()
    assert sum(desk.redis.windows["sentinel:{t}:flow:3"].units.values()) >= 4


@pytest.mark.parametrize(
    "answer", ["", "{}", "[1,1,0", "[1]", "[1,1,0,5,6]", '["x","y","z"]', "[null,1,0]"]
)
def test_an_answer_that_makes_no_sense_is_none(answer: str) -> None:
    desk = Desk()
    desk.now_ms += 300
    assert desk.exchange(answer=answer)
    status = desk.book.status()
    assert (status.failures, status.in_contact) == (1, True)
    assert status.last_error
    desk.later(200)
    assert desk.book.status().last_error == ""


def test_a_rule_that_refuses_all_refuses_all() -> None:
    desk = Desk()
    rule = FlowRule(resource="r", count=0, cluster_mode=True, cluster_config=GLOBAL)
    assert takes(desk, rule) == 0
    assert desk.book.share(rule) == 1


def test_the_shares_of_all_ranks_add_up_to_the_threshold() -> None:
    for count, workers in ((5, 8), (1_000, 3), (49, 7), (0.3, 2), (2.5, 2), (1, 1)):
        rule = FlowRule(resource="r", count=count, cluster_mode=True, cluster_config=GLOBAL)
        units = []
        for rank in range(workers):
            book = Desk().book
            book._known, book._rank = workers, rank
            # As the engine counts: a call passes if used + 1 is at most the threshold.
            units.append(int(count * book.share(rule)))
        assert sum(units) == int(count)
        assert max(units) - min(units) <= 1


def test_after_the_end_nothing_is_given_any_more() -> None:
    desk = Desk()
    desk.book.acquire(RULE, 1)
    desk.later(2)
    exchange = desk.book.exchange(leaving=True)
    assert exchange is not None
    desk.book.answered(exchange, desk.redis.run(list(exchange.keys), exchange.body, desk.now_ms))
    assert desk.book.acquire(RULE, 1) is BLOCKED
    assert desk.redis.workers == {}
