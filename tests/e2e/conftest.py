"""One service as a user starts it, shared by the end-to-end tests."""

from collections.abc import Iterator

import pytest

from services.seckill_service import PATIENT, SeckillService


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeckillService]:
    running = SeckillService(
        tmp_path_factory.mktemp("e2e") / "data", "--demo", environment=PATIENT
    ).start()
    yield running
    assert running.stop() == 0, running.log()
