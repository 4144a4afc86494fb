"""A service whose orders go through a real Kafka, for the chaos tests, and what is known of it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from chaos.rounds import ROUNDS, SEED, Armed, kill_environment
from seckill.runtime.auditing import audit
from seckill.runtime.bootstrap import Stores
from services.kafka import KafkaBroker, own_options, tell_group
from services.seckill_service import PATIENT, SeckillService, wait_until

__all__ = ["in_flight", "kafka_service", "outbox_entries", "own_broker", "wait_written"]


@contextmanager
def kafka_service(
    folder: Path, bootstrap: str, armed: Armed | None = None, *, workers: int = 2, relays: int = 1
) -> Iterator[SeckillService]:
    """One web process, so many relays and order workers; a dead one is noticed within seconds."""
    print(f"chaos seed {SEED}, {ROUNDS} rounds")  # noqa: T201  -- a failure is a seed to replay
    options = own_options(bootstrap)
    environment = (
        (armed.environment if armed else kill_environment())
        | PATIENT
        | {
            "SECKILL_CHANNEL": "kafka",
            "SECKILL_KAFKA_BOOTSTRAP": bootstrap,
            "SECKILL_KAFKA_TOPIC": options.topic,
            "SECKILL_KAFKA_GROUP": options.group,
            "SECKILL_KAFKA_PARTITIONS": "4",
            "SECKILL_KAFKA_SESSION_TIMEOUT_MS": "2000",
            "SECKILL_KAFKA_BATCH_MESSAGES_MAX": "50",
            "SECKILL_KAFKA_DELIVERY_TIMEOUT_MS": "2000",
            "SECKILL_ORDER_WORKERS": str(workers),
            "SECKILL_RELAYS": str(relays),
        }
    )
    service = SeckillService(folder / "data", "--workers", "1", environment=environment)
    try:
        yield service.start()
    finally:
        service.stop()


@pytest.fixture
def own_broker() -> Iterator[KafkaBroker]:
    """A broker for a test that kills it."""
    folder = Path(tempfile.mkdtemp(prefix="seckill-kafka-"))
    broker = KafkaBroker(folder)
    try:
        yield broker.start()
    finally:
        if broker.running:
            broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


def outbox_entries(service: SeckillService) -> int:
    """Batches that no relay has carried yet, over all buckets."""

    async def entries(stores: Stores) -> int:
        total = 0
        for row in await stores.ledger.epochs.current_epochs():
            total += await stores.redis.xlen(stores.keys.bucket(row.bucket_id).outbox)
        return total

    found: int = service.with_stores(entries)
    return found


def in_flight(service: SeckillService) -> int:
    """What is on its way to the ledger, by the audit's count."""
    found: int = service.with_stores(audit).to_dict()["in_flight"]
    return found


def wait_written(service: SeckillService, timeout_s: float = 90) -> None:
    """Wait until no order is on its way; fail with where one may be."""
    try:
        wait_until("every order is written", lambda: in_flight(service) == 0, timeout_s)
    except AssertionError as error:
        error.add_note(_what_is_known(service))
        raise


def _what_is_known(service: SeckillService) -> str:
    environment = service._environment
    parts = {pid: role for role in ("relay", "worker") for pid in service.pids(role)}
    states = [
        f"{role} {pid}: {psutil.Process(pid).status() if psutil.pid_exists(pid) else 'gone'}"
        for pid, role in parts.items()
    ]
    group = tell_group(environment["SECKILL_KAFKA_BOOTSTRAP"], environment["SECKILL_KAFKA_GROUP"])
    log = service.log().splitlines()[-80:]
    return "\n".join(
        [f"in the outbox: {outbox_entries(service)}", *states, str(service.status()), group, *log]
    )
