"""Commands that look at orders, and end them."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seckill.cli.shared import DataDirOption, JSONOption, actor, print_json, with_stores
from seckill.domain.ids import check_user_id
from seckill.domain.instants import rfc3339_ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from seckill.domain.order import Order
    from seckill.ledger.expiry import Setback
    from seckill.runtime.bootstrap import Stores
    from seckill.runtime.order_desk import OrderDesk
    from seckill.runtime.order_trace import OrderTrace

__all__ = ["orders_app"]

orders_app = typer.Typer(help="Look at orders, cancel and refund them.", no_args_is_help=True)

OrderArgument = Annotated[
    str, typer.Argument(metavar="RESERVATION_ID", help="The order, as its buyer knows it.")
]
ReasonOption = Annotated[
    str,
    typer.Option(
        "--reason",
        help="Why; shown to the buyer and kept in the action log. At most 500 characters.",
    ),
]


@orders_app.command("trace")
def orders_trace(
    reservation_id: Annotated[str, typer.Argument(metavar="ID", help="The reservation id.")],
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """The whole life of one purchase, from the POST to the release, out of all stores."""
    from seckill.runtime.order_trace import trace_order  # noqa: PLC0415

    async def work(stores: "Stores") -> "OrderTrace":
        return await trace_order(stores, reservation_id)

    trace = with_stores(data_dir, work)
    if as_json:
        print_json(trace.to_dict())
    else:
        typer.echo(trace.to_text())


@orders_app.command("list")
def orders_list(
    user: Annotated[str, typer.Option("--user", help="Whose orders.")],
    limit: Annotated[int, typer.Option(help="Orders at most, 1 to 200; the newest first.")] = 50,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """A user's orders, the newest first."""
    user_id = check_user_id(user, "user")

    async def work(stores: "Stores") -> "tuple[Order, ...]":
        return (await stores.ledger.reading.orders_of_user(user_id, limit)).orders

    orders = with_stores(data_dir, work)
    if as_json:
        print_json([asdict(order) for order in orders])
        return
    if not orders:
        typer.echo(f"{user_id} has no orders; a purchase that is still queued is not one yet")
    for order in orders:
        typer.echo(
            f"{order.reservation_id}  {order.state.value:<18} {order.quantity:>4} x"
            f" {order.goods_id:<20} {rfc3339_ms(order.admitted_at_ms)}"
        )


@orders_app.command("show")
def orders_show(
    reservation_id: OrderArgument,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """One order with its moves (who, when, why) and its payments."""
    from seckill.runtime.order_desk import OrderDesk  # noqa: PLC0415

    async def work(stores: "Stores") -> dict[str, Any]:
        return await OrderDesk(stores).show(reservation_id)

    shown = with_stores(data_dir, work)
    if as_json:
        print_json(shown)
        return
    _tell_order(shown["order"])
    for move in shown["moves"]:
        why = f": {move['reason']}" if move["reason"] else ""
        typer.echo(
            f"  {rfc3339_ms(move['at_ms'])}  {move['from_state']} -> {move['to_state']}"
            f"  by {move['actor']}{why}"
        )
    for payment in shown["payments"]:
        why = f": {payment['reason']}" if payment["reason"] else ""
        typer.echo(f"  payment {payment['payment_id']}  {payment['state']}{why}")


@orders_app.command("cancel")
def orders_cancel(
    reservation_id: OrderArgument,
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Cancel anybody's unpaid order; its units go back on sale. Doing it again changes nothing."""
    _change(
        lambda desk: desk.cancel(reservation_id, actor=actor(), reason=reason),
        data_dir,
        as_json=as_json,
    )


@orders_app.command("refund")
def orders_refund(
    reservation_id: OrderArgument,
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Give the money of a paid order back, and its units to the sale."""
    _change(
        lambda desk: desk.refund(reservation_id, actor=actor(), reason=reason),
        data_dir,
        as_json=as_json,
    )


def _change(
    change: "Callable[[OrderDesk], Awaitable[dict[str, Any]]]",
    data_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    from seckill.runtime.order_desk import OrderDesk  # noqa: PLC0415

    async def work(stores: "Stores") -> dict[str, Any]:
        return await change(OrderDesk(stores))

    row = with_stores(data_dir, work)
    if as_json:
        print_json(row)
        return
    _tell_order(row)


def _tell_order(row: dict[str, object]) -> None:
    for name, value in row.items():
        typer.echo(f"{name:<16} {'-' if value is None else value}")


@orders_app.command("stuck")
def orders_stuck(data_dir: DataDirOption = None, as_json: JSONOption = False) -> None:
    """Orders that the ledger refuses to expire, with the error and when they are tried again."""

    async def work(stores: "Stores") -> "list[Setback]":
        return await stores.ledger.expiry.setbacks()

    setbacks = with_stores(data_dir, work)
    if as_json:
        print_json([asdict(setback) for setback in setbacks])
        return
    if not setbacks:
        typer.echo("no order is stuck")
    for setback in setbacks:
        typer.echo(
            f"{setback.reservation_id}  tried {setback.tries} times since"
            f" {rfc3339_ms(setback.first_at_ms)}, next at {rfc3339_ms(setback.next_try_at_ms)}:"
            f" {setback.error}"
        )
