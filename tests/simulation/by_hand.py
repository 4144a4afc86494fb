"""Schedules that chance does not find soon enough, written by hand.

Each is the story that one rule of the fence was made for; with the rule, it breaks nothing.
"""

from collections.abc import Callable

from seckill.admission.fence import Verdict
from seckill.admission.scripts import ADMIT
from simulation.wire import Call, Store
from simulation.world import Ask, Worker, World

__all__ = [
    "a_buyer_asks_again_when_it_has_expired",
    "a_relay_stands_still_while_the_bucket_is_made_anew",
    "a_release_is_late_when_the_bucket_is_made_anew",
]

_ROUNDS_MAX = 100


async def a_buyer_asks_again_when_it_has_expired(world: World) -> None:
    """Who heard no answer asks again with the same attempt, when what it had won has expired."""
    await _open(world)
    ask = Ask(world, "u1", "a1", 1)
    web = world.webs[0]
    world.submit(ask, web)
    await world.deliver_all(held=_admits)
    [admission] = [call for call in world.calls if _admits(call)]
    world.arrive(admission)
    web.asks.clear()
    world.kill(web)
    await _write(world)
    await _expire(world)
    await world.deliver_all()
    world.submit(ask, world.webs[1])
    await world.deliver_all()


async def a_relay_stands_still_while_the_bucket_is_made_anew(world: World) -> None:
    """It has read a purchase that is nowhere else; then Redis forgets everything."""
    await _open(world)
    world.submit(Ask(world, "u1", "a1", 1), world.webs[0])
    await world.deliver_all()
    world.carry_outbox()
    await world.deliver_all(held=_publishes)
    assert [call for call in world.calls if _publishes(call)]
    world.lose(world.redis.forget_all)
    await _make_anew(world, world.workers[0], held=_publishes)
    await world.deliver_all()


async def a_release_is_late_when_the_bucket_is_made_anew(world: World) -> None:
    """It is on its way to Redis, which forgets everything, and is made anew without it."""
    await _open(world)
    world.submit(Ask(world, "u1", "a1", 1), world.webs[0])
    await world.deliver_all()
    await _write(world)

    def is_on_its_way(call: Call) -> bool:
        return call.store is Store.REDIS and "sweep" in call.process.tasks

    await _expire(world, held=is_on_its_way)
    [release] = [call for call in world.calls if is_on_its_way(call)]
    [other] = [one for one in world.workers if one.process is not release.process]
    world.lose(world.redis.forget_all)
    await _make_anew(world, other, held=is_on_its_way)
    await world.deliver_all()


def _admits(call: Call) -> bool:
    return call.what.endswith(ADMIT.sha)


def _publishes(call: Call) -> bool:
    return call.what == "publish"


def _nobody(_call: Call) -> bool:
    return False


async def _open(world: World) -> None:
    """A keeper opens the bucket."""
    await _look(world, world.workers[0], _nobody)
    assert world.workers[0].verdict in {Verdict.FINE, Verdict.REOPENED}


async def _look(world: World, worker: Worker, held: Callable[[Call], bool]) -> None:
    world.keep(worker)
    await world.deliver_all(held)


async def _write(world: World) -> None:
    """The relay carries what there is, and it is written."""
    world.carry_outbox()
    await world.deliver_all()
    world.write_orders()
    await world.deliver_all()


async def _expire(world: World, held: Callable[[Call], bool] = _nobody) -> None:
    """The order expires, and its unit goes back."""
    world.expire()
    await world.deliver_all()
    world.sweep()
    await world.deliver_all(held)


async def _make_anew(world: World, worker: Worker, held: Callable[[Call], bool]) -> None:
    """Time goes on, but for what is held up, until the bucket is open again."""
    for _ in range(_ROUNDS_MAX):
        await _look(world, worker, held)
        if worker.verdict is Verdict.FINE:
            return
        world.pass_time()
        await world.deliver_all(held)
    raise AssertionError(f"the bucket stays {worker.verdict}")
