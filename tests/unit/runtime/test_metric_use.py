"""Every metric of the table, and every value of its labels, is fed by the program.

The observers are driven with what the rooms say, read out of their sources and out of the running
application, never out of the table itself; then no number of the table may be left at zero.
"""

import ast
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structlog

from seckill.admission.observer import AdmissionObserver
from seckill.domain.events import Admitted
from seckill.domain.ids import AttemptId, SaleId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import Place
from seckill.pipeline.ports import ExpiryLag, WriteReport
from seckill.pipeline.reaper import ReaperObserver
from seckill.pipeline.relay import RelayObserver
from seckill.pipeline.worker import WorkerObserver
from seckill.runtime.data_dir import DataDir
from seckill.runtime.flow_control import REDIS_RESOURCE
from seckill.runtime.flow_metrics import FlowMetrics
from seckill.runtime.gc_tuning import GarbageWatch
from seckill.runtime.metric_table import LAYOUT, ROUTES
from seckill.runtime.observers import (
    AdmissionMetrics,
    HTTPMetrics,
    ReaperMetrics,
    RelayMetrics,
    TimedLedger,
    WorkerMetrics,
)
from seckill.runtime.status import RunStatus, StatusBoard
from seckill.runtime.supervise import _Observer
from seckill.runtime.telemetry import Histogram, Kind, Metrics
from seckill.sentinel import (
    AuthorityException,
    AuthorityRule,
    BlockException,
    DegradeException,
    DegradeRule,
    FlowException,
    FlowRule,
    ParamFlowException,
    ParamFlowRule,
    Sentinel,
    SystemBlockException,
    SystemRule,
)
from seckill.web.app import build_app
from seckill.web.caller_limits import PER_ADDRESS, PER_USER
from seckill.web.flow import PURCHASE_RESOURCE
from seckill.web.ports import WebMetrics
from services.stage import MemoryOrderLedger
from unit.web.doubles import World

SOURCES = Path(__file__).parents[3] / "src" / "seckill"


def _trees(*rooms: str) -> Iterator[ast.AST]:
    for room in rooms:
        for path in sorted((SOURCES / room).rglob("*.py")):
            yield ast.parse(path.read_text(encoding="utf-8"))


def _texts(tree: ast.AST) -> set[str]:
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {node.value for node in constants if isinstance(node.value, str)}


def _said_to(function: str, argument: int, *rooms: str) -> set[str]:
    """The texts that stand at one place in the calls of a function or method of this name."""
    found = set()
    for tree in _trees(*rooms):
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            name = call.func.id if isinstance(call.func, ast.Name) else name
            if name == function and len(call.args) > argument:
                found |= _texts(call.args[argument])
    return found


def _assigned_to(name: str, *rooms: str) -> set[str]:
    """The texts in what is assigned to a name."""
    found = set()
    for tree in _trees(*rooms):
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=found_name)], value=value):
                    found |= _texts(value) if found_name == name else set()
                case ast.AnnAssign(target=ast.Name(id=found_name), value=ast.AST() as value):
                    found |= _texts(value) if found_name == name else set()
    return found


def causes() -> set[str]:
    """Every reason for which the admission leaves a request undecided."""
    given_up = _said_to("_give_up", 1, "admission") | _said_to("_in_time", 1, "admission")
    # What decides between two causes compares with a kind: that is no cause by itself.
    chosen = _assigned_to("cause", "admission")
    return (_said_to("_undecided", 0, "admission") | given_up | chosen) - {""}


def kinds() -> set[str]:
    """Every kind of failure of Redis that the admission tells apart."""
    by_class = {kind for kind in _assigned_to("_KINDS_BY_CLASS", "admission") if kind.islower()}
    by_word = {kind for kind in _assigned_to("_KINDS_BY_WORD", "admission") if kind.islower()}
    otherwise = {kind for kind in _assigned_to("kind", "admission") if kind.islower()}
    return _said_to("StockUnavailable", 0, "admission") | by_class | by_word | otherwise


async def routes() -> set[str]:
    """Every route of the application for buyers, with its method, by its own description."""
    app = build_app(World().parts)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/openapi.json"
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": [],
        "query_string": b"", "scheme": "http", "http_version": "1.1", "root_path": "",
    }  # fmt: skip
    await app(scope, receive, send)
    described = json.loads(b"".join(message.get("body", b"") for message in sent))
    return {
        f"{method.upper()} {path}"
        for path, methods in described["paths"].items()
        for method in methods
    }


async def test_no_number_of_the_table_stays_at_zero(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.create()
    metrics = Metrics(data.metrics, "all-0", LAYOUT)
    _drive_admission(AdmissionMetrics(metrics))
    await _drive_worker(WorkerMetrics(metrics))
    _drive_reaper(ReaperMetrics(metrics))
    _drive_relay(RelayMetrics(metrics))
    await _drive_web(HTTPMetrics(metrics))
    _drive_supervisor(data, metrics)
    _drive_flow_control(FlowMetrics(metrics))
    garbage = GarbageWatch(metrics)
    garbage.start()
    for generation in (0, 1, 2):
        gc.collect(generation)
    garbage.stop()
    assert list(_numbers(metrics)) == []


def _numbers(metrics: Metrics) -> Iterator[str]:
    """The numbers that are still zero."""
    for name, metric in LAYOUT.metrics.items():
        ask: Callable[..., Any] = {
            Kind.COUNTER: metrics.counter,
            Kind.GAUGE: metrics.gauge,
            Kind.HISTOGRAM: metrics.histogram,
        }[metric.kind]
        for values in metric.children:
            number = ask(name, *values)
            if (number.count if isinstance(number, Histogram) else number.value) == 0:
                yield f"{name}{dict(zip(metric.label_names, values, strict=True))}"


def _drive_admission(admission: AdmissionMetrics) -> None:
    admission.batch_decided(3, 1.5)
    for cause in causes():
        admission.undecided(cause)
    admission.undecided("a word of a later version")
    for kind in kinds():
        admission.redis_failed(kind)
    admission.answered_by_flag()
    admission.flag_raised()
    admission.queue_changed(3)
    admission.fenced(1)


async def _drive_worker(worker: WorkerMetrics) -> None:
    ledger = TimedLedger(MemoryOrderLedger(), worker)
    place = Place(SaleId(1), 1, 0, 1)
    worker.written(WriteReport(ordered=1, known=1, compensated=("r",)))  # type: ignore[arg-type]
    await ledger.write(
        [
            Admitted(
                place=place, user_id=UserId("ann"), quantity=1, attempt_id=AttemptId("a"), at_ms=1
            )
        ]
    )
    worker.ledger_away()
    worker.rested(0.5)
    worker.dead_letter()
    worker.released(2)
    worker.stuck(1)
    worker.reopened()
    worker.fenced(1)
    worker.backlog(5, 2_000)
    worker.audited(1, 1, 0.1, 1_000)
    worker.topic_backlog(7, 3_000)
    worker.rebalanced()
    worker.commit_failed()


def _drive_relay(relay: RelayMetrics) -> None:
    relay.relayed(2, 5)
    relay.not_taken(1)
    relay.dead_letter()
    relay.backlog(5, 2_000, 10.0)


def _drive_reaper(reaper: ReaperMetrics) -> None:
    reaper.expired(2)
    reaper.run_ended(ExpiryLag(1_500, 3))
    for taken in (True, False):
        reaper.late_settled(taken=taken)
    reaper.refund_asked()


async def _drive_web(web: HTTPMetrics) -> None:
    for outcome in Outcome:
        web.decisions(outcome, "", 1)
    for name in await routes() | {"PUT (none)", "GET /admin/api/me"}:
        method, _, route = name.partition(" ")
        for status in (200, 409, 503):
            web.requests(route, method, status, [0.01, 0.02])
    web.requests("/goods", "GET", 401, [0.01])
    web.streams_open(2)
    web.bound_met("sse_streams")


def _drive_flow_control(flow: FlowMetrics) -> None:
    rule = FlowRule(resource="seckill-jk", count=1)
    for resource in (PURCHASE_RESOURCE, REDIS_RESOURCE, "a route of somebody else"):
        for refused in (
            FlowException(resource, rule, "default", 2, 1),
            DegradeException(resource, rule, "default", 2, 1),
            SystemBlockException(resource, rule, "qps", 2, 1),
            AuthorityException(resource, rule, "10.0.0.1", "10.0.0.1"),
            ParamFlowException(resource, rule, "default", 2, 1, "tea"),
            ParamFlowException(resource, rule, PER_USER, 2, 1, "ann"),
            ParamFlowException(resource, rule, PER_ADDRESS, 2, 1, "10.0.0.1"),
            BlockException(resource, None, "a slot of somebody's own", 2, 1),
        ):
            flow.blocked(refused)
    flow.circuit_open(is_open=True)
    flow.tokens_away(are_away=True)
    sentinel = Sentinel()
    sentinel.flow.load([rule])
    sentinel.param_flow.load([ParamFlowRule(resource="seckill-jk", param_idx=0)])
    sentinel.degrade.load([DegradeRule(resource="seckill-redis", time_window=1)])
    sentinel.system.load([SystemRule(qps=1)])
    sentinel.authority.load([AuthorityRule(resource="seckill-jk", limit_app="10.0.0.1")])
    sentinel.note_internal_error(ValueError("made up"))
    flow.look(sentinel)


def _drive_supervisor(data: DataDir, metrics: Metrics) -> None:
    board = StatusBoard(data, RunStatus("1", "", "", "", ()))
    observer = _Observer(board, metrics, data, structlog.get_logger())

    class Part:
        slot = 0

        def __init__(self, role: str) -> None:
            self.role = role

    for role in LAYOUT.values_of("seckill_processes_healthy"):
        part: Any = Part(role)
        for pid in (1, 2):
            observer.started(part, pid)
            if pid == 1:
                observer.ended(part)
        observer.ready(part, 2)


def test_causes_and_kinds_of_the_table_are_those_that_the_admission_says() -> None:
    assert set(LAYOUT.values_of("seckill_undecided_total")) == causes() | {"other"}
    assert set(LAYOUT.values_of("seckill_redis_errors_total")) == kinds()


async def test_routes_of_the_table_are_those_that_the_application_has() -> None:
    operations = {"GET /healthz", "GET /readyz", "GET /metrics"}
    assert set(ROUTES) == await routes() - operations | {"admin", "operations", "other"}


def _observed() -> set[str]:
    """The methods of observers that are called, or handed on, where things happen."""
    found = set()
    for tree in _trees("admission", "pipeline", "web", "runtime"):
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(
                    value=ast.Name(id="counts" | "observer")
                    | ast.Attribute(attr="_observer" | "_metrics" | "_counts"),
                    attr=method,
                ):
                    found.add(method)
    return found


def test_every_observation_is_made_somewhere() -> None:
    for observer in (
        AdmissionObserver, WorkerObserver, RelayObserver, ReaperObserver, WebMetrics, WorkerMetrics, RelayMetrics,
    ):  # fmt: skip
        methods = {name for name in vars(observer) if not name.startswith("_")}
        assert methods <= _observed(), f"{observer.__name__}: {methods - _observed()}"
