"""Small things that several books write or check: the action log, and free text from outside."""

from typing import Any, Final

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.domain.errors import InvalidValue
from seckill.domain.ids import SaleId
from seckill.domain.order import Order, OrderState
from seckill.ledger.tables import ACTOR_CHARS_MAX, REASON_CHARS_MAX, actions

__all__ = ["check_actor", "check_reason", "record_action", "record_order_action"]

_ADD_ACTION: Final = insert(actions)


def check_actor(text: str) -> str:
    """Return ``text`` when it may name who acts: 1 to 64 printable characters.

    Raises:
        InvalidValue: naming ``actor``.
    """
    if not text:
        raise InvalidValue("actor", "must not be empty")
    return _check_text("actor", text, ACTOR_CHARS_MAX)


def check_reason(text: str) -> str:
    """Return ``text`` when it may be a reason: at most 500 printable characters, or none.

    Raises:
        InvalidValue: naming ``reason``.
    """
    return _check_text("reason", text, REASON_CHARS_MAX)


def _check_text(field: str, text: str, chars_max: int) -> str:
    if len(text) > chars_max:
        raise InvalidValue(field, f"must have at most {chars_max} characters")
    # One database refuses NUL, and no database takes a lone surrogate.
    if not text.isprintable():
        raise InvalidValue(field, "must not contain control characters or line breaks")
    return text


async def record_action(
    connection: AsyncConnection,
    *,
    at_ms: int,
    actor: str,
    action: str,
    sale_id: SaleId | None,
    detail: dict[str, Any],
) -> None:
    """Write who changed what into the action log, in the transaction that changes it.

    Args:
        detail: the reason, and the changed values before and after.
    """
    await connection.execute(
        _ADD_ACTION,
        {
            "at_ms": at_ms,
            "actor": actor,
            "action": action,
            "sale_id": sale_id,
            "detail": msgspec.json.encode(detail).decode(),
        },
    )


async def record_order_action(
    connection: AsyncConnection,
    order: Order,
    before: OrderState,
    *,
    at_ms: int,
    actor: str,
    action: str,
    reason: str,
) -> None:
    """Write an operator's move of an order into the action log.

    Args:
        order: as it is after the move.
        before: its state before.
    """
    await record_action(
        connection,
        at_ms=at_ms,
        actor=actor,
        action=action,
        sale_id=order.sale_id,
        detail={
            "reason": reason,
            "reservation_id": order.reservation_id,
            "before": {"state": before.value},
            "after": {"state": order.state.value},
        },
    )
