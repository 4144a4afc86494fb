"""A data directory of its own for each test, settings on it, and nothing left running."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from seckill.runtime import embedded_postgres, embedded_redis, redis_talk
from seckill.runtime.data_dir import DataDir
from seckill.runtime.settings import LoadedSettings, load_settings

SettingsMaker = Callable[..., LoadedSettings]

_GONE_WITHIN_S = 30


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
    """Whatever a test started works in its folder, or names it: that must be gone afterwards.

    Soon: helpers of a server (PostgreSQL's logger, say) end by themselves, a moment after it.
    """
    yield
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (left := _at_work_in(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    told = [f"{process.pid} {command}" for process, command in left]
    for process, _ in left:
        process.kill()
    assert not told


def _at_work_in(folder: Path) -> list[tuple[psutil.Process, list[str]]]:
    """Processes that name a folder or work in it, each with its command."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            told = [*command, process.cwd(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(folder) in word for word in told):
            found.append((process, command))
    return found
