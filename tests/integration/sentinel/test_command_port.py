"""The command port, over real sockets: what a dashboard sends, what people send, what harms."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_plus

import pytest

from integration.sentinel.command_client import Answer, get, post, read_answer, send
from seckill.sentinel import EntryType, ResourceType, Sentinel, SystemStatus, VirtualClock
from seckill.sentinel.rules import DOCUMENT_BYTES_MAX, parse_rules
from seckill.sentinel.stores import FileRuleStore
from seckill.sentinel.transport import (
    Access,
    EngineSource,
    HTTPServer,
    PortUnavailable,
    SentinelTransport,
    TransportSettings,
    http_server,
)
from seckill.sentinel.transport.http_server import Command, Reply
from seckill.sentinel.transport.metric_line import read_thin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

RECORDING = Path(__file__).with_name("dashboard_recording.json")
RECORDED_AT_MS = 1_796_157_993_000
NODE_FIELDS = {
    *("resource", "threadNum", "passQps", "blockQps", "totalQps", "averageRt", "successQps"),
    *("exceptionQps", "oneMinutePass", "oneMinuteBlock", "oneMinuteException"),
    *("oneMinuteTotal", "timestamp"),
}


class Idle:
    """A machine with nothing to do."""

    def load(self) -> float:
        return 0.25

    def cpu_usage(self) -> float:
        return 0.125


class Service:
    """An engine with its transport, on a clock that is moved by hand."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = VirtualClock(RECORDED_AT_MS)
        self.store = FileRuleStore(folder)
        status: SystemStatus = Idle()
        self.sentinel = Sentinel(clock=self.clock, rule_store=self.store, status=status)
        source = EngineSource(self.sentinel)
        known = {"app": "seckill", "port": 0} | settings
        self.transport = SentinelTransport(
            source, source, TransportSettings(**known), host_name="web-1"
        )

    @property
    def port(self) -> int:
        return self.transport.port

    def call(self, name: str = "r", count: int = 1, *, rt_ms: int = 0) -> int:
        """So many calls from a named caller; how many were let in."""
        passed = 0
        with self.sentinel.context("shop", origin="app-1"):
            for _ in range(count):
                entry = self.sentinel.try_entry(
                    name, entry_type=EntryType.IN, resource_type=ResourceType.WEB
                )
                if not isinstance(entry, Exception):
                    self.clock.advance_ms(rt_ms)
                    entry.exit()
                    passed += 1
        return passed

    async def get(self, path: str) -> Answer:
        return await get(self.port, path)

    async def post(self, path: str, **form: str) -> Answer:
        return await post(self.port, path, **form)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    it = Service(tmp_path / "rules")
    async with it.transport:
        yield it


# What a stock dashboard sent.


def recorded(exchange: dict[str, Any], port: int) -> bytes:
    """A request as it was sent; only the name of the host was not recorded."""
    headers = {"host": f"127.0.0.1:{port}"} | exchange["headers"]
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{exchange['request_line']}\r\n{lines}\r\n{exchange['body']}".encode()


def is_a_tree(nodes: list[dict[str, Any]]) -> bool:
    """Whether the dashboard can draw it: one root, and each other node after its parent."""
    seen: set[str] = set()
    for node in nodes:
        if ("parentId" in node) != bool(seen) or node.get("parentId", "") not in seen | {""}:
            return False
        seen.add(node["id"])
    return bool(seen)


ACCEPTED: dict[str, Callable[[Answer], bool]] = {
    "metric": lambda answer: all(read_thin(line) for line in answer.body.splitlines()),
    "setRules": lambda answer: answer.body == "success",
    "setParamFlowRules": lambda answer: answer.body == "success",
    "getRules": lambda answer: isinstance(answer.json(), list),
    "getParamFlowRules": lambda answer: isinstance(answer.json(), list),
    "clusterNode": lambda answer: all(node.keys() == NODE_FIELDS for node in answer.json()),
    "jsonTree": lambda answer: is_a_tree(answer.json()),
    "getClusterMode": lambda answer: isinstance(answer.json()["mode"], int),
}
"""Whether the dashboard takes an answer of status 200; what it looks at is in its source."""


async def test_the_recorded_conversation_leaves_exactly_the_pushed_rules_in_force(
    service: Service,
) -> None:
    for second in range(40):
        service.call("seckill-jk", 100 + second)
        service.clock.advance_ms(1_000)
    exchanges = json.loads(RECORDING.read_text(encoding="utf-8"))["exchanges"]
    pushed: dict[str, str] = {}
    for exchange in exchanges:
        path = exchange["request_line"].split()[1]
        command = path.strip("/").partition("?")[0]
        answer = await send(service.port, recorded(exchange, service.port))
        assert answer.status == 200, (exchange["step"], answer)
        assert ACCEPTED[command](answer), (exchange["step"], answer)
        if command.startswith("set"):
            form = dict(part.split("=") for part in exchange["body"].split("&"))
            pushed[form.get("type", "param-flow")] = unquote_plus(form["data"])
    assert set(pushed) == {"flow", "degrade", "system", "authority", "param-flow"}
    for kind, document in pushed.items():
        path = "/getParamFlowRules" if kind == "param-flow" else f"/getRules?type={kind}"
        in_force = (await service.get(path)).body
        assert parse_rules(kind, in_force).rules == parse_rules(kind, document).rules
        assert parse_rules(kind, in_force).rules
        # And each of them outlives the process.
        assert parse_rules(kind, service.store.load(kind) or "").rules == (
            parse_rules(kind, document).rules
        )
    names = [
        rule["resource"] for rule in json.loads((await service.get("/getRules?type=flow")).body)
    ]
    assert names == ["seckill-jk", "GET:/商品/a+b%41 c", "c1"]


async def test_the_metric_lines_of_a_recorded_window(service: Service) -> None:
    for second in range(9):
        service.call("seckill-jk", 100 + second, rt_ms=0)
        service.clock.advance_ms(1_000)
    exchange = json.loads(RECORDING.read_text(encoding="utf-8"))["exchanges"][0]
    answer = await send(service.port, recorded(exchange, service.port))
    lines = [line for line in answer.body.splitlines() if "|seckill-jk|" in line]
    assert lines == [
        f"{RECORDED_AT_MS + second * 1_000}|seckill-jk|{100 + second}|0|{100 + second}|0|0|0|0|1"
        for second in range(7)
    ]
    assert (
        len([line for line in answer.body.splitlines() if "|__total_inbound_traffic__|" in line])
        == 7
    )


# What every command answers.


async def test_what_the_client_says_of_itself(service: Service) -> None:
    assert (await service.get("/version")).body == "1.8.8"
    assert (await service.get("/basicInfo")).body == (
        '{\n\t"machine": "web-1",\n\t"ip": "127.0.0.1"\n}'
    )
    urls = {command["url"]: command["desc"] for command in (await service.get("/api")).json()}
    assert {
        *("/version", "/api", "/basicInfo", "/getRules", "/setRules", "/getParamFlowRules"),
        *("/setParamFlowRules", "/getSwitch", "/setSwitch", "/systemStatus", "/clusterNode"),
        *("/clusterNodeById", "/jsonTree", "/cnode", "/origin", "/tree", "/metric"),
        *("/getClusterMode", "/setClusterMode"),
    } == set(urls)
    assert all(urls.values())
    mode = (await service.get("/getClusterMode")).json()
    assert mode == {
        "mode": -1,
        "lastModified": -1,
        "clientAvailable": False,
        "serverAvailable": False,
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/nonsense", "Unknown command `nonsense`"),
        ("/cluster/client/fetchConfig", "Unknown command `cluster/client/fetchConfig`"),
        ("/gateway/getRules", "Unknown command `gateway/getRules`"),
        ("/%E5%95%86", "Unknown command `商`"),
        ("/", "Invalid command"),
        ("/?type=flow", "Invalid command"),
        ("/getRules", "invalid type"),
        ("/getRules?type=paramFlow", "invalid type"),
        ("/setRules?data=[]", "invalid type"),
        ("/setRules?type=flow", "Bad data"),
        ("/setRules?type=flow&data=", "Bad data"),
        ("/setParamFlowRules", "Bad data"),
        ("/setClusterMode?mode=0", "token client mode not available: no SPI found"),
        ("/setClusterMode?mode=1", "token server mode not available: no SPI found"),
        ("/setClusterMode?mode=7", "invalid parameter"),
        ("/setClusterMode", "invalid parameter"),
        ("/clusterNodeById", "Invalid parameter: empty clusterNode name"),
        ("/cnode", "Invalid parameter: empty clusterNode name"),
        ("/origin", "Invalid parameter: empty clusterNode name"),
        ("/setSwitch", "Invalid parameter: value must be true or false"),
        ("/setSwitch?value=on", "Invalid parameter: value must be true or false"),
        (
            "/metric?startTime=yesterday",
            "Invalid parameter: startTime must be a whole number, at least 0",
        ),
        ("/metric?startTime=-1", "Invalid parameter: startTime must be a whole number, at least 0"),
        (
            "/metric?startTime=1&endTime=1e9",
            "Invalid parameter: endTime must be a whole number, at least 0",
        ),
        (
            f"/metric?startTime={'9' * 400}",
            "Invalid parameter: startTime must be a whole number, at least 0",
        ),
    ],
)
async def test_what_cannot_be_done_is_400_with_the_reason(
    service: Service, path: str, body: str
) -> None:
    answer = await service.get(path)
    assert (answer.status, answer.body) == (400, body)


async def test_the_types_of_rules_are_read_without_case(service: Service) -> None:
    assert (await service.get("/getRules?type=FLOW")).body == "[]"
    pushed = await service.post("/setRules", type="Flow", data='[{"resource":"r","count":1}]')
    assert pushed.body == "success"
    assert json.loads((await service.get("/getRules?type=flow")).body)[0]["count"] == 1


async def test_get_does_all_that_post_does(service: Service) -> None:
    data = quote('[{"resource":"a+b c%41","count":1}]', safe="")
    answer = await service.get(f"/setRules?type=flow&data={data}")
    assert answer.body == "success"
    # Decoded once: the original makes "a b cA" of it.
    assert service.sentinel.flow.rules[0].resource == "a+b c%41"


async def test_the_switch_lets_everything_through_uncounted(service: Service) -> None:
    await service.post("/setRules", type="flow", data='[{"resource":"r","count":0}]')
    assert service.call() == 0
    assert (await service.get("/setSwitch?value=false")).body == "Sentinel set switch value: false"
    assert (await service.get("/getSwitch")).body == "Sentinel switch value: false"
    assert service.call() == 1
    assert (await service.get("/setSwitch?value=TRUE")).body == "Sentinel set switch value: true"
    assert service.call() == 0


async def test_numbers_of_now(service: Service) -> None:
    await service.post("/setRules", type="flow", data='[{"resource":"buy","count":7}]')
    service.call("buy", 10, rt_ms=2)
    service.call("idle", 0)
    nodes = (await service.get("/clusterNode")).json()
    assert nodes == [
        {
            "resource": "buy",
            "threadNum": 0,
            "passQps": 7,
            "blockQps": 3,
            "totalQps": 10,
            "averageRt": 2,
            "successQps": 7,
            "exceptionQps": 0,
            "oneMinutePass": 7,
            "oneMinuteBlock": 3,
            "oneMinuteException": 0,
            "oneMinuteTotal": 10,
            "timestamp": service.clock.now_ms(),
        }
    ]
    assert (await service.get("/clusterNodeById?id=buy")).json() == nodes[0]
    assert (await service.get("/clusterNodeById?id=bu")).body == "{}"
    assert (await service.get("/systemStatus")).json() == {
        "rqps": 7.0,
        "qps": 7.0,
        "b": 3.0,
        "r": 2.0,
        "t": 0,
    }
    tree = (await service.get("/jsonTree?type=root")).json()
    assert [node["resource"] for node in tree] == [
        "machine-root",
        "sentinel_default_context",
        "shop",
        "buy",
    ]
    assert (await service.get("/tree")).body.splitlines()[3].startswith("--buy(t:0 pq:7.0 bq:3.0")
    assert (await service.get("/tree?id=shop")).body.startswith("EntranceNode: shop(")
    assert (await service.get("/cnode?id=u")).body.splitlines()[1].split()[1:4] == [
        "buy",
        "0",
        "7.0",
    ]
    assert (await service.get("/origin?id=buy")).body.splitlines()[3].split()[1] == "app-1"
    assert (await service.get("/origin?id=zzz")).body == "Not find cNode with id zzz"
    service.clock.advance_ms(61_000)
    assert (await service.get("/clusterNode?type=notZero")).body == "[]"
    assert len((await service.get("/clusterNode?type=zero")).json()) == 1


async def test_the_metric_command_and_its_filters(service: Service) -> None:
    for _ in range(3):
        service.call("buy", 2)
        service.call("look", 1)
        service.clock.advance_ms(1_000)
    start = RECORDED_AT_MS
    assert (await service.get("/metric")).body == ""
    one = (await service.get(f"/metric?startTime={start + 1_000}&endTime={start + 1_999}")).body
    assert one.splitlines() == [
        f"{start + 1_000}|buy|2|0|2|0|0|0|0|1",
        f"{start + 1_000}|look|1|0|1|0|0|0|0|1",
        f"{start + 1_000}|__total_inbound_traffic__|3|0|3|0|0|0|0|0",
        # Load 0.25 and CPU 0.125, times 10,000, in the place of passed calls.
        f"{start + 3_000}|__system_load__|2500|0|0|0|0|0|0|0",
        f"{start + 3_000}|__cpu_usage__|1250|0|0|0|0|0|0|0",
    ]
    named = (
        await service.get(f"/metric?startTime={start}&endTime={start + 9_000}&identity=look")
    ).body
    assert named == "".join(f"{start + at * 1_000}|look|1|0|1|0|0|0|0|1\n" for at in range(3))
    some = (await service.get(f"/metric?startTime={start}&maxLines=4&identity=buy")).body
    assert len(some.splitlines()) == 3
    # Four lines are asked for; the second second is not cut in half.
    some = (await service.get(f"/metric?startTime={start}&maxLines=4")).body
    assert (
        len([line for line in some.splitlines() if "__system" not in line and "__cpu" not in line])
        == 6
    )


async def test_a_change_is_kept_with_who_and_why(service: Service) -> None:
    await service.post("/setRules", type="flow", data='[{"resource":"r","count":1}]')
    await service.post(
        "/setRules", type="flow", data='[{"resource":"r","count":2}]', who="ann", why="the sale"
    )
    first, second = service.store.history("flow")
    assert (first.change.who, first.change.why) == ("command port, from 127.0.0.1", "setRules")
    assert (second.change.who, second.change.why) == ("ann", "the sale")


# Rules that are not what they should be (two formats of one rule).

FLAT = '[{"resource":"r","count":5,"paramIdx":0}]'
SHAPES = {
    "flat": FLAT,
    "wrapped": '[{"id":3,"app":"a","ip":"1.1.1.1","port":1,"rule":{"resource":"r","count":5,"paramIdx":0}}]',
    "unknown fields": '[{"resource":"r","count":5,"paramIdx":0,"color":{"a":[1]},"gmtCreate":1}]',
    "comment": "/*\n * rules\n */\n" + FLAT,
    "one bad of three": '[{"resource":"","count":1,"paramIdx":0},'
    + FLAT[1:-1]
    + ',{"resource":"x","count":"many","paramIdx":0}]',
    "without an index": '[{"resource":"r","count":1,"paramIdx":null},' + FLAT[1:],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["port", "api", "file"])
async def test_c41_every_shape_is_understood_whichever_way_it_comes(
    tmp_path: Path, shape: str, way: str
) -> None:
    document = SHAPES[shape]
    refused: list[int] = []
    service = Service(tmp_path / "rules")
    async with service.transport:
        if way == "port":
            answer = await service.post("/setParamFlowRules", data=document)
            assert answer.status == 200
            refused = [index for index in range(3) if f"rule {index} (" in answer.body]
            assert (answer.body == "success") == (not refused)
            in_force = json.loads((await service.get("/getParamFlowRules")).body)
        else:
            if way == "file":
                path = tmp_path / "paramflow-rules.json"
                path.write_text(document)
                store = FileRuleStore(tmp_path / "others", seeds=[path])
                sentinel = Sentinel(rule_store=store)
                report = sentinel.restored["param-flow"]
            else:
                sentinel = service.sentinel
                report = sentinel.load_rules("param-flow", document)
            refused = [problem.index for problem in report.refused]
            in_force = json.loads(sentinel.dump_rules("param-flow"))
    assert [(rule["resource"], rule["count"], rule["paramIdx"]) for rule in in_force] == [
        ("r", 5, 0)
    ]
    assert refused == {"one bad of three": [0, 2], "without an index": [0]}.get(shape, [])


async def test_a_partly_bad_list_names_the_bad_rule_and_keeps_the_good(service: Service) -> None:
    answer = await service.post(
        "/setRules", type="flow", data='[{"resource":"a","count":-1},{"resource":"b","count":2}]'
    )
    assert answer.status == 200
    assert answer.body.startswith("partial success (1 of 2 rules refused: rule 0 (a): count: ")
    assert [rule.resource for rule in service.sentinel.flow.rules] == ["b"]


BAD_DOCUMENTS = [
    "[",
    "{}",
    "null",
    "5",
    '"text"',
    "[5]",
    "[null]",
    "[[]]",
    '[{"resource":5}]',
    '[{"resource":"r","count":NaN}]',
    '[{"resource":"r","count":Infinity}]',
    '[{"resource":"r","count":1e999}]',
    '[{"resource":"r","count":"ten"}]',
    '[{"resource":"r","count":1,"count":2}]',
    '[{"resource":"r","grade":true}]',
    '[{"resource":"(a+)+","regex":true,"count":1}]',
    "[" * 50_000,
    '[{"a":' * 30 + "1" + "}]" * 30,
    '[{"resource":"\\ud800","count":1}]',
    "\x00",
    "[" + "[]," * 20_000 + "[]]",
]


@pytest.mark.parametrize("document", BAD_DOCUMENTS, ids=range(len(BAD_DOCUMENTS)))
async def test_bad_json_is_refused_with_a_reason_and_the_old_rules_stay(
    service: Service, document: str
) -> None:
    await service.post("/setRules", type="flow", data='[{"resource":"r","count":3}]')
    answer = await service.post("/setRules", type="flow", data=document)
    assert answer.status == 400
    assert answer.body.startswith("the flow rules were refused, the old ones stay: ")
    assert len(answer.body) < 3_000
    assert service.call("r", 9) == 3
    assert service.store.head_number("flow") == 1


async def test_nobody_forges_a_line_of_the_log(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    rule = {"resource": "r\nWARNING all is well \ud800", "count": -1}
    await service.post("/setRules", type="flow", data=json.dumps([rule]), who="a\nWARNING b")
    text = caplog.text
    text.encode()  # half a surrogate pair could not be written to any log
    assert "refused rule 0" in text
    assert not any(line.startswith("WARNING ") and "well" in line for line in text.splitlines())
    assert "setRules by a WARNING b:" in text


async def test_a_store_that_is_full_is_partial_success(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(service.store, "save", full)
    answer = await service.post("/setRules", type="flow", data='[{"resource":"r","count":3}]')
    assert (answer.status, answer.body) == (200, "partial success (write data source failed)")
    assert service.call("r", 9) == 3


async def test_the_largest_document_passes_and_a_larger_one_does_not(service: Service) -> None:
    rule = json.dumps({"resource": "r", "count": 3})
    pad = " " * (DOCUMENT_BYTES_MAX - len(rule) - 2)
    assert (await service.post("/setRules", type="flow", data=f"[{rule}{pad}]")).body == "success"
    answer = await service.post("/setRules", type="flow", data=f"[{rule}{pad} ]")
    assert answer.status == 400
    assert "more than 4194304" in answer.body
    assert service.call("r", 9) == 3


# Requests that are not what they should be.


class Echo:
    """Answers with what arrived."""

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.hangs = False
        self.hanging = asyncio.Event()

    async def answer(self, command: Command) -> Reply:
        if self.fails is not None:
            raise self.fails
        if self.hangs:
            self.hanging.set()
            await asyncio.Event().wait()
        return Reply(json.dumps([command.name, command.parameters]))


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, HTTPServer]]:
    it = Echo()
    async with HTTPServer(
        it.answer,
        access=Access(),
        port=0,
        request_timeout_s=0.3,
        answer_timeout_s=0.3,
        connection_count_max=4,
    ) as server:
        yield it, server


FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"


@pytest.mark.parametrize(
    ("raw", "status", "reason"),
    [
        (b"POST /a HTTP/1.1\r\nContent-Length: 1\r\n\r\na", 415, "Only form-encoded post request is supported"),
        (b"POST /a HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", 415, "Only form"),
        (b"POST /a HTTP/1.1\r\n" + FORM + b"\r\n", 411, "No legal Content-Length"),
        (b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 0\r\n\r\n", 411, "No legal Content-Length"),
        (b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: -5\r\n\r\n", 400, "not a request of HTTP"),
        (b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400, "not a request"),
        (b"POST /a HTTP/1.1\r\n" + FORM + b"Transfer-Encoding: chunked\r\n\r\n3\r\na=b\r\n0\r\n\r\n", 411, "No legal"),
        (b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 99999999999\r\n\r\n", 413, "the most"),
        (b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 3\r\n\r\na=\xff", 400, "the body is not UTF-8"),
        (b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 5\r\n\r\na=%FF", 400, "a parameter is not UTF-8"),
        (b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 5\r\n\r\na=%zz", 400, "a percent sign"),
        (b"GET /a?x=%4 HTTP/1.1\r\n\r\n", 400, "a percent sign"),
        (b"GET /%FF HTTP/1.1\r\n\r\n", 400, "the path is not UTF-8"),
        (b"GET /a?x=1&x=2 HTTP/1.1\r\n\r\n", 400, "stands twice"),
        (b"GET /a?" + b"&".join(b"p%d=1" % n for n in range(65)) + b" HTTP/1.1\r\n\r\n", 400, "more than 64 parameters"),
        (b"GET http://evil.example/a HTTP/1.1\r\n\r\n", 400, "must begin with a slash"),
        (b"PUT /a HTTP/1.1\r\n\r\n", 405, "GET or POST"),
        (b"DELETE /a HTTP/1.1\r\n\r\n", 405, "GET or POST"),
        (b"GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 400, "HTTP/1.1 only"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "not a request of HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "not a request of HTTP"),
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", 431, "more than 131072 bytes"),
        (b"GET /a HTTP/1.1\r\n" + b"X-A: b\r\n" * 101 + b"\r\n", 431, "more than 100 headers"),
        (b"GET /a HTTP/1.1\r\nX-A: " + b"b" * 200_000 + b"\r\n\r\n", 431, "more than 131072 bytes"),
        (b"GET /a HTTP/1.1\r\nOrigin: http://evil.example\r\n\r\n", 403, "a page of another site"),
        (b"GET /a HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "not known under this name"),
        (b"GET /a HTTP/1.1\r\nX-A", 408, "did not arrive within"),
        (b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 10\r\n\r\na=b", 408, "did not arrive within"),
    ],
)  # fmt: skip
async def test_a_bad_request_is_refused_with_a_reason(
    echo: tuple[Echo, HTTPServer], raw: bytes, status: int, reason: str
) -> None:
    _, server = echo
    answer = await send(server.port, raw)
    assert answer.status == status
    assert reason in answer.body
    assert server.refused == 1
    assert (await get(server.port, "/well")).status == 200


@pytest.mark.parametrize(
    ("raw", "heard"),
    [
        (b"GET /a/b?x=1+2%2B3&y=&=z&%E5%95%86=%E5%93%81#f HTTP/1.0\r\n\r\n", ["a/b", {"x": "1 2+3", "商": "品"}]),
        (b"POST /a?x=1&y=2 HTTP/1.1\r\n" + FORM + b"Content-Length: 3\r\n\r\nx=9", ["a", {"x": "9", "y": "2"}]),
        (b"GET /a HTTP/1.1\r\n\r\nGET /b?c=d HTTP/1.1\r\n\r\n", ["a", {}]),
        (b"GET /a HTTP/1.1\r\n\r\n\x00\xff what is this", ["a", {}]),
    ],
)  # fmt: skip
async def test_what_is_heard(
    echo: tuple[Echo, HTTPServer], raw: bytes, heard: list[object]
) -> None:
    answer = await send(echo[1].port, raw)
    assert answer.json() == heard
    assert answer.headers["connection"] == "close"


async def test_a_client_that_waits_for_leave_to_send_gets_it(
    echo: tuple[Echo, HTTPServer],
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", echo[1].port)
    writer.write(
        b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"a=b")
    assert read_answer(await reader.read()).json() == ["a", {"a": "b"}]
    writer.close()
    await writer.wait_closed()


async def test_a_fault_of_ours_is_500_and_the_port_lives_on(
    echo: tuple[Echo, HTTPServer], caplog: pytest.LogCaptureFixture
) -> None:
    it, server = echo
    it.fails = RuntimeError("boom")
    answer = await get(server.port, "/a")
    assert (answer.status, answer.body) == (500, "Command server error")
    assert "boom" in caplog.text
    it.fails, it.hangs = None, True
    assert (await get(server.port, "/a")).status == 500
    it.hangs = False
    assert (await get(server.port, "/a")).status == 200


async def test_connections_are_bounded_and_slow_ones_make_room(
    echo: tuple[Echo, HTTPServer],
) -> None:
    _, server = echo
    slow = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(4)]
    while len(server._tasks) < 4:
        await asyncio.sleep(0)
    answer = await get(server.port, "/a")
    assert (answer.status, answer.body) == (503, "more than 4 connections")
    loop = asyncio.get_running_loop()
    began = loop.time()
    for reader, writer in slow:
        assert read_answer(await reader.read()).status == 408
        writer.close()
        await writer.wait_closed()
    assert loop.time() - began < 5
    assert (await get(server.port, "/a")).status == 200


async def test_bodies_that_are_being_read_are_bounded_together(
    echo: tuple[Echo, HTTPServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "BODIES_BYTES_MAX", 1_000)
    _, server = echo
    head = b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: %d\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head % 900)
    while not server._bodies_bytes:
        await asyncio.sleep(0)
    assert (await send(server.port, head % 200 + b"a=" + b"b" * 198)).status == 503
    writer.write(b"a=" + b"b" * 898)
    assert read_answer(await reader.read()).status == 200
    writer.close()
    await writer.wait_closed()
    assert server._bodies_bytes == 0


async def test_a_client_that_leaves_in_the_middle_harms_nobody(
    echo: tuple[Echo, HTTPServer],
) -> None:
    _, server = echo
    for raw in (b"", b"GET", b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 9\r\n\r\na"):
        for abort in (False, True):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(raw)
            if abort:
                writer.transport.abort()
            else:
                writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    assert (await get(server.port, "/a")).status == 200


async def test_who_may_not_command_is_refused_before_the_body_is_read() -> None:
    it = Echo()
    access = Access(allow=("10.0.0.0/8",), token="wolke")
    async with HTTPServer(it.answer, access=access, port=0) as server:
        head = b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 1000000\r\n%s\r\n"
        assert (await send(server.port, head % b"")).status == 403
        wrong = await get(server.port, "/a", X_Sentinel_Token="regen")
        assert wrong.status == 403
        assert "wolke" not in wrong.body
        assert (await get(server.port, "/a", X_Sentinel_Token="wolke")).status == 200
        assert (await get(server.port, "/a?token=wolke")).status == 200


# Ports, and the whole.


async def test_the_next_free_port_is_taken_and_said() -> None:
    it = Echo()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with HTTPServer(it.answer, access=Access(), port=port) as server:
            assert server.port > port
            assert (await get(server.port, "/a")).status == 200
    with pytest.raises(RuntimeError):
        _ = server.port


async def test_no_port_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "PORT_COUNT_MAX", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortUnavailable, match=str(port)):
            async with HTTPServer(Echo().answer, access=Access(), port=port):
                pass
    with pytest.raises(OSError, match="assign"):
        async with HTTPServer(Echo().answer, access=Access(), host="192.0.2.1", port=0):
            pass


async def test_it_listens_on_ipv6_too() -> None:
    async with HTTPServer(Echo().answer, access=Access(), host="::1", port=0) as server:
        answer = await send(server.port, b"GET /a HTTP/1.1\r\n\r\n", host="::1")
    assert answer.status == 200


async def test_what_is_being_answered_at_the_end_is_cut_off() -> None:
    it = Echo()
    it.hangs = True
    async with HTTPServer(it.answer, access=Access(), port=0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /a HTTP/1.1\r\n\r\n")
        await it.hanging.wait()
    assert not server._tasks
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_the_whole_registers_records_and_goes_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def console(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait(await reader.readuntil(b"&version="))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n" + b'{"success":true}')
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(console, "127.0.0.1", 0) as dashboard:
        service = Service(
            tmp_path / "rules",
            dashboards=(f"127.0.0.1:{dashboard.sockets[0].getsockname()[1]}",),
            heartbeat_delay_ms=1,
            metric_folder=tmp_path / "metrics",
            heartbeat_ip="10.9.9.9",
        )
        async with service.transport, asyncio.timeout(60):
            beat = await heard.get()
            assert f"ip=10.9.9.9&port={service.port}&".encode() in beat
            service.call("buy", 3)
            service.clock.advance_ms(1_000)
            assert '"ip": "10.9.9.9"' in (await service.get("/basicInfo")).body
    # It is told an address at which nobody listens.
    assert "unable to ask it anything" in caplog.text
    # The last second is written on the way out.
    (log,) = [path for path in (tmp_path / "metrics").iterdir() if path.suffix != ".idx"]
    assert log.name.startswith("seckill-metrics.log.")
    assert "|buy|3|0|3|0|0|0|0|1\n" in log.read_text()


async def test_a_dashboard_that_may_not_command_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(tmp_path / "rules", allow=("10.0.0.0/8",), dashboards=("127.0.0.1:1",))
    dashboard = service.transport._dashboards[0]
    service.transport._warn_of_deaf_ends(dashboard, "127.0.0.1", "127.0.0.1")
    assert "which may not command" in caplog.text


def test_the_token_stands_in_no_log() -> None:
    assert "wolke" not in repr(TransportSettings(app="shop", token="wolke"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"app": " "},
        {"app": "a/b"},
        {"app": "a\n"},
        {"port": 70_000},
        {"heartbeat_ip": "web-1"},
        {"heartbeat_interval_ms": 0},
        {"metric_file_count_max": 0},
        {"settle_s": -1},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
        TransportSettings(**({"app": "shop"} | wrong))
