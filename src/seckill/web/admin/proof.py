"""The promises: audits, what the fence did, and repairs."""

from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response

from seckill.domain.operators import Role
from seckill.web.admin.answers import ME, answer
from seckill.web.admin.calls import AdminCalls
from seckill.web.admin.guard import Operator, needs
from seckill.web.admin.ports import Proof
from seckill.web.admin.schemas import AuditRun, ReconcileDone, ReconcileWish, Statements
from seckill.web.openapi import PROBLEM_RESPONSES

__all__ = ["add_proof"]

_READS: Final = PROBLEM_RESPONSES(400, 401, 403, 404, 422, 429, 503)
_CHANGES: Final = PROBLEM_RESPONSES(400, 401, 403, 404, 413, 415, 422, 429, 503)


def add_proof(router: APIRouter, proof: Proof, calls: AdminCalls) -> None:
    """Add the routes."""
    look, change = needs(Role.VIEWER), needs(Role.OPERATOR)

    @router.get(
        "/audit",
        response_model=AuditRun,
        responses=_READS,
        summary="What the background audit found last",
        openapi_extra=look,
    )
    async def show_audit() -> Response:
        return answer(await calls.make(proof.latest_audit))

    @router.post(
        "/audit",
        response_model=AuditRun,
        responses=_CHANGES,
        summary="Audit now",
        description="Changes nothing. Made beside the process that serves buyers; one at a time.",
        openapi_extra=change,
    )
    async def run_audit() -> Response:
        return answer(await calls.make(proof.audit, long=True))

    @router.get(
        "/fences",
        response_model=Statements,
        responses=_READS,
        summary="What happened to stock that was not trusted: paused, lost, compensated, oversold",
        openapi_extra=look,
    )
    async def show_fences(
        goods_id: Annotated[str | None, Query(description="of the latest sale of these")] = None,
    ) -> Response:
        return answer({"statements": await calls.make(lambda: proof.statements(goods_id))})

    @router.post(
        "/reconcile",
        response_model=ReconcileDone,
        responses=_CHANGES,
        summary="Show what would set the findings of the audit right; with apply, do it",
        description="Safe to be repeated, and by two operators at once.",
        openapi_extra=change,
    )
    async def reconcile(wish: ReconcileWish, me: Operator = ME) -> Response:
        row = await calls.make(
            lambda: proof.reconcile(
                wish.goods_id, apply=wish.apply, actor=me.actor, reason=wish.reason
            ),
            long=True,
        )
        return answer(row)
