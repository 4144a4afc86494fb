"""The rooms' observers, counting into the metrics of this process."""

from collections.abc import Sequence
from time import perf_counter, time
from typing import Final

from seckill.domain.events import BucketEvent
from seckill.domain.ids import ReservationId
from seckill.domain.outcomes import Outcome
from seckill.pipeline.ports import (
    ExpiryLag,
    OrderLedger,
    PendingRelease,
    PendingStockChange,
    WriteReport,
)
from seckill.runtime.metric_table import LAYOUT, ROUTES
from seckill.runtime.telemetry import Counter, Histogram, Metrics

__all__ = [
    "AdmissionMetrics",
    "HTTPMetrics",
    "ReaperMetrics",
    "RelayMetrics",
    "TimedLedger",
    "WorkerMetrics",
]

_OPERATIONS = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"})


def _class_of(status: int) -> str:
    """The class of a status. Nothing here redirects, so what is no error was served."""
    return "5xx" if status >= 500 else "4xx" if status >= 400 else "2xx"  # noqa: PLR2004


class AdmissionMetrics:
    """Implements `admission.observer.AdmissionObserver`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._batches = metrics.counter("seckill_admission_batches_total")
        self._sizes = metrics.histogram("seckill_admission_batch_size_requests")
        self._seconds = metrics.histogram("seckill_admission_batch_seconds")
        self._flag_answers = metrics.counter("seckill_sold_out_flag_answers_total")
        self._flags_raised = metrics.counter("seckill_sold_out_flags_raised_total")
        self._queue = metrics.gauge("seckill_queue_requests")
        self._fenced = metrics.gauge("seckill_fenced_buckets")
        self._undecided = _ByWord(metrics, "seckill_undecided_total")
        self._errors = _ByWord(metrics, "seckill_redis_errors_total")

    def batch_decided(self, requests: int, duration_ms: float) -> None:
        """See AdmissionObserver."""
        self._batches.inc()
        self._sizes.observe(requests)
        self._seconds.observe(duration_ms / 1000)

    def undecided(self, cause: str) -> None:
        """See AdmissionObserver."""
        self._undecided.inc(cause)

    def redis_failed(self, kind: str) -> None:
        """See AdmissionObserver."""
        self._errors.inc(kind)

    def answered_by_flag(self) -> None:
        """See AdmissionObserver."""
        self._flag_answers.inc()

    def flag_raised(self) -> None:
        """See AdmissionObserver."""
        self._flags_raised.inc()

    def queue_changed(self, by: int) -> None:
        """See AdmissionObserver."""
        self._queue.inc(by)

    def fenced(self, buckets: int) -> None:
        """See AdmissionObserver."""
        self._fenced.inc(buckets)


class _ByWord:
    """Counters of one metric by the value of its one label; a word it does not list is "other"."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._counters = {word: metrics.counter(name, word) for word in LAYOUT.values_of(name)}

    def inc(self, word: str) -> None:
        """Count one more."""
        (self._counters.get(word) or self._counters["other"]).inc()


class WorkerMetrics:
    """Implements `pipeline.worker.WorkerObserver`, and counts what its neighbours do."""

    def __init__(self, metrics: Metrics) -> None:
        self._orders = metrics.counter("seckill_orders_written_total")
        self._known = metrics.counter("seckill_events_known_total")
        self._compensated = metrics.counter("seckill_orders_compensated_total")
        self._errors = metrics.counter("seckill_ledger_errors_total")
        self._rested = metrics.counter("seckill_order_worker_rests_seconds_total")
        self._dead = metrics.counter("seckill_dead_letters_total")
        self._released = metrics.counter("seckill_releases_total")
        self._stuck = metrics.gauge("seckill_releases_stuck")
        self._openings = metrics.counter("seckill_bucket_openings_total")
        self._fenced = metrics.gauge("seckill_fenced_buckets")
        self._write_seconds = metrics.histogram("seckill_ledger_write_seconds")
        self._audits = metrics.counter("seckill_audits_total")
        self._audit_seconds = metrics.histogram("seckill_audit_seconds")
        self._audit_findings = metrics.gauge("seckill_audit_findings")
        self._audit_unproven = metrics.gauge("seckill_audit_unproven_buckets")
        self._audit_finished = metrics.gauge("seckill_audit_finished_at_seconds")
        self._backlog_entries = metrics.gauge("seckill_outbox_backlog_entries")
        self._backlog_seconds = metrics.gauge("seckill_outbox_backlog_seconds")
        self._topic_messages = metrics.gauge("seckill_topic_backlog_messages")
        self._topic_seconds = metrics.gauge("seckill_topic_backlog_seconds")
        self._rebalances = metrics.counter("seckill_topic_rebalances_total")
        self._commits_failed = metrics.counter("seckill_offset_commits_failed_total")

    def written(self, report: WriteReport) -> None:
        """See WorkerObserver."""
        self._orders.inc(report.ordered)
        self._known.inc(report.known)
        self._compensated.inc(len(report.compensated))

    def ledger_away(self) -> None:
        """See WorkerObserver."""
        self._errors.inc()

    def rested(self, seconds: float) -> None:
        """The order worker has given way for so long."""
        self._rested.inc(seconds)

    def dead_letter(self) -> None:
        """One outbox entry was put aside."""
        self._dead.inc()

    def released(self, units: int) -> None:
        """So many units went back to the stock."""
        self._released.inc(units)

    def stuck(self, releases: int) -> None:
        """So many releases are refused by Redis, and tried again later."""
        self._stuck.set(releases)

    def reopened(self) -> None:
        """One bucket was opened, or goes on under a new epoch."""
        self._openings.inc()

    def fenced(self, buckets: int) -> None:
        """So many buckets of all sales are closed, by the judgement of the fence's keeper."""
        self._fenced.set(buckets)

    def write_took(self, seconds: float) -> None:
        """One transaction was committed after so long."""
        self._write_seconds.observe(seconds)

    def audited(self, findings: int, unproven: int, seconds: float, at_ms: int) -> None:
        """See AuditObserver."""
        self._audits.inc()
        self._audit_seconds.observe(seconds)
        self._audit_findings.set(findings)
        self._audit_unproven.set(unproven)
        self._audit_finished.set(at_ms / 1000)

    def backlog(self, entries: int, oldest_ms: int) -> None:
        """So much waits in the outbox."""
        self._backlog_entries.set(entries)
        self._backlog_seconds.set(oldest_ms / 1000)

    def topic_backlog(self, messages: int, oldest_ms: int) -> None:
        """So much waits in the topic."""
        self._topic_messages.set(messages)
        self._topic_seconds.set(oldest_ms / 1000)

    def rebalanced(self) -> None:
        """Partitions were given to this worker or taken from it."""
        self._rebalances.inc()

    def commit_failed(self) -> None:
        """Offsets were not committed."""
        self._commits_failed.inc()


class RelayMetrics:
    """Implements `pipeline.relay.RelayObserver`, and tells what is left in the outbox."""

    def __init__(self, metrics: Metrics) -> None:
        self._entries = metrics.counter("seckill_relay_entries_total")
        self._messages = metrics.counter("seckill_relay_messages_total")
        self._refused = metrics.counter("seckill_relay_messages_refused_total")
        self._dead = metrics.counter("seckill_dead_letters_total")
        self._backlog_entries = metrics.gauge("seckill_outbox_backlog_entries")
        self._backlog_seconds = metrics.gauge("seckill_outbox_backlog_seconds")
        self._drain_seconds = metrics.gauge("seckill_outbox_drain_seconds")
        self._pace = Pace()

    def relayed(self, entries: int, messages: int) -> None:
        """See RelayObserver."""
        self._entries.inc(entries)
        self._messages.inc(messages)
        self._pace.done(entries)

    def not_taken(self, messages: int) -> None:
        """See RelayObserver."""
        self._refused.inc(messages)

    def dead_letter(self) -> None:
        """One outbox entry was put aside."""
        self._dead.inc()

    def backlog(self, entries: int, oldest_ms: int, now_s: float) -> None:
        """So much waits in the outbox now."""
        self._backlog_entries.set(entries)
        self._backlog_seconds.set(oldest_ms / 1000)
        self._drain_seconds.set(self._pace.seconds_for(entries, now_s))


class Pace:
    """How fast entries go, over the last looks; forgets by half from look to look."""

    SECONDS_MAX: Final = 86_400.0

    def __init__(self) -> None:
        self._since_look = 0
        self._looked_at_s: float | None = None
        self._per_s = 0.0

    def done(self, entries: int) -> None:
        """So many went."""
        self._since_look += entries

    def seconds_for(self, entries: int, now_s: float) -> float:
        """How long so many will take, by what went since the looks before this one."""
        if self._looked_at_s is not None and now_s > self._looked_at_s:
            pace = self._since_look / (now_s - self._looked_at_s)
            self._per_s = (self._per_s + pace) / 2
            self._since_look = 0
        self._looked_at_s = now_s
        if entries == 0:
            return 0.0
        return min(self.SECONDS_MAX, entries / self._per_s) if self._per_s else self.SECONDS_MAX


class ReaperMetrics:
    """Implements `pipeline.reaper.ReaperObserver`."""

    def __init__(self, metrics: Metrics) -> None:
        self._expired = metrics.counter("seckill_orders_expired_total")
        self._last_run = metrics.gauge("seckill_reaper_last_run_timestamp_seconds")
        self._lag = metrics.gauge("seckill_reaper_lag_seconds")
        self._set_aside = metrics.gauge("seckill_reaper_set_aside_orders")
        self._units = metrics.counter("seckill_late_payments_total", "unit")
        self._refunds = metrics.counter("seckill_late_payments_total", "refund")
        self._asked = metrics.counter("seckill_refunds_asked_total")

    def expired(self, orders: int) -> None:
        """See ReaperObserver."""
        self._expired.inc(orders)

    def run_ended(self, lag: ExpiryLag) -> None:
        """See ReaperObserver."""
        self._last_run.set(time())
        self._lag.set(lag.oldest_ms / 1000)
        self._set_aside.set(lag.set_aside)

    def late_settled(self, *, taken: bool) -> None:
        """See ReaperObserver."""
        (self._units if taken else self._refunds).inc()

    def refund_asked(self) -> None:
        """See ReaperObserver."""
        self._asked.inc()


class TimedLedger:
    """Implements `pipeline.ports.OrderLedger` on another one, and times its transactions."""

    def __init__(self, ledger: OrderLedger, counts: WorkerMetrics) -> None:
        self._ledger = ledger
        self._counts = counts

    async def write(self, events: Sequence[BucketEvent]) -> WriteReport:
        """See OrderLedger."""
        began = perf_counter()
        report = await self._ledger.write(events)
        self._counts.write_took(perf_counter() - began)
        return report

    async def pending_releases(self, releases_max: int) -> Sequence[PendingRelease]:
        """See OrderLedger."""
        return await self._ledger.pending_releases(releases_max)

    async def confirm_releases(
        self, done: Sequence[tuple[ReservationId, int]], *, epoch: int
    ) -> None:
        """See OrderLedger."""
        await self._ledger.confirm_releases(done, epoch=epoch)

    async def pending_stock_changes(self) -> Sequence[PendingStockChange]:
        """See OrderLedger."""
        return await self._ledger.pending_stock_changes()

    async def confirm_stock_change(self, change_id: str, *, epoch: int, seq: int) -> None:
        """See OrderLedger."""
        await self._ledger.confirm_stock_change(change_id, epoch=epoch, seq=seq)


class HTTPMetrics:
    """Implements `web.ports.WebMetrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._answers = {
            outcome: metrics.counter("seckill_answers_total", outcome.name.lower())
            for outcome in Outcome
        }
        self._requests: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._streams = metrics.gauge("seckill_sse_streams")
        self._stream_refusals = metrics.counter("seckill_sse_refusals_total")
        self._auth_failures = metrics.counter("seckill_auth_failures_total")

    def requests(self, route: str, method: str, status: int, seconds: Sequence[float]) -> None:
        """See WebMetrics."""
        key = (route, method, status)
        numbers = self._requests.get(key)
        if numbers is None:
            name = f"{method} {route}"
            if route in _OPERATIONS:
                name = "operations"
            elif route.startswith("/admin/"):
                name = "admin"
            elif name not in ROUTES:
                name = "other"
            numbers = self._requests[key] = (
                self._metrics.counter("seckill_http_requests_total", name, _class_of(status)),
                self._metrics.histogram("seckill_http_request_seconds", name),
            )
        numbers[0].inc(len(seconds))
        numbers[1].observe_all(seconds)
        if status == 401:  # noqa: PLR2004  -- HTTP's own number
            self._auth_failures.inc(len(seconds))

    def decisions(self, outcome: Outcome, cause: str, count: int) -> None:  # noqa: ARG002  -- causes are counted where they arise
        """See WebMetrics."""
        self._answers[outcome].inc(count)

    def streams_open(self, count: int) -> None:
        """See WebMetrics."""
        self._streams.set(count)

    def bound_met(self, bound: str) -> None:
        """See WebMetrics."""
        if bound in {"sse_streams", "sse_streams_per_user"}:
            self._stream_refusals.inc()
