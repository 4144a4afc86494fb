"""Rules in plain words, for the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seckill.sentinel.rules import AnyRule

__all__ = ["in_words"]

_ALL: str = "all web processes together"
_EACH: str = "each web process"


def in_words(rule: "AnyRule") -> str:
    """What a rule does, on one line; whether it holds per process is part of it."""
    from seckill.sentinel import (  # noqa: PLC0415
        AuthorityRule,
        DegradeRule,
        FlowRule,
        ParamFlowRule,
    )

    match rule:
        case FlowRule():
            return _flow(rule)
        case ParamFlowRule():
            return _param_flow(rule)
        case DegradeRule():
            return _degrade(rule)
        case AuthorityRule():
            only = "refuses" if rule.strategy else "lets only these in:"
            return f"{only} {rule.limit_app}"
        case _:
            return _system(rule)


def _flow(rule: object) -> str:
    from seckill.runtime.flow_control import SERVICE_RESOURCES  # noqa: PLC0415
    from seckill.sentinel import ControlBehavior, FlowGrade, FlowRule, FlowStrategy  # noqa: PLC0415

    assert isinstance(rule, FlowRule)
    qps = rule.grade == FlowGrade.QPS
    for_all = rule.cluster_mode or (rule.resource in SERVICE_RESOURCES and not rule.regex)
    words = [
        f"at most {rule.count:,g} {'a second' if qps else 'at a time'}",
        f"({_ALL if qps and for_all else f'per process: {_EACH}'})",
    ]
    if qps:
        match rule.control_behavior:
            case ControlBehavior.WARM_UP:
                words.append(f"warming up over {rule.warm_up_period_sec} s")
            case ControlBehavior.RATE_LIMITER:
                words.append(f"at a steady pace, waiting up to {rule.max_queueing_time_ms} ms")
            case ControlBehavior.WARM_UP_RATE_LIMITER:
                words.append(
                    f"at a steady pace, waiting up to {rule.max_queueing_time_ms} ms, "
                    f"warming up over {rule.warm_up_period_sec} s"
                )
            case _:
                pass
    if rule.limit_app != "default":
        words.append(f"for callers: {rule.limit_app}")
    if rule.strategy == FlowStrategy.RELATE:
        words.append(f"by the traffic of {rule.ref_resource}")
    elif rule.strategy == FlowStrategy.CHAIN:
        words.append(f"of calls that came in by {rule.ref_resource}")
    return ", ".join([" ".join(words[:2]), *words[2:]])


def _param_flow(rule: object) -> str:
    from seckill.runtime.flow_control import PARAMETER_NAMES  # noqa: PLC0415
    from seckill.sentinel import FlowGrade, ParamFlowRule  # noqa: PLC0415

    assert isinstance(rule, ParamFlowRule)
    name = PARAMETER_NAMES.get((rule.resource, rule.param_idx), f"argument {rule.param_idx}")
    span = "at a time"
    if rule.grade == FlowGrade.QPS:
        span = "a second" if rule.duration_in_sec == 1 else f"in {rule.duration_in_sec} s"
    where = _ALL if rule.cluster_mode else f"per process: {_EACH}"
    words = f"at most {rule.count:,g} {span} for each {name} ({where})"
    items = len(rule.param_flow_item_list)
    return words + (f", {items} values with a limit of their own" if items else "")


def _degrade(rule: object) -> str:
    from seckill.sentinel import DegradeGrade, DegradeRule  # noqa: PLC0415

    assert isinstance(rule, DegradeRule)
    match rule.grade:
        case DegradeGrade.SLOW_REQUEST_RATIO:
            when = f"more than {rule.slow_ratio_threshold:.0%} took over {rule.count:,g} ms"
        case DegradeGrade.ERROR_RATIO:
            when = f"more than {rule.count:.0%} failed"
        case _:
            when = f"more than {rule.count:,g} failed"
    return (
        f"opens for {rule.time_window} s when {when} of at least {rule.min_request_amount} calls "
        f"in {rule.stat_interval_ms:,} ms (per process: {_EACH})"
    )


def _system(rule: object) -> str:
    from seckill.sentinel import SystemRule  # noqa: PLC0415

    assert isinstance(rule, SystemRule)
    limits = [
        f"{name} at most {value:,g}{unit}"
        for name, value, unit in (
            ("load", rule.highest_system_load, ""),
            ("CPU", rule.highest_cpu_usage, ""),
            ("requests a second", rule.qps, ""),
            ("average response time", rule.avg_rt, " ms"),
            ("requests at a time", rule.max_thread, ""),
        )
        if value >= 0
    ]
    return f"{', '.join(limits) or 'no limit'} (per process: {_EACH})"
