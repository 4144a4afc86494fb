"""The scaled-out way under fire: relay, workers and brokers die, under load; no order is lost.

Rounds as in test_kill.py, over a service whose orders go through a real Kafka. Every kind of death
by itself is for ``scripts/chaos``.
"""

import random
import shutil
import signal
import subprocess
import sys
import tempfile
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
    LOAD_S,
    WHOLE_OUTAGES,
    Armed,
    all_rounds,
    buy,
    frozen,
    rounds_with_deaths,
)  # fmt: skip
from seckill.runtime.auditing import audit
from services.kafka import KafkaBroker, KafkaCluster
from services.seckill_service import SeckillService, wait_until

__all__ = ["own_broker"]

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

AWAY_S = 30.0 if WHOLE_OUTAGES else 3.0
_POINTS = (
    "relay.before_produce",
    "relay.after_produce",
    "relay.before_acknowledge",
    "worker.before_commit",
    "worker.before_offset_commit",
)


def test_relay_and_order_workers_die_between_any_two_steps(
    tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    armed = Armed(tmp_path / "armed", *_POINTS)
    with kafka_service(tmp_path, kafka_broker.bootstrap, armed) as service:
        rounds_with_deaths(service, armed)


@pytest.mark.long
@pytest.mark.parametrize("point", _POINTS)
def test_they_die_at_one_point(tmp_path: Path, kafka_broker: KafkaBroker, point: str) -> None:
    armed = Armed(tmp_path / "armed", point)
    with kafka_service(tmp_path, kafka_broker.bootstrap, armed) as service:
        rounds_with_deaths(service, armed)


@pytest.mark.long
def test_the_broker_is_killed_and_comes_back(tmp_path: Path, own_broker: KafkaBroker) -> None:
    with kafka_service(tmp_path, own_broker.bootstrap) as service:

        def disturb(_luck: random.Random) -> None:
            own_broker.kill()
            own_broker.start()

        all_rounds(service, disturb)


@pytest.mark.long
def test_broker_and_relay_are_away_for_a_while(tmp_path: Path, own_broker: KafkaBroker) -> None:
    with kafka_service(tmp_path, own_broker.bootstrap) as service:

        def disturb(_luck: random.Random) -> None:
            own_broker.kill()
            service.kill("relay")
            time.sleep(AWAY_S)  # the outage itself
            own_broker.start()

        all_rounds(service, disturb)


@pytest.mark.long
def test_a_stop_in_an_outage_keeps_everything_for_the_next_start(
    tmp_path: Path, own_broker: KafkaBroker
) -> None:
    with kafka_service(tmp_path, own_broker.bootstrap) as service:

        def disturb(_luck: random.Random) -> None:
            own_broker.freeze()
            time.sleep(LOAD_S / 4)  # so that something is under way
            began = time.monotonic()
            assert service.stop() == 0
            assert time.monotonic() - began < 20
            own_broker.thaw()
            service.start()

        all_rounds(service, disturb)


@pytest.mark.long
def test_workers_and_relays_come_and_go(tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    """A storm of rebalances: a further worker and relay join, and leave by kill -9 or in order."""
    with kafka_service(tmp_path, kafka_broker.bootstrap) as service:

        def disturb(luck: random.Random) -> None:
            for _ in range(3):
                joined = [_join(service, role) for role in ("worker", "relay")]
                time.sleep(luck.uniform(0.5, 1.5))
                for process in joined:
                    process.send_signal(luck.choice([signal.SIGKILL, signal.SIGTERM]))
                    process.wait(20)

        all_rounds(service, disturb)


def _join(service: SeckillService, role: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "seckill", role, "--slot", "9", "--data-dir", str(service.data_dir)],
        env=service._environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.long
def test_the_leaders_of_a_cluster_of_three_move(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="seckill-kafka-"))
    cluster = KafkaCluster(folder)
    try:
        cluster.start()
        with kafka_service(tmp_path, cluster.bootstrap) as service:

            def disturb(luck: random.Random) -> None:
                broker = luck.choice(cluster.brokers)
                luck.choice([broker.kill, broker.stop])()
                time.sleep(1)  # without it, as its clients notice
                broker.start()

            all_rounds(service, disturb)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_the_audit_knows_what_is_in_the_topic(tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    """With the order workers frozen an order is on its way, and neither lost nor written."""
    with kafka_service(tmp_path, kafka_broker.bootstrap, workers=1) as service:
        service.cli("sale", "create", "7", "--stock", "5")
        with frozen(service.pids("worker")):
            buy(service, "7", "ann")
            wait_until("the outbox is empty", lambda: outbox_entries(service) == 0, 20)
            found = service.with_stores(audit).to_dict()
            assert found["ok"], found
            assert found["in_flight"] == 1
        wait_written(service)
