"""The commands of a Sentinel client, by name, and what each answers.

An answer of 400 that begins with ``Unknown command`` tells the dashboard that a client does not
have a feature; the cluster and gateway commands are left out in this way.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from seckill.sentinel.errors import RuleDocumentError
from seckill.sentinel.reports import printable
from seckill.sentinel.rule_store import Change
from seckill.sentinel.transport.errors import CommandRefused
from seckill.sentinel.transport.http_server import Command, Reply
from seckill.sentinel.transport.metric_line import MetricLine, thin
from seckill.sentinel.transport.node_views import (
    TABLE_ROWS_MAX,
    node_object,
    node_table,
    origin_table,
    tree_objects,
    tree_text,
)
from seckill.sentinel.transport.settings import PROTOCOL_VERSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from seckill.sentinel.reports import LoadReport
    from seckill.sentinel.transport.metric_recorder import MetricRecorder
    from seckill.sentinel.transport.sources import RuleTarget, StatisticsSource

SUCCESS: Final = "success"
JSON: Final = "application/json; charset=utf-8"
RULE_TYPES: Final = ("flow", "degrade", "system", "authority")
PARAM_FLOW: Final = "param-flow"
RESOURCE_LOAD: Final = "__system_load__"
RESOURCE_CPU: Final = "__cpu_usage__"
MACHINE_SCALE: Final = 10_000
MS_PER_S: Final = 1_000

SPAN_LINES_MAX: Final = 100_000
OPEN_LINES_MAX: Final = 12_000
OPEN_LINES_DEFAULT: Final = 6_000

REPLY_PROBLEMS_MAX: Final = 10
"""Refused rules that an answer names; the log names all."""

NO_CLUSTER: Final = {
    "clientAvailable": False,
    "lastModified": -1,
    "mode": -1,
    "serverAvailable": False,
}
"""What the original answers without its cluster modules. Ours shares limits in another way."""

_LOG: Final = logging.getLogger(__name__)


class _Known(NamedTuple):
    describes: str
    answer: Callable[[dict[str, str], str], Awaitable[str]]
    is_json: bool = False


class CommandCenter:
    """Answers commands.

    Args:
        source: of the numbers.
        target: of the rules.
        recorder: of what happened in each second.
        host_name: of this machine.
        ip: gives the address by which dashboards know it.
    """

    def __init__(
        self,
        source: StatisticsSource,
        target: RuleTarget,
        recorder: MetricRecorder,
        *,
        host_name: str,
        ip: Callable[[], str],
    ) -> None:
        self._source = source
        self._target = target
        self._recorder = recorder
        self._host_name = host_name
        self._ip = ip
        self._commands: dict[str, _Known] = {
            "api": _Known("all commands", self._api, is_json=True),
            "basicInfo": _Known("name and address of this machine", self._basic_info),
            "clusterNode": _Known(
                "all resources; type=notZero for those with traffic",
                self._cluster_node,
                is_json=True,
            ),
            "clusterNodeById": _Known(
                "one resource; id={resource}", self._cluster_node_by_id, is_json=True
            ),
            "cnode": _Known("resources as a table; id={part of the name}", self._cnode),
            "getClusterMode": _Known("state of cluster mode", self._cluster_mode, is_json=True),
            "getParamFlowRules": _Known(
                "hot-parameter rules", self._get_param_flow_rules, is_json=True
            ),
            "getRules": _Known(
                "rules; type=flow|degrade|system|authority", self._get_rules, is_json=True
            ),
            "getSwitch": _Known("whether calls are checked", self._get_switch),
            "jsonTree": _Known("the call tree", self._json_tree, is_json=True),
            "metric": _Known(
                "seconds; startTime={ms}&endTime={ms}&maxLines={n}&identity={resource}",
                self._metric,
            ),
            "origin": _Known("callers of a resource as a table; id={resource}", self._origin),
            "setClusterMode": _Known("not supported", self._set_cluster_mode),
            "setParamFlowRules": _Known(
                "replace the hot-parameter rules; data={JSON}&who={name}&why={reason}",
                self._set_param_flow_rules,
            ),
            "setRules": _Known(
                "replace rules; type={as above}&data={JSON}&who={name}&why={reason}",
                self._set_rules,
            ),
            "setSwitch": _Known("switch checking; value=true|false", self._set_switch),
            "systemStatus": _Known("all inbound traffic", self._system_status, is_json=True),
            "tree": _Known("the call tree as text; id={context}", self._tree),
            "version": _Known("the version of Sentinel that is spoken here", self._version),
        }

    async def answer(self, command: Command) -> Reply:
        """Carry a command out.

        Raises:
            CommandRefused: it is not known, or cannot be carried out as it was given.
        """
        if not command.name:
            raise CommandRefused("Invalid command")
        known = self._commands.get(command.name)
        if known is None:
            raise CommandRefused(f"Unknown command `{command.name[:100]}`")
        text = await known.answer(command.parameters, command.peer)
        return Reply(text, content_type=JSON) if known.is_json else Reply(text)

    # About this client.

    async def _version(self, _parameters: dict[str, str], _peer: str) -> str:
        return PROTOCOL_VERSION

    async def _api(self, _parameters: dict[str, str], _peer: str) -> str:
        return _json(
            [{"desc": known.describes, "url": f"/{name}"} for name, known in self._commands.items()]
        )

    async def _basic_info(self, _parameters: dict[str, str], _peer: str) -> str:
        return json.dumps(
            {"machine": self._host_name, "ip": self._ip()}, ensure_ascii=False, indent="\t"
        )

    async def _cluster_mode(self, _parameters: dict[str, str], _peer: str) -> str:
        return _json(NO_CLUSTER)

    async def _set_cluster_mode(self, parameters: dict[str, str], _peer: str) -> str:
        role = {"0": "client", "1": "server"}.get(parameters.get("mode", ""))
        if role is None:
            raise CommandRefused("invalid parameter")
        raise CommandRefused(f"token {role} mode not available: no SPI found")

    # Rules.

    async def _get_rules(self, parameters: dict[str, str], _peer: str) -> str:
        return await self._target.dump_rules(_rule_type(parameters))

    async def _get_param_flow_rules(self, _parameters: dict[str, str], _peer: str) -> str:
        return await self._target.dump_rules(PARAM_FLOW)

    async def _set_rules(self, parameters: dict[str, str], peer: str) -> str:
        return await self._load(_rule_type(parameters), "setRules", parameters, peer)

    async def _set_param_flow_rules(self, parameters: dict[str, str], peer: str) -> str:
        return await self._load(PARAM_FLOW, "setParamFlowRules", parameters, peer)

    async def _load(self, kind: str, command: str, parameters: dict[str, str], peer: str) -> str:
        document = parameters.get("data", "")
        if not document.strip():
            raise CommandRefused("Bad data")
        change = Change(
            parameters.get("who") or f"command port, from {peer}",
            parameters.get("why") or command,
        )
        try:
            report = await self._target.load_rules(kind, document, change)
        except RuleDocumentError as error:
            _LOG.warning(
                "%s of %s rules by %s refused: %s",
                command,
                kind,
                change.who,
                printable(str(error)),
            )
            raise CommandRefused(
                f"the {kind} rules were refused, the old ones stay: {error}"
            ) from error
        # The report goes over several lines; each has to be found under its own.
        _LOG.log(
            logging.INFO if _went_well(report) else logging.WARNING,
            "%s by %s: %s",
            command,
            change.who,
            report,
        )
        if not report.applied:
            raise CommandRefused(
                f"the {kind} rules were refused, the old ones stay: {_refused(report)}"
            )
        reasons = []
        if report.saved is False:
            reasons.append("write data source failed")
        if report.refused:
            reasons.append(
                f"{len(report.refused)} of {report.given} rules refused: {_refused(report)}"
            )
        # The dashboard takes exactly this word; it shows anything else to its user, which is
        # where the name of a refused rule belongs.
        return f"partial success ({'; '.join(reasons)})" if reasons else SUCCESS

    async def _get_switch(self, _parameters: dict[str, str], _peer: str) -> str:
        return f"Sentinel switch value: {_word(await self._target.enabled())}"

    async def _set_switch(self, parameters: dict[str, str], peer: str) -> str:
        value = parameters.get("value", "").strip().lower()
        # To the original everything that is not "true" means off, "on" too.
        if value not in ("true", "false"):
            raise CommandRefused("Invalid parameter: value must be true or false")
        await self._target.set_enabled(enabled=value == "true")
        _LOG.warning(
            "setSwitch by %s: calls are %schecked", peer, "" if value == "true" else "NOT "
        )
        return f"Sentinel set switch value: {value}"

    # Numbers of now.

    async def _json_tree(self, _parameters: dict[str, str], _peer: str) -> str:
        rows = await self._source.tree()
        now_ms = self._source.now_ms()
        return await asyncio.to_thread(lambda: _json(tree_objects(rows, now_ms)))

    async def _cluster_node(self, parameters: dict[str, str], _peer: str) -> str:
        found = await self._source.resources()
        if parameters.get("type", "").lower() == "notzero":
            found = [counts for counts in found if counts.minute_total > 0]
        now_ms = self._source.now_ms()
        return await asyncio.to_thread(
            lambda: _json([node_object(counts, now_ms) for counts in found])
        )

    async def _cluster_node_by_id(self, parameters: dict[str, str], _peer: str) -> str:
        name = _required_id(parameters)
        for counts in await self._source.resources():
            if counts.name == name:
                return _json(node_object(counts, self._source.now_ms()))
        return "{}"

    async def _cnode(self, parameters: dict[str, str], _peer: str) -> str:
        name = _required_id(parameters)
        found = [counts for counts in await self._source.resources() if name in counts.name]
        return node_table(found[:TABLE_ROWS_MAX])

    async def _origin(self, parameters: dict[str, str], _peer: str) -> str:
        name = _required_id(parameters)
        names = [counts.name for counts in await self._source.resources()]
        found = name if name in names else next((one for one in names if name in one), None)
        if found is None:
            return f"Not find cNode with id {name}"
        return origin_table(found, await self._source.origins(found))

    async def _tree(self, parameters: dict[str, str], _peer: str) -> str:
        rows = await self._source.tree()
        return await asyncio.to_thread(tree_text, rows, parameters.get("id", ""))

    async def _system_status(self, _parameters: dict[str, str], _peer: str) -> str:
        counts = await self._source.inbound()
        return _json(
            {
                "b": float(counts.blocked),
                "qps": float(counts.passed),
                "r": counts.average_rt_ms,
                "rqps": float(counts.success),
                "t": counts.concurrency,
            }
        )

    # Numbers of before.

    async def _metric(self, parameters: dict[str, str], _peer: str) -> str:
        start_ms = _whole(parameters, "startTime")
        if start_ms is None:
            return ""
        end_ms = _whole(parameters, "endTime")
        identity = parameters.get("identity", "")
        if end_ms is None:
            asked = _whole(parameters, "maxLines")
            line_count_max = min(OPEN_LINES_DEFAULT if asked is None else asked, OPEN_LINES_MAX)
        else:
            line_count_max = SPAN_LINES_MAX
        lines = await self._recorder.lines(
            start_ms, end_ms, identity=identity, line_count_max=line_count_max
        )
        if not identity:
            lines = lines + await self._machine_lines()
        return await asyncio.to_thread(lambda: "".join(f"{thin(line)}\n" for line in lines))

    async def _machine_lines(self) -> list[MetricLine]:
        """Load and CPU of this moment, in the place of passed calls, as the original has it."""
        machine = await self._source.machine()
        now_ms = self._source.now_ms()
        at_ms = now_ms - now_ms % MS_PER_S
        found = ((RESOURCE_LOAD, machine.load), (RESOURCE_CPU, machine.cpu_usage))
        return [
            MetricLine(at_ms, name, int(value * MACHINE_SCALE), 0, 0, 0, 0)
            for name, value in found
            if value > 0
        ]


def _rule_type(parameters: dict[str, str]) -> str:
    kind = parameters.get("type", "").lower()
    if kind not in RULE_TYPES:
        raise CommandRefused("invalid type")
    return kind


def _required_id(parameters: dict[str, str]) -> str:
    name = parameters.get("id", "")
    if not name:
        raise CommandRefused("Invalid parameter: empty clusterNode name")
    return name


def _whole(parameters: dict[str, str], name: str) -> int | None:
    """A parameter that is a whole number; None when it is not given."""
    text = parameters.get(name, "").strip()
    if not text:
        return None
    digits_max = 18
    if not text.isascii() or not text.isdigit() or len(text) > digits_max:
        raise CommandRefused(f"Invalid parameter: {name} must be a whole number, at least 0")
    return int(text)


def _refused(report: LoadReport) -> str:
    named = "; ".join(str(problem) for problem in report.refused[:REPLY_PROBLEMS_MAX])
    more = len(report.refused) - REPLY_PROBLEMS_MAX
    return f"{named}; and {more} more" if more > 0 else named


def _went_well(report: LoadReport) -> bool:
    return report.applied and report.saved is not False and not report.refused


def _word(truth: bool) -> str:  # noqa: FBT001  its only argument
    return "true" if truth else "false"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
