"""Limits for each buyer and each address, by setting.

They are hot-parameter rules on the purchase, held by a slot of their own: a list of rules that is
pushed from a console replaces all rules of its kind, and must not take these away by accident.
"""

from typing import Final

from seckill.sentinel import Links, ParamFlowRule, Sentinel, SlotOrder
from seckill.sentinel.hotparam.manager import ParamFlowRuleManager
from seckill.sentinel.hotparam.slot import ParamFlowSlot
from seckill.sentinel.node import ClusterNode
from seckill.web.flow import ADDRESS_INDEX, PURCHASE_RESOURCE, USER_INDEX

__all__ = ["PER_ADDRESS", "PER_USER", "limit_callers"]

PER_USER: Final = "per-user"
PER_ADDRESS: Final = "per-address"
"""What a refusal by one of these limits has as ``rule_limit_app``."""


def limit_callers(sentinel: Sentinel, *, per_user_per_s: int, per_address_per_s: int) -> None:
    """Put the limits in force for the life of an engine. 0 is no limit.

    Each remembers the 4,000 buyers or addresses that asked last, as every hot-parameter rule of
    one second does.
    """
    rules = [
        ParamFlowRule(resource=PURCHASE_RESOURCE, param_idx=index, count=per_s, limit_app=limit_app)
        for per_s, index, limit_app in (
            # First, so that a request refused for its address costs its user nothing.
            (per_address_per_s, ADDRESS_INDEX, PER_ADDRESS),
            (per_user_per_s, USER_INDEX, PER_USER),
        )
        if per_s
    ]
    if not rules:
        return
    manager = ParamFlowRuleManager(
        settings=sentinel.settings,
        lock=sentinel.lock,
        changed=lambda _names: None,
        token_source=None,
    )
    report = manager.load(rules)
    assert not report.refused, report
    sentinel.add_slot(_CallerLimits(manager))


class _CallerLimits:
    """A slot just before the hot-parameter rules of the store."""

    order: Final = SlotOrder.PARAM_FLOW - 1

    def __init__(self, manager: ParamFlowRuleManager) -> None:
        self._slot = ParamFlowSlot(manager)

    def links(self, resource: ClusterNode) -> Links:
        """One check per limit."""
        return self._slot.links(resource)
