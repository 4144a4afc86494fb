"""What flow control does, counted into the metrics of the process."""

from typing import Final

import structlog

from seckill.runtime.metric_table import FLOW_BLOCKED_BY, FLOW_RESOURCES
from seckill.runtime.telemetry import Metrics
from seckill.sentinel import BlockException, Sentinel

__all__ = ["FlowMetrics"]

_LOG: Final = structlog.get_logger(__name__)


class FlowMetrics:
    """Counts refusals as they happen, and looks at the rest now and then."""

    def __init__(self, metrics: Metrics) -> None:
        self._blocks = {
            (resource, by): metrics.counter("seckill_flow_blocks_total", resource, by)
            for resource in FLOW_RESOURCES
            for by in FLOW_BLOCKED_BY
        }
        self._flow = metrics.gauge("seckill_flow_rules", "flow")
        self._param_flow = metrics.gauge("seckill_flow_rules", "param-flow")
        self._degrade = metrics.gauge("seckill_flow_rules", "degrade")
        self._system = metrics.gauge("seckill_flow_rules", "system")
        self._authority = metrics.gauge("seckill_flow_rules", "authority")
        self._open = metrics.gauge("seckill_redis_circuits_open")
        self._away = metrics.gauge("seckill_flow_tokens_away")
        self._faults = metrics.counter("seckill_flow_errors_total")
        self._faults_seen = 0

    def blocked(self, block: BlockException) -> None:
        """One call was refused."""
        resource = block.resource if block.resource in FLOW_RESOURCES else "other"
        # A limit of the settings is a hot-parameter rule that has its name in the place of callers.
        by = block.rule_limit_app if block.rule_limit_app in FLOW_BLOCKED_BY else block.kind
        self._blocks[resource, by if by in FLOW_BLOCKED_BY else "other"].inc()

    def circuit_open(self, *, is_open: bool) -> None:
        """Whether this process does not ask Redis at present."""
        self._open.set(is_open)

    def tokens_away(self, *, are_away: bool) -> None:
        """Whether this process keeps its share of each limit, since it cannot lease tokens."""
        self._away.set(are_away)

    def look(self, sentinel: Sentinel) -> None:
        """Count the rules in force, and the faults since the last look."""
        self._flow.set(len(sentinel.flow.rules))
        self._param_flow.set(len(sentinel.param_flow.rules))
        self._degrade.set(len(sentinel.degrade.rules))
        self._system.set(len(sentinel.system.rules))
        self._authority.set(len(sentinel.authority.rules))
        faults = sentinel.alarms.internal_errors + sentinel.alarms.listener_errors
        if faults > self._faults_seen:
            self._faults.inc(faults - self._faults_seen)
            _LOG.error("flow control met an error", error=str(sentinel.alarms.last_error))
        self._faults_seen = faults
