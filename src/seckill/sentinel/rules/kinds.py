"""Which fields each kind of rule has in JSON, and how to read and write them.

Names and defaults are the original's. A field that is null counts as left out; a field that is not
known is ignored, and named in the result.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from seckill.sentinel.authority.rule import AuthorityRule
from seckill.sentinel.circuitbreaking.rule import DegradeRule
from seckill.sentinel.flow.rule import FlowRule
from seckill.sentinel.hotparam.items import ParamFlowItem
from seckill.sentinel.hotparam.rule import ITEM_COUNT_MAX, ParamFlowRule
from seckill.sentinel.reports import Problem, RuleProblem
from seckill.sentinel.rules import fields
from seckill.sentinel.rules.document import read_document
from seckill.sentinel.system.rule import SystemRule
from seckill.sentinel.token_source import ClusterConfig
from seckill.sentinel.words import (
    AuthorityStrategy,
    ControlBehavior,
    DegradeGrade,
    FlowGrade,
    FlowStrategy,
    ThresholdType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seckill.sentinel.rules.fields import Reader

AnyRule = FlowRule | DegradeRule | SystemRule | AuthorityRule | ParamFlowRule

IGNORED_NAMES_MAX: Final = 50
"""Names of unknown fields that are kept for the report."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a rule.

    Attributes:
        name: in JSON.
        attribute: of the rule.
        read: from the JSON value.
        required: whether a rule without it is refused.
    """

    name: str
    attribute: str
    read: Reader
    required: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of rules.

    Attributes:
        name: as managers and reports call it.
        rule: the class.
        fields: all it has in JSON, in the order they are written.
        other_names: what else people call it; compared without case and marks.
    """

    name: str
    rule: type[AnyRule]
    fields: tuple[Field, ...]
    other_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRules:
    """What was found in a document.

    Attributes:
        kind: which kind of rules it was read as.
        rules: those that could be read; whether they are valid is asked when they are loaded.
        indices: the place of each in the document.
        refused: those that could not be read.
        warnings: what was read, but not all of it.
        ignored: names of fields that are not known.
    """

    kind: str
    rules: tuple[AnyRule, ...]
    indices: tuple[int, ...]
    refused: tuple[RuleProblem, ...]
    warnings: tuple[RuleProblem, ...]
    ignored: tuple[str, ...]


def _cluster_config(value: object) -> object:
    return _read_object(value, ClusterConfig, _CLUSTER_FIELDS)


def _items(value: object) -> object:
    """The items of a hot-parameter rule. One that cannot be read refuses the whole rule."""
    if not isinstance(value, list):
        raise fields.FieldError(f"must be a list, is {fields.shown(value)}")
    if len(value) > ITEM_COUNT_MAX:
        raise fields.FieldError(f"has more than {ITEM_COUNT_MAX} items")
    found = []
    for index, item in enumerate(value):
        try:
            found.append(_read_object(item, ParamFlowItem, _ITEM_FIELDS))
        except _FieldsError as error:
            inside = f"[{index}]"
            raise _FieldsError([_moved(inside, one) for one in error.problems]) from error
    return tuple(found)


def _item_value(value: object) -> str:
    """An item's value: a text, or the number or truth value itself."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(fields.number(value))
    return fields.text(value)


class _FieldsError(fields.FieldError):
    """Several fields of one object cannot be read."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


def _moved(outer: str, problem: Problem) -> Problem:
    """A problem of a part, as a problem of the whole."""
    if problem.field == "$":
        return Problem(outer, problem.reason)
    mark = "" if problem.field.startswith("[") else "."
    return Problem(f"{outer}{mark}{problem.field}", problem.reason)


def _read_object(value: object, kind: type[object], known: Iterable[Field]) -> object:
    """An object of a class from a JSON object.

    Raises:
        _FieldsError: it is none, or fields of it cannot be read, or are missing.
    """
    if not isinstance(value, dict):
        raise _FieldsError([Problem("$", f"must be an object, is {fields.shown(value)}")])
    found: dict[str, object] = {}
    problems: list[Problem] = []
    for field in known:
        given = value.get(field.name)
        if given is None:
            if field.required:
                problems.append(Problem(field.name, "required"))
            continue
        try:
            found[field.attribute] = field.read(given)
        except _FieldsError as error:
            problems.extend(_moved(field.name, one) for one in error.problems)
        except fields.FieldError as error:
            problems.append(Problem(field.name, str(error)))
    if problems:
        raise _FieldsError(problems)
    return kind(**found)


_ID: Final = Field("id", "id", fields.integer)
_RESOURCE: Final = Field("resource", "resource", fields.text, required=True)
_LIMIT_APP: Final = Field("limitApp", "limit_app", fields.text)
_REGEX: Final = Field("regex", "regex", fields.boolean)

_CLUSTER_FIELDS: Final = (
    Field("flowId", "flow_id", fields.integer),
    Field("thresholdType", "threshold_type", fields.choice(ThresholdType)),
    Field("fallbackToLocalWhenFail", "fallback_to_local_when_fail", fields.boolean),
    Field("strategy", "strategy", fields.integer),
    Field("sampleCount", "sample_count", fields.integer),
    Field("windowIntervalMs", "window_interval_ms", fields.integer),
    Field("resourceTimeout", "resource_timeout_ms", fields.integer),
    Field("resourceTimeoutStrategy", "resource_timeout_strategy", fields.integer),
    Field("acquireRefuseStrategy", "acquire_refuse_strategy", fields.integer),
    Field("clientOfflineTime", "client_offline_time_ms", fields.integer),
)

_ITEM_FIELDS: Final = (
    Field("object", "object", _item_value, required=True),
    Field("count", "count", fields.integer, required=True),
    Field("classType", "class_type", fields.text),
)

_FLOW: Final = Kind(
    "flow",
    FlowRule,
    (
        _ID,
        _RESOURCE,
        _LIMIT_APP,
        Field("grade", "grade", fields.choice(FlowGrade)),
        Field("count", "count", fields.number),
        Field("strategy", "strategy", fields.choice(FlowStrategy)),
        Field("refResource", "ref_resource", fields.text),
        Field("controlBehavior", "control_behavior", fields.choice(ControlBehavior)),
        Field("warmUpPeriodSec", "warm_up_period_sec", fields.integer),
        Field("maxQueueingTimeMs", "max_queueing_time_ms", fields.integer),
        Field("clusterMode", "cluster_mode", fields.boolean),
        Field("clusterConfig", "cluster_config", _cluster_config),
        _REGEX,
    ),
)

_DEGRADE: Final = Kind(
    "degrade",
    DegradeRule,
    (
        _ID,
        _RESOURCE,
        _LIMIT_APP,
        Field("grade", "grade", fields.choice(DegradeGrade)),
        Field("count", "count", fields.number),
        Field("timeWindow", "time_window", fields.integer),
        Field("minRequestAmount", "min_request_amount", fields.integer),
        Field("slowRatioThreshold", "slow_ratio_threshold", fields.number),
        Field("statIntervalMs", "stat_interval_ms", fields.integer),
        _REGEX,
    ),
    ("circuitbreaking", "circuitbreaker"),
)

_SYSTEM: Final = Kind(
    "system",
    SystemRule,
    (
        _ID,
        Field("highestSystemLoad", "highest_system_load", fields.number),
        Field("highestCpuUsage", "highest_cpu_usage", fields.number),
        Field("qps", "qps", fields.number),
        Field("avgRt", "avg_rt", fields.integer),
        Field("maxThread", "max_thread", fields.integer),
    ),
)

_AUTHORITY: Final = Kind(
    "authority",
    AuthorityRule,
    (
        _ID,
        _RESOURCE,
        Field("limitApp", "limit_app", fields.text, required=True),
        Field("strategy", "strategy", fields.choice(AuthorityStrategy)),
        _REGEX,
    ),
)

_PARAM_FLOW: Final = Kind(
    "param-flow",
    ParamFlowRule,
    (
        _ID,
        _RESOURCE,
        _LIMIT_APP,
        Field("grade", "grade", fields.choice(FlowGrade)),
        Field("paramIdx", "param_idx", fields.integer, required=True),
        Field("count", "count", fields.number),
        Field("controlBehavior", "control_behavior", fields.choice(ControlBehavior)),
        Field("maxQueueingTimeMs", "max_queueing_time_ms", fields.integer),
        Field("burstCount", "burst_count", fields.integer),
        Field("durationInSec", "duration_in_sec", fields.integer),
        Field("paramFlowItemList", "param_flow_item_list", _items),
        Field("clusterMode", "cluster_mode", fields.boolean),
        Field("clusterConfig", "cluster_config", _cluster_config),
        _REGEX,
    ),
    ("paramflow", "hotparam", "hotparameter", "param"),
)

KINDS: Final = {kind.name: kind for kind in (_FLOW, _DEGRADE, _SYSTEM, _AUTHORITY, _PARAM_FLOW)}
"""Every kind of rules, by name."""


def kind_named(name: str) -> str:
    """The name of a kind, from any of its spellings: ``paramFlow``, ``circuit_breaking``.

    Raises:
        ValueError: no kind of rules is called so.
    """
    plain = "".join(character for character in name.lower() if character.isalnum())
    for kind in KINDS.values():
        if plain in (kind.name.replace("-", ""), *kind.other_names):
            return kind.name
    raise ValueError(f"no kind of rules is called {name!r}; there are {', '.join(KINDS)}")


def parse_rules(kind: str, document: bytes | str) -> ParsedRules:
    """Read the rules of a document.

    Args:
        kind: in any spelling.
        document: JSON, see ``document``.

    Raises:
        RuleDocumentError: the document as a whole cannot be read.
        ValueError: no kind of rules is called so.
    """
    known = KINDS[kind_named(kind)]
    names = {field.name for field in known.fields}
    rules: list[AnyRule] = []
    indices: list[int] = []
    refused: list[RuleProblem] = []
    ignored: dict[str, None] = {}
    for index, item in enumerate(read_document(document)):
        try:
            rule = _read_object(item, known.rule, known.fields)
        except _FieldsError as error:
            refused.append(RuleProblem(index, _resource_of(item), tuple(error.problems)))
            continue
        assert isinstance(rule, known.rule)
        rules.append(rule)
        indices.append(index)
        if isinstance(item, dict) and len(ignored) < IGNORED_NAMES_MAX:
            ignored.update(dict.fromkeys(name for name in item if name not in names))
    return ParsedRules(
        kind=known.name,
        rules=tuple(rules),
        indices=tuple(indices),
        refused=tuple(refused),
        warnings=(),
        ignored=tuple(ignored)[:IGNORED_NAMES_MAX],
    )


def format_rules(kind: str, rules: Iterable[AnyRule], *, indent: int | None = None) -> str:
    """Write rules as the original's JSON: a bare list, without fields that are not set.

    Args:
        kind: in any spelling.
        rules: of that kind.
        indent: spaces per level; None for one line.
    """
    known = KINDS[kind_named(kind)]
    written = [_written(rule, known.fields) for rule in rules]
    separators = (",", ":") if indent is None else None
    return json.dumps(written, ensure_ascii=False, indent=indent, separators=separators)


def _written(value: object, known: Iterable[Field]) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in known:
        given = getattr(value, field.attribute)
        if isinstance(given, ClusterConfig):
            given = _written(_said_in_full(given, value), _CLUSTER_FIELDS)
        elif isinstance(given, tuple):
            given = [_written(item, _ITEM_FIELDS) for item in given]
        elif isinstance(given, int) and not isinstance(given, bool):
            given = int(given)
        if given is not None and given != "":
            found[field.name] = given
    return found


def _said_in_full(config: ClusterConfig, rule: object) -> ClusterConfig:
    """A config with its kind's default in words: the dashboard takes a missing one for false."""
    if config.fallback_to_local_when_fail is not None:
        return config
    return dataclasses.replace(config, fallback_to_local_when_fail=isinstance(rule, FlowRule))


def _resource_of(item: object) -> str:
    if isinstance(item, dict) and isinstance(item.get("resource"), str):
        return str(item["resource"])[:100]
    return ""


def _check_tables() -> None:
    """Every field of every rule can be read and written: the tables above forget none."""
    for kind in KINDS.values():
        attributes = {one.name for one in dataclasses.fields(kind.rule) if one.init}
        assert attributes == {field.attribute for field in kind.fields}, kind.name


_check_tables()
