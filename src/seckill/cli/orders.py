"""Commands that look at orders."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seckill.cli.shared import DataDirOption, JSONOption, print_json, with_stores
from seckill.domain.ids import check_user_id
from seckill.domain.instants import rfc3339_ms

if TYPE_CHECKING:
    from seckill.domain.order import Order
    from seckill.runtime.bootstrap import Stores

__all__ = ["orders_app"]

orders_app = typer.Typer(help="Look at orders.", no_args_is_help=True)


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
