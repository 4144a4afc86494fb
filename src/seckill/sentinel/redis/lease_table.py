"""Which lease a call concerns: one for each flow rule, one for each value of a hot parameter."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seckill.sentinel.clock import NANOSECONDS_PER_MS, NANOSECONDS_PER_S
from seckill.sentinel.hotparam import ParamFlowRule
from seckill.sentinel.hotparam.keys import key_of
from seckill.sentinel.redis.lease import Lease
from seckill.sentinel.settings import MS_PER_S
from seckill.sentinel.words import ThresholdType

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from seckill.sentinel.redis.keys import SentinelKeys
    from seckill.sentinel.token_source import ClusterRule


@dataclass(slots=True)
class _ValueRule:
    """A hot-parameter rule and the leases of its values, the longest unseen first."""

    rule: ParamFlowRule
    thresholds: dict[Hashable, int]
    leases: OrderedDict[Hashable, Lease]


class LeaseTable:
    """The leases of one worker, made when they are first asked for.

    Args:
        keys: names in Redis.
        value_count_max: values of one rule; beyond it the longest unseen is forgotten.

    Attributes:
        flows: by number, the flow rule that a lease was asked for last, and the lease.
    """

    def __init__(self, keys: SentinelKeys, value_count_max: int) -> None:
        self._keys = keys
        self._value_count_max = value_count_max
        self.flows: dict[int, tuple[ClusterRule, Lease]] = {}
        self._values: dict[int, _ValueRule] = {}

    def __len__(self) -> int:
        return len(self.flows) + sum(len(one.leases) for one in self._values.values())

    def wanted(
        self, rule: ClusterRule, count: int, values: tuple[object, ...], now_ns: int
    ) -> dict[Lease, int]:
        """The leases that a call concerns, with the units it wants of each."""
        if isinstance(rule, ParamFlowRule):
            wanted: dict[Lease, int] = {}
            for value in values:
                if value is not None:
                    lease = self._value_lease(rule, key_of(value), now_ns)
                    wanted[lease] = wanted.get(lease, 0) + count
            return wanted
        return {self._flow_lease(rule, now_ns): count}

    def _flow_lease(self, rule: ClusterRule, now_ns: int) -> Lease:
        config = rule.cluster_config
        assert config is not None, "a rule in force in cluster mode has it"
        found = self.flows.get(config.flow_id)
        if found is not None and found[0] is rule:
            return found[1]
        window_ns = config.window_interval_ms * NANOSECONDS_PER_MS
        count = rule.count * config.window_interval_ms / MS_PER_S
        each = config.threshold_type != ThresholdType.GLOBAL
        if found is None:
            lease = Lease(
                self._keys.flow_tokens(config.flow_id),
                count=count, each=each, window_ns=window_ns, is_value=False, now_ns=now_ns,
            )  # fmt: skip
        else:
            # The rule was changed, or two rules share a number: the tokens are of one rule.
            lease = found[1]
            lease.change(count=count, each=each, window_ns=window_ns)
        self.flows[config.flow_id] = (rule, lease)
        return lease

    def _value_lease(self, rule: ParamFlowRule, key: Hashable, now_ns: int) -> Lease:
        config = rule.cluster_config
        assert config is not None, "a rule in force in cluster mode has it"
        found = self._values.get(config.flow_id)
        if found is None or found.rule is not rule:
            if found is None or found.rule != rule:
                found = _ValueRule(rule, _thresholds(rule), OrderedDict())
            found.rule = rule
            self._values[config.flow_id] = found
        lease = found.leases.get(key)
        if lease is not None:
            found.leases.move_to_end(key)
            return lease
        lease = found.leases[key] = Lease(
            self._keys.value_tokens(config.flow_id, _digest(key)),
            count=found.thresholds.get(key, math.floor(rule.count)),
            each=config.threshold_type != ThresholdType.GLOBAL,
            window_ns=rule.duration_in_sec * NANOSECONDS_PER_S,
            is_value=True,
            now_ns=now_ns,
        )
        if len(found.leases) > self._value_count_max:
            found.leases.popitem(last=False)
        return lease

    def to_renew(self) -> Iterator[Lease]:
        """What a heartbeat speaks of. A value that nobody asks for loses its tokens silently."""
        for _, lease in self.flows.values():
            yield lease
        for one in self._values.values():
            for lease in one.leases.values():
                if lease.asked or lease.shared:
                    yield lease

    def forget_idle(self, now_ns: int) -> None:
        """Let go of what nobody asked for in a while."""
        for flow_id, (_, lease) in list(self.flows.items()):
            if lease.is_idle(now_ns):
                del self.flows[flow_id]
        for one in self._values.values():
            while one.leases:
                key, lease = next(iter(one.leases.items()))
                if not lease.is_idle(now_ns):
                    break
                del one.leases[key]


def _thresholds(rule: ParamFlowRule) -> dict[Hashable, int]:
    found: dict[Hashable, int] = {}
    for item in rule.param_flow_item_list:
        if item.problem() is None:
            found.update(dict.fromkeys(item.keys(), item.count))
    return found


def _digest(key: Hashable) -> str:
    """A short name for a value. Python takes 1.0 for 1, so they have one name here too."""
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    return hashlib.blake2b(repr(key).encode(errors="replace"), digest_size=12).hexdigest()
