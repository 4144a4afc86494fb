"""What the commands share: common options, finding the running service, answers in JSON."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from seckill.runtime.lean_start import load_log_library

if TYPE_CHECKING:
    from seckill.runtime.bootstrap import Stores
    from seckill.runtime.settings import LoadedSettings

__all__ = [
    "DataDirOption",
    "JSONOption",
    "actor",
    "load",
    "of_running_service",
    "print_json",
    "with_stores",
]

T = TypeVar("T")

DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the service's data. Default ./.seckill."),
]
JSONOption = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")]


def actor() -> str:
    """Who gives this order, for the action log."""
    import getpass  # noqa: PLC0415

    try:
        return f"cli:{getpass.getuser()}"[:64]
    except (KeyError, OSError):
        return f"cli:uid{os.getuid()}"


def print_json(value: object) -> None:
    """Write a value for programs."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def load(data_dir: Path | None, **flags: object) -> "LoadedSettings":
    """The settings; a flag that is None was not given. What was ignored is told once."""
    from seckill.runtime.settings import load_settings  # noqa: PLC0415

    loaded = load_settings({"data_dir": data_dir, **flags})
    for warning in loaded.warnings:
        _tell_once(warning)
    return loaded


@cache
def _tell_once(sentence: str) -> None:
    """Say something beside the answer. A command may load the settings more than once."""
    typer.echo(f"seckill: {sentence}", err=True)


def of_running_service(data_dir: Path | None) -> "LoadedSettings":
    """The settings of the service that runs on this data directory, or of stores named by them.

    Raises:
        NoService: nothing runs there, and no Redis is named.
    """
    from seckill.runtime.errors import NoService  # noqa: PLC0415
    from seckill.runtime.settings_report import with_run_settings  # noqa: PLC0415
    from seckill.runtime.status import read_status  # noqa: PLC0415

    loaded = load(data_dir)
    if read_status(loaded.settings.data) is not None:
        loaded = with_run_settings(loaded)
    if not loaded.settings.redis_url:
        raise NoService(str(loaded.settings.data_dir))
    return loaded


def with_stores(data_dir: Path | None, work: "Callable[[Stores], Coroutine[Any, Any, T]]") -> T:
    """Run work on the stores of the running service."""
    settings = of_running_service(data_dir).settings
    # Only now: whoever is told that no service runs need not wait for the stores' libraries.
    load_log_library()
    from seckill.runtime.bootstrap import open_stores  # noqa: PLC0415
    from seckill.runtime.logs import configure_logging  # noqa: PLC0415

    configure_logging(level="error", log_format="console", role="command", slot=0)

    async def run() -> T:
        async with open_stores(settings) as stores:
            return await work(stores)

    return asyncio.run(run())
