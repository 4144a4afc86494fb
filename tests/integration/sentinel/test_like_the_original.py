"""The original client's command port and ours: the same commands, in the same state.

Every field of every answer is listed here. What both have must be of one type, and equal where it
does not depend on the instant; what only one has is named as a difference.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from integration.sentinel import original_client
from integration.sentinel.command_client import Answer, get, post
from seckill.sentinel import BlockException, EntryType, ResourceType, Sentinel
from seckill.sentinel.transport import EngineSource, SentinelTransport, TransportSettings
from seckill.sentinel.transport.metric_line import read_thin
from services.missing import skip_without

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 110
PORT = 18_900

RULES = {
    "flow": [
        {"resource": "buy", "count": 7},
        {"resource": "GET:/商品/{id}", "count": 5, "controlBehavior": 2, "maxQueueingTimeMs": 100},
        {"resource": "stock", "count": 9, "strategy": 1, "refResource": "buy", "limitApp": "app-2"},
        {
            "resource": "shared",
            "count": 20,
            "clusterMode": True,
            "clusterConfig": {"flowId": 4, "thresholdType": 1},
        },
    ],
    "degrade": [{"resource": "buy", "count": 200, "timeWindow": 10, "slowRatioThreshold": 0.5}],
    "system": [{"qps": 5_000, "maxThread": 900}],
    "authority": [{"resource": "look", "limitApp": "a,b", "strategy": 1}],
    "param-flow": [
        {
            "resource": "look",
            "paramIdx": 0,
            "count": 5,
            "paramFlowItemList": [{"object": "1001", "count": 50, "classType": "long"}],
        }
    ],
}

NODE = {
    "averageRt": "number",
    "blockQps": "number",
    "exceptionQps": "number",
    "oneMinuteBlock": "number",
    "oneMinuteException": "number",
    "oneMinutePass": "number",
    "oneMinuteTotal": "number",
    "passQps": "number",
    "resource": "text",
    "successQps": "number",
    "threadNum": "number",
    "timestamp": "number",
    "totalQps": "number",
}
MINUTE = ("resource", "oneMinutePass", "oneMinuteBlock", "oneMinuteException", "oneMinuteTotal")
"""The fields of a node that are the same for a whole minute."""

COMMON_RULE = {"resource": "text", "regex": "truth"}
CLUSTER_CONFIG = {
    "acquireRefuseStrategy": "number",
    "clientOfflineTime": "number",
    "fallbackToLocalWhenFail": "truth",
    "flowId": "number",
    "resourceTimeout": "number",
    "resourceTimeoutStrategy": "number",
    "sampleCount": "number",
    "strategy": "number",
    "thresholdType": "number",
    "windowIntervalMs": "number",
}
FLOW = COMMON_RULE | {
    "clusterMode": "truth",
    "controlBehavior": "number",
    "count": "number",
    "grade": "number",
    "limitApp": "text",
    "maxQueueingTimeMs": "number",
    "strategy": "number",
    "warmUpPeriodSec": "number",
}
RULE_FIELDS = {
    "flow": [
        FLOW,
        FLOW,
        FLOW | {"refResource": "text"},
        FLOW | {"clusterConfig": CLUSTER_CONFIG},
    ],
    "degrade": [
        COMMON_RULE
        | {
            "count": "number",
            "grade": "number",
            "limitApp": "text",
            "minRequestAmount": "number",
            "slowRatioThreshold": "number",
            "statIntervalMs": "number",
            "timeWindow": "number",
        }
    ],
    "system": [
        {
            "avgRt": "number",
            "highestCpuUsage": "number",
            "highestSystemLoad": "number",
            "maxThread": "number",
            "qps": "number",
        }
    ]
    * 2,
    "authority": [COMMON_RULE | {"limitApp": "text", "strategy": "number"}],
    "param-flow": [
        COMMON_RULE
        | {
            "burstCount": "number",
            "clusterMode": "truth",
            "controlBehavior": "number",
            "count": "number",
            "durationInSec": "number",
            "grade": "number",
            "limitApp": "text",
            "maxQueueingTimeMs": "number",
            "paramFlowItemList": [{"classType": "text", "count": "number", "object": "text"}],
            "paramIdx": "number",
        }
    ],
}
ONLY_THEIRS = {"system": {"regex"}}
"""Fields that the original writes and we do not: a system rule has no resource to be a pattern."""

SAME_TEXT = [
    "/version",
    "/getSwitch",
    "/setSwitch?value=true",
    "/clusterNodeById?id=nobody",
    "/clusterNodeById",
    "/cnode",
    "/origin?id=nobody",
    "/setClusterMode?mode=0",
    "/setClusterMode?mode=1",
    "/setClusterMode?mode=x",
    "/nonsense",
    "/cluster/server/info",
    "/",
    "/getRules",
    "/getRules?type=nonsense",
    "/setRules?type=nonsense&data=[]",
    "/setParamFlowRules",
    "/metric",
]
DELIBERATE = {
    # What is wrong with the command is the caller's fault, and said.
    "/origin": (500, 400),
    "/metric?startTime=x": (500, 400),
    "/setRules?type=flow&data=[": (500, 400),
    # An empty document takes all rules out there.
    "/setRules?type=authority": (200, 400),
    "/setSwitch?value=on": (200, 400),
}


def shape(value: Any) -> Any:
    """A JSON value with the kinds of its values in place of them."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    kinds = {bool: "truth", int: "number", float: "number", str: "text", type(None): "null"}
    return kinds[type(value)]


class Ours:
    """Our client in the state of the original's ``Shop``."""

    def __init__(self) -> None:
        self.sentinel = Sentinel()
        source = EngineSource(self.sentinel)
        self.transport = SentinelTransport(source, source, TransportSettings(app="shop", port=0))

    def call(self, count: int) -> int:
        passed = 0
        with self.sentinel.context("shop", origin="app-1"):
            for _ in range(count):
                try:
                    with (
                        self.sentinel.entry(
                            "buy", entry_type=EntryType.IN, resource_type=ResourceType.WEB
                        ),
                        self.sentinel.entry("stock"),
                    ):
                        passed += 1
                except BlockException:
                    continue
        return passed


class Pair:
    """Both ports, asked the same."""

    def __init__(self, theirs: int, ours: int) -> None:
        self.ports = (theirs, ours)

    async def get(self, path: str) -> tuple[Answer, Answer]:
        return await get(self.ports[0], path), await get(self.ports[1], path)

    async def post(self, path: str, **form: str) -> tuple[Answer, Answer]:
        return await post(self.ports[0], path, **form), await post(self.ports[1], path, **form)


@pytest.fixture(scope="module")
def original() -> None:
    """The original client, built."""
    try:
        original_client.build()
    except original_client.OriginalMissingError as missing:
        skip_without(str(missing))


async def test_both_answer_alike(original: None, tmp_path: Path) -> None:
    ours = Ours()
    async with (
        asyncio.timeout(DEADLINE_S),
        original_client.running(tmp_path, PORT) as theirs,
        ours.transport,
    ):
        both = Pair(theirs.port, ours.transport.port)
        await rules_are_alike(both)
        # Where a half second ends in between, the original lets more in, and so do we where the
        # machine stands still for long enough; then the counts are those of each.
        passed = (await theirs.call(10), ours.call(10))
        assert all(count in range(7, 11) for count in passed)
        await refusals_are_alike(both)
        await what_they_say_of_themselves_is_alike(both)
        await nodes_are_alike(both, same=passed == (7, 7))
        await tables_are_alike(both)
        await seconds_are_alike(both, theirs, ours)


async def rules_are_alike(both: Pair) -> None:
    for kind, rules in RULES.items():
        data = json.dumps(rules, ensure_ascii=False)
        if kind == "param-flow":
            answers = await both.post("/setParamFlowRules", data=data)
            read = await both.get("/getParamFlowRules")
        else:
            answers = await both.post("/setRules", type=kind, data=data)
            read = await both.get(f"/getRules?type={kind}")
        assert [(one.status, one.body) for one in answers] == [(200, "success")] * 2, kind
        theirs, mine = (in_order(one.json()) for one in read)
        for rule in theirs:
            for name in ONLY_THEIRS.get(kind, ()):
                del rule[name]
        for rule in theirs + mine:
            assert shape(rule) in RULE_FIELDS[kind], json.dumps(rule)
        # Not the shape alone: every value.
        assert theirs == mine, kind


def in_order(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rules in an order of their own; the original's is that of a hash table."""
    return sorted(rules, key=lambda rule: (rule.get("resource", ""), -rule.get("qps", 0)))


async def refusals_are_alike(both: Pair) -> None:
    for path in SAME_TEXT:
        theirs, mine = await both.get(path)
        assert (theirs.status, theirs.body) == (mine.status, mine.body), path
    for path, wanted in DELIBERATE.items():
        theirs, mine = await both.get(path)
        assert (theirs.status, mine.status) == wanted, path
    await both.get("/setSwitch?value=true")


async def what_they_say_of_themselves_is_alike(both: Pair) -> None:
    theirs, mine = (one.json() for one in await both.get("/api"))
    assert all(shape(one) == {"url": "text", "desc": "text"} for one in theirs + mine)
    assert {one["url"] for one in theirs} == {one["url"] for one in mine}
    for one in await both.get("/basicInfo"):
        assert one.body.startswith('{\n\t"machine": "')
        assert shape(one.json()) == {"machine": "text", "ip": "text"}
    theirs, mine = (one.json() for one in await both.get("/getClusterMode"))
    assert theirs == mine
    fields = dict.fromkeys(("b", "qps", "r", "rqps", "t"), "number")
    for one in await both.get("/systemStatus"):
        assert shape(one.json()) == fields


async def nodes_are_alike(both: Pair, *, same: bool) -> None:
    theirs, mine = (one.json() for one in await both.get("/jsonTree?type=root"))
    for tree in (theirs, mine):
        assert shape(tree[0]) == NODE | {"id": "text"}
        assert all(shape(one) == NODE | {"id": "text", "parentId": "text"} for one in tree[1:])
    assert ways(theirs, same=same) == ways(mine, same=same)
    for path in ("/clusterNode?type=zero", "/clusterNode?type=notZero", "/clusterNode"):
        theirs, mine = (one.json() for one in await both.get(path))
        assert [shape(one) for one in theirs] == [shape(one) for one in mine] == [NODE] * 2
        assert minutes(theirs, same=same) == minutes(mine, same=same)
    for one in await both.get("/clusterNodeById?id=buy"):
        assert shape(one.json()) == NODE


def minutes(nodes: list[dict[str, Any]], *, same: bool) -> set[tuple[Any, ...]]:
    fields = MINUTE if same else MINUTE[:1]
    return {tuple(node[name] for name in fields) for node in nodes}


def ways(tree: list[dict[str, Any]], *, same: bool) -> set[tuple[Any, ...]]:
    """Each node with its parent's name, and what does not depend on the instant."""
    names = {node["id"]: node["resource"] for node in tree}
    fields = MINUTE if same else MINUTE[:1]
    return {(names.get(node.get("parentId")), *(node[name] for name in fields)) for node in tree}


async def tables_are_alike(both: Pair) -> None:
    # In their table of callers a heading can run into the next, so all blanks are left out.
    for path in ("/cnode?id=buy", "/origin?id=buy"):
        theirs, mine = (one.body.splitlines() for one in await both.get(path))
        assert len(theirs) == len(mine)
        heads = [next(line for line in lines if line.startswith("idx")) for lines in (theirs, mine)]
        assert heads[0].replace(" ", "") == heads[1].replace(" ", "")
    for path in ("/tree", "/tree?id=shop", "/tree?id=nothing"):
        theirs, mine = (one.body.splitlines() for one in await both.get(path))
        assert [labels(line) for line in theirs] == [labels(line) for line in mine]


def labels(line: str) -> list[str]:
    """A line of the tree as text without its numbers."""
    name, _, numbers = line.partition("(")
    return [name, *(one.split(":")[0] for one in numbers.rstrip(")").split())]


async def seconds_are_alike(both: Pair, original: original_client.Original, ours: Ours) -> None:
    """The seconds of the calls, as soon as the original has written them.

    Its index does not have the first second of a file, so it never finds that one: there have to be
    calls in another.
    """
    while True:
        await original.call(1)
        ours.call(1)
        answers = await both.get("/metric?startTime=1000&endTime=9000000000000")
        found = [lines_of(one.body) for one in answers]
        if all("buy" in lines for lines in found):
            break
        await asyncio.sleep(0.2)
    wanted = {"buy", "stock", "__total_inbound_traffic__", "__system_load__", "__cpu_usage__"}
    for lines in found:
        assert {"buy", "stock", "__total_inbound_traffic__"} <= set(lines) <= wanted
    for name in ("buy", "stock"):
        theirs, mine = (lines[name] for lines in found)
        assert len(theirs) == len(mine) == 10
        # Classification is said alike; how many passed was compared before.
        assert theirs[-1] == mine[-1], name
    named = await both.get("/metric?startTime=1000&endTime=9000000000000&identity=buy")
    for one in named:
        assert set(lines_of(one.body)) == {"buy"}


def lines_of(body: str) -> dict[str, list[str]]:
    found = {}
    for line in body.splitlines():
        assert read_thin(line) is not None, line
        found[line.split("|")[1]] = line.split("|")
    return found
