"""Commands that run the service, and those that tell how it runs."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seckill.cli.shared import DataDirOption, JSONOption, load, of_running_service, print_json
from seckill.domain.errors import InvalidValue
from seckill.runtime.lean_start import load_log_library

if TYPE_CHECKING:
    from seckill.runtime.settings import Settings

__all__ = ["run_app"]

run_app = typer.Typer()


@run_app.command()
def serve(
    bind: Annotated[
        str | None,
        typer.Option(
            help="Address to serve on, host:port; port 0 takes a free one. Default 127.0.0.1:8000."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Web processes, 1 to 256. Default: one a core.")
    ] = None,
    data_dir: DataDirOption = None,
    durability: Annotated[
        str | None,
        typer.Option(
            help="memory, fsync (default) or replicated: what a purchase survives once its buyer"
            " was told yes."
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Open a sample sale: goods 1, 100 units.")
    ] = False,
) -> None:
    """Run the service in the foreground: Redis (unless one is named), order worker and reaper, web.

    Ctrl-C ends it cleanly; the next start goes on with the same data. Every other setting, its
    bounds and its default: `seckill settings` and docs/reference/settings.md.
    """
    load_log_library()
    from seckill import __version__  # noqa: PLC0415
    from seckill.runtime.demo_hint import demo_hint, own_command  # noqa: PLC0415
    from seckill.runtime.launching import Launcher  # noqa: PLC0415
    from seckill.runtime.logs import configure_logging  # noqa: PLC0415
    from seckill.runtime.preparing import prepare_in_child  # noqa: PLC0415
    from seckill.runtime.settings import Settings  # noqa: PLC0415
    from seckill.runtime.setup_link import setup_hint, take_setup_link  # noqa: PLC0415
    from seckill.runtime.supervise import (  # noqa: PLC0415
        RunReport,
        Supervisor,
        describe_run,
        pass_on_to_stderr,
    )

    loaded = load(data_dir, bind=bind, workers=workers, durability=durability)
    settings = loaded.settings
    typer.echo(f"starting Seckill {__version__} on the data directory {settings.data_dir} …")
    configure_logging(
        level=settings.log_level, log_format=settings.log_format, role="supervisor", slot=0
    )

    async def prepared(_settings: Settings, launcher: Launcher) -> None:
        await prepare_in_child(launcher, demo=demo, pass_on=pass_on_to_stderr)

    def ready(report: RunReport) -> None:
        typer.echo(describe_run(report))
        secret = take_setup_link(settings.data)
        if secret is not None:
            typer.echo(setup_hint(report.status.bind, secret))
        if demo:
            typer.echo(demo_hint(report.status.bind, settings, own_command()))

    asyncio.run(Supervisor(loaded, prepare=prepared, on_ready=ready).run())


@run_app.command()
def worker(
    slot: Annotated[
        int, typer.Option(help="Number of this worker, 0 to 255; each worker its own.")
    ] = 1,
    data_dir: DataDirOption = None,
) -> None:
    """Run one more order worker: beside a running service (which has number 0), or by itself.

    By itself it finds Redis, the ledger and Kafka by the settings.
    """
    from seckill.runtime.roles import run_worker  # noqa: PLC0415
    from seckill.runtime.settings import mask_url  # noqa: PLC0415

    settings = _settings_of_part("worker", slot, data_dir)
    source = mask_url(settings.redis_url)
    if settings.channel == "kafka":
        source = f"topic {settings.kafka_topic} of {settings.kafka_bootstrap}"

    def tell() -> None:
        typer.echo(
            f"order worker {slot}, process {os.getpid()}: carries orders from {source} to"
            f" {mask_url(settings.database_url)}; Ctrl-C ends it",
            err=True,
        )

    run_worker(settings, slot, on_begin=tell)


@run_app.command()
def relay(
    slot: Annotated[
        int, typer.Option(help="Number of this relay, 0 to 255; each relay its own.")
    ] = 1,
    data_dir: DataDirOption = None,
) -> None:
    """Run one more relay, from the outbox in Redis to Kafka; with channel kafka only.

    Several may run at once, on one host or on many; each message is carried by one of them.
    """
    from seckill.runtime.relay_role import run_relay  # noqa: PLC0415
    from seckill.runtime.settings import mask_url  # noqa: PLC0415

    settings = _settings_of_part("relay", slot, data_dir)

    def tell() -> None:
        typer.echo(
            f"relay {slot}, process {os.getpid()}: carries the outbox of"
            f" {mask_url(settings.redis_url)} to topic {settings.kafka_topic} of"
            f" {settings.kafka_bootstrap}; Ctrl-C ends it",
            err=True,
        )

    run_relay(settings, slot, on_begin=tell)


def _settings_of_part(role: str, slot: int, data_dir: Path | None) -> "Settings":
    """The settings for a part that is started by hand, under a number that is free."""
    from seckill.runtime.errors import SlotTaken  # noqa: PLC0415
    from seckill.runtime.status import read_status  # noqa: PLC0415

    _check_slot(slot)
    settings = of_running_service(data_dir).settings
    run = read_status(settings.data)
    for own in run.of_role(role) if run else ():
        if own.slot == slot:
            # Also while that one is being started again: taking its number would keep it out, and
            # a part that cannot come back ends the run.
            raise SlotTaken(role, slot, str(settings.data_dir), own.pid or 0)
    return settings


@run_app.command()
def reaper(
    slot: Annotated[
        int, typer.Option(help="Number of this reaper, 0 to 255; each reaper its own.")
    ] = 1,
    data_dir: DataDirOption = None,
) -> None:
    """Run one more reaper: ends unpaid orders, finishes late payments and refunds.

    A service that was started by `seckill serve` has one already, in its order worker.
    """
    from seckill.runtime.roles import run_reaper  # noqa: PLC0415
    from seckill.runtime.settings import mask_url  # noqa: PLC0415

    _check_slot(slot)
    settings = of_running_service(data_dir).settings

    def tell() -> None:
        typer.echo(
            f"reaper {slot}, process {os.getpid()}: looks for unpaid orders in"
            f" {mask_url(settings.database_url)} each {settings.reaper_every_ms} ms;"
            " Ctrl-C ends it",
            err=True,
        )

    run_reaper(settings, slot, on_begin=tell)


def _check_slot(slot: int) -> None:
    if not 0 <= slot <= 255:  # noqa: PLR2004  -- as many as there may be web processes
        raise InvalidValue("slot", "must be from 0 to 255")


@run_app.command()
def status(data_dir: DataDirOption = None, as_json: JSONOption = False) -> None:
    """Which processes run, since when, and whether they do their work. Exit 1 when none runs."""
    from seckill.runtime.status import read_status  # noqa: PLC0415

    settings = load(data_dir).settings
    found = read_status(settings.data)
    if found is None:
        if as_json:
            print_json({"processes": []})
        else:
            typer.echo(f"no service runs on {settings.data_dir}")
        raise typer.Exit(1)
    if as_json:
        print_json(found.as_json())
        return
    typer.echo(f"Seckill {found.version} on http://{found.bind}, since {found.started_at}")
    works_of = {process.pid: process for process in found.processes if process.role != "reaper"}
    for process in found.processes:
        host = works_of.get(process.pid) if process.role == "reaper" and process.pid else None
        inside = f"  in {host.role} {host.slot}" if host else ""
        health = "healthy" if process.healthy else "not ready"
        typer.echo(
            f"  {process.role:<10} {process.slot:>3}  pid {process.pid or '-':>8}  {health:<9}"
            f"  since {process.since}  restarts {process.restarts}{inside}"
        )


@run_app.command()
def settings(data_dir: DataDirOption = None, as_json: JSONOption = False) -> None:
    """Every setting, its value, and where that came from. Secrets are masked."""
    from seckill.runtime.settings_report import settings_report, with_run_settings  # noqa: PLC0415
    from seckill.runtime.status import read_status  # noqa: PLC0415

    loaded = load(data_dir)
    if read_status(loaded.settings.data) is not None:
        loaded = with_run_settings(loaded)
    report = settings_report(loaded)
    if as_json:
        print_json(report)
        return
    for name, entry in report.items():
        typer.echo(f"{name:<24} {entry['value']!s:<44} {entry['source']}")
