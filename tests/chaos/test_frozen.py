"""A process that is frozen is not dead: it holds what it has, answers nothing, and then goes on.

A host that swaps, a debugger, a hypervisor that moves a machine: the process finds itself later in
the middle of a line, and others have acted meanwhile. Rounds as in test_kill.py.
"""

import random
import time
from pathlib import Path

import pytest

from chaos.kafka_parts import (
    kafka_service,
    outbox_entries,
    own_broker,
    wait_written,
)  # fmt: skip
from chaos.rounds import (
    ROUNDS,
    SEED,
    WHOLE_OUTAGES,
    all_rounds,
    buy,
    frozen,
    kill_environment,
)  # fmt: skip
from seckill.admission.bucket import OUTBOX_GROUP
from seckill.runtime.auditing import audit
from seckill.runtime.bootstrap import Stores
from services.kafka import KafkaBroker
from services.seckill_service import SeckillService, wait_until

__all__ = ["own_broker"]

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

FROZEN_S_MAX = 7.0 if WHOLE_OUTAGES else 2.0
"""Longer than a member of the consumer group, a call of Redis, or an entry in hand may rest."""

_UNITS = 8


@pytest.mark.long
def test_an_order_worker_that_was_frozen_goes_on_by_itself(
    tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    """Whatever it was at, also its start; longer than its session or not; one of two, or both."""
    luck = random.Random(SEED)
    with kafka_service(tmp_path, kafka_broker.bootstrap) as service:
        service.cli("sale", "create", "7", "--stock", str(ROUNDS))
        for number in range(ROUNDS):
            if luck.random() < 0.4:
                killed = service.kill("worker", luck.randrange(2))
                wait_until("another is started", lambda gone=killed: _are(service, 2, gone))  # type: ignore[misc]
            time.sleep(luck.uniform(0, 3))
            with frozen(luck.sample(service.pids("worker"), luck.choice([1, 2]))):
                time.sleep(luck.uniform(0, 2))
                buy(service, "7", f"buyer-{number}")
                time.sleep(luck.uniform(0, 3))
            wait_written(service)
            print(f"round {number}: written")  # noqa: T201
        found = service.with_stores(audit).to_dict()
        assert found["ok"], found


def _are(service: SeckillService, count: int, killed: int) -> bool:
    pids = service.pids("worker")
    return len(pids) == count and killed not in pids


@pytest.mark.long
def test_relays_that_are_frozen_under_load_lose_and_double_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    """One of two, or both: what is in their hands is claimed, or goes on when they do."""
    with kafka_service(tmp_path, kafka_broker.bootstrap, relays=2) as service:

        def disturb(luck: random.Random) -> None:
            with frozen(luck.sample(service.pids("relay"), luck.choice([1, 2]))):
                time.sleep(luck.uniform(0.2, FROZEN_S_MAX))

        all_rounds(service, disturb)


@pytest.mark.long
def test_what_a_frozen_relay_has_in_its_hands_is_carried_by_another(
    tmp_path: Path, own_broker: KafkaBroker
) -> None:
    """It has given its messages to a broker that says nothing; when it goes on, they come twice."""
    with kafka_service(tmp_path, own_broker.bootstrap, relays=2) as service:
        service.cli("sale", "create", "7", "--stock", str(ROUNDS * _UNITS))
        for number in range(ROUNDS):
            own_broker.freeze()
            for unit in range(_UNITS):
                buy(service, "7", f"buyer-{number}-{unit}")
            wait_until("the relays have it all", lambda: sum(_in_hands(service)) > 0)
            slot = max((0, 1), key=_in_hands(service).__getitem__)
            with frozen([_relay(service, slot)]):
                held = _in_hands(service)[slot]
                assert held > 0
                own_broker.thaw()
                wait_until("the other relay has carried it", lambda: outbox_entries(service) == 0)
                wait_written(service)
            wait_until("it has come to rest", lambda: sum(_in_hands(service)) == 0)
            wait_written(service)
            print(f"round {number}: relay {slot} was frozen with {held} entries")  # noqa: T201
        found = service.with_stores(audit).to_dict()
        assert found["ok"], found
        assert found["sales"][0]["live_units"] == ROUNDS * _UNITS, found


def _in_hands(service: SeckillService) -> list[int]:
    """How many outbox entries each relay has taken and not acknowledged."""

    async def pending(stores: Stores) -> list[int]:
        (row,) = await stores.ledger.epochs.current_epochs()
        outbox = stores.keys.bucket(row.bucket_id).outbox
        found = [0, 0]
        for consumer in await stores.redis.xinfo_consumers(outbox, OUTBOX_GROUP):
            slot = int(consumer["name"].decode().removeprefix("relay-").partition("@")[0])
            found[slot] = int(consumer["pending"])
        return found

    counts: list[int] = service.with_stores(pending)
    return counts


def _relay(service: SeckillService, slot: int) -> int:
    (pid,) = [
        int(process["pid"])
        for process in service.status()["processes"]
        if (process["role"], process["slot"]) == ("relay", slot)
    ]
    return pid


@pytest.mark.long
@pytest.mark.parametrize("redis", ["stays", "dies"])
def test_web_processes_that_are_frozen_under_load_tell_nobody_of_an_order_that_is_not_there(
    tmp_path: Path, redis: str
) -> None:
    """One of two, or both. Redis may be another one when they go on."""
    service = SeckillService(tmp_path / "data", "--workers", "2", environment=kill_environment())

    def disturb(luck: random.Random) -> None:
        with frozen(luck.sample(service.pids("web"), luck.choice([1, 2]))):
            time.sleep(luck.uniform(0.1, 0.5))  # so that what was under way has arrived
            if redis == "dies":
                service.kill("redis")
            time.sleep(luck.uniform(0.1, FROZEN_S_MAX))

    try:
        service.start()
        all_rounds(service, disturb)
    finally:
        service.stop()
