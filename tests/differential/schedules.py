"""Seeded schedules of calls, returns, failures and pauses, for two engines to play.

A schedule is plain data, one line of JSON for the oracle: where the clock starts, the rules, and steps:

    ["advance", ms]          the clock moves
    ["enter", number, call]  a call comes
    ["exit", number]         that call ends well, if it was let in
    ["fail", number]         that call ends in an error, if it was let in
    ["load", rules]          the rules are replaced
    ["look", resource]       the counters are read

Every family makes schedules about one thing, with numbers small enough for the limits to be reached.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = dict[str, Any]

EPOCH_MS = 1_764_579_240_000
PAUSE_BETWEEN_MS = 600_000
STEP_COUNT = 90
MS_PER_S = 1000


@dataclass
class Schedule:
    """One schedule.

    Attributes:
        family: what it is about.
        start_ms: where the clock starts; later than any schedule before has come.
        rules: by kind, as JSON; each with its id.
        steps: see above.
        argument_type: the Java type of the arguments of its calls.
    """

    family: str
    start_ms: int
    rules: dict[str, list[Json]]
    steps: list[list[Any]] = field(default_factory=list)
    argument_type: str = "int"

    def line(self) -> Json:
        """What the oracle reads."""
        return {"start_ms": self.start_ms, "rules": self.rules, "steps": self.steps}


class Writer:
    """Writes the steps of one schedule.

    Args:
        dice: where chance comes from.
        resources: names to choose from.
    """

    def __init__(self, dice: random.Random, resources: list[str]) -> None:
        self.dice = dice
        self.resources = resources
        self.contexts: list[tuple[str, str]] = [("", "")]
        self.arguments: Callable[[], list[list[Any]]] = list
        self.acquire = [1]
        self.prioritized = 0.0
        self.inbound = 0.5
        self.failing = 0.2
        self.pauses = [0, 1, 7, 50, 120, 333, 500, 1000]
        self.held = 0.3
        self._number = 0
        self._open: list[int] = []

    def steps(self, count: int) -> list[list[Any]]:
        """So many steps, give or take, with a look at the counters at the end."""
        found: list[list[Any]] = []
        while len(found) < count:
            found.extend(self._round())
        found.extend(self._end(number) for number in self._open)
        found.append(["look", self.resources[0]])
        return found

    def _round(self) -> Iterator[list[Any]]:
        """A burst of calls, some returns, a pause."""
        for _ in range(self.dice.choice((1, 1, 2, 3, 6))):
            yield self._enter()
            if self.dice.random() > self.held:
                yield self._end(self._open.pop())
        self.dice.shuffle(self._open)
        while self._open and self.dice.random() < 0.4:
            yield self._end(self._open.pop())
        if self.dice.random() < 0.8:
            yield ["advance", self.dice.choice(self.pauses)]
        if self.dice.random() < 0.15:
            yield ["look", self.dice.choice(self.resources)]

    def _enter(self) -> list[Any]:
        self._number += 1
        self._open.append(self._number)
        context, origin = self.dice.choice(self.contexts)
        call = {
            "resource": self.dice.choice(self.resources),
            "context": context,
            "origin": origin,
            "inbound": self.dice.random() < self.inbound,
            "count": self.dice.choice(self.acquire),
            "prioritized": self.dice.random() < self.prioritized,
            "args": self.arguments(),
        }
        return ["enter", self._number, call]

    def _end(self, number: int) -> list[Any]:
        return ["fail" if self.dice.random() < self.failing else "exit", number]


def _numbered(rules: list[Json]) -> list[Json]:
    return [{"id": index + 1, **rule} for index, rule in enumerate(rules)]


def _flow_reject(dice: random.Random) -> Schedule:
    rules: list[Json] = [{"resource": "a", "count": dice.choice((0, 1, 2, 2.5, 3, 5, 10, 20))}]
    if dice.random() < 0.3:
        rules.append({"resource": "a", "grade": 0, "count": dice.choice((1, 2, 4))})
    writer = Writer(dice, ["a", "b"])
    writer.acquire = dice.choice(([1], [1, 2], [1, 1, 3]))
    schedule = Schedule("flow reject", 0, {"flow": _numbered(rules)})
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _flow_priority(dice: random.Random) -> Schedule:
    rules: list[Json] = [{"resource": "a", "count": dice.choice((1, 2, 5, 10))}]
    if dice.random() < 0.3:
        rules.append({"resource": "a", "limitApp": "one", "count": dice.choice((2, 3))})
    writer = Writer(dice, ["a"])
    writer.contexts = [("c", "one"), ("c", "")]
    writer.prioritized = 0.5
    writer.acquire = dice.choice(([1], [1, 2]))
    writer.pauses = [0, 20, 100, 250, 400, 500, 700]
    schedule = Schedule("flow priority", 0, {"flow": _numbered(rules)})
    if dice.random() < 0.4:
        schedule.rules["degrade"] = _numbered(
            [{"resource": "a", "grade": 2, "count": 1, "minRequestAmount": 1, "timeWindow": 2}]
        )
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _flow_callers(dice: random.Random) -> Schedule:
    apps = ["default", "other", "one", "two"]
    dice.shuffle(apps)
    rules = [
        {
            "resource": "a",
            "limitApp": app,
            "count": dice.choice((0, 1, 2, 4)),
            "grade": dice.choice((0, 1, 1)),
        }
        for app in apps[: dice.choice((1, 2, 3))]
    ]
    writer = Writer(dice, ["a"])
    writer.contexts = [("", ""), ("c", "one"), ("c", "two"), ("d", "three"), ("d", "")]
    schedule = Schedule("flow callers", 0, {"flow": _numbered(rules)})
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _flow_related(dice: random.Random) -> Schedule:
    rules = [
        {
            "resource": "a",
            "strategy": 1,
            "refResource": dice.choice(("b", "nobody")),
            "count": dice.choice((1, 3)),
            "limitApp": dice.choice(("default", "one", "other")),
        },
        {
            "resource": "b",
            "strategy": 2,
            "refResource": "c",
            "count": dice.choice((1, 2, 4)),
            "grade": dice.choice((0, 1)),
        },
    ]
    writer = Writer(dice, ["a", "b"])
    writer.contexts = [("", ""), ("c", ""), ("d", "one"), ("c", "two")]
    schedule = Schedule("flow related", 0, {"flow": _numbered(rules)})
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _flow_regex(dice: random.Random) -> Schedule:
    rules: list[Json] = [{"resource": "a[0-9]", "regex": True, "count": dice.choice((1, 3))}]
    if dice.random() < 0.5:
        rules.append({"resource": "a1", "count": dice.choice((1, 2))})
    writer = Writer(dice, ["a1", "a2", "ab"])
    schedule = Schedule("flow regex", 0, {"flow": _numbered(rules)})
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _warm_up(dice: random.Random) -> Schedule:
    rule = {
        "resource": "a",
        "controlBehavior": 1,
        "count": dice.choice((1, 2, 2.9, 3, 5, 10, 20, 50)),
        "warmUpPeriodSec": dice.choice((1, 2, 5, 10)),
    }
    writer = Writer(dice, ["a"])
    writer.pauses = dice.choice(([10, 40, 100], [100, 250, 500, 1000], [200, 400, 5000, 20000]))
    writer.held = 0.1
    schedule = Schedule("warm-up", 0, {"flow": _numbered([rule])})
    schedule.steps = writer.steps(STEP_COUNT * 2)
    return schedule


def _pacing(dice: random.Random) -> Schedule:
    rule = {
        "resource": "a",
        "controlBehavior": 2,
        "count": dice.choice(
            (0.3, 0.5, 0.7, 1, 2, 2.4, 3, 4, 5, 7, 10, 50, 999, 1000, 1001, 1500, 2005)
        ),
        "maxQueueingTimeMs": dice.choice((1, 20, 200, 500, 1000)),
    }
    writer = Writer(dice, ["a"])
    writer.acquire = dice.choice(([1], [1, 2, 5]))
    writer.pauses = dice.choice(([0, 1, 2, 3], [0, 10, 50, 100], [100, 300, 1000]))
    schedule = Schedule("pacing", 0, {"flow": _numbered([rule])})
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _warm_up_pacing(dice: random.Random) -> Schedule:
    rule = {
        "resource": "a",
        "controlBehavior": 3,
        "count": dice.choice((0, 1, 2, 3, 5, 10, 20, 100)),
        "warmUpPeriodSec": dice.choice((1, 2, 5, 10)),
        "maxQueueingTimeMs": dice.choice((1, 200, 500, 1000)),
    }
    writer = Writer(dice, ["a"])
    writer.pauses = dice.choice(([0, 10, 50], [50, 100, 300], [200, 1000, 5000]))
    writer.held = 0.1
    schedule = Schedule("warm-up pacing", 0, {"flow": _numbered([rule])})
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _breaker_rule(dice: random.Random) -> Json:
    grade = dice.choice((0, 1, 2))
    return {
        "resource": "a",
        "grade": grade,
        "count": {
            0: dice.choice((5, 50, 120)),
            1: dice.choice((0, 0.3, 0.5, 1)),
            2: dice.choice((0, 1, 3)),
        }[grade],
        "timeWindow": dice.choice((1, 2, 5)),
        "minRequestAmount": dice.choice((1, 2, 5)),
        "slowRatioThreshold": dice.choice((0, 0.3, 0.8, 1.0)),
        "statIntervalMs": dice.choice((500, 1000, 3000)),
    }


def _breakers(dice: random.Random) -> Schedule:
    rules = [_breaker_rule(dice)]
    if dice.random() < 0.4:
        rules.append(_breaker_rule(dice))
    writer = Writer(dice, ["a"])
    writer.failing = dice.choice((0.2, 0.5, 0.8))
    writer.held = dice.choice((0.2, 0.6))
    writer.pauses = [1, 20, 60, 150, 500, 1000, 2100]
    schedule = Schedule("breakers", 0, {"degrade": _numbered(rules)})
    if dice.random() < 0.3:
        schedule.rules["flow"] = _numbered([{"resource": "a", "count": dice.choice((2, 4))}])
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _two_breakers(dice: random.Random) -> Schedule:
    """Two breakers of one resource that open together and want to try again at different times."""
    rule = {"resource": "a", "grade": 2, "count": 0, "minRequestAmount": 1}
    rules = [
        {**rule, "timeWindow": 1},
        {**rule, "timeWindow": dice.choice((3, 5)), "statIntervalMs": 500},
    ]
    dice.shuffle(rules)
    writer = Writer(dice, ["a"])
    writer.failing = dice.choice((0.1, 0.4))
    writer.held = dice.choice((0.1, 0.5))
    writer.pauses = [20, 300, 600, 1000]
    schedule = Schedule("two breakers", 0, {"degrade": _numbered(rules)})
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _default_breaker(dice: random.Random) -> Schedule:
    rules = [{**_breaker_rule(dice), "resource": "*"}]
    if dice.random() < 0.5:
        rules.append({**_breaker_rule(dice), "resource": "b"})
    writer = Writer(dice, ["a", "b"])
    writer.failing = 0.6
    schedule = Schedule("default breaker", 0, {"degrade": _numbered(rules)})
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _argument_maker(
    dice: random.Random, kind: str, *, lists: bool
) -> Callable[[], list[list[Any]]]:
    def one() -> list[Any]:
        if dice.random() < 0.1:
            return ["null", None]
        number = dice.choice((1, 1, 1, 2, 3, 200))
        value = {"int": number, "long": number, "double": number + 0.5, "String": str(number)}[kind]
        return [kind, value]

    def make() -> list[list[Any]]:
        found = [one() for _ in range(dice.choice((0, 1, 2, 2, 2)))]
        if lists and found and dice.random() < 0.2:
            found[0] = ["list", [one(), one()]]
        return found

    return make


def _hot_parameter(dice: random.Random) -> Schedule:
    kind = dice.choice(("int", "long", "double", "String"))
    pacing = dice.random() < 0.3
    rule: Json = {
        "resource": "a",
        "paramIdx": dice.choice((0, 0, 1, -1, -2)),
        "grade": 1 if pacing else dice.choice((0, 1, 1)),
        "count": dice.choice((0, 1, 2, 3.7, 5)),
        "durationInSec": dice.choice((1, 1, 2, 5)),
        "burstCount": dice.choice((0, 0, 2)),
    }
    if pacing:
        rule |= {
            "controlBehavior": 2,
            "maxQueueingTimeMs": dice.choice((0, 200, 500, 1200)),
            "count": dice.choice((1, 3, 5, 7, 900, 1001)),
        }
    if dice.random() < 0.6:
        rule["paramFlowItemList"] = [
            {
                "object": dice.choice(("1", "2", "1.5", "hot")),
                "count": dice.choice((0, 1, 4, 9)),
                "classType": name,
            }
            for name in dice.sample(("int", "long", "java.lang.String", "double", "byte", ""), 2)
        ]
    rules = [rule]
    if dice.random() < 0.2:
        rules.append({"resource": "a", "paramIdx": 0, "count": 4, "durationInSec": 3})
    writer = Writer(dice, ["a"])
    writer.arguments = _argument_maker(dice, kind, lists=not pacing)
    writer.acquire = dice.choice(([1], [1, 2]))
    writer.pauses = [0, 1, 100, 400, 900, 1001, 2500]
    schedule = Schedule("hot parameter", 0, {"param-flow": _numbered(rules)}, argument_type=kind)
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _system(dice: random.Random) -> Schedule:
    limits: list[Json] = [
        {"qps": dice.choice((0, 1, 3, 10))},
        {"maxThread": dice.choice((0, 1, 3))},
        {"avgRt": dice.choice((0, 10, 100))},
        {"qps": 5, "maxThread": 2},
        {"highestCpuUsage": 2.7},
        {},
    ]
    rules = dice.sample(limits, dice.choice((1, 2, 3)))
    writer = Writer(dice, ["a", "b"])
    writer.inbound = 0.8
    writer.acquire = dice.choice(([1], [1, 2]))
    schedule = Schedule("system", 0, {"system": _numbered(rules)})
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _authority(dice: random.Random) -> Schedule:
    names = dice.choice(("one", "one,two", "one, two", " one ,three"))
    rule = {"resource": "a", "limitApp": names, "strategy": dice.choice((0, 1))}
    writer = Writer(dice, ["a", "b"])
    writer.contexts = [("", ""), ("c", "one"), ("c", "two"), ("d", "three"), ("d", "")]
    schedule = Schedule("authority", 0, {"authority": _numbered([rule])})
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


def _reload(dice: random.Random) -> Schedule:
    """The same rules loaded again in mid-run, beside one that changes, as a console does."""
    made = dice.choice((_pacing, _warm_up, _breakers, _hot_parameter, _warm_up_pacing))(dice)
    half = len(made.steps) // 2
    again = {kind: [dict(rule) for rule in rules] for kind, rules in made.rules.items()}
    extra = {
        "flow": {"resource": "x", "count": 9},
        "degrade": {"resource": "x", "count": 9, "grade": 2, "timeWindow": 9},
        "param-flow": {"resource": "x", "paramIdx": 0, "count": 9},
    }
    for kind, rules in again.items():
        rules.append({"id": 99, **extra[kind]})
    made.steps.insert(half, ["load", again])
    made.family = "reload"
    return made


def _invalid(dice: random.Random) -> Schedule:
    """Lists of which no rule, or not every rule, is valid."""
    bad: Json = dice.choice(
        (
            {"resource": "a", "count": -1},
            {"resource": "", "count": 1},
            {"resource": "a", "grade": 5},
        )
    )
    rules = [bad]
    if dice.random() < 0.4:
        rules.append({"resource": "a", "count": 2})
    first = [{"resource": "a", "count": dice.choice((1, 3))}]
    writer = Writer(dice, ["a"])
    schedule = Schedule("invalid", 0, {"flow": _numbered(first)})
    schedule.steps = writer.steps(STEP_COUNT)
    schedule.steps.insert(STEP_COUNT // 2, ["load", {"flow": _numbered(rules)}])
    return schedule


def _mixed(dice: random.Random) -> Schedule:
    """Several kinds of rules at once."""
    parts = dice.sample(
        (_flow_reject, _breakers, _hot_parameter, _system, _flow_callers, _pacing), 3
    )
    rules: dict[str, list[Json]] = {}
    kind = "int"
    for part in parts:
        made = part(dice)
        kind = made.argument_type if part is _hot_parameter else kind
        for name, found in made.rules.items():
            rules[name] = _numbered(
                [{k: v for k, v in one.items() if k != "id"} for one in rules.get(name, []) + found]
            )
    writer = Writer(dice, ["a", "b"])
    writer.contexts = [("", ""), ("c", "one"), ("d", "three")]
    writer.arguments = _argument_maker(dice, kind, lists=False)
    schedule = Schedule("mixed", 0, rules, argument_type=kind)
    schedule.steps = writer.steps(STEP_COUNT)
    return schedule


FAMILIES: tuple[Callable[[random.Random], Schedule], ...] = (
    _flow_reject,
    _flow_priority,
    _flow_callers,
    _flow_related,
    _flow_regex,
    _warm_up,
    _pacing,
    _warm_up_pacing,
    _breakers,
    _two_breakers,
    _default_breaker,
    _hot_parameter,
    _system,
    _authority,
    _reload,
    _invalid,
    _mixed,
)


def schedules(seed: int, count: int) -> Iterator[Schedule]:
    """So many schedules, one family after the other, the same for the same seed."""
    start_ms = EPOCH_MS
    for index in range(count):
        dice = random.Random(f"{seed}/{index}")
        schedule = FAMILIES[index % len(FAMILIES)](dice)
        # Also at odd moments: windows are aligned to the epoch, not to the first call.
        schedule.start_ms = start_ms + dice.choice((0, 0, 1, 499, 730, 999))
        paused_ms = sum(step[1] for step in schedule.steps if step[0] == "advance")
        start_ms += (paused_ms + PAUSE_BETWEEN_MS) // MS_PER_S * MS_PER_S
        yield schedule
