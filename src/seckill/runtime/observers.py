"""The rooms' observers, counting into the metrics of this process."""

from seckill.domain.outcomes import Outcome
from seckill.pipeline.ports import WriteReport
from seckill.runtime.metric_table import ROUTES
from seckill.runtime.telemetry import Counter, Histogram, Metrics

__all__ = ["AdmissionMetrics", "HTTPMetrics", "WorkerMetrics"]

_OPERATIONS = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"})


class AdmissionMetrics:
    """Implements `admission.observer.AdmissionObserver`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._batches = metrics.counter("seckill_admission_batches_total", "answered")
        self._sizes = metrics.histogram("seckill_admission_batch_size_requests")
        self._seconds = metrics.histogram("seckill_admission_batch_seconds")
        self._flag_answers = metrics.counter("seckill_sold_out_flag_answers_total")
        self._queue = metrics.gauge("seckill_queue_requests")
        self._fenced = metrics.gauge("seckill_fenced_buckets")
        self._undecided: dict[str, Counter] = {}
        self._errors: dict[str, Counter] = {}

    def batch_decided(self, requests: int, duration_ms: float) -> None:
        """See AdmissionObserver."""
        self._batches.inc()
        self._sizes.observe(requests)
        self._seconds.observe(duration_ms / 1000)

    def undecided(self, cause: str) -> None:
        """See AdmissionObserver."""
        counter = self._undecided.get(cause)
        if counter is None:
            counter = self._metrics.counter("seckill_undecided_total", cause)
            self._undecided[cause] = counter
        counter.inc()

    def redis_failed(self, kind: str) -> None:
        """See AdmissionObserver."""
        counter = self._errors.get(kind)
        if counter is None:
            counter = self._metrics.counter("seckill_redis_errors_total", kind)
            self._errors[kind] = counter
        counter.inc()

    def answered_by_flag(self) -> None:
        """See AdmissionObserver."""
        self._flag_answers.inc()

    def queue_length(self, requests: int) -> None:
        """See AdmissionObserver."""
        self._queue.set(requests)

    def fenced(self, buckets: int) -> None:
        """See AdmissionObserver."""
        self._fenced.inc(buckets)


class WorkerMetrics:
    """Implements `pipeline.worker.WorkerObserver`, and counts what its neighbours do."""

    def __init__(self, metrics: Metrics) -> None:
        self._orders = metrics.counter("seckill_orders_written_total")
        self._known = metrics.counter("seckill_events_known_total")
        self._compensated = metrics.counter("seckill_orders_compensated_total")
        self._errors = metrics.counter("seckill_ledger_errors_total")
        self._dead = metrics.counter("seckill_dead_letters_total")
        self._released = metrics.counter("seckill_releases_total", "released")
        self._carried_on = metrics.counter("seckill_bucket_openings_total", "carried_on")
        self._backlog_entries = metrics.gauge("seckill_outbox_backlog_entries")
        self._backlog_seconds = metrics.gauge("seckill_outbox_backlog_seconds")

    def written(self, report: WriteReport) -> None:
        """See WorkerObserver."""
        self._orders.inc(report.ordered)
        self._known.inc(report.known)
        self._compensated.inc(len(report.compensated))

    def ledger_away(self) -> None:
        """See WorkerObserver."""
        self._errors.inc()

    def dead_letter(self) -> None:
        """One outbox entry was put aside."""
        self._dead.inc()

    def released(self, units: int) -> None:
        """So many units went back to the stock."""
        self._released.inc(units)

    def reopened(self) -> None:
        """One bucket was opened, or goes on under a new epoch."""
        self._carried_on.inc()

    def backlog(self, entries: int, oldest_ms: int) -> None:
        """So much waits in the outbox."""
        self._backlog_entries.set(entries)
        self._backlog_seconds.set(oldest_ms / 1000)


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

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """See WebMetrics."""
        key = (route, method, status)
        numbers = self._requests.get(key)
        if numbers is None:
            name = f"{method} {route}"
            if route in _OPERATIONS:
                name = "operations"
            elif name not in ROUTES:
                name = "other"
            numbers = self._requests[key] = (
                self._metrics.counter(
                    "seckill_http_requests_total", name, f"{min(max(status // 100, 1), 5)}xx"
                ),
                self._metrics.histogram("seckill_http_request_seconds", name),
            )
        numbers[0].inc()
        numbers[1].observe(seconds)
        if status == 401:  # noqa: PLR2004  -- HTTP's own number
            self._auth_failures.inc()

    def decision(self, outcome: Outcome, cause: str) -> None:  # noqa: ARG002  -- counted where it arises
        """See WebMetrics."""
        self._answers[outcome].inc()

    def streams_open(self, count: int) -> None:
        """See WebMetrics."""
        self._streams.set(count)

    def bound_met(self, bound: str) -> None:
        """See WebMetrics."""
        if bound == "sse_streams":
            self._stream_refusals.inc()
