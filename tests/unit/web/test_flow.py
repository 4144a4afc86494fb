"""Flow control in front of the gate: what it refuses, what it counts, and when a call is over."""

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

import pytest

from seckill.admission.decision import Decision
from seckill.domain.ids import AttemptId, GoodsId, UserId
from seckill.domain.outcomes import Outcome
from seckill.sentinel import (
    AuthorityRule,
    ControlBehavior,
    DegradeGrade,
    DegradeRule,
    Entry,
    FlowGrade,
    FlowRule,
    ParamFlowItem,
    ParamFlowRule,
    Sentinel,
    SystemRule,
    VirtualClock,
    VirtualWaiter,
)
from seckill.web.addresses import Addresses
from seckill.web.caller_limits import PER_ADDRESS, PER_USER, limit_callers
from seckill.web.flow import PURCHASE_RESOURCE, FlowControl
from unit.web.doubles import ScriptedGate, reservation

UNDECIDED = Decision(Outcome.UNDECIDED, cause="redis")


class Caller:
    """Has its decision in a future, and ends its call as the web room does."""

    def __init__(self, user: str, flow: FlowControl) -> None:
        self.user_id = UserId(user)
        self.attempt_id = AttemptId("a")
        self.quantity = 1
        self.traceparent = ""
        self.user_id_bytes = 0
        self.deadline_ms = 0.0
        self.entry: Entry | None = None
        self.flow = flow
        self.decision: Decision
        self.told: asyncio.Future[Decision]

    def decided(self, decision: Decision) -> None:
        self.end(decision)
        self.told.set_result(decision)

    def end(self, decision: Decision) -> None:
        self.decision = decision
        self.flow.end([self])


class Front:
    """Flow control over a gate that answers what it is told, on a clock that is moved."""

    def __init__(self, *, per_user: int = 0, per_address: int = 0, proxies: int = 0) -> None:
        self.clock = VirtualClock()
        self.waiter = VirtualWaiter(self.clock)
        self.sentinel = Sentinel(clock=self.clock, waiter=self.waiter)
        limit_callers(self.sentinel, per_user_per_s=per_user, per_address_per_s=per_address)
        self.gate = ScriptedGate()
        self.tasks: set[asyncio.Task[None]] = set()
        self.flow = FlowControl(self.gate, self.sentinel, Addresses(proxies), self.start)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def ask(
        self, user: str = "ann", goods: str = "tea", peer: str = "10.0.0.1", *forwarded: str
    ) -> Decision | asyncio.Future[Decision]:
        headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
        caller = Caller(user, self.flow)
        decision = self.flow.admit_now(GoodsId(goods), caller, peer, headers)
        if decision is None:
            caller.told = asyncio.get_running_loop().create_future()
            return caller.told
        caller.end(decision)
        return decision

    def outcome(self, *arguments: str) -> Outcome:
        decision = self.ask(*arguments)
        assert isinstance(decision, Decision)
        return decision.outcome

    def outcomes(self, times: int, *arguments: str) -> list[Outcome]:
        return [self.outcome(*arguments) for _ in range(times)]

    @property
    def node(self) -> Any:
        node = self.sentinel.node(PURCHASE_RESOURCE)
        assert node is not None
        return node


def test_without_rules_everything_passes_and_is_counted() -> None:
    front = Front()
    assert front.outcomes(3) == [Outcome.SUCCESS] * 3
    assert (front.node.window_passed, front.node.window_success) == (3, 3)
    assert (front.node.concurrency, front.sentinel.inbound.window_passed) == (0, 3)


def test_what_is_refused_never_reaches_the_gate() -> None:
    front = Front()
    front.sentinel.flow.load([FlowRule(resource=PURCHASE_RESOURCE, count=2)])
    assert front.outcomes(5) == [Outcome.SUCCESS] * 2 + [Outcome.BLOCKED] * 3
    assert len(front.gate.calls) == 2
    refused = front.ask()
    assert isinstance(refused, Decision)
    assert refused.retry_after_ms == 1_000
    front.clock.advance_ms(1_001)
    assert front.outcome() is Outcome.SUCCESS


def test_goods_user_and_address_are_what_hot_parameter_rules_look_at() -> None:
    front = Front()
    front.sentinel.param_flow.load(
        [
            ParamFlowRule(
                resource=PURCHASE_RESOURCE,
                param_idx=0,
                count=1,
                duration_in_sec=3,
                param_flow_item_list=(ParamFlowItem(object="cup", count=2, class_type="String"),),
            )
        ]
    )
    assert front.outcomes(2, "ann", "tea") == [Outcome.SUCCESS, Outcome.BLOCKED]
    assert front.outcomes(3, "ann", "cup") == [Outcome.SUCCESS] * 2 + [Outcome.BLOCKED]
    refused = front.ask("bob", "tea")
    assert isinstance(refused, Decision)
    assert refused.retry_after_ms == 3_000
    for index, one, other in (
        (1, ("ann",), ("bob",)),
        (2, ("x", "y", "::1"), ("x", "y", "1.1.1.1")),
    ):
        rule = ParamFlowRule(resource=PURCHASE_RESOURCE, param_idx=index, count=1)
        front.sentinel.param_flow.load([rule])
        assert front.outcomes(2, *one) == [Outcome.SUCCESS, Outcome.BLOCKED]
        assert front.outcome(*other) is Outcome.SUCCESS


def test_the_limits_of_the_settings_outlive_a_list_of_rules_that_is_pushed() -> None:
    front = Front(per_user=2, per_address=4)
    front.sentinel.load_rules("param-flow", "[]")
    assert front.outcomes(3, "ann", "tea", "10.0.0.1") == [Outcome.SUCCESS] * 2 + [Outcome.BLOCKED]
    assert front.outcomes(2, "bob", "tea", "10.0.0.1") == [Outcome.SUCCESS, Outcome.BLOCKED]
    assert front.outcome("bob", "tea", "10.0.0.2") is Outcome.SUCCESS
    kinds = {limit_app: count for (_, _, limit_app), count in front.sentinel.blocks.items()}
    assert kinds == {PER_USER: 1, PER_ADDRESS: 1}


def test_c58_five_a_second_of_one_address_whatever_it_writes_into_its_headers() -> None:
    behind_none, behind_one = Front(per_address=5), Front(per_address=5, proxies=1)
    for number in range(100):
        lie = f"6.{number}.6.6"
        behind_none.ask(f"u{number}", "tea", "9.9.9.9", lie, "x" * 10_000)
        behind_one.ask(f"u{number}", "tea", "10.0.0.1", lie, f"{lie}, 9.9.9.9")
    assert len(behind_none.gate.calls) == len(behind_one.gate.calls) == 5


async def test_a_purchase_is_in_flight_until_its_batch_has_answered() -> None:
    front = Front()
    front.gate.holds = True
    front.sentinel.flow.load(
        [FlowRule(resource=PURCHASE_RESOURCE, count=2, grade=FlowGrade.THREAD)]
    )
    first, second = front.ask(), front.ask()
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    assert front.outcome() is Outcome.BLOCKED
    for number, held in enumerate(front.gate.futures, 1):
        held.set_result(Decision(Outcome.SUCCESS, reservation(number)))
    assert [(await one).outcome for one in (first, second)] == [Outcome.SUCCESS] * 2
    assert front.node.concurrency == 0
    assert front.node.window_exceptions == 0
    assert isinstance(front.ask(), asyncio.Future)


async def test_undecided_is_a_failure_and_a_refusal_by_the_sale_is_none() -> None:
    front = Front()
    for outcome in Outcome:
        front.gate.decision = Decision(outcome, reservation(1))
        front.ask()
    assert front.node.window_exceptions == 1
    front.gate.holds = True
    late = front.ask()
    assert isinstance(late, asyncio.Future)
    front.gate.futures[0].set_result(UNDECIDED)
    assert await late == UNDECIDED
    assert front.node.window_exceptions == 2
    front.gate.holds = False
    front.gate.decision = ValueError("a fault of the gate")
    with pytest.raises(ValueError, match="a fault"):
        front.ask()
    assert (front.node.window_exceptions, front.node.concurrency) == (3, 0)


def test_a_breaker_on_the_purchase_opens_by_what_cannot_be_decided() -> None:
    front = Front()
    front.sentinel.degrade.load(
        [
            DegradeRule(
                resource=PURCHASE_RESOURCE,
                grade=DegradeGrade.ERROR_COUNT,
                count=1,
                time_window=7,
                min_request_amount=1,
            )
        ]
    )
    front.gate.decision = UNDECIDED
    assert front.outcomes(3) == [Outcome.UNDECIDED] * 2 + [Outcome.BLOCKED]
    refused = front.ask()
    assert isinstance(refused, Decision)
    assert refused.retry_after_ms == 7_000
    front.gate.decision = Decision(Outcome.SOLD_OUT)
    front.clock.advance_ms(7_001)
    assert front.outcomes(2) == [Outcome.SOLD_OUT] * 2


def test_system_rules_protect_the_purchase() -> None:
    front = Front()
    front.sentinel.system.load([SystemRule(qps=2)])
    assert front.outcomes(3) == [Outcome.SUCCESS] * 2 + [Outcome.BLOCKED]


def test_an_address_can_be_locked_out_by_an_authority_rule() -> None:
    front = Front()
    assert front.outcome("ann", "tea", "10.0.0.1") is Outcome.SUCCESS
    assert front.node.origins == {}, "nobody asks for origins"
    front.sentinel.load_rules(
        "authority",
        '[{"resource": "seckill-jk", "limitApp": "10.0.0.1,2001:db8::/64", "strategy": 1}]',
    )
    assert front.outcome("ann", "tea", "10.0.0.1") is Outcome.BLOCKED
    assert front.outcome("ann", "tea", "2001:db8::7") is Outcome.BLOCKED
    assert front.outcome("ann", "tea", "10.0.0.2") is Outcome.SUCCESS
    front.sentinel.authority.load([AuthorityRule(resource="else", limit_app="x")])
    front.sentinel.load_rules("authority", "[]")
    assert front.outcome("ann", "tea", "10.0.0.3") is Outcome.SUCCESS
    assert "10.0.0.3" not in front.node.origins


async def test_a_paced_purchase_waits_for_its_turn_and_then_asks_the_gate() -> None:
    front = Front()
    front.sentinel.flow.load(
        [
            FlowRule(
                resource=PURCHASE_RESOURCE,
                count=10,
                control_behavior=ControlBehavior.RATE_LIMITER,
                max_queueing_time_ms=150,
            )
        ]
    )
    assert front.outcome() is Outcome.SUCCESS
    waiting = front.ask()
    assert isinstance(waiting, asyncio.Future)
    assert len(front.gate.calls) == 1
    assert (await waiting).outcome is Outcome.SUCCESS
    assert front.waiter.waits_ns == [100_000_000]
    front.gate.holds = True
    held = front.ask()
    assert isinstance(held, asyncio.Future)
    while not front.gate.futures:
        await asyncio.sleep(0)
    front.gate.futures[0].set_result(UNDECIDED)
    assert (await held).outcome is Outcome.UNDECIDED
    assert (front.node.concurrency, front.node.window_exceptions) == (0, 1)


async def test_requests_that_share_a_context_are_not_taken_for_one_inside_the_other() -> None:
    """As when they are served by callbacks: nothing may pile up from one to the next."""
    front = Front()
    front.gate.holds = True
    context = contextvars.copy_context()
    held = [context.run(front.ask) for _ in range(50)]
    for number, future in enumerate(front.gate.futures):
        future.set_result(Decision(Outcome.SUCCESS, reservation(number)))
    for future in held:
        assert isinstance(future, asyncio.Future)
        await future
    assert front.node.concurrency == 0
    assert not context[front.sentinel.current].children.get(PURCHASE_RESOURCE, front.node).children
    entrance = front.sentinel.entrances["web"]
    assert set(entrance.children) == {PURCHASE_RESOURCE}
    assert not entrance.children[PURCHASE_RESOURCE].children
