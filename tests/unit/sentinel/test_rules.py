"""Rule documents: every shape people have, and every shape that means harm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from seckill.sentinel import (
    AuthorityRule,
    Change,
    ClusterConfig,
    DegradeRule,
    FlowRule,
    ParamFlowItem,
    ParamFlowRule,
    RuleDocumentError,
    Sentinel,
    SystemRule,
    VirtualClock,
    format_rules,
    parse_rules,
)
from seckill.sentinel.rules import KINDS, kind_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from unit.sentinel.engines import Bench


FLOW = {"resource": "r", "count": 3}

PUSHED = (
    '[{"clusterMode":false,"controlBehavior":0,"count":1000.0,"grade":1,"limitApp":"default",'
    '"maxQueueingTimeMs":500,"regex":false,"resource":"seckill-jk","strategy":0,"warmUpPeriodSec":10}]'
)

HEADER = """/*
 * Licensed to whomever, "quoted" // and not
 */
// a line
# another
"""


def test_what_the_dashboard_pushes() -> None:
    parsed = parse_rules("flow", PUSHED)
    assert parsed.rules == (FlowRule(resource="seckill-jk", count=1000),)
    assert (parsed.refused, parsed.ignored) == ((), ())


@pytest.mark.parametrize(
    "document",
    [
        [FLOW],
        {"rules": [FLOW]},
        {"success": True, "code": 0, "data": [FLOW]},
        [{"app": "a", "ip": "10.0.0.1", "port": 8719, "rule": FLOW}],
        FLOW,
        [{**FLOW, "app": "a", "gmtCreate": None, "somethingNew": {"deep": []}}],
        [{**FLOW, "limitApp": None, "refResource": None, "clusterConfig": None}],
        [{**FLOW, "count": "3", "grade": "1", "regex": "false", "strategy": "0"}],
        [{**FLOW, "grade": "FLOW_GRADE_QPS", "controlBehavior": "Default", "strategy": "Direct"}],
        [{**FLOW, "grade": 1.0, "warmUpPeriodSec": 10.0}],
    ],
)
def test_c41_every_shape_of_one_rule_is_understood(bench: Bench, document: Any) -> None:
    report = bench.sentinel.load_rules("flow", json.dumps(document))
    assert not report.refused
    assert bench.sentinel.flow.rules == (FlowRule(resource="r", count=3),)
    report = bench.sentinel.load_rules("flow", HEADER + json.dumps(document, indent=2) + "\n// end")
    assert bench.sentinel.flow.rules == (FlowRule(resource="r", count=3),)
    assert (
        bench.sentinel.load_rules("flow", ("\ufeff" + json.dumps(document)).encode()).in_force == 1
    )


def test_c41_a_bad_rule_is_named_and_the_good_ones_are_in_force(bench: Bench) -> None:
    document = [
        FLOW,
        {"resource": "b", "count": "many"},
        {"resource": "c", "count": 1},
        {"resource": "d", "count": -1},
        FLOW,
    ]
    report = bench.sentinel.load_rules("flow", json.dumps(document))
    assert [(one.index, one.resource, one.problems[0].field) for one in report.refused] == [
        (1, "b", "count"),
        (3, "d", "count"),
    ]
    assert (report.given, report.in_force, report.applied, report.merged) == (5, 2, True, (4,))
    assert "rule 1 (b): count: must be a number, is 'many'" in str(report)


def test_c41_a_null_index_is_named(bench: Bench) -> None:
    report = bench.sentinel.load_rules("paramFlow", '[{"resource":"r","count":1,"paramIdx":null}]')
    assert str(report.refused[0].problems[0]) == "paramIdx: required"


def test_c41_an_update_without_a_good_rule_leaves_the_old_ones(bench: Bench) -> None:
    bench.sentinel.load_rules("flow", json.dumps([FLOW]))
    report = bench.sentinel.load_rules("flow", '[{"resource":"","count":1}]')
    assert (report.applied, report.in_force) == (False, 1)
    assert "NOT applied" in str(report)
    for harm in ("", "{", "nothing", "3", '{"a":1}', "[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]"):
        with pytest.raises(RuleDocumentError):
            bench.sentinel.load_rules("flow", harm)
    assert bench.sentinel.flow.rules == (FlowRule(resource="r", count=3),)
    assert bench.sentinel.load_rules("flow", "[]").in_force == 0


@pytest.mark.parametrize(
    ("spelling", "strategy"), [("White", 0), ("Black", 1), ("AUTHORITY_BLACK", 1), (0, 0), ("1", 1)]
)
def test_spellings_of_an_authority_rule(spelling: Any, strategy: Any) -> None:
    document = json.dumps([{"resource": "good", "limitApp": "abc", "strategy": spelling}])
    assert parse_rules("Authority", document).rules == (
        AuthorityRule(resource="good", limit_app="abc", strategy=strategy),
    )


def test_hot_parameter_files_of_spring() -> None:
    document = '[{"resource":"aa","count":0,"grade":1,"limitApp":"default","paramIdx":0,"paramFlowItemList":[{"object":"2","classType":"int","count":1}]}]'
    item = ParamFlowItem(object="2", class_type="int", count=1)
    assert parse_rules("param-flow", document).rules == (
        ParamFlowRule(resource="aa", param_idx=0, param_flow_item_list=(item,)),
    )


def test_breaker_files_of_spring() -> None:
    parsed = parse_rules(
        "degrade", '[{"resource":"abc0","count":20.0,"grade":0,"passCount":0,"timeWindow":10}]'
    )
    assert parsed.rules == (DegradeRule(resource="abc0", count=20, time_window=10),)
    assert parsed.ignored == ("passCount",)


def test_system_rules_with_one_limit_each() -> None:
    parsed = parse_rules(
        "system",
        '[{"qps":100,"avgRt":-1,"highestSystemLoad":-1.0},{"maxThread":3,"resource":"ignored"}]',
    )
    assert parsed.rules == (SystemRule(qps=100), SystemRule(max_thread=3))


def test_a_problem_deep_inside_has_its_path(bench: Bench) -> None:
    document = [
        {
            "resource": "r",
            "paramIdx": 0,
            "paramFlowItemList": [{"object": "1", "count": 1}, {"object": "1", "count": "x"}],
        }
    ]
    report = bench.sentinel.load_rules("param-flow", json.dumps(document))
    assert report.refused[0].problems[0].field == "paramFlowItemList[1].count"
    document = [{"resource": "r", "clusterMode": True, "clusterConfig": {"flowId": "x"}}]
    report = bench.sentinel.load_rules("flow", json.dumps(document))
    assert report.refused[0].problems[0].field == "clusterConfig.flowId"


@pytest.mark.parametrize(
    ("kind", "rule", "field"),
    [
        ("flow", {"count": 1}, "resource"),
        ("flow", {"resource": " ", "count": 1}, "resource"),
        ("flow", {"resource": 5, "count": 1}, "resource"),
        ("flow", {"resource": "a\nb", "count": 1}, "resource"),
        ("flow", {"resource": "x" * 2000, "count": 1}, "resource"),
        ("flow", {"resource": "r", "count": -0.1}, "count"),
        ("flow", {"resource": "r", "count": 1e300}, "count"),
        ("flow", {"resource": "r", "count": True}, "count"),
        ("flow", {"resource": "r", "count": []}, "count"),
        ("flow", {"resource": "r", "count": "NaN"}, "count"),
        ("flow", {"resource": "r", "count": "1_000"}, "count"),
        ("flow", {"resource": "r", "grade": 2}, "grade"),
        ("flow", {"resource": "r", "grade": "fast"}, "grade"),
        ("flow", {"resource": "r", "controlBehavior": 7}, "controlBehavior"),
        ("flow", {"resource": "r", "strategy": 1}, "refResource"),
        ("flow", {"resource": "r", "controlBehavior": 1, "warmUpPeriodSec": 0}, "warmUpPeriodSec"),
        (
            "flow",
            {"resource": "r", "controlBehavior": 2, "maxQueueingTimeMs": 0},
            "maxQueueingTimeMs",
        ),
        (
            "flow",
            {"resource": "r", "controlBehavior": 2, "maxQueueingTimeMs": 0.5},
            "maxQueueingTimeMs",
        ),
        ("flow", {"resource": "a.*", "regex": True, "controlBehavior": 1}, "controlBehavior"),
        ("flow", {"resource": "a.*", "regex": True, "clusterMode": True}, "regex"),
        ("flow", {"resource": "r", "clusterMode": True}, "clusterConfig"),
        (
            "flow",
            {"resource": "r", "clusterMode": True, "clusterConfig": {}},
            "clusterConfig.flowId",
        ),
        (
            "flow",
            {
                "resource": "r",
                "clusterMode": True,
                "clusterConfig": {"flowId": 1, "sampleCount": 7},
            },
            "clusterConfig.sampleCount",
        ),
        ("flow", {"resource": "r", "limitApp": " "}, "limitApp"),
        ("flow", {"resource": "r", "limitApp": "x" * 5000}, "limitApp"),
        ("flow", "not an object", "$"),
        ("degrade", {"resource": "r", "grade": 1, "count": 1.1, "timeWindow": 1}, "count"),
        ("degrade", {"resource": "r", "grade": 2, "count": 1}, "timeWindow"),
        (
            "degrade",
            {"resource": "r", "slowRatioThreshold": 1.5, "timeWindow": 1},
            "slowRatioThreshold",
        ),
        ("degrade", {"resource": "r", "timeWindow": 1, "minRequestAmount": 0}, "minRequestAmount"),
        ("degrade", {"resource": "r", "timeWindow": 1, "statIntervalMs": -5}, "statIntervalMs"),
        ("authority", {"resource": "r", "strategy": 0}, "limitApp"),
        ("authority", {"resource": "r", "limitApp": "a", "strategy": 2}, "strategy"),
        ("system", {"qps": "fast"}, "qps"),
        ("system", {"qps": 1e99}, "qps"),
        ("param-flow", {"resource": "r", "paramIdx": 1e9}, "paramIdx"),
        ("param-flow", {"resource": "r", "paramIdx": 0, "durationInSec": 0}, "durationInSec"),
        ("param-flow", {"resource": "r", "paramIdx": 0, "controlBehavior": 1}, "controlBehavior"),
        ("param-flow", {"resource": "r", "paramIdx": 0, "burstCount": -1}, "burstCount"),
        (
            "param-flow",
            {"resource": "r", "paramIdx": 0, "paramFlowItemList": {}},
            "paramFlowItemList",
        ),
        (
            "param-flow",
            {"resource": "r", "paramIdx": 0, "paramFlowItemList": [3]},
            "paramFlowItemList[0]",
        ),
    ],
)
def test_each_fault_is_refused_with_field_and_reason(
    bench: Bench, kind: Any, rule: Any, field: Any
) -> None:
    report = bench.sentinel.load_rules(kind, json.dumps([rule]))
    assert [one.problems[0].field for one in report.refused] == [field]
    assert report.refused[0].problems[0].reason
    assert len(str(report)) < 2000


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"\xff\xfe[]", "UTF-8"),
        ("[" * 100_000, "deeper"),
        ('{"a":' * 50_000, "deeper"),
        ("[" + "1" * 6000 + "]", "JSON"),
        ('[{"resource":"r","count":NaN}]', "NaN"),
        ('[{"resource":"r","count":Infinity}]', "Infinity"),
        ('[{"resource":"r","resource":"s"}]', "twice"),
        ("/* never closed", "comment"),
        (" " * (5 * 1024 * 1024), "bytes"),
        (json.dumps([FLOW] * 10_001), "more than"),
        ('[{"resource":"\\', "JSON"),
    ],
)
def test_hostile_documents_are_refused_as_a_whole(document: Any, reason: Any) -> None:
    with pytest.raises(RuleDocumentError, match=reason) as raised:
        parse_rules("flow", document)
    assert len(str(raised.value)) < 500


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=8,
)
field_names = st.sampled_from(
    sorted({field.name for kind in KINDS.values() for field in kind.fields})
)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    rules=st.lists(st.dictionaries(field_names, values, max_size=8) | values, max_size=4),
)
def test_whatever_comes_is_taken_or_named(kind: Any, rules: Any) -> None:
    sentinel = Sentinel(clock=VirtualClock())
    document = json.dumps(rules)
    try:
        report = sentinel.load_rules(kind, document)
    except RuleDocumentError:
        return
    assert report.given == len(rules)
    assert (
        report.in_force + len(report.refused) + len(report.merged) == report.given
        or not report.applied
    )
    outcome = sentinel.try_entry("r", 1, "x")
    assert sentinel.alarms.internal_errors == 0, sentinel.alarms.last_error
    del outcome


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=300) | st.binary(max_size=300))
def test_whatever_text_comes_is_read_or_refused(text: Any) -> None:
    try:
        parse_rules("flow", text)
    except RuleDocumentError:
        return


CLUSTER = ClusterConfig(flow_id=7, threshold_type=1, fallback_to_local_when_fail=False)
EVERYTHING = {
    "flow": (
        FlowRule(resource="a", count=2.5, id=3),
        FlowRule(resource="b", grade=0, count=4, cluster_mode=True, cluster_config=CLUSTER),
    ),
    "degrade": (DegradeRule(resource="a", grade=1, count=0.5, time_window=3),),
    "system": (SystemRule(qps=5), SystemRule(highest_cpu_usage=0.7)),
    "authority": (AuthorityRule(resource="a", limit_app="x,y", strategy=1),),
    "param-flow": (
        ParamFlowRule(
            resource="a",
            param_idx=-1,
            count=3,
            param_flow_item_list=(ParamFlowItem(object="秒", count=2),),
        ),
    ),
}


@pytest.mark.parametrize("kind", sorted(EVERYTHING))
@pytest.mark.parametrize("indent", [None, 2])
def test_what_is_written_is_read_again(kind: Any, indent: Any) -> None:
    text = format_rules(kind, EVERYTHING[kind], indent=indent)
    parsed = parse_rules(kind, text)
    assert parsed.rules == EVERYTHING[kind]
    assert [one.id for one in parsed.rules] == [one.id for one in EVERYTHING[kind]]
    assert not any(value is None for rule in json.loads(text) for value in rule.values())


def test_a_plus_in_a_name_stays_a_plus(bench: Bench) -> None:
    bench.sentinel.load_rules("flow", '[{"resource":"a+b%41 c","count":0}]')
    assert bench.passes_one("a b")
    assert not bench.passes_one("a+b%41 c")


@pytest.mark.parametrize(("kind", "local"), [("flow", True), ("param-flow", False)])
def test_the_fallback_of_a_cluster_rule_is_always_said(kind: str, local: bool) -> None:
    # The dashboard takes a missing one for false, and would push that back at the next edit.
    rule = {"resource": "r", "count": 1, "paramIdx": 0, "clusterMode": True}
    document = json.dumps([rule | {"clusterConfig": {"flowId": 3}}])
    (written,) = json.loads(format_rules(kind, parse_rules(kind, document).rules))
    assert written["clusterConfig"]["fallbackToLocalWhenFail"] is local


def test_names_of_kinds() -> None:
    assert [
        kind_named(name)
        for name in ("flow", "Degrade", "paramFlow", "PARAM_FLOW", "hot-param", "circuitBreaking")
    ] == ["flow", "degrade", "param-flow", "param-flow", "param-flow", "degrade"]
    with pytest.raises(ValueError, match="there are"):
        kind_named("gateway")


class Store:
    """A store that may be full."""

    def __init__(self, **documents: str) -> None:
        self.documents = dict(documents)
        self.full = False

    def load(self, kind: str) -> str | None:
        return self.documents.get(kind)

    def save(self, kind: str, document: str, _change: Change) -> None:
        if self.full:
            raise OSError("no space left")
        self.documents[kind] = document


def test_rules_are_in_force_from_the_first_entry(benches: Callable[..., Bench]) -> None:
    store = Store()
    report = benches(rule_store=store).sentinel.load_rules(
        "flow", '[{"resource":"r","count":50},{"resource":""}]'
    )
    assert report.saved is True
    again = benches(rule_store=store)
    assert again.passes(80) == 50
    assert again.sentinel.restored["flow"].in_force == 1
    assert again.sentinel.dump_rules("flow") == store.documents["flow"]


def test_a_store_that_cannot_keep_rules_is_said_to(benches: Callable[..., Bench]) -> None:
    store = Store()
    it = benches(rule_store=store)
    store.full = True
    report = it.sentinel.load_rules("flow", json.dumps([FLOW]))
    assert (report.applied, report.saved) == (True, False)
    assert "could not be stored" in str(report)
    assert it.passes(9) == 3


def test_an_update_that_was_not_applied_is_not_stored(benches: Callable[..., Bench]) -> None:
    store = Store(flow=json.dumps([FLOW]))
    it = benches(rule_store=store)
    it.sentinel.load_rules("flow", '[{"resource":""}]')
    assert json.loads(store.documents["flow"]) == [FLOW]


def test_every_kind_can_be_dumped(bench: Bench) -> None:
    for kind, rules in EVERYTHING.items():
        bench.sentinel.load_rules(kind, format_rules(kind, rules))
        assert len(json.loads(bench.sentinel.dump_rules(kind))) == len(rules)
    # Like the original, one rule per limit that is set, in its order.
    assert json.loads(bench.sentinel.dump_rules("system"))[0]["highestCpuUsage"] == 0.7


@pytest.mark.parametrize(
    ("kind", "rule", "field"),
    [
        ("flow", {"resource": "r", "count": 0.5}, "count"),
        (
            "flow",
            {"resource": "r", "grade": 0, "count": 1, "controlBehavior": 2},
            "controlBehavior",
        ),
        ("degrade", {"resource": "r", "grade": 1, "count": 1, "timeWindow": 1}, "count"),
        ("system", {}, "$"),
    ],
)
def test_what_will_not_be_as_it_was_meant_is_said(
    bench: Bench, kind: Any, rule: Any, field: Any
) -> None:
    report = bench.sentinel.load_rules(kind, json.dumps([rule]))
    assert report.in_force == 1
    assert [one.problems[0].field for one in report.warnings] == [field]
