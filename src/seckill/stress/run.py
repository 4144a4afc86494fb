"""One whole run: connect, rush, follow the orders, audit, report."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from seckill.domain.outcomes import Outcome
from seckill.domain.wording import counted
from seckill.stress.click import Click, End
from seckill.stress.connection import ConnectionPool
from seckill.stress.errors import TargetUnreachable
from seckill.stress.fates import BuyerFate, Fate, find_fates
from seckill.stress.follow import Followed, OrderFate, Reservation, follow_orders
from seckill.stress.latency import Percentiles, percentiles_of
from seckill.stress.limits import ConnectionBudget, connection_budget, raise_descriptor_limit
from seckill.stress.plan import Connect, StressPlan, build_schedule
from seckill.stress.progress import ProgressListener, Snapshot, Stage
from seckill.stress.report import ANOMALIES_MAX, StressReport
from seckill.stress.rush import Rush
from seckill.stress.target import Endpoint, Target, resolve
from seckill.stress.verdict import Evidence, demand_units, judge

__all__ = ["Audit", "run_stress", "run_stress_in_new_loop"]

_Key = TypeVar("_Key")

Audit = Callable[[], Awaitable[Mapping[str, Any]]]
"""Proves the books after the run; its answer's ``ok`` must be True for the run to pass."""

_CONNECTING_AT_ONCE_MAX: Final = 128
_PROGRESS_EVERY_US: Final = 250_000
_LIMITED_PARTLY: Final = 0.1
_LIMITED: Final = 0.5
_LAG_OF_NO_ACCOUNT_US: Final = 5_000


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


def run_stress_in_new_loop(
    plan: StressPlan,
    target: Target,
    progress: ProgressListener | None = None,
    *,
    audit: Audit | None = None,
) -> StressReport:
    """`run_stress` for a caller without an event loop: on uvloop where it is installed."""
    try:
        import uvloop  # noqa: PLC0415  -- absent on some platforms
    except ImportError:
        factory = asyncio.new_event_loop
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(run_stress(plan, target, progress, audit=audit))


async def run_stress(
    plan: StressPlan,
    target: Target,
    progress: ProgressListener | None = None,
    *,
    audit: Audit | None = None,
) -> StressReport:
    """Make a load run and report it. Ends by itself within the bounds of the plan.

    Raises the soft limit of open descriptors to the hard one, for good, and keeps the garbage
    collector off until the audit.

    Args:
        plan: what to do.
        target: where.
        progress: is told how far the run is.
        audit: called last; its answer becomes part of the verdict.

    Raises:
        InvalidValue: plan and target ask for what this machine does not allow, or for another
            machine without ``allow_remote``.
        TargetUnreachable: nothing accepts connections at the target.
    """
    endpoint = await resolve(target)
    budget = connection_budget(plan, endpoint, descriptors=raise_descriptor_limit())
    await _knock(target, endpoint, plan.connect_timeout_s)
    teller = _Teller(progress)
    with _collector_off():
        run, pool = await _connected_run(plan, target, endpoint, budget, teller)
    found = None
    if audit is not None:
        teller.tell(Snapshot(stage=Stage.AUDIT, done=0, total=1))
        found = await audit()
        teller.tell(Snapshot(stage=Stage.AUDIT, done=1, total=1))
    return _report(plan, target, budget, pool, run, found)


async def _connected_run(
    plan: StressPlan,
    target: Target,
    endpoint: Endpoint,
    budget: ConnectionBudget,
    teller: "_Teller",
) -> tuple["_Run", ConnectionPool]:
    async with asyncio.TaskGroup() as tasks:
        pool = ConnectionPool(
            endpoint,
            count=budget.connections,
            sources=budget.sources,
            connect_timeout_s=plan.connect_timeout_s,
            tasks=tasks,
            now_us=_monotonic_us,
        )
        try:
            run = await _rush_and_follow(plan, target, pool, teller)
        finally:
            await pool.close()
    return run, pool


async def _knock(target: Target, endpoint: Endpoint, timeout_s: float) -> None:
    """Fail before the run rather than 10,000 times in it."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except TimeoutError:
        raise TargetUnreachable(target.url, "connecting timed out") from None
    except OSError as error:
        raise TargetUnreachable(target.url, error.strerror or str(error)) from None
    writer.transport.abort()


class _Teller:
    """Passes progress on, not more often than a person can read it."""

    def __init__(self, listener: ProgressListener | None) -> None:
        self._listener = listener
        self._next_us = 0

    def due(self) -> bool:
        """Whether it is worth making a snapshot now."""
        return self._listener is not None and _monotonic_us() >= self._next_us

    def tell(self, snapshot: Snapshot) -> None:
        """Tell the listener now."""
        if self._listener is not None:
            self._listener.report(snapshot)
            self._next_us = _monotonic_us() + _PROGRESS_EVERY_US


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What the run itself left behind."""

    rush: Rush
    fates: list[BuyerFate]
    followed: list[Followed] | None
    connect_s: float
    rush_s: float
    cpu_s: float


async def _rush_and_follow(
    plan: StressPlan, target: Target, pool: ConnectionPool, teller: _Teller
) -> _Run:
    rush = Rush(plan, target, pool, build_schedule(plan), now_us=_monotonic_us)
    connect_from_us = _monotonic_us()
    if plan.connect is Connect.BEFORE:
        await _open_all(pool, teller)
    connect_s = (_monotonic_us() - connect_from_us) / 1e6

    def tick() -> None:
        if teller.due() or rush.over:
            teller.tell(_snapshot(rush))

    cpu_from_s, from_us = time.process_time(), _monotonic_us()
    await rush.run(tick)
    cpu_s, rush_s = time.process_time() - cpu_from_s, (_monotonic_us() - from_us) / 1e6
    fates = find_fates(
        ((buyer.user_id, buyer.clicks) for buyer in rush.buyers),
        limit_per_user=plan.limit_per_user,
        idempotent=plan.idempotent,
    )
    followed = await _follow(plan, target, pool, rush, fates, teller) if plan.follow else None
    return _Run(
        rush=rush,
        fates=fates,
        followed=followed,
        connect_s=connect_s,
        rush_s=rush_s,
        cpu_s=cpu_s,
    )


async def _open_all(pool: ConnectionPool, teller: _Teller) -> None:
    tried = 0

    def tick() -> None:
        nonlocal tried
        tried += 1
        if teller.due() or tried == len(pool):
            teller.tell(Snapshot(stage=Stage.CONNECTING, done=tried, total=len(pool)))

    await pool.open_all(at_once_max=_CONNECTING_AT_ONCE_MAX, tick=tick)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep the garbage collector still: a full pass over the clicks would be seen as latency.

    What a run makes is bounded by its plan, and nearly all of it lives until the report anyway.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _snapshot(rush: Rush) -> Snapshot:
    total = len(rush.clicks) + len(rush.retries)
    return Snapshot(
        stage=Stage.RUSH,
        done=rush.ended_count,
        total=total,
        sent=rush.sent_count,
        answers=rush.answer_count,
        won=rush.success_count,
        refused=rush.refused_count,
        failures=rush.failure_count,
    )


async def _follow(
    plan: StressPlan,
    target: Target,
    pool: ConnectionPool,
    rush: Rush,
    fates: list[BuyerFate],
    teller: _Teller,
) -> list[Followed]:
    reservations = []
    for buyer, fate in zip(rush.buyers, fates, strict=True):
        unknown = frozenset(click.quantity for click in buyer.clicks if click.unknown)
        reservations += [
            Reservation(
                won.reservation_id,
                buyer.user_id,
                buyer.number,
                unknown if won.recovered else frozenset({won.quantity}),
            )
            for won in fate.won
        ]

    def tick(done: int) -> None:
        teller.tell(Snapshot(stage=Stage.ORDERS, done=done, total=len(reservations)))

    return await follow_orders(
        target,
        reservations,
        pool.of_buyer,
        within_s=plan.follow_s,
        look_timeout_s=plan.timeout_s,
        tick=tick,
    )


def _report(
    plan: StressPlan,
    target: Target,
    budget: ConnectionBudget,
    pool: ConnectionPool,
    run: _Run,
    audit: Mapping[str, Any] | None,
) -> StressReport:
    rush, fates = run.rush, run.fates
    clicks = [*rush.clicks, *rush.retries]
    answered = [click for click in clicks if click.end in {End.ANSWERED, End.MISANSWERED}]
    evidence = Evidence(
        plan=plan,
        clicks=clicks,
        fates=fates,
        unasked=pool.unasked,
        followed=run.followed,
        audit=audit,
    )
    won = [won for fate in fates for won in fate.won]
    latency = _latency(rush.clicks)
    send_lag = percentiles_of(
        click.sent_us - click.intended_us for click in rush.clicks if click.sent_us >= 0
    )
    last_answer_us = max((click.done_us for click in answered), default=None)
    limited = _limited(plan, latency, send_lag)
    return StressReport(
        target=f"{target.url} goods {target.goods_id}",
        plan={name: _told(value) for name, value in asdict(plan).items()},
        buyers=plan.buyers,
        connections=budget.connections,
        connections_shared=budget.shared,
        source_addresses=max(1, len(budget.sources)),
        clicks_planned=len(rush.clicks),
        clicks_sent=sum(click.sent_us >= 0 for click in rush.clicks),
        retries_sent=sum(click.sent_us >= 0 for click in rush.retries),
        answers=len(answered),
        answers_late=sum(click.late for click in answered),
        answers_by_code=_counted(
            int(click.outcome) for click in answered if click.outcome is not None
        ),
        answers_by_status=_counted(click.status for click in answered if click.status),
        timeouts=sum(click.end is End.TIMED_OUT for click in clicks),
        connection_errors=_counted(
            click.detail for click in clicks if click.end is End.CONNECTION_FAILED
        ),
        connect_failures=dict(pool.connect_failures),
        resent=pool.resent,
        fates=_fate_counts(fates),
        winners=sum(bool(fate.won) for fate in fates),
        units_won=evidence.units_won(),
        unique_reservations=len({one.reservation_id for one in won}),
        recovered=sum(one.recovered for one in won),
        unknown_units=sum(fate.unknown_units for fate in fates),
        demand_units=demand_units(rush.clicks, plan.limit_per_user),
        latency=latency,
        retry_latency=_latency(rush.retries),
        send_lag=send_lag,
        throughput_per_s=len(answered) / (last_answer_us / 1e6) if last_answer_us else 0.0,
        first_answer_us=min((click.done_us for click in answered), default=None),
        last_answer_us=last_answer_us,
        first_sold_out_us=min(
            (click.done_us for click in answered if click.outcome is Outcome.SOLD_OUT),
            default=None,
        ),
        connect_s=run.connect_s,
        rush_s=run.rush_s,
        generator_cpu_s=run.cpu_s,
        generator_limited=limited,
        notes=tuple(_notes(plan, budget, pool, run, limited, latency, send_lag)),
        orders=None if run.followed is None else _counted(str(one.fate) for one in run.followed),
        order_states=_counted(one.state for one in run.followed or () if one.state),
        audit=audit,
        checks=tuple(judge(evidence)),
        anomalies=tuple(_anomalies(evidence))[:ANOMALIES_MAX],
        buyer_fates=tuple(fates),
        followed=tuple(run.followed or ()),
    )


def _told(value: Any) -> Any:
    return [list(pair) for pair in value] if isinstance(value, tuple) else value


def _counted(values: Iterable[_Key]) -> dict[_Key, int]:
    return dict(Counter(values).most_common())


def _fate_counts(fates: Iterable[BuyerFate]) -> dict[str, int]:
    return _counted(
        str(fate.fate) if fate.outcome is None else f"{fate.fate}:{fate.outcome.name.lower()}"
        for fate in fates
    )


def _latency(clicks: Iterable[Click]) -> Percentiles:
    """From the intended instant to the last byte, or for as long as somebody waited in vain.

    Leaving those out would make a server look better the more buyers it forgets.
    """
    return percentiles_of(
        click.done_us - click.intended_us
        for click in clicks
        if click.end is not End.CONNECTION_FAILED
    )


def _limited(plan: StressPlan, latency: Percentiles, send_lag: Percentiles) -> str:
    """How far the generator itself was the bottleneck, judged by what it adds to the latency."""
    if plan.connect is Connect.RUSH or send_lag.p99_us <= _LAG_OF_NO_ACCOUNT_US:
        # With connections made in the rush the sending waits for the server's handshake.
        return "no"
    share = send_lag.p99_us / max(1, latency.p99_us)
    return "yes" if share >= _LIMITED else "partly" if share >= _LIMITED_PARTLY else "no"


def _notes(
    plan: StressPlan,
    budget: ConnectionBudget,
    pool: ConnectionPool,
    run: _Run,
    limited: str,
    latency: Percentiles,
    send_lag: Percentiles,
) -> Iterator[str]:
    lag_ms, latency_ms = send_lag.p99_us / 1000, latency.p99_us / 1000
    if limited == "yes":
        yield (
            f"the generator was the bottleneck: its own sending was {lag_ms:,.0f} ms late (p99),"
            f" against a latency of {latency_ms:,.0f} ms (p99), and it had a processor for"
            f" {run.cpu_s / run.rush_s:.0%} of the time. The server may be faster than"
            " this report says"
        )
    elif limited == "partly":
        yield (
            f"the generator was late itself by {lag_ms:,.0f} ms (p99); that is part of the"
            f" latency of {latency_ms:,.0f} ms (p99)"
        )
    if budget.shared:
        yield (
            f"{plan.buyers:,} buyers shared {budget.connections:,} connections (this process may"
            f" hold {budget.allowed:,}): what different buyers send on one connection is answered"
            " one after the other, which real buyers would not have to wait for"
        )
    if plan.connect is Connect.RUSH:
        yield "connections were opened in the rush: latency and sending lag include the handshake"
    own = sum(
        count
        for reason, count in pool.connect_failures.items()
        if reason.removeprefix("connecting: ") in {"EADDRNOTAVAIL", "EMFILE", "ENFILE"}
    )
    if own:
        yield (
            f"{counted(own, 'connection')} failed for want of local ports or descriptors: that is"
            " a limit of this machine, not of the server"
        )
    cut = sum(
        click.end is End.TIMED_OUT and click.done_us - click.intended_us < plan.timeout_s * 1e6
        for click in run.rush.clicks
    )
    if cut:
        yield (
            f"the deadline of {plan.deadline_s:g} s came before the timeout of"
            f" {counted(cut, 'click')}"
        )
    unanswered = sum(click.end is End.TIMED_OUT for click in run.rush.clicks)
    if unanswered:
        yield (
            f"{counted(unanswered, 'click')} without an answer: in the latency by the time waited,"
            " so the high percentiles are lower bounds"
        )


def _anomalies(evidence: Evidence) -> Iterator[str]:
    for fate in evidence.fates:
        if fate.fate in {Fate.VIOLATION, Fate.TIMEOUT, Fate.CONNECTION_ERROR}:
            yield f"{fate.user_id}: {fate.fate}: {fate.detail}"
    for one in evidence.followed or ():
        if one.fate is not OrderFate.ORDERED:
            yield (
                f"{one.reservation.user_id}: order of {one.reservation.reservation_id}"
                f" {one.fate}: {one.detail or one.state}"
            )
    for shown in evidence.unasked:
        yield f"an answer to no request: {shown}"
