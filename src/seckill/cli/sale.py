"""Commands that put goods on sale and change a sale."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seckill.cli.shared import DataDirOption, JSONOption, actor, print_json, with_stores
from seckill.domain.clock import SystemClock
from seckill.domain.ids import check_goods_id
from seckill.domain.instants import parse_instant_ms

if TYPE_CHECKING:
    from seckill.runtime.bootstrap import Stores
    from seckill.runtime.sale_desk import Verb

__all__ = ["sale_app"]

sale_app = typer.Typer(help="Put goods on sale, and change a sale.", no_args_is_help=True)

GoodsArgument = Annotated[str, typer.Argument(metavar="GOODS_ID", help="The goods on sale.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", help="Why; kept in the action log. At most 500 characters.")
]


def _show_sale(row: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        typer.echo(f"{name:<16} {'-' if value is None or value == '' else value}")


def _instant_ms(field: str, text: str) -> int:
    return SystemClock().now_ms() if text == "now" else parse_instant_ms(field, text)


@sale_app.command("create")
def sale_create(
    goods_id: GoodsArgument,
    stock: Annotated[int, typer.Option(help="Units put on sale, 0 to 100,000,000.")],
    limit: Annotated[int, typer.Option(help="Units that one user may hold, 1 to 100.")] = 1,
    title: Annotated[str, typer.Option(help="Shown to buyers; at most 200 characters.")] = "",
    price_fen: Annotated[int, typer.Option(help="Price of a unit in fen (0.01 yuan).")] = 0,
    starts_at: Annotated[
        str,
        typer.Option(
            help="now, RFC 3339 with offset (2026-12-24T20:00:00+08:00), or a local time with its"
            " zone behind it (2026-12-24T20:00:00[Asia/Shanghai])."
        ),
    ] = "now",
    ends_at: Annotated[
        str | None, typer.Option(help="Likewise; without it the sale has no end.")
    ] = None,
    pay_window_s: Annotated[
        int,
        typer.Option(
            help="Seconds that an order may stay unpaid, 1 to 2,592,000; then it expires, and its"
            " units go back on sale."
        ),
    ] = 900,
    late_payment: Annotated[
        str,
        typer.Option(
            help="What becomes of money that comes after that: take_free_unit (buys again while"
            " the sale runs and has units left, else goes back) or refund."
        ),
    ] = "take_free_unit",
    may_buy_again: Annotated[
        bool,
        typer.Option(
            "--may-buy-again/--may-not-buy-again",
            help="Whether who let an order expire, or cancelled it, may buy once more. If not, the"
            " units still count against their limit, and money that comes late goes back.",
        ),
    ] = True,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Put goods on sale."""
    from seckill.domain.sale import NewSale, check_late_payment  # noqa: PLC0415
    from seckill.runtime.sale_desk import SaleDesk  # noqa: PLC0415

    new = NewSale(
        goods_id=check_goods_id(goods_id),
        stock_units=stock,
        limit_per_user=limit,
        title=title,
        price_fen=price_fen,
        starts_at_ms=_instant_ms("starts_at", starts_at),
        ends_at_ms=None if ends_at is None else _instant_ms("ends_at", ends_at),
        pay_window_ms=pay_window_s * 1000,
        late_payment=check_late_payment(late_payment),
        may_buy_again=may_buy_again,
    )

    async def work(stores: "Stores") -> dict[str, Any]:
        return await SaleDesk(stores).create(new, actor=actor())

    _show_sale(with_stores(data_dir, work), as_json=as_json)


@sale_app.command("list")
def sale_list(data_dir: DataDirOption = None, as_json: JSONOption = False) -> None:
    """Every sale that is, was or will be, one for each goods id."""
    from seckill.runtime.sale_desk import SaleDesk  # noqa: PLC0415

    async def work(stores: "Stores") -> list[dict[str, Any]]:
        return await SaleDesk(stores).all()

    rows = with_stores(data_dir, work)
    if as_json:
        print_json(rows)
        return
    typer.echo(f"{'goods':<24} {'state':<10} {'stock':>10} {'remaining':>10} {'sold':>10}  starts")
    for row in rows:
        remaining = "?" if row["remaining"] is None else row["remaining"]
        typer.echo(
            f"{row['goods_id']!s:<24} {row['state']!s:<10} {row['stock']!s:>10}"
            f" {remaining!s:>10} {row['sold']!s:>10}  {row['starts_at']}"
        )


@sale_app.command("show")
def sale_show(
    goods_id: GoodsArgument, data_dir: DataDirOption = None, as_json: JSONOption = False
) -> None:
    """One sale: its definition, what is left, and how its bucket stands."""
    from seckill.runtime.sale_desk import SaleDesk  # noqa: PLC0415

    async def work(stores: "Stores") -> dict[str, Any]:
        return await SaleDesk(stores).show(goods_id)

    _show_sale(with_stores(data_dir, work), as_json=as_json)


def _act(goods_id: str, verb: "Verb", data_dir: Path | None, *, as_json: bool, reason: str) -> None:
    from seckill.runtime.sale_desk import SaleDesk  # noqa: PLC0415

    async def work(stores: "Stores") -> dict[str, Any]:
        return await SaleDesk(stores).act(goods_id, verb, actor=actor(), reason=reason)

    _show_sale(with_stores(data_dir, work), as_json=as_json)


@sale_app.command("open")
def sale_open(
    goods_id: GoodsArgument,
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Start a sale now, or let a paused one go on."""
    _act(goods_id, "open", data_dir, as_json=as_json, reason=reason)


@sale_app.command("pause")
def sale_pause(
    goods_id: GoodsArgument,
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Admit nobody until `seckill sale resume`; buyers read 503 with Retry-After."""
    _act(goods_id, "pause", data_dir, as_json=as_json, reason=reason)


@sale_app.command("resume")
def sale_resume(
    goods_id: GoodsArgument,
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Let a paused sale go on."""
    _act(goods_id, "resume", data_dir, as_json=as_json, reason=reason)


@sale_app.command("end")
def sale_end(
    goods_id: GoodsArgument,
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """End a sale now."""
    _act(goods_id, "end", data_dir, as_json=as_json, reason=reason)


@sale_app.command("stock")
def sale_stock(
    goods_id: GoodsArgument,
    by: Annotated[int, typer.Option(help="Signed difference in units: 5 adds, -5 takes off.")],
    change_id: Annotated[
        str | None,
        typer.Option(
            help="Names this change; giving it again changes nothing. Default: a new one."
        ),
    ] = None,
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Put more units on sale, or take unsold ones off. Never below what is sold."""
    from seckill.runtime.sale_desk import SaleDesk  # noqa: PLC0415

    async def work(stores: "Stores") -> dict[str, Any]:
        return await SaleDesk(stores).change_stock(
            goods_id,
            by,
            change_id=change_id or f"cli-{secrets.token_hex(8)}",
            actor=actor(),
            reason=reason,
        )

    _show_sale(with_stores(data_dir, work), as_json=as_json)
