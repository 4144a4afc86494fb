"""Warm-up rules and sales: a gate that is cold when its sale starts refuses two thirds of the rush.

A warm-up rule lets only a part through until traffic has warmed it. In front of a sale there is no
traffic until the first second, which is the one that counts.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from seckill.domain.clock import Clock
from seckill.domain.sale import Sale
from seckill.sentinel import ControlBehavior, FlowGrade, FlowRule, Sentinel
from seckill.web.flow import PURCHASE_RESOURCE

__all__ = ["WARNED_AHEAD_MS", "PreWarmer", "warming_rules"]

_LOG: Final = structlog.get_logger(__name__)

WARNED_AHEAD_MS: Final = 3_600_000
"""How long before its start the log says that a sale will meet a cold gate."""

_LOOK_EVERY_S: Final = 0.2
_WARMED_AHEAD_MS: Final = 1_000
_WARMING: Final = frozenset({ControlBehavior.WARM_UP, ControlBehavior.WARM_UP_RATE_LIMITER})


def warming_rules(rules: Iterable[FlowRule]) -> list[FlowRule]:
    """Those that warm up in front of the sale."""
    return [
        rule
        for rule in rules
        if rule.control_behavior in _WARMING
        and rule.grade == FlowGrade.QPS
        and rule.resource == PURCHASE_RESOURCE
    ]


class PreWarmer:
    """Warms the gate for each sale that starts, or says in the log that it will be cold.

    Args:
        sentinel: the engine.
        sales: gives the sales that are known.
        clock: the time.
        pre_warm: warm it; otherwise only say so.
    """

    def __init__(
        self,
        sentinel: Sentinel,
        sales: Callable[[], Iterable[Sale]],
        clock: Clock,
        *,
        pre_warm: bool,
    ) -> None:
        self._sentinel = sentinel
        self._sales = sales
        self._clock = clock
        self._pre_warm = pre_warm
        self._warned: set[int] = set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self) -> None:
        """Do what is to be done now."""
        if not warming_rules(self._sentinel.flow.rules):
            self._warned.clear()
            return
        now_ms = self._clock.now_ms()
        to_start = [
            sale for sale in self._sales() if 0 < sale.starts_at_ms - now_ms <= WARNED_AHEAD_MS
        ]
        if not self._pre_warm:
            for sale in to_start:
                self._warn(sale)
        # Again at each look of the last second: a gate without traffic cools down from there on.
        elif any(sale.starts_at_ms - now_ms <= _WARMED_AHEAD_MS for sale in to_start):
            self._sentinel.flow.pre_warm(PURCHASE_RESOURCE, self._sentinel.clock.now_ns())

    def _warn(self, sale: Sale) -> None:
        if sale.sale_id not in self._warned:
            self._warned.add(sale.sale_id)
            _LOG.warning(
                "a warm-up rule will be cold when this sale starts and let a third through; "
                "set pre_warm to have it warm",
                goods=sale.goods_id,
                resource=PURCHASE_RESOURCE,
            )
