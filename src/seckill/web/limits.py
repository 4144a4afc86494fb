"""The bounds of the web room, each with its default and its unit."""

from dataclasses import dataclass

__all__ = ["WebLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Every queue, wait, page and body of the web room has a maximum; these are they.

    Attributes:
        body_bytes_max: bytes of a request body; more is refused without being read.
        body_timeout_ms: from the first wait for a body to its last byte.
        order_wait_ms: how long a request may wait for the ledger before it reads 503.
        order_reads_max: order look-ups that may wait in one process.
        order_batch_max: reservation ids in one read of the ledger.
        order_calls_max: pages and cancellations that may wait in one process.
        order_call_lanes: pages and cancellations under way at once in one process.
        payment_calls_max: calls to start a payment that may wait in one process.
        payment_call_lanes: such calls under way at once in one process.
        payment_wait_ms: how long a request may wait for ledger and provider before it reads 503.
        queued_lookups_max: look-ups in Redis at once, of purchases not yet in the ledger.
        admin_calls_max: calls of operators that may wait in one process.
        admin_call_lanes: such calls under way at once in one process: each holds at most one
            connection to the ledger, and buyers need the others.
        admin_begin_ms: how long such a call may wait for a lane before it reads 503.
        admin_wait_ms: how long an operator waits for an answer before they read 503.
        admin_long_wait_ms: the same for what is done beside (audit, trace, reconcile): less than
            the 60 s of the usual proxies.
        admin_failures_max: failed attempts to come in as an operator, from one address, at once.
        admin_failure_pause_ms: after so long one more attempt may fail.
        sse_streams_max: event streams open in one process.
        sse_streams_per_user_max: event streams of one user in one process.
        sse_heartbeat_ms: a comment line goes out at least this often, so that a client that left
            is noticed and proxies do not close the stream.
        sse_poll_ms: how often the states of all watched orders are read.
        sse_age_max_ms: after this a stream ends and its client connects anew.
    """

    body_bytes_max: int = 4_096
    body_timeout_ms: int = 5_000
    order_wait_ms: int = 2_000
    order_reads_max: int = 20_000
    order_batch_max: int = 500
    order_calls_max: int = 256
    order_call_lanes: int = 2
    payment_calls_max: int = 256
    payment_call_lanes: int = 4
    payment_wait_ms: int = 8_000
    queued_lookups_max: int = 32
    admin_calls_max: int = 64
    admin_call_lanes: int = 2
    admin_begin_ms: int = 2_000
    admin_wait_ms: int = 15_000
    admin_long_wait_ms: int = 55_000
    admin_failures_max: int = 10
    admin_failure_pause_ms: int = 6_000
    sse_streams_max: int = 2_000
    sse_streams_per_user_max: int = 8
    sse_heartbeat_ms: int = 15_000
    sse_poll_ms: int = 500
    sse_age_max_ms: int = 900_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
