"""Commands that are run beside a web process: one at a time, never for ever, never left behind."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from seckill.runtime.beside import Beside
from seckill.runtime.settings import Settings, load_settings
from seckill.web.problems import Unavailable


@pytest.fixture
def nowhere(tmp_path: Path) -> Settings:
    """Of a service whose Redis is not there."""
    settings = load_settings(
        {"data_dir": tmp_path / "data", "redis_url": "redis://127.0.0.1:9/0"}
    ).settings
    settings.data.create()
    return settings


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Settings]:
    """Of a service whose Redis takes every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        settings = load_settings(
            {
                "data_dir": tmp_path / "data",
                "redis_url": f"redis://127.0.0.1:{port}/0",
                "redis_timeout_ms": 60_000,
            }
        ).settings
        settings.data.create()
        yield settings


def _children() -> list[str]:
    return [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]


async def test_what_a_command_cannot_do_is_said_in_its_own_words(nowhere: Settings) -> None:
    with pytest.raises(Unavailable, match=r"It could not be done: .*127\.0\.0\.1"):
        await Beside(nowhere).run("audit", "--json")


async def test_one_at_a_time_and_what_takes_too_long_is_ended(silent: Settings) -> None:
    beside = Beside(silent, wait_s=0.1)
    first = asyncio.create_task(beside.run("audit", "--json"))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="under way"):
        await beside.run("audit", "--json")
    with pytest.raises(Unavailable, match="did not end within"):
        await first
    assert not any("audit" in command for command in _children())


async def test_a_web_process_that_ends_takes_the_command_with_it(silent: Settings) -> None:
    task = asyncio.create_task(Beside(silent).run("audit", "--json"))
    async with asyncio.timeout(60):
        while not any("audit" in command for command in _children()):
            await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any("audit" in command for command in _children())
