"""Commands that prove the promises, and that set a bucket right which lost data."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from seckill.cli.shared import DataDirOption, JSONOption, print_json, with_stores
from seckill.domain.errors import InvalidValue
from seckill.domain.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from seckill.admission.fence_ports import Rebuild
    from seckill.ledger.fences import FenceStatement
    from seckill.runtime.bootstrap import Stores
    from seckill.runtime.reconciling import Reconciliation

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
def reconcile(
    goods_id: Annotated[
        str | None, typer.Argument(metavar="[GOODS_ID]", help="The goods; default: every sale.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it. Without this nothing is changed.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option(help="Longest wait for an outbox to run dry into the ledger.")
    ] = 30.0,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Show what would set the findings of the audit right; with --apply do it.

    Safe to be repeated, and by two operators at once. Exit 1 while something is left to be done.
    """
    from seckill.runtime.reconciling import reconcile as reconcile_stores  # noqa: PLC0415

    async def work(stores: "Stores") -> "Reconciliation":
        return await reconcile_stores(stores, goods_id, apply=apply, deadline_ms=int(wait_s * 1000))

    result = with_stores(data_dir, work)
    if as_json:
        print_json(result.to_dict())
    else:
        for line in _reconciliation(result, apply=apply):
            typer.echo(line)
    raise typer.Exit(0 if result.ok else 1)


def _reconciliation(result: "Reconciliation", *, apply: bool) -> "Iterator[str]":
    if not result.plan:
        yield "nothing is to be repaired"
        return
    for repair in result.plan:
        where = f"goods {repair.goods_id}"
        if repair.bucket is not None:
            where += f" (bucket {repair.sale_id}.{repair.bucket})"
        yield f"{repair.action.value:<8} {where}: {', '.join(repair.findings)}"
        for sentence in repair.what:
            yield f"         - {sentence}"
    if not apply:
        yield "nothing was changed: `seckill reconcile --apply` does it"
        return
    for one in result.done:
        where = f"bucket {one.repair.sale_id}.{one.repair.bucket}"
        if one.rebuild is None:
            yield f"left     {where}: {one.why_not}"
        else:
            yield (
                f"done     {where}: open under epoch {one.rebuild.epoch},"
                f" {counted(one.rebuild.recovered_orders, 'order')} recovered,"
                f" {counted(len(one.rebuild.lost), 'purchase')} named as lost"
            )
    rest = counted(len(result.after.findings), "finding")
    yield "every promise is kept" if result.ok else f"the audit still has {rest}"


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
    statements: Annotated[
        bool,
        typer.Option("--statements", help="Only tell what happened to sales that were closed."),
    ] = False,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Make a bucket anew from ledger and outbox, after Redis lost data.

    The sale is closed meanwhile (503 with Retry-After). What was acknowledged to buyers and is in
    no log any more is named, one by one. Safe to be started again.
    """
    from seckill.runtime.rebuilding import rebuild as rebuild_buckets  # noqa: PLC0415

    if statements:
        _tell_statements(data_dir, as_json=as_json)
        return
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
    for line in (line for row in rows for line in _rebuilt(row)):
        typer.echo(line)


def _rebuilt(row: dict[str, Any]) -> "Iterator[str]":
    """What a rebuild did, for people."""
    yield (
        f"goods {row['goods_id']}: open again under epoch {row['epoch']} after"
        f" {row['paused_ms']} ms, {counted(row['remaining'], 'unit')} left,"
        f" {row['held']:,} held by {counted(row['buyers'], 'buyer')},"
        f" {counted(len(row['lost']), 'acknowledged purchase')} lost"
    )
    if row["recovered"]:
        yield f"  {counted(row['recovered'], 'order')} that only Redis still knew of written"
    if row["withheld"]:
        yield (
            f"  {counted(row['withheld'], 'unit')} withheld for them: `seckill sale stock"
            f" {row['goods_id']} --by {row['withheld']}` puts them back on sale"
        )
    for sentence in row["unknown"]:
        yield f"  not known: {sentence}"
    for reservation_id in row["lost"]:
        yield f"  lost {reservation_id}"


def _tell_statements(data_dir: "Path | None", *, as_json: bool) -> None:
    from seckill.audit.report import statement_text  # noqa: PLC0415

    async def work(stores: "Stores") -> "list[FenceStatement]":
        return await stores.ledger.fences.statements()

    found = with_stores(data_dir, work)
    if as_json:
        print_json([one.to_dict() for one in found])
        return
    if not found:
        typer.echo("no sale was ever closed by the fence")
    for one in found:
        typer.echo(statement_text(one))
        for reservation_id in one.lost:
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
