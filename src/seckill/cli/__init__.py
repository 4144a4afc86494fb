"""The command line: one thin command for each thing that the rooms do.

Rooms are imported where they are used, so that ``seckill -h`` answers at once.
"""

import os
import sys
from typing import Annotated

import typer

from seckill.cli.admin import admin_app
from seckill.cli.bench import bench_app
from seckill.cli.dead_letters import dead_letters_app
from seckill.cli.orders import orders_app
from seckill.cli.proof import proof_app
from seckill.cli.rules import rules_app
from seckill.cli.run import run_app
from seckill.cli.sale import sale_app
from seckill.cli.stress import stress_app
from seckill.domain.errors import SeckillError
from seckill.runtime.gc_tuning import bound_collections
from seckill.runtime.program import exit_code

__all__ = ["app", "main"]

_HELP = """A flash-sale (秒杀) service: never oversell, never sell twice to one user, never lose an
order that a buyer was told they have, and stay up under any load.

A first sale, in two terminals:

    seckill serve --demo                 starts everything, opens goods 1 with 100 units

    curl -X POST 'http://127.0.0.1:8000/seckill/1?userId=ann'

    seckill stress --buyers 10000        ten thousand buyers, three clicks each, then the audit

The other commands find a running service by the same settings: run them in the same folder, or
give SECKILL_DATA_DIR. Exit codes: 0 done, 1 failed or a promise is broken, 2 wrong use, a wrong
setting included.
"""

app = typer.Typer(
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(run_app)
app.add_typer(sale_app, name="sale")
app.add_typer(orders_app, name="orders")
app.add_typer(rules_app, name="rules")
app.add_typer(dead_letters_app, name="dead-letters")
app.add_typer(proof_app)
app.add_typer(admin_app, name="admin")
app.add_typer(stress_app)
app.add_typer(bench_app, name="bench")


def _tell_version(asked: bool) -> None:
    if asked:
        from seckill import __version__  # noqa: PLC0415

        typer.echo(f"seckill {__version__}")
        raise typer.Exit


@app.callback()
def seckill(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say which version this is.", callback=_tell_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Run the command line. An error is one sentence on standard error, never a stack trace."""
    # What this program and its children write (the ledger, Redis' files) is nobody else's business.
    os.umask(0o077)
    bound_collections()
    try:
        app()
    except SeckillError as error:
        typer.echo(f"seckill: {error}", err=True)
        sys.exit(exit_code(error))
    except BrokenPipeError:
        # Whoever read our output has had enough; the interpreter must not flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
