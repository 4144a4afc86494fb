"""The operators' side as one: its routes, and what has to run behind them."""

import asyncio

from fastapi import APIRouter, FastAPI

from seckill.domain.clock import Clock
from seckill.web.addresses import Addresses
from seckill.web.admin.calls import AdminCalls
from seckill.web.admin.guard import Guard, guarded_route
from seckill.web.admin.letters import add_letters
from seckill.web.admin.orders import add_orders
from seckill.web.admin.ports import AdminParts
from seckill.web.admin.proof import add_proof
from seckill.web.admin.rules import add_rules
from seckill.web.admin.sales import add_sales
from seckill.web.admin.setup_page import add_setup_page
from seckill.web.admin.users import add_set_up, add_users
from seckill.web.limits import WebLimits
from seckill.web.ports import WebMetrics

__all__ = ["AdminSide"]


class AdminSide:
    """See the top of the file. `run` must be running while requests are served."""

    def __init__(
        self,
        parts: AdminParts,
        *,
        addresses: Addresses,
        limits: WebLimits,
        metrics: WebMetrics,
        clock: Clock,
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._calls = AdminCalls(limits, metrics)
        self._guard = Guard(parts.tokens, addresses, limits, metrics, clock)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        parts, calls = self._parts, self._calls
        add_setup_page(app)
        add_set_up(app, parts.users, calls, self._guard)
        router = APIRouter(
            prefix="/admin/api", route_class=guarded_route(self._guard), tags=["admin"]
        )
        add_users(router, parts.users, calls)
        add_sales(router, parts.sales, calls, self._clock)
        add_rules(router, parts.rules, calls)
        add_orders(router, parts.orders, calls)
        add_letters(router, parts.letters, calls)
        add_proof(router, parts.proof, calls)
        app.include_router(router)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._calls.run())
            parts.create_task(self._guard.run())
