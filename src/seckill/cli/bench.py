"""`seckill bench`: measurements with a peer beside the product in the same run."""

import signal
from typing import Annotated

import typer

from seckill.cli.shared import JSONOption, print_json
from seckill.domain.errors import InvalidValue

__all__ = ["bench_app"]

bench_app = typer.Typer(
    help="Measure, with a peer beside the product in the same run.", no_args_is_help=True
)


@bench_app.callback()
def bench() -> None:
    """Measure, with a peer beside the product in the same run."""
    # Whoever ends a benchmark, in whatever way, ends what it has started too: as Ctrl-C does.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


@bench_app.command("batches")
def bench_batches(
    rounds: Annotated[int, typer.Option(help="Turns of each size, 1 to 99.")] = 5,
    as_json: JSONOption = False,
) -> None:
    """What one admission costs Redis, by how many are decided in one call of the script."""
    from seckill.stress.bench.batches import bench_batches as run  # noqa: PLC0415

    if not 1 <= rounds <= 99:  # noqa: PLR2004  -- said in the rule
        raise InvalidValue("rounds", "must be from 1 to 99")
    found = run(rounds=rounds, tell=lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(found.to_text())


@bench_app.command("admission")
def bench_admission(
    rounds: Annotated[int, typer.Option(help="Turns of each stack, 1 to 99.")] = 5,
    duration_s: Annotated[int, typer.Option(help="Seconds of each turn, 1 to 60.")] = 4,
    connections: Annotated[int, typer.Option(help="Connections at once, 1 to 4096.")] = 512,
    workers: Annotated[int, typer.Option(help="Web processes, and nginx's, 1 to 64.")] = 2,
    as_json: JSONOption = False,
) -> None:
    """Purchases per second of the whole product beside nginx + Lua with one EVALSHA a request.

    The product runs twice, with durability memory and fsync; the server's own hello shows the
    ceiling. The stacks take turns; medians are compared. Needs nginx with Lua, and wrk.
    """
    from seckill.stress.bench.admission import bench_admission as run  # noqa: PLC0415
    from seckill.stress.bench.wrk import Load  # noqa: PLC0415

    bounds = {
        "rounds": (rounds, 99),
        "duration_s": (duration_s, 60),
        "connections": (connections, 4096),
        "workers": (workers, 64),
    }
    for name, (value, most) in bounds.items():
        if not 1 <= value <= most:
            raise InvalidValue(name, f"must be from 1 to {most}")
    found = run(
        rounds=rounds,
        load=Load(connections=connections, duration_s=duration_s),
        workers=workers,
        tell=lambda line: typer.echo(line, err=True),
    )
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(found.to_text())


@bench_app.command("start")
def bench_start(
    rounds: Annotated[int, typer.Option(help="Starts, 2 to 99; the first makes the ledger.")] = 4,
    workers: Annotated[int, typer.Option(help="Web processes, 1 to 64.")] = 2,
    as_json: JSONOption = False,
) -> None:
    """Time from `seckill serve` to the first sale, and the memory of the set when it idles."""
    from seckill.stress.bench.start import bench_start as run  # noqa: PLC0415

    for name, value, least, most in (("rounds", rounds, 2, 99), ("workers", workers, 1, 64)):
        if not least <= value <= most:
            raise InvalidValue(name, f"must be from {least} to {most}")
    found = run(rounds=rounds, workers=workers, tell=lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(found.to_text())


@bench_app.command("pipeline")
def bench_pipeline(
    rounds: Annotated[int, typer.Option(help="Turns of each way, 1 to 99.")] = 3,
    orders: Annotated[int, typer.Option(help="Orders of each turn, 20,000 to 1,000,000.")] = 50_000,
    duration_s: Annotated[
        int, typer.Option(help="Seconds of one transaction a purchase in each turn, 1 to 60.")
    ] = 4,
    channel: Annotated[str, typer.Option(help="kafka, or direct: without Kafka.")] = "kafka",
    as_json: JSONOption = False,
) -> None:
    """Orders a second from admission to the row in PostgreSQL, by one order worker.

    Beside it, in turns and into the same server: the raw insert of the same rows, their COPY, and
    one transaction for each purchase over 64 connections. Needs redis-server, PostgreSQL and, with
    channel kafka, Java.
    """
    from seckill.stress.bench.pipeline import bench_pipeline as run  # noqa: PLC0415

    bounds = {
        "rounds": (rounds, 1, 99),
        "orders": (orders, 20_000, 1_000_000),
        "duration_s": (duration_s, 1, 60),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise InvalidValue(name, f"must be from {least} to {most}")
    if channel not in {"direct", "kafka"}:
        raise InvalidValue("channel", "must be direct or kafka")
    found = run(
        rounds=rounds,
        orders_each=orders,
        seconds=duration_s,
        channel="kafka" if channel == "kafka" else "direct",
        tell=lambda line: typer.echo(line, err=True),
    )
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(found.to_text())


@bench_app.command("sentinel")
def bench_sentinel(
    rounds: Annotated[int, typer.Option(help="Turns of each, 1 to 999.")] = 25,
    as_json: JSONOption = False,
) -> None:
    """What one decision of the flow control costs, beside `limits` and `pyrate-limiter`.

    Processor time of entry and exit with one flow rule, alone and among 6,000 resources, and the
    memory of a resource. All take turns; medians are compared. Needs both peers installed.
    """
    from seckill.stress.bench.sentinel import bench_sentinel as run  # noqa: PLC0415

    if not 1 <= rounds <= 999:  # noqa: PLR2004  -- said in the rule
        raise InvalidValue("rounds", "must be from 1 to 999")
    found = run(rounds=rounds, tell=lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(found.to_text())
