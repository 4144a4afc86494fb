"""Orders: ``/admin/api/orders``."""

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from seckill.domain.ids import ReservationId, check_goods_id, check_user_id
from seckill.domain.operators import Role
from seckill.domain.order import OrderState
from seckill.web.admin.answers import ME, Limit, answer, page_answer
from seckill.web.admin.calls import AdminCalls
from seckill.web.admin.guard import Operator, needs
from seckill.web.admin.ports import Orders
from seckill.web.admin.schemas import OrderFound, OrdersFound, OrderStory, OrderTraced, ReasonWish
from seckill.web.openapi import PROBLEM_RESPONSES

__all__ = ["add_orders"]

_READS: Final = PROBLEM_RESPONSES(400, 401, 403, 404, 422, 429, 503)
_CHANGES: Final = PROBLEM_RESPONSES(400, 401, 403, 404, 409, 413, 415, 422, 429, 503)
_ID: Final = r"^[0-9a-z]{1,64}$"
OrderId = Annotated[str, Path(pattern=_ID)]
State = Literal[
    "awaiting_payment", "paid", "expired", "cancelled", "compensated", "refund_due", "refunded"
]


def add_orders(router: APIRouter, orders: Orders, calls: AdminCalls) -> None:
    """Add the routes."""
    look, change = needs(Role.VIEWER), needs(Role.OPERATOR)

    @router.get(
        "/orders",
        response_model=OrdersFound,
        responses=_READS,
        summary="Look for orders; the newest sale first, and in it the newest purchase",
        description="A purchase that is still queued is not an order yet: see its trace.",
        openapi_extra=look,
    )
    async def find_orders(
        limit: Limit = 50,
        goods_id: Annotated[str | None, Query(description="of every sale of these goods")] = None,
        user_id: Annotated[str | None, Query(description="of this buyer")] = None,
        state: Annotated[
            State | None, Query(description="in this state; with goods_id or user_id")
        ] = None,
        before: Annotated[
            str | None,
            Query(pattern=_ID, description="reservation id of the last entry of the page before"),
        ] = None,
    ) -> Response:
        goods = None if goods_id is None else check_goods_id(goods_id)
        user = None if user_id is None else check_user_id(user_id)
        found = await calls.make(
            lambda: orders.page(
                limit + 1,
                goods_id=goods,
                user_id=user,
                state=None if state is None else OrderState(state),
                before=None if before is None else ReservationId(before),
            )
        )
        return page_answer(
            "/admin/api/orders",
            "orders",
            found,
            limit,
            lambda last: {
                "goods_id": goods_id,
                "user_id": user_id,
                "state": state,
                "before": last["reservation_id"],
            },
        )

    @router.get(
        "/orders/{reservation_id}",
        response_model=OrderStory,
        responses=_READS,
        summary="One order, its moves and its payments",
        openapi_extra=look,
    )
    async def show_order(reservation_id: OrderId) -> Response:
        return answer(await calls.make(lambda: orders.show(reservation_id)))

    @router.get(
        "/orders/{reservation_id}/trace",
        response_model=OrderTraced,
        responses=_READS,
        summary="The whole life of one purchase, out of all stores",
        description="Made beside the process that serves buyers: takes a second or more.",
        openapi_extra=look,
    )
    async def trace_order(reservation_id: OrderId) -> Response:
        return answer(await calls.make(lambda: orders.trace(reservation_id), long=True))

    @router.post(
        "/orders/{reservation_id}/cancel",
        response_model=OrderFound,
        responses=_CHANGES,
        summary="Cancel anybody's unpaid order; again changes nothing",
        openapi_extra=change,
    )
    async def cancel_order(
        reservation_id: OrderId, wish: ReasonWish, me: Operator = ME
    ) -> Response:
        row = await calls.make(
            lambda: orders.cancel(reservation_id, actor=me.actor, reason=wish.reason)
        )
        return answer(row)

    @router.post(
        "/orders/{reservation_id}/refund",
        response_model=OrderFound,
        responses=_CHANGES,
        summary="Give the money of a paid order back; again changes nothing",
        openapi_extra=change,
    )
    async def refund_order(
        reservation_id: OrderId, wish: ReasonWish, me: Operator = ME
    ) -> Response:
        row = await calls.make(
            lambda: orders.refund(reservation_id, actor=me.actor, reason=wish.reason)
        )
        return answer(row)
