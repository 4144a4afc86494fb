"""The state machine of a circuit breaker.

::

    CLOSED ──(too many slow or failed calls)──► OPEN ──(timeWindow is over)──► HALF_OPEN
      ▲                                          ▲                                │  one call: the
      probe └────────────(the probe went well)─────────┼────────────────────────────────┤
                                                 └────────(it did not)────────────┘

Two things the original gets wrong are right here. The probe is known by its entry, so a call from
before the opening, which ends late, decides nothing. And the probe has a lease: if it never ends
(its task was lost, its host hangs) another is sent, instead of staying half-open for ever.

Source: AbstractCircuitBreaker of sentinel-core 1.8; ``probe-is-tagged`` and ``probe-has-lease`` in
the list of
    differences.
"""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seckill.sentinel.clock import NANOSECONDS_PER_MS, NANOSECONDS_PER_S
from seckill.sentinel.settings import Difference

if TYPE_CHECKING:
    from collections.abc import Callable

    from seckill.sentinel.circuitbreaking.rule import DegradeRule
    from seckill.sentinel.entry import Entry
    from seckill.sentinel.settings import Settings


class BreakerState(enum.Enum):
    """Whether calls go through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class StateChange:
    """A breaker changed its state.

    Attributes:
        resource: whose breaker.
        rule: its rule.
        previous, current: the states.
        value: what opened it (a ratio, or a number of errors); None if it did not open.
        at_ns: when.
    """

    resource: str
    rule: DegradeRule
    previous: BreakerState
    current: BreakerState
    value: float | None
    at_ns: int


_CLOSED = BreakerState.CLOSED
_OPEN = BreakerState.OPEN
_HALF_OPEN = BreakerState.HALF_OPEN


class CircuitBreaker(abc.ABC):
    """One breaker: of one rule at one resource.

    Args:
        rule: the rule.
        resource: name of the resource.
        settings: the engine's.
        notify: told of each change, under the engine's lock.

    Attributes:
        state: whether calls go through.
        opened_by: the value that opened it last; 0 before.
    """

    __slots__ = (
        "_bad",
        "_interval_end_ns",
        "_interval_ns",
        "_lease_end_ns",
        "_lease_ns",
        "_notify",
        "_open_ns",
        "_probe",
        "_retry_at_ns",
        "_tagged",
        "_total",
        "opened_by",
        "resource",
        "rule",
        "state",
    )

    def __init__(
        self,
        rule: DegradeRule,
        resource: str,
        settings: Settings,
        notify: Callable[[StateChange], None],
    ) -> None:
        self.rule = rule
        self.resource = resource
        self.state = _CLOSED
        self.opened_by = 0.0
        self._notify = notify
        self._interval_ns = rule.stat_interval_ms * NANOSECONDS_PER_MS
        self._interval_end_ns = 0
        self._total = 0
        self._bad = 0
        self._open_ns = rule.time_window * NANOSECONDS_PER_S
        self._retry_at_ns = 0
        self._probe: Entry | None = None
        self._tagged = settings.differs(Difference.PROBE_IS_TAGGED)
        self._lease_ns = 0
        if settings.differs(Difference.PROBE_HAS_LEASE):
            self._lease_ns = settings.probe_lease_ms * NANOSECONDS_PER_MS or self._open_ns
        self._lease_end_ns = 0

    @abc.abstractmethod
    def is_bad(self, entry: Entry, rt_ms: int) -> bool:
        """Whether a call that ended counts against the resource."""

    @abc.abstractmethod
    def value(self, bad: int, total: int) -> float:
        """The number that is compared with the threshold."""

    @abc.abstractmethod
    def exceeded(self, value: float) -> bool:
        """Whether the number is over the threshold."""

    @property
    @abc.abstractmethod
    def threshold(self) -> float:
        """What the number is compared with."""

    def admits(self, now_ns: int) -> bool:
        """Whether a call may go through now, as one of all or as the probe. Changes nothing."""
        if self.state is _CLOSED:
            return True
        if self.state is _OPEN:
            return now_ns >= self._retry_at_ns
        return bool(self._lease_ns) and now_ns >= self._lease_end_ns

    def send_probe(self, entry: Entry, now_ns: int) -> None:
        """Let a call through as the probe, if ``admits``. Does nothing while closed."""
        if self.state is _CLOSED:
            return
        self._probe = entry
        self._lease_end_ns = now_ns + self._lease_ns
        entry.probe(self._probe_refused)
        if self.state is _OPEN:
            self._become(_HALF_OPEN, None, now_ns)

    def complete(self, entry: Entry, now_ns: int) -> None:
        """Take note of a call that ended, and draw the conclusion."""
        rt_ms = now_ns // NANOSECONDS_PER_MS - entry.start_ns // NANOSECONDS_PER_MS
        self._open_interval(now_ns)
        self._total += 1
        bad = self.is_bad(entry, rt_ms)
        if bad:
            self._bad += 1
        if self.state is _OPEN:
            return
        if self.state is _HALF_OPEN:
            if entry is self._probe or not self._tagged:
                self._conclude(now_ns, bad=bad)
            return
        if self._total < self.rule.min_request_amount:
            return
        value = self.value(self._bad, self._total)
        if self.exceeded(value):
            self._open(value, now_ns)

    def _conclude(self, now_ns: int, *, bad: bool) -> None:
        if bad:
            self._open(1.0, now_ns)
            return
        self._probe = None
        self._total = self._bad = 0
        self._become(_CLOSED, None, now_ns)

    def _open(self, value: float, now_ns: int) -> None:
        self._probe = None
        # From the start of the millisecond: it is what people set, and read in the log.
        self._retry_at_ns = now_ns - now_ns % NANOSECONDS_PER_MS + self._open_ns
        self.opened_by = value
        self._become(_OPEN, value, now_ns)

    def _probe_refused(self, entry: Entry) -> None:
        """The probe was refused elsewhere: open again, and the next call may probe at once."""
        if self.state is _HALF_OPEN and (entry is self._probe or not self._tagged):
            self._probe = None
            self._become(_OPEN, 1.0, entry.start_ns)

    def _become(self, state: BreakerState, value: float | None, now_ns: int) -> None:
        previous, self.state = self.state, state
        self._notify(StateChange(self.resource, self.rule, previous, state, value, now_ns))

    def _open_interval(self, now_ns: int) -> None:
        if now_ns >= self._interval_end_ns:
            self._interval_end_ns = now_ns - now_ns % self._interval_ns + self._interval_ns
            self._total = self._bad = 0
