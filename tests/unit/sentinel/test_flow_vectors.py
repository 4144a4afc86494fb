"""The reference vectors of flow rules: what the original was seen to answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import AS_ORIGINAL, ClusterConfig, FlowException, FlowRule, Settings
from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.flow.pacing import Pacing, interval_ns
from seckill.sentinel.flow.warm_up import WarmingTokens
from seckill.sentinel.node import StatisticNode
from seckill.sentinel.words import ControlBehavior, FlowGrade, FlowStrategy

if TYPE_CHECKING:
    from unit.sentinel.engines import Bench


TIMES = [0, 300, 500, 999, 1000, 1499, 1500, 2000]


def test_ten_attempts_at_a_time_with_threshold_five(original: Bench) -> None:
    original.sentinel.flow.load([FlowRule(resource="r", count=5)])
    passed = []
    for at_ms in TIMES:
        original.at(at_ms)
        passed.append(original.passes(10))
    assert passed == [5, 0, 0, 0, 5, 0, 0, 5]


def test_the_original_passes_twice_the_threshold_around_an_edge(original: Bench) -> None:
    original.sentinel.flow.load([FlowRule(resource="r", count=10)])
    original.at(499)
    assert original.passes(50) == 10
    original.at(1000)
    assert original.passes(50) == 10


@pytest.mark.parametrize(("count", "already", "passes"), [(10, 9, True), (10, 10, False)])
def test_reject_by_rate(original: Bench, count: Any, already: Any, passes: Any) -> None:
    original.sentinel.flow.load([FlowRule(resource="r", count=count)])
    original.passes(already)
    assert original.passes_one() is passes


@pytest.mark.parametrize(("already", "passes"), [(7, True), (8, False)])
def test_reject_by_concurrency(bench: Bench, already: Any, passes: Any) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", count=8, grade=FlowGrade.THREAD)])
    for _ in range(already):
        bench.enter()
    assert bench.passes_one() is passes


def test_a_broken_threshold_passes_its_whole_part(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", count=2.5)])
    assert bench.passes(9) == 2


def test_units_acquired_at_once(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", count=5)])
    assert not bench.passes_one(count=6)
    assert bench.passes_one(count=5)
    assert not bench.passes_one()


def test_a_refusal_says_what_was_measured(bench: Bench) -> None:
    rule = FlowRule(resource="r", count=2, limit_app="default")
    bench.sentinel.flow.load([rule])
    bench.passes(2)
    block = bench.refusal()
    assert isinstance(block, FlowException)
    assert (block.rule, block.rule_limit_app, block.resource) == (rule, "default", "r")
    assert (block.measured, block.limit) == (2, 2)
    assert "measured 2, allowed 2" in str(block)
    assert block.wire_text == "SentinelBlockException: FlowException"


MS = NANOSECONDS_PER_MS


@pytest.mark.parametrize(
    ("now_ms", "first", "second", "acquire", "wait_ms"),
    [
        (300, 10, None, 1, None),
        (700, 10, 0, 1, 300),
        (700, 0, 10, 1, None),
        (700, 5, 5, 1, 300),
        (700, 5, 5, 6, None),
        # A wait of just the limit is too long.
        (500, 10, 0, 1, None),
        (501, 10, 0, 1, 499),
    ],
)
def test_borrowing_from_the_next_bucket(
    now_ms: Any, first: Any, second: Any, acquire: Any, wait_ms: Any
) -> None:
    node = StatisticNode(2, 5000)
    start_ns = 1_764_579_240_000 * MS
    node.add_pass(start_ns, first)
    if second is not None:
        node.add_pass(start_ns + 500 * MS, second)
    wait_ns = node.occupy_wait_ns(start_ns + now_ms * MS, acquire, 10, 500 * MS)
    assert wait_ns == (None if wait_ms is None else wait_ms * MS)


def test_what_is_borrowed_is_counted_once(original: Bench) -> None:
    original.sentinel.flow.load([FlowRule(resource="r", count=10)])
    assert original.passes(10) == 10
    original.at(700)
    assert original.passes_one(prioritized=True)
    assert original.waiter.waits_ns == [300 * MS]
    node = original.sentinel.node("r")
    now_ns = original.clock.now_ns()
    assert node.used(now_ns) == 1
    minute = node.minute(now_ns)
    assert (minute.passed, minute.occupied, minute.blocked) == (11, 1, 0)


@pytest.mark.parametrize(
    ("count", "period_s", "cold_factor", "warning", "most", "slope", "cold", "halfway", "warm"),
    [
        (10, 10, 3, 50, 100, 0.004, 3.333, 5.0, 10),
        (100, 10, 3, 500, 1000, 4e-5, 33.33, 50, 100),
        (1000, 10, 3, 5000, 10000, 4e-7, 333.3, 500, 1000),
        (20, 5, 3, 50, 100, 0.002, 6.667, 10, 20),
        (1, 10, 3, 5, 10, 0.4, 0.333, None, 1),
        (10, 10, 5, 25, 58, 0.0121212, 2.0, None, 10),
    ],
)
def test_the_table_of_warming_up(  # noqa: PLR0917  the columns of a table
    count: Any,
    period_s: Any,
    cold_factor: Any,
    warning: Any,
    most: Any,
    slope: Any,
    cold: Any,
    halfway: Any,
    warm: Any,
) -> None:
    tokens = WarmingTokens(count, period_s, Settings(undone=AS_ORIGINAL, cold_factor=cold_factor))
    assert (tokens.warning, tokens.most) == (warning, most)
    assert tokens.slope == pytest.approx(slope, rel=1e-4)
    assert tokens.allowed_at(most) == pytest.approx(cold, rel=2e-3)
    assert tokens.allowed_at(warning) == pytest.approx(warm)
    if halfway is not None:
        assert tokens.allowed_at((warning + most) // 2) == pytest.approx(halfway)


RAMPS = [
    (
        10,
        [3, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 10, 10],
        [100, 97, 94, 91, 88, 85, 81, 77, 73, 68, 63, 57, 50, 40],
    ),
    (
        100,
        [33, 34, 36, 38, 41, 44, 47, 52, 58, 68, 83, 100, 100],
        [1000, 967, 933, 897, 859, 818, 774, 727, 675, 617, 549, 466],
    ),
    (1000, [333, 348, 366, 387, 412, 442, 479, 528, 594, 692, 856, 1000], []),
]


@pytest.mark.parametrize("which", ["bench", "original"])
@pytest.mark.parametrize(("count", "ramp", "tokens"), RAMPS)
def test_the_ramp_of_warming_up(
    request: pytest.FixtureRequest, which: Any, count: Any, ramp: Any, tokens: Any
) -> None:
    it = request.getfixturevalue(which)
    rule = FlowRule(resource="r", count=count, control_behavior=ControlBehavior.WARM_UP)
    it.sentinel.flow.load([rule])
    shaper = it.sentinel.flow.shaper_for(rule, "r")
    passed, stored = [], []
    for second in range(len(ramp)):
        it.at(second * 1000)
        passed.append(it.passes(count + 5))
        stored.append(shaper.tokens.stored)
    assert passed == ramp
    assert stored[: len(tokens)] == tokens


def test_an_idle_resource_grows_cold_again(bench: Bench) -> None:
    rule = FlowRule(resource="r", count=100, control_behavior=ControlBehavior.WARM_UP)
    bench.sentinel.flow.load([rule])
    for second in range(15):
        bench.at(second * 1000)
        bench.passes(120)
    bench.at(15_000 + 25_000)
    assert bench.passes(120) == 33


def test_just_warm_and_idle_it_neither_warms_nor_cools(bench: Bench) -> None:
    rule = FlowRule(resource="r", count=10, control_behavior=ControlBehavior.WARM_UP)
    bench.sentinel.flow.load([rule])
    tokens = bench.sentinel.flow.shaper_for(rule, "r").tokens
    node = StatisticNode(2, 5000)
    tokens.warm(bench.clock.now_ns())
    for stored, after in ((50, 50), (51, 61), (49, 59)):
        tokens.stored = stored
        bench.clock.advance_ms(1000)
        tokens.allowed(node, bench.clock.now_ns())
        assert tokens.stored == after


def test_a_warm_node_and_a_cold_one(original: Bench) -> None:
    rule = FlowRule(resource="r", count=10, control_behavior=ControlBehavior.WARM_UP)
    original.sentinel.flow.load([rule])
    shaper = original.sentinel.flow.shaper_for(rule, "r")
    node = StatisticNode(2, 5000)

    def decide(passed: int, previous: int) -> bool:
        now_ns = original.clock.now_ns()
        node.previous_passed = lambda _now: previous  # type: ignore[method-assign]
        node.used = lambda _now: passed  # type: ignore[method-assign]
        return shaper.decide(original.sentinel.entry("r"), node, now_ns) == 0

    node = type("Fixed", (), {"log": None})()
    assert not decide(8, 1)
    assert decide(1, 1)
    for _ in range(10):
        original.clock.advance_ms(1000)
        decide(8, 10)
    assert decide(8, 10)
    assert not decide(10, 10)


@pytest.mark.parametrize(
    ("count", "max_ms", "turns"),
    [
        (10, 500, [0, 100, 200, 300, 400, 500, None, None]),
        (5, 300, [0, 200, None]),
        (4, 0, [0, None]),
    ],
)
def test_pacing_at_one_instant(count: Any, max_ms: Any, turns: Any) -> None:
    pacing = Pacing(count, max_ms, Settings())
    now_ns = 1_764_579_240_000 * MS
    entry = type("OneUnit", (), {"count": 1})()
    answers = [pacing.decide(entry, None, now_ns) for _ in turns]
    assert answers == [-1 if turn is None else turn * MS for turn in turns]


def test_pacing_without_units_or_without_a_count() -> None:
    none = type("NoUnit", (), {"count": 0})()
    one = type("OneUnit", (), {"count": 1})()
    assert Pacing(10, 500, Settings()).decide(none, None, 0) == 0
    assert Pacing(0, 500, Settings()).decide(one, None, 0) == -1


@pytest.mark.parametrize(
    ("count", "exact"), [(10, True), (1, True), (1000, True), (3, False), (7, False), (1001, False)]
)
def test_which_paces_the_original_rounds_to_milliseconds(count: Any, exact: Any) -> None:
    rounded = interval_ns(1, count, unit_ns=MS) == interval_ns(1, count)
    assert rounded is exact


def test_warm_up_pacing_is_slow_when_cold_and_even_when_warm(bench: Bench) -> None:
    rule = FlowRule(resource="r", count=10, control_behavior=ControlBehavior.WARM_UP_RATE_LIMITER)
    bench.sentinel.flow.load([rule])
    assert bench.passes_one()
    assert bench.passes_one()
    assert bench.waiter.waits_ns[-1] == pytest.approx(300 * MS, abs=2)
    bench.clock.advance_ms(1000)
    bench.sentinel.flow.pre_warm("r", bench.clock.now_ns())
    bench.passes(2)
    assert bench.waiter.waits_ns[-1] == pytest.approx(100 * MS, abs=2)


# Which node a rule looks at.


def test_a_rule_for_the_others(bench: Bench) -> None:
    bench.sentinel.flow.load(
        [
            FlowRule(resource="r", limit_app="other", count=0),
            FlowRule(resource="r", limit_app="app2", count=1),
        ]
    )
    with bench.sentinel.context("c", "app1"):
        assert not bench.passes_one()
    with bench.sentinel.context("c", "app2"):
        assert bench.passes_one()
        assert not bench.passes_one()
    assert bench.passes_one(), "a caller without a name is nobody else's other"


def test_others_count_each_for_himself(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="r", limit_app="other", count=1)])
    for caller in ("one", "two"):
        with bench.sentinel.context("c", caller):
            assert bench.passes(3) == 1


def test_a_related_rule_watches_the_other_resource(bench: Bench) -> None:
    bench.sentinel.flow.load(
        [FlowRule(resource="r", strategy=FlowStrategy.RELATE, ref_resource="write", count=2)]
    )
    assert bench.passes(5) == 5, "as long as nobody writes"
    bench.passes(2, "write")
    assert not bench.passes_one()


def test_a_chain_rule_counts_one_entrance_only(bench: Bench) -> None:
    bench.sentinel.flow.load(
        [FlowRule(resource="r", strategy=FlowStrategy.CHAIN, ref_resource="shop", count=1)]
    )
    with bench.sentinel.context("shop"):
        assert bench.passes(3) == 1
    with bench.sentinel.context("admin"):
        assert bench.passes(3) == 3
    assert bench.passes(3) == 3


def test_a_pattern_gives_each_resource_its_own_counters(bench: Bench) -> None:
    bench.sentinel.flow.load([FlowRule(resource="GET:/g/[0-9]+", regex=True, count=1)])
    assert bench.passes(2, "GET:/g/1") == 1
    assert bench.passes(2, "GET:/g/2") == 1
    assert bench.passes(2, "GET:/g/2/x") == 2, "the whole name has to match"


def test_local_rules_before_cluster_rules_and_named_before_default(bench: Bench) -> None:
    names = [("default", False), ("a", False), ("default", True), ("b", True)]
    bench.sentinel.flow.load(
        [
            FlowRule(
                resource="r",
                count=1,
                limit_app=app,
                cluster_mode=on,
                cluster_config=ClusterConfig(flow_id=1),
            )
            for app, on in reversed(names)
        ]
    )
    order = [(rule.limit_app, rule.cluster_mode) for rule in bench.sentinel.flow.rules_for("r")]
    assert order == [("a", False), ("default", False), ("b", True), ("default", True)]


def test_a_nudge_beyond_the_exact_number() -> None:
    # The original adds the smallest possible number, so that 10 calls of 10 fit in spite of rounding.
    tokens = WarmingTokens(10, 10, Settings())
    assert tokens.allowed_at(50) == math.nextafter(10, math.inf)
