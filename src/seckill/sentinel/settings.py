"""What can be set about the engine, and where it differs from the original on purpose.

Each ``Difference`` that changes an answer can be undone by name, which is how the differential test
proves that nothing *else* differs. ``docs/sentinel-differences.md`` has the reason for each.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Literal

MS_PER_S: Final = 1000


class Difference(enum.StrEnum):
    """A deliberate difference from the original that changes an answer. The value is its name."""

    SLIDING_WINDOW = "sliding-window"
    WARM_UP_ADMITS_ONE = "warm-up-admits-one"
    WARM_UP_ZERO_BLOCKS = "warm-up-zero-blocks"
    PACING_IN_NANOSECONDS = "pacing-in-nanoseconds"
    PRIORITY_WAIT_IS_CHECKED = "priority-wait-is-checked"
    UNCHANGED_RULES_KEEP_STATE = "unchanged-rules-keep-state"
    PROBE_IS_TAGGED = "probe-is-tagged"
    PROBE_HAS_LEASE = "probe-has-lease"
    BREAKERS_PROBE_TOGETHER = "breakers-probe-together"
    DEFAULT_BREAKER_IN_LIST = "default-breaker-in-list"
    SYSTEM_RULES_ADD_UP = "system-rules-add-up"
    HOT_PARAMETER_TYPES = "hot-parameter-types"
    HOT_PARAMETER_NANOSECONDS = "hot-parameter-nanoseconds"
    NULL_ELEMENT_IS_SKIPPED = "null-element-is-skipped"
    NEGATIVE_INDEX_PER_CALL = "negative-index-per-call"
    AUTHORITY_NAMES_TRIMMED = "authority-names-trimmed"
    EMPTY_RESULT_KEEPS_RULES = "empty-result-keeps-rules"


AS_ORIGINAL: Final = frozenset(Difference)
"""All of them undone: the answers of sentinel-core 1.8.8, its defects included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set about one ``Sentinel``.

    Attributes:
        undone: differences from the original to undo; empty is ours, ``AS_ORIGINAL`` is theirs.
        sample_count: buckets in the second window; a divisor of 1,000. The original has 2.
        cold_factor: how many times slower a cold warm-up rule is than a warm one; above 1.
        occupy_timeout_ms: a prioritised call that would have to wait this long is refused instead.
        max_rt_ms: the best response time of a bucket without any, as the original has it.
        probe_lease_ms: how long a half-open breaker waits for its probe before it sends another;
            0 means as long as the rule's ``timeWindow``.
        cluster_fallback: what a ``clusterMode`` rule does without its token source: ``rule`` obeys
            the rule's ``fallbackToLocalWhenFail``, ``share`` always checks this process's share of
            the threshold, ``closed`` refuses.
        service_resources: resources whose local flow rules by QPS are meant for all processes of
            the service together: as if they were in cluster mode with a global threshold.
        resource_count_max: names beyond it pass unchecked and are counted, unless a rule names
            them.
        context_count_max: contexts beyond it share one.
        origin_count_max: callers of one resource beyond it share one counter.
        node_count_max: (context, resource) pairs beyond it share the resource's one.
        hot_value_count_max: values that one hot-parameter rule remembers, at most.
    """

    undone: frozenset[Difference] = frozenset()
    sample_count: int = 2
    cold_factor: int = 3
    occupy_timeout_ms: int = 500
    max_rt_ms: int = 5_000
    probe_lease_ms: int = 0
    cluster_fallback: Literal["rule", "share", "closed"] = "rule"
    service_resources: frozenset[str] = frozenset()
    resource_count_max: int = 6_000
    context_count_max: int = 2_000
    origin_count_max: int = 1_000
    node_count_max: int = 20_000
    hot_value_count_max: int = 200_000

    def __post_init__(self) -> None:
        if self.sample_count < 1 or MS_PER_S % self.sample_count:
            raise ValueError(f"sample_count must divide 1,000: {self.sample_count}")
        if self.cold_factor <= 1:
            raise ValueError(f"cold_factor must be above 1: {self.cold_factor}")
        if self.occupy_timeout_ms < 0 or self.max_rt_ms < 1 or self.probe_lease_ms < 0:
            raise ValueError("spans of time must not be negative, and max_rt_ms must be at least 1")
        if self.cluster_fallback not in ("rule", "share", "closed"):
            raise ValueError(
                f"cluster_fallback must be rule, share or closed: {self.cluster_fallback!r}"
            )
        bounds = (
            self.resource_count_max,
            self.context_count_max,
            self.origin_count_max,
            self.node_count_max,
            self.hot_value_count_max,
        )
        if min(bounds) < 1:
            raise ValueError("every bound must be at least 1")

    def differs(self, difference: Difference) -> bool:
        """Whether this engine differs from the original in that way."""
        return difference not in self.undone
