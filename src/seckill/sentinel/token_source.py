"""Tokens from outside: one threshold for many processes.

A rule in ``clusterMode`` is not checked against this process's counters but asks a ``TokenSource``.
The engine asks under its lock, so a source must answer from memory: it leases small blocks of
tokens ahead, in its own time, and hands them out here one by one. When it has none left and cannot
tell whether more are to be had, it says ``UNAVAILABLE``, and the rule falls back.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from seckill.sentinel.reports import Problem
from seckill.sentinel.rule_set import INTEGER_MAX, NUMBER_MAX, choice_problems, number_problems
from seckill.sentinel.words import ThresholdType

if TYPE_CHECKING:
    from seckill.sentinel.rule_set import Rule


class TokenStatus(enum.Enum):
    """What a token source says."""

    OK = "ok"
    BLOCKED = "blocked"
    UNAVAILABLE = "unavailable"


class ClusterRule(Protocol):
    """The part of a rule that a token source needs; flow and hot-parameter rules have it."""

    @property
    def resource(self) -> str:
        """Name of the resource."""
        ...

    @property
    def count(self) -> float:
        """The threshold, units per second; for all or for each machine, see ``cluster_config``."""
        ...

    @property
    def cluster_config(self) -> ClusterConfig | None:
        """The rest of what the rule says about cluster mode; never None in a rule in force."""
        ...


class TokenSource(Protocol):
    """Where a rule in cluster mode gets its tokens. Called under the engine's lock."""

    def acquire(
        self, rule: ClusterRule, count: int, values: tuple[object, ...] = ()
    ) -> TokenStatus:
        """Take tokens of a rule at once or not at all. Must not wait and must not do I/O.

        Args:
            rule: a flow or hot-parameter rule in cluster mode; ``cluster_config.flow_id`` names it.
            count: tokens wanted, at least 1.
            values: for hot-parameter rules the values, each of which needs ``count`` tokens.
        """
        ...

    def give_back(self, rule: ClusterRule, count: int, values: tuple[object, ...] = ()) -> None:
        """Undo an ``acquire`` that was answered OK: a later check refused the call after all.

        Called under the engine's lock, with what ``acquire`` was called with.
        """
        ...

    def share(self, rule: ClusterRule) -> float:
        """The part of the rule's threshold that is this process's while tokens are unavailable.

        From 0 to 1; with N processes known, about 1/N. The parts of all of them together are at
        most 1, so that they still keep the threshold.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What a rule says about cluster mode. Names and defaults are the original's.

    Attributes:
        flow_id: number of the rule, unique among all rules of the service; above 0.
        threshold_type: whether ``count`` is for each machine (0) or for all together (1).
        fallback_to_local_when_fail: without tokens check locally (True) or let pass (False). None
            stands for the kind's default: flow rules check, hot-parameter rules pass.
        strategy: 0; the original knows no other in force.
        sample_count, window_interval_ms: the token server's window.
        resource_timeout_ms, resource_timeout_strategy, acquire_refuse_strategy,
            client_offline_time_ms: of concurrency tokens; kept so that a rule reads back as
                written.
    """

    flow_id: int = 0
    threshold_type: int = ThresholdType.AVERAGE_LOCAL
    fallback_to_local_when_fail: bool | None = None
    strategy: int = 0
    sample_count: int = 10
    window_interval_ms: int = 1000
    resource_timeout_ms: int = 2000
    resource_timeout_strategy: int = 0
    acquire_refuse_strategy: int = 0
    client_offline_time_ms: int = 2000

    def problems(self) -> list[Problem]:
        """What is wrong with it; fields are named as in rule JSON."""
        found = number_problems("clusterConfig.flowId", self.flow_id, low=1, high=NUMBER_MAX)
        found += choice_problems("clusterConfig.thresholdType", self.threshold_type, ThresholdType)
        found += choice_problems("clusterConfig.strategy", self.strategy, (0,))
        whole = {
            "sampleCount": self.sample_count,
            "windowIntervalMs": self.window_interval_ms,
            "resourceTimeout": self.resource_timeout_ms,
            "clientOfflineTime": self.client_offline_time_ms,
        }
        for field, value in whole.items():
            found += number_problems(f"clusterConfig.{field}", value, low=1, high=INTEGER_MAX)
        if not found and self.window_interval_ms % self.sample_count:
            found.append(
                Problem("clusterConfig.sampleCount", "must divide windowIntervalMs evenly"),
            )
        return found


def cluster_problems(*, on: bool, config: ClusterConfig | None, rule: Rule) -> list[Problem]:
    """What is wrong with a rule's cluster mode, if it is on."""
    if not on:
        return []
    if rule.regex:
        return [Problem("regex", "a rule in cluster mode is for one resource, not for a pattern")]
    if config is None:
        return [Problem("clusterConfig", "required in cluster mode")]
    return config.problems()
