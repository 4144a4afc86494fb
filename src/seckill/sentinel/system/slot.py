"""The system limits' place in the chain. Only entries of type ``IN`` are asked.

Source: SystemRuleManager of sentinel-core 1.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seckill.sentinel.errors import SystemBlockException
from seckill.sentinel.settings import MS_PER_S, Difference
from seckill.sentinel.slot import NO_LINKS, Links, SlotOrder

if TYPE_CHECKING:
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.node import ClusterNode
    from seckill.sentinel.system.manager import SystemRuleManager


class SystemSlot:
    """Asks whether the process can take one more inbound call."""

    order = SlotOrder.SYSTEM

    def __init__(self, manager: SystemRuleManager) -> None:
        self._manager = manager
        self._inbound = manager.inbound
        self._status = manager.status
        self._sliding = manager.settings.differs(Difference.SLIDING_WINDOW)

    def links(self, _resource: ClusterNode) -> Links:
        """The same check for every resource, while there is a limit at all."""
        return Links((self.check,)) if self._manager.limits.rules() else NO_LINKS

    def check(self, entry: Entry, now_ns: int) -> SystemBlockException | None:
        """Refuse the call if one of the limits is reached, in the original's order."""
        if not entry.inbound:
            return None
        over = self._over(entry.count, now_ns)
        if over is None:
            return None
        limit_type, measured, limit = over
        rule = getattr(self._manager.limits, limit_type)
        return SystemBlockException(entry.cluster.name, rule, limit_type, measured, limit)

    def _over(  # noqa: C901  one limit after the other, in the original's order
        self, count: int, now_ns: int
    ) -> tuple[str, float, float] | None:
        """Which limit is reached first, what was measured, and what it allows."""
        inbound = self._inbound
        limits = self._manager.limits
        if limits.qps is not None:
            if self._sliding and inbound.places is None:
                inbound.start_log(now_ns)
            used = inbound.used(now_ns)
            if used + count > limits.qps.qps:
                return "qps", used, limits.qps.qps
        running = inbound.concurrency
        if limits.thread is not None and running > limits.thread.max_thread:
            return "thread", running, limits.thread.max_thread
        if limits.rt is not None:
            rt_ms = inbound.average_rt_ms(now_ns)
            if rt_ms > limits.rt.avg_rt:
                return "rt", rt_ms, limits.rt.avg_rt
        if limits.load is not None:
            load = self._status.load()
            if load > limits.load.highest_system_load and not self._carries(running, now_ns):
                return "load", load, limits.load.highest_system_load
        if limits.cpu is not None:
            cpu = self._status.cpu_usage()
            if cpu > limits.cpu.highest_cpu_usage:
                return "cpu", cpu, limits.cpu.highest_cpu_usage
        return None

    def _carries(self, running: int, now_ns: int) -> bool:
        """Whether the calls in flight are no more than the best of late could finish in time.

        Source: Little's law, as BBR uses it: capacity = best throughput x shortest response time.
        """
        if running <= 1:
            return True
        inbound = self._inbound
        capacity = inbound.max_success_qps(now_ns) * inbound.min_rt_ms(now_ns) / MS_PER_S
        return running <= capacity
