"""Sales: ``/admin/api/sales``."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from seckill.domain.clock import Clock
from seckill.domain.ids import check_goods_id
from seckill.domain.operators import Role
from seckill.domain.sale import NewSale, check_late_payment
from seckill.ledger.sales import SaleTerms
from seckill.web.admin.answers import (
    ME,
    Limit,
    answer,
    change_id,
    count_of,
    instant_ms,
    page_answer,
)
from seckill.web.admin.calls import AdminCalls
from seckill.web.admin.guard import Operator, needs
from seckill.web.admin.ports import Row, Sales, Verb
from seckill.web.admin.schemas import (
    NewSaleWish,
    ReasonWish,
    SaleEdit,
    SalePage,
    SaleRow,
    StockWish,
    numbers_as_ids,
)
from seckill.web.openapi import PROBLEM_RESPONSES
from seckill.web.problems import RuleBroken

__all__ = ["add_sales"]

_MS_PER_S: Final = 1000
_SECONDS_MAX: Final = 10**9
_READS: Final = PROBLEM_RESPONSES(400, 401, 403, 404, 422, 429, 503)
_CHANGES: Final = PROBLEM_RESPONSES(400, 401, 403, 404, 409, 413, 415, 422, 429, 503)
GoodsId = Annotated[str, Path(max_length=64)]


def _row(row: Row) -> Row:
    return numbers_as_ids(row, "sale_id")


def add_sales(router: APIRouter, sales: Sales, calls: AdminCalls, clock: Clock) -> None:
    """Add the routes."""
    look, change = needs(Role.VIEWER), needs(Role.OPERATOR)

    @router.get(
        "/sales",
        response_model=SalePage,
        responses=_READS,
        summary="Sales, the newest first",
        openapi_extra=look,
    )
    async def list_sales(
        limit: Limit = 20,
        before: Annotated[
            str | None, Query(description="sale id of the last entry of the page before")
        ] = None,
        closed: Annotated[  # noqa: FBT002  -- the framework reads the signature
            bool, Query(description="those too that a later sale of the same goods has closed")
        ] = False,
    ) -> Response:
        start = count_of("before", before)
        found = await calls.make(lambda: sales.page(limit + 1, before=start, closed=closed))
        return page_answer(
            "/admin/api/sales",
            "sales",
            [_row(row) for row in found],
            limit,
            lambda last: {"before": last["sale_id"], "closed": "true" if closed else None},
        )

    @router.post(
        "/sales",
        status_code=201,
        response_model=SaleRow,
        responses=_CHANGES,
        summary="Put goods on sale",
        description="Asking again is answered 409: the goods are on sale.",
        openapi_extra=change,
    )
    async def create_sale(wish: NewSaleWish, me: Operator = ME) -> Response:
        new = NewSale(
            goods_id=check_goods_id(wish.goods_id),
            stock_units=wish.stock,
            limit_per_user=wish.limit_per_user,
            title=wish.title,
            price_fen=wish.price_fen,
            starts_at_ms=instant_ms("starts_at", wish.starts_at, clock),
            ends_at_ms=(
                None if wish.ends_at is None else instant_ms("ends_at", wish.ends_at, clock)
            ),
            pay_window_ms=_window_ms(wish.pay_window_s),
            late_payment=check_late_payment(wish.late_payment),
            may_buy_again=wish.may_buy_again,
        )
        row = await calls.make(lambda: sales.create(new, actor=me.actor, reason=wish.reason))
        return answer(_row(row), 201)

    @router.get(
        "/sales/{goods_id}",
        response_model=SaleRow,
        responses=_READS,
        summary="The latest sale of some goods",
        openapi_extra=look,
    )
    async def show_sale(goods_id: GoodsId) -> Response:
        return answer(_row(await calls.make(lambda: sales.show(goods_id))))

    @router.patch(
        "/sales/{goods_id}",
        response_model=SaleRow,
        responses=_CHANGES,
        summary="Change a sale before it starts; when it starts and ends, also later",
        openapi_extra=change,
    )
    async def edit_sale(goods_id: GoodsId, wish: SaleEdit, me: Operator = ME) -> Response:
        given = _given(wish)
        terms = SaleTerms(
            title=wish.title,
            price_fen=wish.price_fen,
            limit_per_user=wish.limit_per_user,
            pay_window_ms=None if wish.pay_window_s is None else _window_ms(wish.pay_window_s),
            late_payment=(
                None if wish.late_payment is None else check_late_payment(wish.late_payment)
            ),
            may_buy_again=wish.may_buy_again,
        )
        starts, ends = (
            instant_ms(name, given[name], clock) if name in given else None
            for name in ("starts_at", "ends_at")
        )
        row = await calls.make(
            lambda: sales.edit(
                goods_id,
                terms,
                starts_at_ms=starts,
                ends_at_ms=ends,
                actor=me.actor,
                reason=wish.reason,
            )
        )
        return answer(_row(row))

    @router.post(
        "/sales/{goods_id}/stock",
        response_model=SaleRow,
        responses=_CHANGES,
        summary="Put more units on sale, or take unsold ones off",
        description="The same Idempotency-Key counts once.",
        openapi_extra=change | {"parameters": [_IDEMPOTENCY_KEY]},
    )
    async def change_stock(
        goods_id: GoodsId, wish: StockWish, request: Request, me: Operator = ME
    ) -> Response:
        name = change_id(request, me)
        row = await calls.make(
            lambda: sales.change_stock(
                goods_id, wish.by, change_id=name, actor=me.actor, reason=wish.reason
            )
        )
        return answer(_row(row))

    @router.post(
        "/sales/{goods_id}/{verb}",
        response_model=SaleRow,
        responses=_CHANGES,
        summary="Open, pause, resume or end a sale; again changes nothing",
        openapi_extra=change,
    )
    async def act(goods_id: GoodsId, verb: Verb, wish: ReasonWish, me: Operator = ME) -> Response:
        row = await calls.make(
            lambda: sales.act(goods_id, verb, actor=me.actor, reason=wish.reason)
        )
        return answer(_row(row))


_IDEMPOTENCY_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "names this change: it is made once",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}


def _given(wish: SaleEdit) -> dict[str, Any]:
    """What is to be changed. Raises RuleBroken when that is nothing, or when one is null."""
    given = wish.model_dump(exclude_unset=True, exclude={"reason"})
    if not given:
        raise RuleBroken("body", "must name what is to be changed")
    for name, value in given.items():
        if value is None:
            raise RuleBroken(name, "must not be null: what is left out stays as it is")
    return given


def _window_ms(seconds: int) -> int:
    # Beyond any bound, but not beyond what a number may be: the domain names the bound.
    return min(seconds, _SECONDS_MAX) * _MS_PER_S
