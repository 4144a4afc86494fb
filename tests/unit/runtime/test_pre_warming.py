"""C46: a gate that is cold when its sale starts."""

import pytest
from structlog.testing import capture_logs

from seckill.domain.ids import GoodsId, SaleId
from seckill.runtime.pre_warming import WARNED_AHEAD_MS, PreWarmer, warming_rules
from seckill.sentinel import (
    BlockException,
    ControlBehavior,
    FlowGrade,
    FlowRule,
    Sentinel,
    VirtualClock,
)
from seckill.web.flow import PURCHASE_RESOURCE
from unit.web.doubles import sale

WARM_UP = FlowRule(resource=PURCHASE_RESOURCE, count=900, control_behavior=ControlBehavior.WARM_UP)


class Service:
    """A gate with a warm-up rule, and a sale that starts in two hours."""

    def __init__(self, *, pre_warm: bool, rule: FlowRule = WARM_UP) -> None:
        self.clock = VirtualClock()
        self.sentinel = Sentinel(clock=self.clock)
        self.sentinel.flow.load([rule])
        self.starts_at_ms = self.clock.now_ms() + 2 * WARNED_AHEAD_MS
        self.sales = [sale(starts_at_ms=self.starts_at_ms, ends_at_ms=None)]
        self.warmer = PreWarmer(self.sentinel, lambda: self.sales, self, pre_warm=pre_warm)

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def monotonic_ms(self) -> float:
        return self.clock.now_ms()

    def until_ms(self, before_start_ms: int) -> None:
        """Let time pass until so long before the start, with a look now and then."""
        while self.starts_at_ms - self.now_ms() > before_start_ms:
            left_ms = self.starts_at_ms - self.now_ms() - before_start_ms
            self.clock.advance_ms(min(left_ms, 200 if left_ms < 5_000 else left_ms - 4_000))
            self.warmer.look()

    def passed_in_second_one(self) -> int:
        passed = 0
        for _ in range(2_000):
            entered = self.sentinel.try_entry(PURCHASE_RESOURCE)
            passed += not isinstance(entered, BlockException)
            self.clock.advance_ms(0.5)
        return passed


def test_c46_an_idle_gate_lets_a_third_through_in_the_first_second() -> None:
    service = Service(pre_warm=False)
    service.until_ms(0)
    assert 270 <= service.passed_in_second_one() <= 330


def test_c46_a_pre_warmed_gate_is_open_from_the_first_second() -> None:
    service = Service(pre_warm=True)
    service.until_ms(0)
    assert service.passed_in_second_one() >= 870


def test_a_gate_is_warmed_for_a_start_and_not_long_before() -> None:
    service = Service(pre_warm=True)
    service.until_ms(3_000)
    assert service.passed_in_second_one() <= 330


def test_a_sale_that_will_meet_a_cold_gate_is_named_once_in_the_log() -> None:
    service = Service(pre_warm=False)
    with capture_logs() as log:
        service.until_ms(WARNED_AHEAD_MS + 1)
        assert log == []
        service.until_ms(0)
    assert [(entry["goods"], entry["log_level"]) for entry in log] == [("tea", "warning")]
    service.sales.append(
        sale("cup", starts_at_ms=service.now_ms() + 60_000, sale_id=SaleId(8), ends_at_ms=None)
    )
    with capture_logs() as log:
        service.warmer.look()
        service.warmer.look()
    assert [entry["goods"] for entry in log] == [GoodsId("cup")]


@pytest.mark.parametrize(
    "rule",
    [
        FlowRule(resource=PURCHASE_RESOURCE, count=900),
        FlowRule(resource="else", count=900, control_behavior=ControlBehavior.WARM_UP),
        FlowRule(
            resource=PURCHASE_RESOURCE,
            count=900,
            grade=FlowGrade.THREAD,
            control_behavior=ControlBehavior.WARM_UP,
        ),
    ],
)
def test_other_rules_are_not_spoken_of(rule: FlowRule) -> None:
    assert warming_rules([rule]) == []
    service = Service(pre_warm=False, rule=rule)
    with capture_logs() as log:
        service.until_ms(0)
    assert log == []


def test_a_pre_warmed_gate_is_not_spoken_of() -> None:
    service = Service(pre_warm=True)
    with capture_logs() as log:
        service.until_ms(0)
    assert log == []
