"""What a purchase request can be answered: each code and each message, defined once.

The Lua scripts write these numbers too; a test reads them and fails if one is unknown here.
Source: the public face of the service, ``docs/reference/http.md``.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

__all__ = ["OUTCOME_TEXTS", "Outcome", "OutcomeText"]


class Outcome(IntEnum):
    """The result of one purchase request. 0, 1 and 2 are the article's own numbers."""

    SOLD_OUT = 0
    SUCCESS = 1
    DUPLICATE = 2
    OVER_LIMIT = 3
    NOT_STARTED = 4
    ENDED = 5
    NO_SUCH_GOODS = 6
    NOT_ENOUGH_LEFT = 7
    PAUSED = 8
    KEY_REUSED = 9
    """The same idempotency key came with another quantity. Nothing was taken."""
    BLOCKED = -1
    UNDECIDED = -2


@dataclass(frozen=True, slots=True)
class OutcomeText:
    """How one outcome looks outside: HTTP status and the message in each language."""

    http_status: int
    zh: str
    en: str


OUTCOME_TEXTS: Final[dict[Outcome, OutcomeText]] = {
    Outcome.SUCCESS: OutcomeText(
        202, "秒杀成功，请等待订单生成", "You got it. Your order is being created"
    ),
    Outcome.SOLD_OUT: OutcomeText(409, "库存不足", "Sold out"),
    Outcome.DUPLICATE: OutcomeText(409, "请勿重复下单", "You have already ordered"),
    Outcome.OVER_LIMIT: OutcomeText(409, "超出限购数量", "Over the limit per buyer"),
    Outcome.NOT_STARTED: OutcomeText(425, "活动未开始", "Not started yet"),
    Outcome.ENDED: OutcomeText(410, "活动已结束", "The sale has ended"),
    Outcome.NO_SUCH_GOODS: OutcomeText(404, "商品不存在", "No such item"),
    Outcome.NOT_ENOUGH_LEFT: OutcomeText(409, "库存不足", "Not enough left"),
    Outcome.PAUSED: OutcomeText(503, "活动已暂停", "The sale is paused"),
    Outcome.KEY_REUSED: OutcomeText(
        422,
        "幂等键已用于其他请求",
        "This Idempotency-Key was used for another request",
    ),
    Outcome.BLOCKED: OutcomeText(
        429, "请求过于频繁，请稍后再试", "Too many requests, please try again"
    ),
    Outcome.UNDECIDED: OutcomeText(503, "系统繁忙，请稍后再试", "Busy, please try again"),
}
