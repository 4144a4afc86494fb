"""What every test may ask for. Servers live as long as the session; names live as long as a test."""

import gc
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from redis.asyncio import Redis
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.runtime.gc_tuning import bound_collections
from services.by_module import ByModule
from services.failures_at_once import tell_failures_at_once
from services.kafka import kafka_broker
from services.names import own_name
from services.patient_loop import PatientLoop
from services.postgres import postgres_server
from services.redis import RedisServer

__all__ = ["kafka_broker", "postgres_server"]

# `ci` finds the same examples on every machine; `wild` looks further, with a seed that is printed.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("wild", parent=settings.get_profile("ci"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


_GROUPS = {
    # They share one broker, which costs more to start than most of them.
    "tests/chaos/test_kafka.py": "kafka",
    "tests/contract/pipeline/": "kafka",
    "tests/integration/kafka/": "kafka",
}
_ALONE = ("tests/chaos/", "tests/simulation/")
_ROOMS = ("tests/e2e/", "tests/integration/", "tests/contract/", "tests/unit/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Tests that kill their own service, and the simulation, are long and share nothing."""
    return ByModule(config, log, groups=_GROUPS, alone=_ALONE)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What belongs to this run, and what comes first.

    ``long`` tests are for ``scripts/chaos``, which says how many rounds it wants. What is long comes
    early, so that none of it is left for the end: what goes alone, of which the tests that kill
    mostly wait and the simulation mostly computes, so they take turns; then the rooms, from the
    whole service down to single parts.
    """
    if "SECKILL_CHAOS_ROUNDS" not in os.environ:
        longer = [item for item in items if item.get_closest_marker("long") is not None]
        config.hook.pytest_deselected(items=longer)
        items[:] = [item for item in items if item.get_closest_marker("long") is None]
    turns: Counter[str] = Counter()

    def turn(item: pytest.Item) -> tuple[int, int]:
        for room in _ALONE:
            if item.nodeid.startswith(room):
                turns[room] += 1
                return 0, turns[room]
        return 1, next((at for at, room in enumerate(_ROOMS) if item.nodeid.startswith(room)), 0)

    items.sort(key=turn)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """A run of CI may be ended from outside."""
    if "CI" in os.environ:
        tell_failures_at_once(config)


def pytest_asyncio_loop_factories() -> dict[str, type[PatientLoop]]:
    """Every test that is a coroutine runs on such a loop."""
    return {"patient": PatientLoop}


def pytest_collection_finish() -> None:
    """Keep the collector off what all those modules are made of: they stay, and are many.

    Walking them again and again was a tenth of what the tests themselves cost.
    """
    gc.collect()
    gc.freeze()
    bound_collections()


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that runs inside a test sets up logging for its process, which is everybody's."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if root.level != level:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis that keeps what it is told: for tests that leave the server itself alone."""
    server = RedisServer(
        tmp_path_factory.mktemp("redis"), "--appendonly", "yes", "--appendfsync", "always"
    ).start()
    yield server
    server.remove()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis for a test that kills, freezes, fills or flushes it. Keeps what it is told."""
    server = RedisServer(
        tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always"
    ).start()
    yield server
    server.remove()


@pytest.fixture
def keys() -> Keys:
    """Key names that no other test has."""
    return Keys(prefix=own_name())


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    """A client of the shared Redis, built as the service builds its own."""
    client = connect(redis_server.url, timeout_ms=60_000)
    yield client
    await client.aclose()


@pytest.fixture
def marks_folder(tmp_path: Path) -> Path:
    """Where the gates of one test keep their marks."""
    return tmp_path / "marks"
