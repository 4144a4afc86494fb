"""One limit for many workers: what the lease books promise together, on a virtual clock."""

from __future__ import annotations

import bisect
import os
import random
from dataclasses import replace

import pytest

from seckill.sentinel import ClusterConfig
from unit.sentinel.lease_simulation import Wire, World

WARM_MS = 1_000
"""Until all workers know of each other."""

SCHEDULES = int(os.environ.get("SENTINEL_LEASE_SCHEDULES", "8"))


def bound(count: int, workers: int) -> int:
    """As docs/sentinel.md states it: the threshold, and a block in every hand."""
    busy = max(count // 10, workers)
    credit = max(1, count // (10 * workers)) if count >= 4 * workers else 0
    return count + min(count, busy) + credit * workers


@pytest.mark.parametrize(
    "rates", [[625.0] * 8, [5_000.0] + [0.0] * 7], ids=["evenly", "all on one worker"]
)
def test_c31_a_threshold_holds_for_all_workers_together(rates: list[float]) -> None:
    world = World(1_000, 8)
    world.run(WARM_MS)
    world.offer(10_000, rates)
    assert world.worst() <= 1_000
    assert [world.per_second(WARM_MS)[second] >= 950 for second in range(10)] == [True] * 10


def test_c31_control_without_leases_each_worker_lets_in_the_whole_threshold() -> None:
    """The race that leases end: the same load on engines that fall back to a local count."""
    world = World(100, 8, config=ClusterConfig(flow_id=1), expected=1)
    for worker in world.workers:
        worker.wire.cut = True
    world.offer(1_000, [200.0] * 8)
    assert world.worst() == 800


def test_a_load_that_moves_takes_its_tokens_along() -> None:
    world = World(1_000, 4)
    world.run(WARM_MS)
    for place in (0, 1, 2, 3, 0):
        rates = [0.0] * 4
        rates[place] = 1_500
        world.offer(1_000, rates)
    assert world.worst() <= bound(1_000, 4)
    assert min(world.per_second(WARM_MS)[second] for second in range(5)) >= 900


def test_little_traffic_is_never_refused() -> None:
    world = World(100, 8)
    world.run(WARM_MS)
    world.offer(10_000, [5.0] * 8)
    assert len(world.passed) == 8 * 50


@pytest.mark.parametrize("quiet_ms", [0, 2_500, 60_000])
def test_the_first_calls_of_a_sale_do_not_wait_for_redis(quiet_ms: int) -> None:
    world = World(1_000, 8)
    world.run(WARM_MS + quiet_ms)
    assert [worker.call(12) for worker in world.workers] == [12] * 8
    assert [worker.call(12) for worker in world.workers] == [0] * 8, "that was the credit"
    world.run(20)
    assert [worker.call(12) for worker in world.workers] == [12] * 8


def test_credit_is_counted_and_not_given_twice() -> None:
    world = World(100, 2)
    world.run(WARM_MS)
    for _ in range(40):
        # Just often enough to be quiet in between, if a window were all that counts.
        world.workers[0].call(20)
        world.run(1_100)
    assert world.worst() <= 100
    assert world.redis.windows["sentinel:{t}:flow:1"].units


def test_a_call_of_more_units_than_a_block_has_its_turn_too() -> None:
    world = World(100, 8)
    world.run(WARM_MS)
    entries = []
    for _ in range(40):
        entries.append(world.workers[0].sentinel.try_entry("r", count=60))
        world.run(50)
    passed = [not isinstance(entry, Exception) for entry in entries]
    assert sum(passed) == 2, "one in each of two seconds"


def test_unused_tokens_are_not_saved_up() -> None:
    world = World(100, 2)
    world.run(WARM_MS)
    world.offer(5_000, [10.0, 10.0])
    world.run(300)
    world.passed.clear()
    world.offer(1_000, [500.0, 500.0])
    assert world.worst() <= bound(100, 2)


def test_a_changed_threshold_holds_from_the_next_exchange() -> None:
    world = World(1_000, 2)
    world.run(WARM_MS)
    world.offer(500, [300.0] * 2)
    assert all(worker.book._flows[1][1]._hold > 20 for worker in world.workers), "full hands"
    for worker in world.workers:
        worker.sentinel.flow.load([replace(world.rule, count=50)])
    world.passed.clear()
    world.offer(3_000, [100.0] * 2)
    held = len(world.passed[: bisect.bisect_left(world.passed, world.passed[0] + 100_000_000)])
    assert held <= 10, "of what was in hand, a block of the new threshold each"
    assert 45 <= world.worst() <= bound(50, 2)
    assert 45 <= world.worst(since_ms=3_500) <= 50


def test_c44_redis_cut_slow_and_refusing_never_multiplies_the_limit() -> None:
    world = World(200, 8)
    rates = [60.0] * 8
    world.run(WARM_MS)
    world.offer(2_000, rates)
    for fault in ("cut", "slow", "cut"):
        for worker in world.workers:
            worker.wire.cut = fault == "cut"
            worker.wire.delay_ms = 100.0 if fault == "slow" else 1.0
        world.offer(4_000, rates)
    cut = world.per_second(WARM_MS + 2_000)
    assert [cut[second] >= 190 for second in (2, 3)] == [True] * 2, "each lives on its share"
    for worker in world.workers:
        worker.wire.cut = False
    back_ms = world.now_ms
    world.offer(3_000, rates)
    assert world.per_second(back_ms)[0] >= 100, "what was used of the shares goes as it came"
    assert world.per_second(back_ms)[1] >= 180, "recovered within a window"
    assert world.worst() <= bound(200, 8)


def test_c44_closed_by_setting(caplog: pytest.LogCaptureFixture) -> None:
    world = World(200, 2, fallback="closed")
    world.run(WARM_MS)
    world.offer(1_000, [250.0] * 2)
    for worker in world.workers:
        worker.wire.cut = True
    world.run(1_000)
    world.passed.clear()
    world.offer(2_000, [250.0] * 2)
    assert world.passed == []
    assert caplog.text.count("no tokens from Redis") == 2, "once for each"
    for worker in world.workers:
        worker.wire.cut = False
    world.offer(3_000, [250.0] * 2)
    assert caplog.text.count("leased from Redis again") == 2
    assert 180 <= world.worst() <= 200


def test_c44_one_worker_that_is_cut_off_has_its_share_and_no_more() -> None:
    world = World(200, 4)
    world.run(WARM_MS)
    world.offer(1_000, [120.0] * 4)
    world.workers[0].wire.cut = True
    world.offer(6_000, [120.0] * 4)
    assert world.worst() <= 200
    assert world.per_second(WARM_MS)[5] >= 190
    world.workers[0].wire.cut = False
    world.offer(3_000, [120.0] * 4)
    assert world.worst() <= 200


def test_c44_one_worker_whose_replies_are_lost_has_its_share_and_no_more() -> None:
    """Redis hears of it all the time, so it must be told that it does not lease."""
    world = World(200, 4)
    world.run(WARM_MS)
    world.offer(1_000, [120.0] * 4)
    world.workers[0].wire.loses_replies = True
    world.offer(6_000, [120.0] * 4)
    assert world.worst() <= 200
    assert world.per_second(WARM_MS)[5] >= 190
    world.workers[0].wire.loses_replies = False
    world.offer(3_000, [120.0] * 4)
    assert world.worst() <= 200


def test_c44_started_without_redis_each_has_a_part_of_what_is_expected() -> None:
    world = World(100, 4, expected=4)
    for worker in world.workers:
        worker.wire.cut = True
    world.offer(3_000, [200.0] * 4)
    assert world.worst() == 100
    for worker in world.workers:
        worker.wire.cut = False
    world.offer(3_000, [200.0] * 4)
    assert world.worst() <= 100
    assert world.per_second(4_000)[0] >= 90


def test_c44_started_without_redis_and_without_a_number_everything_is_refused() -> None:
    world = World(100, 2)
    for worker in world.workers:
        worker.wire.cut = True
    world.offer(2_000, [100.0] * 2)
    assert world.passed == []
    assert [worker.book.share(world.rule) for worker in world.workers] == [0.0, 0.0]


def test_a_redis_that_lost_its_data_grants_nothing_twice() -> None:
    """Without a broken connection to notice it by: as FLUSHALL does."""
    world = World(200, 4)
    world.run(WARM_MS)
    world.offer(1_300, [120.0] * 4)
    world.redis.forget()
    world.offer(3_000, [120.0] * 4)
    assert world.worst() <= bound(200, 4)
    assert world.per_second(WARM_MS + 1_300)[2] >= 180


def test_what_was_lost_with_redis_is_not_granted_to_another_worker() -> None:
    """The one that used it may be the last to notice."""
    world = World(40, 2)
    world.run(WARM_MS)
    world.offer(300, [500.0, 0.0])
    assert len(world.passed) >= 40
    world.redis.forget()
    world.offer(500, [0.0, 500.0])
    assert world.worst() <= bound(40, 2)


def test_a_small_threshold_is_shared_out_in_whole_units() -> None:
    world = World(5, 8)
    world.run(WARM_MS)
    world.offer(500, [50.0] * 8)
    shares = [worker.book.share(world.rule) * 5 for worker in world.workers]
    assert [int(share) for share in shares] == [0, 1, 0, 1, 1, 0, 1, 1]
    for worker in world.workers:
        worker.wire.cut = True
    world.run(3_000)
    world.passed.clear()
    world.offer(3_000, [50.0] * 8)
    assert world.worst() == 5


def test_a_dead_worker_is_forgotten_and_its_share_goes_to_the_others() -> None:
    world = World(80, 4)
    world.run(WARM_MS)
    world.offer(1_000, [50.0] * 4)
    world.workers[0].alive = False
    died_ms = world.now_ms
    world.offer(14_000, [50.0] * 4)
    seconds = world.per_second(died_ms)
    assert all(56 <= seconds[second] <= 62 for second in range(2, 9))
    assert seconds[12] >= 76
    assert world.workers[1].book.status().workers == 3


def test_a_worker_that_leaves_gives_everything_back_at_once() -> None:
    world = World(100, 2)
    world.run(WARM_MS)
    leaving, staying = world.workers
    leaving.call(5)
    world.run(100)
    exchange = leaving.book.exchange(leaving=True)
    assert exchange is not None
    leaving.book.answered(
        exchange, world.redis.run(list(exchange.keys), exchange.body, world.clock.now_ms())
    )
    leaving.alive = False
    assert list(world.redis.workers) == ["w1"]
    assert sum(world.redis.windows["sentinel:{t}:flow:1"].units.values()) == 5
    world.offer(900, [0.0, 1_000.0])
    assert len(world.passed) >= 98
    assert staying.book.status().workers == 1


def test_a_threshold_per_machine_grows_with_the_workers() -> None:
    world = World(100, 4, config=ClusterConfig(flow_id=1, threshold_type=0))
    world.run(WARM_MS)
    world.offer(3_000, [800.0, 0.0, 0.0, 0.0])
    assert 380 <= world.worst() <= 400


def disturb(world: World, random_: random.Random) -> None:
    """One thing that happens to services."""
    wires = [worker.wire for worker in world.workers]
    match random_.choice(("cut", "heal", "heal", "slow", "deaf", "die", "join", "restart")):
        case "cut":
            for wire in random_.sample(wires, random_.choice((1, len(wires)))):
                wire.cut = True
        case "slow":
            for wire in wires:
                wire.delay_ms = random_.choice((10.0, 100.0))
        case "deaf":
            random_.choice(wires).loses_replies = True
        case "die":
            random_.choice(world.workers).alive = False
        case "join":
            joined = len(world.workers)
            world.join(f"j{joined}", Wire(random_.randrange(10**6)))
        case "restart":
            restart_redis(world, random_.choice((50, 500)))
        case _:
            heal(world)


def restart_redis(world: World, span_ms: int) -> None:
    """Redis is away for a moment, and has forgotten everything after it."""
    was_cut = [worker.wire.cut for worker in world.workers]
    for worker in world.workers:
        worker.wire.cut = True
    world.redis.forget()
    world.run(span_ms)
    for worker, cut in zip(world.workers, was_cut, strict=True):
        worker.wire.cut = cut


def heal(world: World) -> None:
    for worker in world.workers:
        worker.wire.cut = worker.wire.loses_replies = False
        worker.wire.delay_ms = 1.0


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_whatever_happens_no_window_passes_more_than_its_bound(seed: int) -> None:
    """Loads move, wires break and heal, replies are lost, workers die and join, Redis restarts."""
    random_ = random.Random(seed)
    count = random_.choice((1, 7, 40, 200))
    size = random_.choice((2, 3, 8))
    world = World(count, size, seed=seed, expected=random_.choice((None, size)))
    world.run(WARM_MS)
    for step in range(10):
        disturb(world, random_)
        if step % 3 == 2:
            heal(world)
        total = 2 * count + 20
        weights = [random_.choice((0, 0, 1, 5)) for _ in world.workers]
        rates = [total * weight / max(1, sum(weights)) for weight in weights]
        world.offer(random_.randint(300, 2_500), rates)
    most = bound(count, len(world.workers))
    assert world.worst() <= most, (count, len(world.workers))
    assert not any(worker.sentinel.alarms.internal_errors for worker in world.workers)
