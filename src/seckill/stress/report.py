"""The report of a run: as a value, as a dict for programs, as text for people."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.domain.wording import counted
from seckill.stress.fates import BuyerFate
from seckill.stress.follow import Followed
from seckill.stress.latency import Percentiles
from seckill.stress.verdict import Check

__all__ = ["StressReport", "render_text"]

ANOMALIES_MAX: Final = 20
"""Samples of what went wrong that a report carries; the counts are always whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StressReport:
    """What a run found. Times are µs after the start of the rush; None: it did not happen.

    Attributes:
        target: address and goods.
        plan: the fields of the plan.
        buyers: how many there were.
        connections: over how many connections they clicked.
        connections_shared: buyers took turns on them.
        source_addresses: how many source addresses there were.
        clicks_planned: requests that were meant to be sent.
        clicks_sent: of these, handed to the kernel.
        retries_sent: further requests of polite buyers.
        answers: HTTP answers to all of them, late ones included.
        answers_late: answers after the click's timeout.
        answers_by_code: count by the purchase answer's code.
        answers_by_status: count by HTTP status.
        timeouts: requests that were never answered in time, nor late.
        connection_errors: requests lost with their connection, by reason.
        connect_failures: attempts to connect that failed, by reason.
        resent: requests sent again after the server announced it closes the connection.
        fates: number of buyers by fate; those refused apart by outcome (``refused:sold_out``).
        winners: distinct buyers who hold a reservation.
        units_won: units of all reservations.
        unique_reservations: distinct reservation ids.
        recovered: reservations whose "success" was lost and that a later answer named.
        unknown_units: units that may be sold to buyers who do not know it.
        demand_units: units that an endless stock would have sold.
        latency: planned clicks, from the intended instant to the last byte. A click without an
            answer counts with the time it waited, which is less than the truth.
        retry_latency: the same for retries.
        send_lag: how late the generator itself was: from the intended instant to the sending.
        throughput_per_s: answers per second from the start to the last answer.
        first_answer_us: when the first answer was here.
        last_answer_us: when the last one was.
        first_sold_out_us: when somebody was first told "sold out".
        connect_s: seconds that opening the connections took before the rush.
        rush_s: seconds from the start until every request had ended.
        generator_cpu_s: processor seconds of this process in the rush.
        generator_limited: how far the generator was itself the bottleneck: ``no``, ``partly``,
            ``yes``.
        notes: what a reader must know to read the numbers rightly.
        orders: number of reservations by what became of them; None when not asked.
        order_states: number of orders by state.
        audit: what the audit said.
        checks: the verdict, promise by promise.
        anomalies: samples of what went wrong, at most 20.
        buyer_fates: every buyer's fate, by number. Not part of `to_dict`.
        followed: every reservation's order. Not part of `to_dict`.
    """

    target: str
    plan: Mapping[str, Any]
    buyers: int
    connections: int
    connections_shared: bool
    source_addresses: int
    clicks_planned: int
    clicks_sent: int
    retries_sent: int
    answers: int
    answers_late: int
    answers_by_code: Mapping[int, int]
    answers_by_status: Mapping[int, int]
    timeouts: int
    connection_errors: Mapping[str, int]
    connect_failures: Mapping[str, int]
    resent: int
    fates: Mapping[str, int]
    winners: int
    units_won: int
    unique_reservations: int
    recovered: int
    unknown_units: int
    demand_units: int
    latency: Percentiles
    retry_latency: Percentiles
    send_lag: Percentiles
    throughput_per_s: float
    first_answer_us: int | None
    last_answer_us: int | None
    first_sold_out_us: int | None
    connect_s: float
    rush_s: float
    generator_cpu_s: float
    generator_limited: str
    notes: tuple[str, ...]
    orders: Mapping[str, int] | None
    order_states: Mapping[str, int]
    audit: Mapping[str, Any] | None
    checks: tuple[Check, ...]
    anomalies: tuple[str, ...]
    buyer_fates: tuple[BuyerFate, ...] = field(repr=False)
    followed: tuple[Followed, ...] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0 when every check passed, else 1."""
        return 0 if self.ok else 1

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single buyers, of types that JSON knows."""
        left_out = {"buyer_fates", "followed", "latency", "retry_latency", "send_lag", "checks"}
        told: dict[str, Any] = {"ok": self.ok}
        for name in self.__dataclass_fields__:
            if name not in left_out:
                told[name] = _plain(getattr(self, name))
        for name in ("latency", "retry_latency", "send_lag"):
            told[name] = asdict(getattr(self, name))
        told["checks"] = [asdict(check) for check in self.checks]
        return told


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    return value


def render_text(report: StressReport) -> str:
    """The report for people, without colours; the last line is the verdict."""
    title = (
        f"{counted(report.buyers, 'buyer')} × {counted(report.plan['clicks'], 'click')} at"
        f" {report.target},"
        f" stock {report.plan['stock']:,}, limit {report.plan['limit_per_user']} each,"
        f" seed {report.plan['seed']}"
    )
    blocks = {
        "Requests": _request_rows(report),
        "Answers": _answer_rows(report),
        "Buyers": [(name, f"{count:,}") for name, count in report.fates.items()],
        "Sold": _sold_rows(report),
        "Time": _time_rows(report),
    }
    # One column for all: as wide as the longest name, so that none is cut and values stand in line.
    width = max(len(name) for rows in blocks.values() for name, _ in rows)
    lines = [title, ""]
    for heading, rows in blocks.items():
        lines += [heading, *(f"  {name:<{width}}  {value}" for name, value in rows), ""]
    lines += [f"Note: {note}" for note in report.notes]
    if report.anomalies:
        lines += ["", "What went wrong (samples)"]
        lines += [f"  {anomaly}" for anomaly in report.anomalies]
    lines += ["", "Verdict"]
    name_width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        word = "tolerated" if check.tolerated else "pass" if check.ok else "FAIL"
        lines.append(f"  {word:<9}  {check.name:<{name_width}}  {check.detail}")
    failed = [check.name for check in report.checks if not check.ok]
    lines.append("")
    lines.append("OK: every promise was kept" if not failed else f"NOT OK: {', '.join(failed)}")
    return "\n".join(lines)


def _request_rows(report: StressReport) -> list[tuple[str, str]]:
    rows = [
        ("sent", f"{report.clicks_sent:,} of {report.clicks_planned:,} planned"),
        ("retries", f"{report.retries_sent:,}"),
        ("connections", f"{report.connections:,}"),
    ]
    if report.resent:
        rows.append(("sent again after close", f"{report.resent:,}"))
    for reason, count in report.connection_errors.items():
        rows.append(("lost: " + reason, f"{count:,}"))
    for reason, count in report.connect_failures.items():
        rows.append((reason, counted(count, "attempt")))
    return rows


def _answer_rows(report: StressReport) -> list[tuple[str, str]]:
    rows = []
    for code, count in report.answers_by_code.items():
        rows.append((f"{OUTCOME_TEXTS[Outcome(code)].en} ({code})", f"{count:,}"))
    rows.append(
        ("by HTTP status", ", ".join(f"{s} × {n:,}" for s, n in report.answers_by_status.items()))
    )
    rows.append(("late", f"{report.answers_late:,}"))
    rows.append(("never", f"{report.timeouts:,} timed out"))
    return rows


def _sold_rows(report: StressReport) -> list[tuple[str, str]]:
    rows = [
        ("winners", f"{report.winners:,}"),
        ("units", f"{report.units_won:,} (demand {report.demand_units:,})"),
        ("reservation ids", f"{report.unique_reservations:,}"),
    ]
    if report.recovered:
        rows.append(("learned of it later", f"{report.recovered:,}"))
    if report.unknown_units:
        rows.append(("may be sold unknown", counted(report.unknown_units, "unit")))
    if report.orders is not None:
        rows.append(("orders", ", ".join(f"{name} {n:,}" for name, n in report.orders.items())))
    return rows


def _time_rows(report: StressReport) -> list[tuple[str, str]]:
    return [
        ("latency of clicks", _shown(report.latency)),
        ("latency of retries", _shown(report.retry_latency)),
        ("generator's own lag", _shown(report.send_lag)),
        ("answers per second", f"{report.throughput_per_s:,.0f}"),
        ("first, last answer", f"{_ms(report.first_answer_us)}, {_ms(report.last_answer_us)}"),
        ("first sold out", _ms(report.first_sold_out_us)),
        (
            "generator",
            f"{report.generator_cpu_s:.2f} s of processor in {report.rush_s:.2f} s",
        ),
    ]


def _shown(values: Percentiles) -> str:
    if not values.count:
        return "-"
    return (
        f"p50 {_ms(values.p50_us)}  p90 {_ms(values.p90_us)}  p99 {_ms(values.p99_us)}"
        f"  p99.9 {_ms(values.p99_9_us)}  max {_ms(values.max_us)}"
    )


def _ms(us: int | None) -> str:
    return "never" if us is None else f"{us / 1000:,.1f} ms"
