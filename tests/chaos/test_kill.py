"""kill -9 of every process, under load: every 202 is accounted for, and the books balance.

Each round is a sale of its own with buyers who do not give up, while processes die; then the
service comes to rest, every reservation that anybody was told of must have its one order, and the
audit must find nothing. SECKILL_CHAOS_ROUNDS (3) and SECKILL_CHAOS_SEED set length and luck.
"""

import os
import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from chaos.rounds import (
    ROUNDS,
    SEED,
    Armed,
    all_rounds,
    rounds_with_deaths,
)
from seckill.runtime.fork_server import can_fork
from services.seckill_service import SeckillService, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]


@contextmanager
def _service(
    folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[SeckillService]:
    print(f"chaos seed {SEED}, {ROUNDS} rounds")  # noqa: T201  -- a failure is a seed to replay
    service = SeckillService(folder / "data", "--workers", "2", environment=environment)
    try:
        yield service.start()
    finally:
        service.stop()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("web.after_decision", id="web, between Redis' reply and the HTTP answer"),
        pytest.param("worker.after_commit", id="order worker, committed and not acknowledged"),
        pytest.param("worker.before_commit", id="order worker, before it commits"),
    ],
)
def test_a_process_killed_between_two_steps(tmp_path: Path, point: str) -> None:
    armed = Armed(tmp_path / "armed", point)
    with _service(tmp_path, armed.environment) as service:
        rounds_with_deaths(service, armed)


def test_redis_killed_with_durability_fsync_loses_nothing(tmp_path: Path) -> None:
    with _service(tmp_path) as service:
        all_rounds(service, lambda _luck: _kill_one(service, "redis"))


def test_supervisor_killed(tmp_path: Path) -> None:
    with _service(tmp_path) as service:

        def disturb(_luck: random.Random) -> None:
            orphans = service.pids("web") + service.pids("worker")
            service.kill_supervisor()
            wait_until("the children are gone", lambda: not any(map(_alive, orphans)))
            service.start()

        all_rounds(service, disturb)


@pytest.mark.skipif(not can_fork(), reason="there is no fork server here")
def test_fork_server_killed(tmp_path: Path) -> None:
    """All that was forked off it dies with it, and all of it comes back."""
    with _service(tmp_path) as service:

        def programs() -> list[int]:
            return service.pids("web") + service.pids("worker")

        def disturb(_luck: random.Random) -> None:
            before = programs()
            fork_server = {psutil.Process(pid).ppid() for pid in before}
            assert len(fork_server) == 1
            os.kill(fork_server.pop(), signal.SIGKILL)
            wait_until(
                "all of them are others",
                lambda: len(programs()) == len(before) and not set(programs()) & set(before),
            )

        all_rounds(service, disturb)


def test_everything_killed_at_once(tmp_path: Path) -> None:
    with _service(tmp_path) as service:

        def disturb(luck: random.Random) -> None:
            victims = [role for role in ("web", "worker", "redis") for _ in service.pids(role)]
            luck.shuffle(victims)
            for role in victims:
                service.kill(role, luck.randrange(2))
            service.kill_supervisor()
            service.start()

        all_rounds(service, disturb)


def _kill_one(service: SeckillService, role: str) -> None:
    pid = service.kill(role)
    assert pid, f"there was no {role} to kill"
    wait_until(f"{role} is another one", lambda: service.pids(role) not in ([], [pid]))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
