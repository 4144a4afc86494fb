"""Our engine, playing the same schedules in the same words."""

from __future__ import annotations

import contextvars
import json
import math
from typing import TYPE_CHECKING, Any

from seckill.sentinel.clock import VirtualClock
from seckill.sentinel.engine import Sentinel
from seckill.sentinel.entry import Entry
from seckill.sentinel.errors import BlockException, SystemBlockException
from seckill.sentinel.settings import Difference, Settings
from seckill.sentinel.waiting import VirtualWaiter
from seckill.sentinel.words import EntryType

if TYPE_CHECKING:
    from differential.schedules import Json, Schedule
    from seckill.sentinel.node import StatisticNode

KIND_ORDER = ("flow", "degrade", "system", "authority", "param-flow")
JAVA_TYPES = {
    "int": {"int"},
    "long": {"long"},
    "double": {"double"},
    "String": {"", "java.lang.String"},
}


def play(
    schedule: Schedule, order: dict[str, list[int]], undone: frozenset[Difference]
) -> list[Any]:
    """Our answers to a schedule.

    Args:
        schedule: what to play.
        order: the ids of the rules in the order in which the original checks them: it keeps them in a
            hash table, we keep them as they were given.
        undone: which differences to undo.
    """
    return _Player(schedule, order, undone).answers()


class _Player:
    def __init__(
        self, schedule: Schedule, order: dict[str, list[int]], undone: frozenset[Difference]
    ) -> None:
        self._schedule = schedule
        self._order = order
        self._undone = undone
        self._clock = VirtualClock(schedule.start_ms)
        self._waiter = VirtualWaiter(self._clock)
        self._engine = Sentinel(
            settings=Settings(undone=undone), clock=self._clock, waiter=self._waiter
        )
        self._open: dict[int, Entry] = {}

    def answers(self) -> list[Any]:
        self._load(self._schedule.rules)
        found = []
        for step in self._schedule.steps:
            answer = self._take(step)
            if answer is not None:
                found.append(answer)
        assert not self._engine.alarms.internal_errors, self._engine.alarms.last_error
        return found

    def _take(self, step: list[Any]) -> Any:
        match step:
            case ["advance", span_ms]:
                self._clock.advance_ms(span_ms)
            case ["enter", number, call]:
                # Each call in a context of its own, as if in a task of its own.
                return contextvars.copy_context().run(self._enter, number, call)
            case ["exit" | "fail" as how, number]:
                entry = self._open.pop(number, None)
                if entry is not None:
                    if how == "fail":
                        entry.set_error(RuntimeError("the call failed"))
                    entry.exit()
            case ["load", rules]:
                self._load(rules)
                return {}
            case ["look", resource]:
                return self._look(resource)
        return None

    def _enter(self, number: int, call: Json) -> list[Any]:
        began_ns = self._clock.now_ns()
        if call["context"]:
            with self._engine.context(call["context"], call["origin"]):
                outcome = self._try(call)
        else:
            outcome = self._try(call)
        waited_ns = self._clock.now_ns() - began_ns
        if isinstance(outcome, Entry):
            self._open[number] = outcome
            return ["pass", waited_ns]
        if isinstance(outcome, SystemBlockException):
            by = outcome.limit_type
        else:
            assert outcome.rule is not None
            by = str(outcome.rule.id)
        return ["block", type(outcome).__name__, by, waited_ns]

    def _try(self, call: Json) -> Entry | BlockException:
        return self._engine.try_entry(
            call["resource"],
            *(_argument(one) for one in call["args"]),
            count=call["count"],
            entry_type=EntryType.IN if call["inbound"] else EntryType.OUT,
            prioritized=call["prioritized"],
        )

    def _load(self, rules: dict[str, list[Json]]) -> None:
        for kind in KIND_ORDER:
            if kind in rules:
                ids = self._order.get(kind, [])
                found = sorted(
                    rules[kind],
                    key=lambda rule: ids.index(rule["id"]) if rule["id"] in ids else len(ids),
                )
                self._engine.load_rules(kind, json.dumps([self._as_java(one) for one in found]))

    def _as_java(self, rule: Json) -> Json:
        """The rule as the original understands it: items of another class never apply."""
        items = rule.get("paramFlowItemList")
        if items is None or Difference.HOT_PARAMETER_TYPES not in self._undone:
            return rule
        fitting = JAVA_TYPES[self._schedule.argument_type]
        kept = [one for one in items if one["classType"] in fitting]
        return {**rule, "paramFlowItemList": kept}

    def _look(self, resource: str) -> list[int]:
        found: list[int] = []
        node = self._engine.node(resource)
        if node is not None:
            found += self._counters(node)
        return found + self._counters(self._engine.inbound)

    def _counters(self, node: StatisticNode) -> list[int]:
        now_ns = self._clock.now_ns()
        minute = node.minute(now_ns)
        return [
            node.window_passed,
            node.window_blocked,
            node.window_success,
            node.window_exceptions,
            math.floor(node.average_rt_ms(now_ns) * 1000 + 0.5),
            node.min_rt_ms(now_ns),
            int(node.max_success_qps(now_ns)),
            node.concurrency,
            node.previous_passed(now_ns),
            minute.passed,
            minute.blocked,
            minute.exceptions,
            minute.success,
        ]


def _argument(typed: list[Any]) -> Any:
    kind, value = typed
    if kind == "list":
        return [_argument(one) for one in value]
    return value
