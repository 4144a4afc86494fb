"""The reference vectors of system protection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from seckill.sentinel import EntryType, HostStatus, SystemBlockException, SystemRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from unit.sentinel.engines import Bench


IN = EntryType.IN


class FixedStatus:
    """A machine that stands still."""

    def __init__(self, load: float = 0, cpu: float = 0) -> None:
        self.values = (load, cpu)

    def load(self) -> float:
        return self.values[0]

    def cpu_usage(self) -> float:
        return self.values[1]


def test_the_smallest_limit_of_each_kind_is_in_force(bench: Bench) -> None:
    bench.sentinel.system.load([SystemRule(highest_system_load=load) for load in (1.2, 2.3, 3.4)])
    assert bench.sentinel.system.limits.rules() == (SystemRule(highest_system_load=1.2),)


def test_limits_that_say_nothing(bench: Bench) -> None:
    report = bench.sentinel.system.load(
        [SystemRule(highest_system_load=-0.9), SystemRule(highest_cpu_usage=2.7)]
    )
    assert bench.sentinel.system.limits.rules() == ()
    assert [one.problems[0].field for one in report.warnings] == ["$", "highestCpuUsage"]


def test_limits_are_reported_in_the_originals_order(bench: Bench) -> None:
    bench.sentinel.system.load(
        [
            SystemRule(qps=1, max_thread=2),
            SystemRule(avg_rt=3, highest_cpu_usage=0.5, highest_system_load=4),
        ]
    )
    fields = list(bench.sentinel.system.limits.rules())
    assert fields == [
        SystemRule(highest_system_load=4),
        SystemRule(highest_cpu_usage=0.5),
        SystemRule(avg_rt=3),
        SystemRule(max_thread=2),
        SystemRule(qps=1),
    ]


def test_only_inbound_calls_are_asked(bench: Bench) -> None:
    bench.sentinel.system.load([SystemRule(qps=0)])
    assert bench.passes_one()
    assert not bench.passes_one(entry_type=IN)


def test_calls_count_when_they_come_and_not_when_they_end(bench: Bench) -> None:
    bench.sentinel.system.load([SystemRule(qps=3)])
    under_way = [bench.enter(entry_type=IN) for _ in range(3)]
    block = bench.refusal(entry_type=IN)
    assert (block.rule_limit_app, block.measured, block.limit) == ("qps", 3, 3)
    bench.at(1001)
    for entry in under_way:
        entry.exit()
    assert bench.passes(5, entry_type=IN) == 3, "their end is no call"


def test_one_more_than_the_calls_in_flight_may_run(bench: Bench) -> None:
    bench.sentinel.system.load([SystemRule(max_thread=2)])
    for _ in range(3):
        bench.enter(entry_type=IN)
    block = bench.refusal(entry_type=IN)
    assert isinstance(block, SystemBlockException)
    assert block.limit_type == "thread"
    assert (block.measured, block.limit) == (3, 2)


def test_slow_traffic_is_held_back(bench: Bench) -> None:
    bench.sentinel.system.load([SystemRule(avg_rt=100)])
    entry = bench.enter(entry_type=IN)
    bench.clock.advance_ms(101)
    entry.exit()
    assert bench.refusal(entry_type=IN).rule_limit_app == "rt"


def test_a_cpu_limit_of_nothing_refuses_all(benches: Callable[..., Bench]) -> None:
    it = benches(status=FixedStatus(cpu=0.01))
    it.sentinel.system.load([SystemRule(highest_cpu_usage=0)])
    assert it.refusal(entry_type=IN).rule_limit_app == "cpu"


@pytest.mark.parametrize(("running", "passes"), [(2, True), (3, False)])
def test_load_counts_only_beyond_what_the_process_can_carry(
    benches: Callable[..., Bench], running: Any, passes: Any
) -> None:
    it = benches(status=FixedStatus(load=99))
    # The best bucket of late finished 50 calls of 20 ms in half a second: 100/s x 0.02 s = 2 in flight.
    finishing = [it.enter(entry_type=IN) for _ in range(50)]
    it.clock.advance_ms(20)
    for entry in finishing:
        entry.exit()
    for _ in range(running):
        it.enter(entry_type=IN)
    it.sentinel.system.load([SystemRule(highest_system_load=1)])
    assert it.passes_one(entry_type=IN) is passes


def test_this_machine_can_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seckill.sentinel.system.status.SAMPLE_INTERVAL_S", 3_600)
    status = HostStatus()
    assert status.load() >= -1
    assert status.cpu_usage() == -1, "nothing to compare with yet"
    assert status.cpu_usage() == -1, "and not twice within the interval"
