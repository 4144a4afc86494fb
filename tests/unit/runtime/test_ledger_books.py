"""A buyer who cancels what cannot be cancelled any more reads 409 and the state that it is in."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from seckill.domain.ids import ReservationId, UserId
from seckill.domain.order import Order, OrderState
from seckill.ledger.errors import WrongState
from seckill.runtime.web_ports import LedgerBooks
from seckill.web.app import build_app
from unit.web.doubles import World, order, reservation


class RefusingOrders:
    """The ledger's orders, of which none can be cancelled."""

    def __init__(self, found: Order) -> None:
        self.found = found
        self.asked: list[dict[str, str]] = []

    async def cancel(
        self, reservation_id: ReservationId, user_id: UserId, *, actor: str, reason: str
    ) -> Order | None:
        self.asked.append({"id": reservation_id, "user": user_id, "actor": actor, "why": reason})
        raise WrongState(self.found, OrderState.CANCELLED)


def books_of(orders: RefusingOrders) -> LedgerBooks:
    ledger: Any = SimpleNamespace(orders=orders)
    return LedgerBooks(ledger)


async def test_an_order_that_cannot_be_cancelled_is_returned_as_it_stands() -> None:
    orders = RefusingOrders(order(1, state=OrderState.PAID))
    books = books_of(orders)
    assert await books.cancel(reservation(1), UserId("ann")) == orders.found
    assert orders.asked == [
        {"id": reservation(1), "user": "ann", "actor": "buyer", "why": "cancelled by the buyer"}
    ]


@pytest.mark.parametrize("state", [OrderState.PAID, OrderState.EXPIRED, OrderState.COMPENSATED])
async def test_the_buyer_reads_409_with_the_state(state: OrderState) -> None:
    books = books_of(RefusingOrders(order(1, state=state)))
    app = build_app(replace(World().parts, books=books))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    path = f"/orders/{reservation(1)}/cancel"
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "headers": [(b"x-user-id", b"ann")], "query_string": b"", "scheme": "http",
        "http_version": "1.1", "root_path": "",
    }  # fmt: skip
    running = asyncio.create_task(app.run())
    try:
        await app(scope, receive, send)
    finally:
        running.cancel()
        await asyncio.wait({running})
    assert sent[0]["status"] == 409
    problem = json.loads(sent[1]["body"])
    assert problem["detail"] == f"The order is {state.value}: only an unpaid one can be cancelled."
