"""Tokens in hand: what the engine is answered from, and what has to be asked of Redis next.

No I/O here. ``token_source`` carries ``Exchange``s to Redis and back; between two of them this is
all that decides. Times are readings of this process's monotonic clock, in nanoseconds; only ages
and the server's own dates go over the wire, so no two clocks are ever compared.

Why the sum over all workers stays within its bound:

* Redis grants no more than the threshold within any window (``lua/lease.lua``).
* What is granted is used within one window of being *asked* for, or never. Redis counts it from
  when it was granted, which is later. Tokens that stay in hand are counted anew at each exchange.
* So in any window no more is used than was granted in it, and what was in hand at its beginning:
  at most one block for each worker.
* A worker that was quiet for two windows may use one block on credit, so that the first calls of a
  sale do not wait for Redis. It had nothing in hand then, so it is still one block for each worker.
* Redis keeps the share of a worker that it does not hear of. That worker uses nothing for a window,
  in which the others come down to what is left for them, and lives on its share after that.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.redis.exchange import Exchange, read_reply
from seckill.sentinel.redis.lease import HEARTBEAT_NS, ROUNDING
from seckill.sentinel.redis.lease_table import LeaseTable
from seckill.sentinel.token_source import TokenStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from seckill.sentinel.redis.keys import SentinelKeys
    from seckill.sentinel.redis.lease import Lease
    from seckill.sentinel.token_source import ClusterRule

EXCHANGE_LEASES_MAX: Final = 64
"""Rules (or values) that one call to Redis speaks of."""

RETRY_NS: Final = 100 * NANOSECONDS_PER_MS
"""How long after a failure Redis is tried again."""

NOTICE_MS: Final = 400
"""A heartbeat, a retry, and as much again for a process that is busy."""

WORKER_ID_BYTES_MAX: Final = 128
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSourceStatus:
    """How the tokens are doing; for metrics and for people.

    Attributes:
        in_contact: whether tokens are leased. False: the limit is shared out, or closed.
        workers: known ones, this one among them.
        leases: rules and values that tokens are held for.
        exchanges: calls to Redis that were answered, since the start.
        failures: those that were not.
        last_error: of the last failure; empty after a success.
    """

    in_contact: bool
    workers: int
    leases: int
    exchanges: int
    failures: int
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """What can be set about leases.

    Attributes:
        silence_ms: Redis keeps the share of a worker that it does not hear of for so long. One
            window later the worker itself begins to live on it.
        forget_ms: after so long it is taken for dead, and its share goes to the others; at least
            twice ``silence_ms``.
        timeout_ms: a reply that takes longer counts as none; at least 400 less than ``silence_ms``,
            so that there is time to notice, and to tell Redis.
        value_count_max: values of one hot-parameter rule that are remembered; the longest unseen is
            forgotten.

    Raises:
        ValueError: one is out of bounds; the text says which.
    """

    silence_ms: int = 800
    forget_ms: int = 10_000
    timeout_ms: int = 400
    value_count_max: int = 20_000

    def __post_init__(self) -> None:
        if not 0 < self.timeout_ms <= self.silence_ms - NOTICE_MS:
            raise ValueError(
                f"timeout_ms is above 0, and silence_ms at least {NOTICE_MS} more: "
                f"{self.timeout_ms}, {self.silence_ms}"
            )
        if self.forget_ms < 2 * self.silence_ms:
            raise ValueError(f"forget_ms is at least twice silence_ms: {self.forget_ms}")
        if self.value_count_max < 1:
            raise ValueError(f"value_count_max is at least 1: {self.value_count_max}")


class LeaseBook:
    """All leases of one worker.

    Args:
        keys: names in Redis.
        worker_id: of this process, 1 to 128 bytes, unlike that of any other that runs: two of one
            name would count as one worker. A name that is kept over a restart spares the others the
            time in which a dead worker's share is kept for it.
        workers_expected: how many workers there are, for the time before Redis was reached first.
            None: until then rules in cluster mode refuse everything.
        settings: the rest.
        now_ns: the monotonic clock.

    Raises:
        ValueError: the worker's id or the number of workers is out of bounds.

    Attributes:
        on_due: called, perhaps under the engine's lock and in any thread, when there is something
            to ask Redis for. Called once until ``exchange`` is.
    """

    def __init__(
        self,
        keys: SentinelKeys,
        *,
        worker_id: str,
        workers_expected: int | None,
        settings: LeaseSettings,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if not 1 <= len(worker_id.encode()) <= WORKER_ID_BYTES_MAX:
            raise ValueError(f"a worker id has 1 to {WORKER_ID_BYTES_MAX} bytes: {worker_id!r}")
        if workers_expected is not None and workers_expected < 1:
            raise ValueError(f"at least 1 worker is to be expected, not {workers_expected}")
        self._worker_id = worker_id
        self._expected = workers_expected
        self._silence_ns = settings.silence_ms * NANOSECONDS_PER_MS
        self._forget_ms = settings.forget_ms
        self._table = LeaseTable(keys, settings.value_count_max)
        self._flows = self._table.flows
        self._keys = keys
        self._now_ns = now_ns
        # The engine holds its own lock when it asks; this one is for the driver's thread.
        self._lock = threading.Lock()
        self._due: dict[Lease, None] = {}
        self._beat_ns = now_ns()
        self._tried_ns = self._beat_ns
        self._contact_ns: int | None = None
        self._failing = False
        self._told_due = False
        self._known = 0
        self._rank: int | None = None
        self._exchanges = 0
        self._failures = 0
        self._last_error = ""
        self.on_due: Callable[[], None] = _nothing

    # The engine's side: ``TokenSource``.

    def acquire(
        self, rule: ClusterRule, count: int, values: tuple[object, ...] = ()
    ) -> TokenStatus:
        """Take tokens of a rule at once or not at all; see ``TokenSource``."""
        now_ns = self._now_ns()
        with self._lock:
            if not values:
                config = rule.cluster_config
                known = self._flows.get(config.flow_id) if config is not None else None
                if known is not None and known[0] is rule:
                    taken = known[1].take_fast(count, now_ns)
                    if taken is not None:
                        return TokenStatus.OK if taken else TokenStatus.BLOCKED
            return self._acquire(rule, count, values, now_ns)

    def _acquire(
        self, rule: ClusterRule, count: int, values: tuple[object, ...], now_ns: int
    ) -> TokenStatus:
        wanted = self._table.wanted(rule, count, values, now_ns)
        for lease, units in wanted.items():
            lease.asked += units
            lease.asked_ns = now_ns
        if self._contact_ns is None and self._expected is None:
            return TokenStatus.BLOCKED
        if self._is_away(wanted, now_ns):
            share = self._share(rule)
            workers = self._workers
            for lease, units in wanted.items():
                whole = lease.count if lease.each else lease.count * share
                lease.use_share(units, math.floor(whole + ROUNDING), now_ns)
            return TokenStatus.UNAVAILABLE
        workers = 0 if self._failing else self._workers
        all_there = True
        for lease, units in wanted.items():
            all_there = lease.has(units, workers, now_ns) and all_there
        if all_there:
            for lease, units in wanted.items():
                lease.take(units, now_ns)
        self._look(wanted, now_ns, short=not all_there)
        return TokenStatus.OK if all_there else TokenStatus.BLOCKED

    def give_back(self, rule: ClusterRule, count: int, values: tuple[object, ...] = ()) -> None:
        """Undo an ``acquire`` that was answered OK; see ``TokenSource``."""
        now_ns = self._now_ns()
        with self._lock:
            for lease, units in self._table.wanted(rule, count, values, now_ns).items():
                lease.give_back(units, now_ns)

    def share(self, rule: ClusterRule) -> float:
        """The part of the threshold that is this worker's while it has no tokens.

        The parts of all workers add up to one, and each is a whole number of units: of 5 units and
        8 workers 5 get one each. Zero, therefore, is a share too.
        """
        with self._lock:
            return self._share(rule)

    def status(self) -> TokenSourceStatus:
        """How it is doing."""
        now_ns = self._now_ns()
        with self._lock:
            return TokenSourceStatus(
                in_contact=not self._is_away((), now_ns),
                workers=self._workers,
                leases=len(self._table),
                exchanges=self._exchanges,
                failures=self._failures,
                last_error=self._last_error,
            )

    # The driver's side.

    def next_ns(self) -> int:
        """When the next exchange is due, unless ``on_due`` is called before."""
        with self._lock:
            if self._failing:
                return self._tried_ns + RETRY_NS
            retries = [lease.retry_ns for lease in self._due]
            return min([self._beat_ns, *retries])

    def exchange(self, *, leaving: bool = False) -> Exchange | None:
        """The next call to make; None if there is nothing to say at the moment.

        ``answered`` or ``unanswered`` has to follow before the next.
        """
        now_ns = self._now_ns()
        with self._lock:
            self._told_due = False
            beats = leaving or now_ns >= self._beat_ns
            for lease in [one for one in self._due if not one.runs_low(now_ns)]:
                # The answer that has come since it was noted was enough.
                del self._due[lease]
            chosen = [lease for lease in self._due if now_ns >= lease.retry_ns]
            if beats:
                chosen = list(dict.fromkeys([*chosen, *self._table.to_renew()]))
            if not beats and not chosen:
                return None
            self._beat_ns = now_ns + HEARTBEAT_NS
            if len(chosen) > EXCHANGE_LEASES_MAX:
                # The others follow in the next exchange.
                self._due.update(dict.fromkeys(chosen))
                del chosen[EXCHANGE_LEASES_MAX:]
            for lease in chosen:
                self._due.pop(lease, None)
            self._tried_ns = now_ns
            # After a failure it is not known what Redis thinks: say so first, and lease again once
            # an answer has come. A start without a failure has nothing to say.
            leasing = not leaving and not self._failing
            rules = [lease.ask(leasing=leasing, leaving=leaving, now_ns=now_ns) for lease in chosen]
            state = "leaving" if leaving else "leasing" if leasing else "sharing"
            body = {
                "worker": self._worker_id,
                "state": state,
                "workers": self._workers if self._known or self._failing else 1,
                "listed": int(self._is_listed(now_ns)),
                "silence_ms": self._silence_ns // NANOSECONDS_PER_MS,
                "forget_ms": self._forget_ms,
                "rules": rules,
            }
            keys = (self._keys.workers, *(lease.key for lease in chosen))
            return Exchange(keys, json.dumps(body), tuple(chosen), now_ns, leasing, leaving)

    def answered(self, exchange: Exchange, raw: bytes | str) -> None:
        """Take up the reply of ``lua/lease.lua``. One that cannot be read is none."""
        try:
            known, rank, answers = read_reply(raw, len(exchange.leases))
        except (ValueError, TypeError) as error:
            self.unanswered(exchange, error)
            return
        now_ns = self._now_ns()
        with self._lock:
            for lease, answer in zip(exchange.leases, answers, strict=True):
                lease.answered(answer, exchange, now_ns)
            self._contact_ns = None if exchange.leaving else now_ns
            self._known, self._rank = known, rank
            self._exchanges += 1
            self._last_error = ""
            if self._failing and not exchange.leaving:
                _LOG.warning("tokens are leased from Redis again, %d workers known", known)
                # It keeps this worker's share until the next exchange, which tells what was used.
                self._failing = False
                self._beat_ns = now_ns
            self._table.forget_idle(now_ns)

    def unanswered(self, exchange: Exchange, error: BaseException) -> None:
        """Note that Redis did not answer, or refused, or that the call was cut off."""
        with self._lock:
            for lease in exchange.leases:
                lease.unanswered()
                if lease.owes:
                    self._due[lease] = None
            if not self._failing and isinstance(error, Exception):
                _LOG.warning(
                    "no tokens from Redis: %s. Rules in cluster mode are shared out among %d "
                    "workers, or refuse, as cluster_fallback says",
                    str(error) or type(error).__name__,
                    self._workers,
                )
            self._failing = True
            self._failures += 1
            self._last_error = str(error) or type(error).__name__
            self._beat_ns = self._now_ns()

    # Inside, under the lock.

    @property
    def _workers(self) -> int:
        return max(self._known, self._expected or 1)

    def _share(self, rule: ClusterRule) -> float:
        workers = self._workers
        if self._contact_ns is None and self._expected is None:
            return 0.0
        units = math.floor(rule.count + ROUNDING)
        if not units:
            return 1 / workers
        if self._rank is None or workers != self._known:
            # Which of them gets what does not divide is not known, so nobody does.
            part = units // workers
        else:
            part = (self._rank + 1) * units // workers - self._rank * units // workers
        # The engine multiplies again, and has to arrive at a whole number.
        return math.nextafter(part / rule.count, math.inf) if part else 0.0

    def _is_away(self, wanted: Iterable[Lease], now_ns: int) -> bool:
        if self._contact_ns is None:
            return True
        # Redis keeps the share from the silence on. What it had granted to others by then has left
        # the window when the window is over.
        longest_ns = max((lease.window_ns for lease in wanted), default=0)
        return now_ns - self._contact_ns >= self._silence_ns + longest_ns

    def _is_listed(self, now_ns: int) -> bool:
        """Whether Redis knows of this worker, unless it lost its data."""
        if self._contact_ns is None:
            return False
        return now_ns - self._contact_ns < self._forget_ms * NANOSECONDS_PER_MS

    def _look(self, wanted: Iterable[Lease], now_ns: int, *, short: bool) -> None:
        """See whether Redis should be asked now."""
        urgent = False
        for lease in wanted:
            if lease in self._due:
                urgent = urgent or now_ns >= lease.retry_ns
            elif short or lease.runs_low(now_ns):
                self._due[lease] = None
                urgent = True
            if short:
                lease.shut(now_ns)
        if urgent and not self._told_due and not self._failing:
            self._told_due = True
            self.on_due()


def _nothing() -> None:
    pass
