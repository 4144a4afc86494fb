"""Flow control in the Alibaba Sentinel model, for any Python service.

The room holds an engine. A call *enters* a named resource, goes through ordered slots (authority,
system protection, hot parameters, flow, circuit breakers) and is let in, made to wait for its turn,
or refused with the rule and the measured value. Rules are data, can be changed while running, and
are read from Sentinel's own JSON::

    sentinel = Sentinel()
    sentinel.flow.load([FlowRule(resource="seckill-jk", count=1_000)])

    try:
        with sentinel.entry("seckill-jk", goods_id, entry_type=EntryType.IN):
            ...
    except BlockException as block:
        ...  # block.rule, block.measured, block.limit

The answers are those of sentinel-core 1.8.8, and where they are not, ``Difference`` has a name for
it and ``docs/sentinel-differences.md`` the reason. It imports nothing else of this project and does
no I/O; what needs the world (clock, waiting, load of the machine, tokens of a whole service, a
store for rules) is passed in. An ASGI middleware is in ``asgi``.
"""

from seckill.sentinel.authority import AuthorityRule
from seckill.sentinel.circuitbreaking import BreakerState, DegradeRule, StateChange
from seckill.sentinel.clock import Clock, SystemClock, VirtualClock
from seckill.sentinel.context import Context
from seckill.sentinel.engine import Alarms, Sentinel
from seckill.sentinel.entry import Entry, EntryState
from seckill.sentinel.errors import (
    AuthorityException,
    BlockException,
    DegradeException,
    ErrorEntryFreeException,
    FlowException,
    ParamFlowException,
    RuleConflict,
    RuleDocumentError,
    SentinelError,
    SystemBlockException,
)
from seckill.sentinel.flow import FlowRule
from seckill.sentinel.hotparam import ParamFlowArgument, ParamFlowItem, ParamFlowRule
from seckill.sentinel.node import ClusterNode, DefaultNode, EntranceNode, Second, StatisticNode
from seckill.sentinel.reports import LoadReport, Problem, RuleProblem
from seckill.sentinel.rule_store import Change, RuleStore
from seckill.sentinel.rules import format_rules, parse_rules
from seckill.sentinel.settings import AS_ORIGINAL, Difference, Settings
from seckill.sentinel.slot import Links, Slot, SlotOrder
from seckill.sentinel.system import HostStatus, SystemRule, SystemStatus
from seckill.sentinel.token_source import ClusterConfig, ClusterRule, TokenSource, TokenStatus
from seckill.sentinel.waiting import SystemWaiter, VirtualWaiter, Waiter
from seckill.sentinel.words import (
    AuthorityStrategy,
    ControlBehavior,
    DegradeGrade,
    EntryType,
    FlowGrade,
    FlowStrategy,
    ResourceType,
    ThresholdType,
)

__all__ = [
    "AS_ORIGINAL",
    "Alarms",
    "AuthorityException",
    "AuthorityRule",
    "AuthorityStrategy",
    "BlockException",
    "BreakerState",
    "Change",
    "Clock",
    "ClusterConfig",
    "ClusterNode",
    "ClusterRule",
    "Context",
    "ControlBehavior",
    "DefaultNode",
    "DegradeException",
    "DegradeGrade",
    "DegradeRule",
    "Difference",
    "EntranceNode",
    "Entry",
    "EntryState",
    "EntryType",
    "ErrorEntryFreeException",
    "FlowException",
    "FlowGrade",
    "FlowRule",
    "FlowStrategy",
    "HostStatus",
    "Links",
    "LoadReport",
    "ParamFlowArgument",
    "ParamFlowException",
    "ParamFlowItem",
    "ParamFlowRule",
    "Problem",
    "ResourceType",
    "RuleConflict",
    "RuleDocumentError",
    "RuleProblem",
    "RuleStore",
    "Second",
    "Sentinel",
    "SentinelError",
    "Settings",
    "Slot",
    "SlotOrder",
    "StateChange",
    "StatisticNode",
    "SystemBlockException",
    "SystemClock",
    "SystemRule",
    "SystemStatus",
    "SystemWaiter",
    "ThresholdType",
    "TokenSource",
    "TokenStatus",
    "VirtualClock",
    "VirtualWaiter",
    "Waiter",
    "format_rules",
    "parse_rules",
]
