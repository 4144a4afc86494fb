"""The reference vectors of circuit breakers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import BreakerState, DegradeException, DegradeRule
from seckill.sentinel.words import DegradeGrade

if TYPE_CHECKING:
    from unit.sentinel.engines import Bench


SLOW = DegradeRule(
    resource="r",
    grade=0,
    count=50,
    slow_ratio_threshold=0.8,
    min_request_amount=10,
    stat_interval_ms=20_000,
    time_window=20,
)


@pytest.fixture(params=["bench", "original"])
def either(request: pytest.FixtureRequest) -> Any:
    """Both kinds of engine: these vectors are the same for both."""
    return request.getfixturevalue(request.param)


def call(it: Bench, ms: Any = 0, *, fails: Any = False) -> None:
    entry = it.enter()
    it.clock.advance_ms(ms)
    if fails:
        entry.set_error(RuntimeError())
    entry.exit()


def state_of(it: Bench, rule: Any) -> Any:
    (breaker,) = (one for one in it.sentinel.degrade.breakers_for("r") if one.rule == rule)
    return breaker.state


def test_slow_calls_open_it_at_the_sixteenth(either: Bench) -> None:
    either.sentinel.degrade.load([SLOW])
    for ms in [60] * 7 + [10] * 3 + [60] * 5:
        call(either, ms)
        assert state_of(either, SLOW) is BreakerState.CLOSED
    call(either, 60)
    assert state_of(either, SLOW) is BreakerState.OPEN
    opened_ms = either.clock.now_ms()
    either.clock.set_ms(opened_ms + 19_000)
    block = either.refusal()
    assert isinstance(block, DegradeException)
    assert (block.measured, block.limit) == (0.8125, 0.8)
    either.clock.set_ms(opened_ms + 20_000)
    probe = either.enter()
    assert not either.passes_one(), "one probe at a time"
    either.clock.advance_ms(10)
    probe.exit()
    assert either.passes_one()


def test_a_ratio_of_errors_opens_it_at_the_tenth(either: Bench) -> None:
    rule = DegradeRule(
        resource="r",
        grade=DegradeGrade.ERROR_RATIO,
        count=0.5,
        min_request_amount=10,
        time_window=5,
    )
    either.sentinel.degrade.load([rule])
    for fails in [True] * 6 + [False] * 3:
        call(either, fails=fails)
        assert state_of(either, rule) is BreakerState.CLOSED
    call(either, fails=True)
    assert state_of(either, rule) is BreakerState.OPEN


def test_the_least_number_of_calls_decides(either: Bench) -> None:
    rule = DegradeRule(
        resource="r", grade=DegradeGrade.ERROR_COUNT, count=3, min_request_amount=5, time_window=5
    )
    either.sentinel.degrade.load([rule])
    for _ in range(4):
        call(either, fails=True)
    assert state_of(either, rule) is BreakerState.CLOSED
    call(either, fails=True)
    assert state_of(either, rule) is BreakerState.OPEN


def test_a_ratio_of_one_opens_when_all_are_slow(either: Bench) -> None:
    rule = DegradeRule(
        resource="r",
        count=1,
        slow_ratio_threshold=1.0,
        min_request_amount=5,
        stat_interval_ms=60_000,
        time_window=5,
    )
    either.sentinel.degrade.load([rule])
    for _ in range(5):
        call(either, 10)
    assert state_of(either, rule) is BreakerState.OPEN


def test_a_bad_probe_opens_it_for_another_window(either: Bench) -> None:
    rule = DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=2)
    either.sentinel.degrade.load([rule])
    call(either, fails=True)
    either.clock.advance_ms(2000)
    call(either, fails=True)
    either.clock.advance_ms(1999)
    assert not either.passes_one()
    either.clock.advance_ms(1)
    assert either.passes_one()


def test_an_unchanged_rule_keeps_its_state_at_a_reload(either: Bench) -> None:
    rule = DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=9)
    either.sentinel.degrade.load([rule])
    call(either, fails=True)
    either.sentinel.degrade.load([DegradeRule(resource="x", grade=2, count=1, time_window=1), rule])
    assert not either.passes_one()
    either.sentinel.degrade.load(
        [DegradeRule(resource="r", grade=2, count=1, min_request_amount=1, time_window=9)]
    )
    assert either.passes_one()


def test_observers_hear_every_change(bench: Bench) -> None:
    rule = DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=2)
    bench.sentinel.degrade.load([rule])
    heard = []
    bench.sentinel.degrade.observers.append(heard.append)
    # An observer may itself enter a resource: it is called with the lock free.
    bench.sentinel.degrade.observers.append(lambda _change: bench.passes_one("other"))
    call(bench, fails=True)
    bench.clock.advance_ms(2000)
    call(bench)
    changes = [(one.previous.value, one.current.value, one.value) for one in heard]
    assert changes == [
        ("closed", "open", 1),
        ("open", "half-open", None),
        ("half-open", "closed", None),
    ]
    assert bench.sentinel.alarms.listener_errors == 0


def test_refusals_are_no_errors_and_cancelling_is_none_either(bench: Bench) -> None:
    rule = DegradeRule(resource="r", grade=2, count=0, min_request_amount=1, time_window=2)
    bench.sentinel.degrade.load([rule])
    entry = bench.enter()
    entry.set_error(DegradeException("x", None, "default", 0, 0))
    entry.set_error(KeyboardInterrupt())
    entry.exit()
    assert bench.passes_one()
