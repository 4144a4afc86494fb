"""Commands that prove the promises, and that set a bucket right which lost data."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from seckill.cli.shared import DataDirOption, JSONOption, print_json, with_stores
from seckill.domain.errors import InvalidValue
from seckill.domain.wording import counted

if TYPE_CHECKING:
    from seckill.admission.fence_ports import Rebuild
    from seckill.runtime.bootstrap import Stores

__all__ = ["proof_app"]

proof_app = typer.Typer()


@proof_app.command()
def audit(data_dir: DataDirOption = None, as_json: JSONOption = False) -> None:
    """Prove the promises over Redis and ledger, while sales run. Exit 1 when one is broken."""
    from seckill.runtime.auditing import audit as audit_stores  # noqa: PLC0415

    report = with_stores(data_dir, audit_stores)
    if as_json:
        print_json(report.to_dict())
    else:
        typer.echo(report.to_text())
    raise typer.Exit(0 if report.ok else 1)


@proof_app.command()
def rebuild(
    goods_id: Annotated[
        str | None,
        typer.Argument(metavar="[GOODS_ID]", help="The goods; default: every sale that needs it."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Rebuild although nothing is wrong with it; needs GOODS_ID."),
    ] = False,
    wait_s: Annotated[
        float, typer.Option(help="Longest wait for the outbox to run dry into the ledger.")
    ] = 30.0,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Make a bucket anew from ledger and outbox, after Redis lost data.

    The sale is closed meanwhile (503 with Retry-After). What was acknowledged to buyers and is in
    no log any more is named, one by one. Safe to be started again.
    """
    from seckill.runtime.rebuilding import rebuild as rebuild_buckets  # noqa: PLC0415

    if force and goods_id is None:
        raise InvalidValue("--force", "needs a GOODS_ID: which bucket is to be made anew")

    async def work(stores: "Stores") -> "list[Rebuild]":
        return await rebuild_buckets(stores, goods_id, force=force, deadline_ms=int(wait_s * 1000))

    rows = [_statement(done) for done in with_stores(data_dir, work)]
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo("no bucket needs a rebuild")
    for row in rows:
        typer.echo(
            f"goods {row['goods_id']}: open again under epoch {row['epoch']} after"
            f" {row['paused_ms']} ms, {counted(row['remaining'], 'unit')} left,"
            f" {row['held']:,} held by {counted(row['buyers'], 'buyer')},"
            f" {counted(len(row['lost']), 'acknowledged purchase')} lost"
        )
        if row["recovered"]:
            typer.echo(
                f"  {counted(row['recovered'], 'order')} that only Redis still knew of written"
            )
        if row["withheld"]:
            typer.echo(
                f"  {counted(row['withheld'], 'unit')} withheld for them: `seckill sale stock"
                f" {row['goods_id']} --by {row['withheld']}` puts them back on sale"
            )
        for sentence in row["unknown"]:
            typer.echo(f"  not known: {sentence}")
        for reservation_id in row["lost"]:
            typer.echo(f"  lost {reservation_id}")


def _statement(done: "Rebuild") -> dict[str, Any]:
    return {
        "goods_id": done.goods_id,
        "sale_id": done.bucket_id.sale_id,
        "bucket": done.bucket_id.bucket,
        "epoch": done.epoch,
        "put": done.put_units,
        "held": done.held_units,
        "remaining": done.put_units - done.held_units,
        "buyers": done.buyers,
        "lost": list(done.lost),
        "recovered": done.recovered_orders,
        "withheld": done.withheld_units,
        "unknown": list(done.unknown),
        "paused_ms": done.paused_ms,
        "rebuild_ms": done.rebuild_ms,
    }
