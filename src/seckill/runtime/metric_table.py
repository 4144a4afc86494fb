"""Every metric of the service: the one table that the processes, ``/metrics`` and the docs share.

A name is a promise to dashboards and alerts. Values of labels are fixed, so that no request can
make the table grow; what fits none of them counts as ``other``.
"""

from typing import Final

from seckill.domain.outcomes import Outcome
from seckill.runtime.telemetry import Kind, Layout, Merge, Metric

__all__ = [
    "FLOW_BLOCKED_BY",
    "FLOW_RESOURCES",
    "LAYOUT",
    "ROUTES",
    "RULE_KINDS",
    "metrics_markdown",
]

_OUTCOMES: Final = tuple(outcome.name.lower() for outcome in Outcome)
_UNDECIDED_CAUSES: Final = (
    "redis", "fenced", "queue_full", "timeout", "unknown_sales", "not_durable", "circuit_open",
    "other",
)  # fmt: skip
_REDIS_ERRORS: Final = (
    "connection", "timeout", "loading", "readonly", "write_refused", "busy", "not_durable", "other",
)  # fmt: skip
ROUTES: Final = (
    "POST /seckill/{goods_id}",
    "GET /goods",
    "GET /goods/{goods_id}",
    "GET /orders",
    "GET /orders/{reservation_id}",
    "GET /orders/{reservation_id}/events",
    "POST /orders/{reservation_id}/cancel",
    "POST /orders/{reservation_id}/pay",
    "POST /payments/webhook",
    "admin",
    "operations",
    "other",
)
FLOW_RESOURCES: Final = ("seckill-jk", "seckill-redis", "other")
RULE_KINDS: Final = ("flow", "param-flow", "degrade", "system", "authority")
FLOW_BLOCKED_BY: Final = (*RULE_KINDS, "per-user", "per-address", "other")
_STATUSES: Final = ("2xx", "4xx", "5xx")
_ROLES: Final = ("redis", "kafka", "postgres", "worker", "relay", "reaper", "web", "sentinel")
_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
_BATCH_SIZES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


def _counter(name: str, meaning: str, **labels: tuple[str, ...]) -> Metric:
    return Metric(name, Kind.COUNTER, meaning, tuple(labels.items()))


def _gauge(name: str, meaning: str, merge: Merge = Merge.SUM, **labels: tuple[str, ...]) -> Metric:
    return Metric(name, Kind.GAUGE, meaning, tuple(labels.items()), merge=merge)


def _histogram(
    name: str, meaning: str, bounds: tuple[float, ...], **labels: tuple[str, ...]
) -> Metric:
    return Metric(name, Kind.HISTOGRAM, meaning, tuple(labels.items()), bounds)


LAYOUT: Final = Layout(
    [
        # The admission
        _counter("seckill_answers_total", "Purchase requests by what they were answered.",
                 outcome=_OUTCOMES),
        _counter("seckill_undecided_total", "Purchase requests that could not be decided, by why.",
                 cause=_UNDECIDED_CAUSES),
        _counter("seckill_sold_out_flag_answers_total",
                 "Purchase requests answered sold out from memory, without asking Redis."),
        _counter("seckill_sold_out_flags_raised_total",
                 "Times that a web process began to answer sold out from memory."),
        _counter("seckill_admission_batches_total",
                 "Calls of the admission script that decided a batch."),
        _histogram("seckill_admission_batch_size_requests",
                   "Purchase requests in one call of the admission script.", _BATCH_SIZES),
        _histogram("seckill_admission_batch_seconds",
                   "Time from sending a batch to its answer.", _SECONDS),
        _gauge("seckill_queue_requests", "Purchase requests that wait for a batch."),
        _counter("seckill_redis_errors_total", "Calls of Redis that failed, by kind.",
                 kind=_REDIS_ERRORS),
        _gauge("seckill_fenced_buckets", "Stock buckets that are fenced: no admission until they "
               "are opened again.", Merge.MAX),
        _counter("seckill_bucket_openings_total", "Times that the order worker opened a bucket, or "
                 "let it go on after a restart of Redis; what a command opens is not counted."),
        _counter("seckill_releases_total", "Units given back to stock."),
        _gauge("seckill_releases_stuck", "Releases that Redis refuses; they are tried again later.",
               Merge.MAX),
        # Flow control
        _counter("seckill_flow_blocks_total",
                 "Calls that flow control refused, by resource and by kind of rule; `per-user` and "
                 "`per-address` are the limits of the settings.",
                 resource=FLOW_RESOURCES, by=FLOW_BLOCKED_BY),
        _gauge("seckill_flow_rules", "Rules in force, by kind.", Merge.MAX, kind=RULE_KINDS),
        _gauge("seckill_redis_circuits_open",
               "Web processes that do not ask Redis, or only to try, since a circuit breaker on "
               "`seckill-redis` is open."),
        _gauge("seckill_flow_tokens_away",
               "Web processes that cannot lease tokens from Redis, and keep their share of each "
               "limit meanwhile."),
        _counter("seckill_flow_errors_total",
                 "Faults inside flow control (the calls went on unchecked), and times that stored "
                 "rules could not be read any more."),
        # The order channel and the ledger
        _counter("seckill_orders_written_total", "Reservations that became orders."),
        _counter("seckill_events_known_total", "Events delivered again and found in the ledger."),
        _counter("seckill_orders_compensated_total", "Reservations that the ledger refused."),
        _counter("seckill_dead_letters_total", "Messages that could not be read."),
        _gauge("seckill_outbox_backlog_entries", "Outbox entries that are not in the ledger, or "
               "with Kafka not in the topic yet.", Merge.MAX),
        _gauge("seckill_outbox_backlog_seconds", "Age of the oldest of them.", Merge.MAX),
        _gauge("seckill_outbox_drain_seconds", "Time until the relays will have carried them, at "
               "the pace of the last seconds; a day where nothing moves.", Merge.MAX),
        _counter("seckill_relay_entries_total", "Outbox entries that are in Kafka."),
        _counter("seckill_relay_messages_total", "Their messages."),
        _counter("seckill_relay_messages_refused_total",
                 "Messages that Kafka did not take and that are sent again."),
        _gauge("seckill_topic_backlog_messages",
               "Messages in the topic that no order worker has committed yet.", Merge.MAX),
        _gauge("seckill_topic_backlog_seconds",
               "Age of the oldest message that an order worker has in hand.", Merge.MAX),
        _counter("seckill_topic_rebalances_total",
                 "Times that partitions were given to an order worker or taken from it."),
        _counter("seckill_offset_commits_failed_total",
                 "Times that offsets were not committed: what they stand for comes again."),
        _histogram("seckill_ledger_write_seconds",
                   "Time of one transaction of the order worker that was committed.", _SECONDS),
        _counter("seckill_ledger_errors_total",
                 "Transactions of the order worker that failed and are tried again."),
        _counter("seckill_order_worker_rests_seconds_total",
                 "Time in which the order worker gave way to those who answer buyers."),
        # The reaper
        _counter("seckill_orders_expired_total", "Orders that were not paid in time."),
        _gauge("seckill_reaper_last_run_timestamp_seconds", "When the reaper last came to the end "
               "of a look for due orders, seconds since 1970; its age is "
               "`time() - seckill_reaper_last_run_timestamp_seconds`.", Merge.MAX),
        _gauge("seckill_reaper_lag_seconds",
               "How long the oldest unpaid order has been due.", Merge.MAX),
        _gauge("seckill_reaper_set_aside_orders", "Orders that the ledger refuses to expire; they "
               "are tried again later.", Merge.MAX),
        _counter("seckill_late_payments_total", "Payments that came after their order had expired, "
                 "by what became of them.", became=("unit", "refund")),
        _counter("seckill_refunds_asked_total", "Times that the provider was asked to give money "
                 "back."),
        # The audit
        _counter("seckill_audits_total", "Audits in the background that came to their end."),
        _histogram("seckill_audit_seconds", "Time of one of them.", _SECONDS),
        _gauge("seckill_audit_findings", "Findings of the last one: each is a broken promise.",
               Merge.MAX),
        _gauge("seckill_audit_unproven_buckets", "Stock buckets about which it could prove "
               "nothing, since they were fenced.", Merge.MAX),
        _gauge("seckill_audit_finished_at_seconds", "When it ended, in seconds since 1970.",
               Merge.MAX),
        # The web
        _counter("seckill_http_requests_total", "Requests by route and class of status.",
                 route=ROUTES, status=_STATUSES),
        _histogram("seckill_http_request_seconds", "Time from a request's head to its answer.",
                   _SECONDS, route=ROUTES),
        _counter("seckill_auth_failures_total", "Requests whose sender could not be told."),
        _gauge("seckill_sse_streams", "Open event streams."),
        _counter("seckill_sse_refusals_total", "Event streams refused, since too many were open."),
        # The run
        _gauge("seckill_processes_healthy", "Processes that do their work, by role.", role=_ROLES),
        _counter("seckill_process_restarts_total", "Processes started again after they died.",
                 role=_ROLES),
        _counter("seckill_gc_collections_total", "Runs of the garbage collector, by generation.",
                 generation=("0", "1", "2")),
        _counter("seckill_gc_pause_seconds_total", "Time spent in the garbage collector."),
    ]
)  # fmt: skip


def metrics_markdown() -> str:
    """The reference page ``docs/reference/metrics.md``, whole."""
    rows = []
    for metric in LAYOUT.metrics.values():
        labels = "; ".join(
            f"`{name}`: {', '.join(f'`{value}`' for value in values)}"
            for name, values in metric.labels
        )
        kind = f"{metric.kind}, {metric.merge}" if metric.kind is Kind.GAUGE else str(metric.kind)
        rows.append(f"| `{metric.name}` | {kind} | {labels} | {metric.meaning} |")
    return _PAGE_HEAD + "\n".join(rows) + "\n"


_PAGE_HEAD: Final = """\
# Metrics

`GET /metrics` of any web process answers for all processes of its host. Counters and histograms
are added up, and go on where they were when a process or the whole service is started again. A
gauge is added up too, or the largest one is shown, as the table says.

This page is made from the program; a test compares the two.

| name | kind | labels | meaning |
| --- | --- | --- | --- |
"""
