"""A data directory of its own for each test, settings on it, and nothing left running."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from seckill.runtime import embedded_postgres, embedded_redis, redis_talk
from seckill.runtime.data_dir import DataDir
from seckill.runtime.settings import LoadedSettings, load_settings

SettingsMaker = Callable[..., LoadedSettings]


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "data")
    made.create()
    return made


@pytest.fixture
def make_settings(data: DataDir) -> SettingsMaker:
    def make(**flags: object) -> LoadedSettings:
        return load_settings(
            {
                "data_dir": data.root,
                "bind": "127.0.0.1:0",
                "workers": 2,
                "auth": "dev",
                "redis_timeout_ms": 30_000,
                "queue_wait_ms_max": 60_000,
                **flags,
            }
        )

    return make


@pytest.fixture(autouse=True)
def servers_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that only stands still for a while is neither taken for silent nor killed."""
    monkeypatch.setattr(redis_talk, "_TIMEOUT_S", 60.0)
    for embedded in (embedded_redis, embedded_postgres):
        monkeypatch.setattr(embedded, "_TERMINATE_TIMEOUT_MS", 60_000)


@pytest.fixture(autouse=True)
def nothing_left_running(tmp_path: Path) -> Iterator[None]:
    """Whatever a test started works in its folder, or names it: that must be gone afterwards."""
    yield
    left = []
    for process in psutil.process_iter():
        try:
            told = [*process.cmdline(), process.cwd(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != psutil.Process().pid and any(str(tmp_path) in word for word in told):
            left.append(f"{process.pid} {process.cmdline()}")
            process.kill()
    assert not left
