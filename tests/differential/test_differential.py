"""Our engine and the original, given the same schedules.

Each schedule is played three ways. With every deliberate difference undone ours has to give the
original's answers, to the nanosecond of each wait and each counter that is looked at. As it is by default
it may differ, but only in ways that are on the list: for each schedule that comes out differently, the
smallest set of differences is found whose undoing brings the original's answers back.

``SENTINEL_SEED`` and ``SENTINEL_SCHEDULES`` choose other schedules.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from differential import oracle, player
from differential.schedules import Schedule, schedules
from seckill.sentinel.settings import AS_ORIGINAL, Difference
from services.missing import skip_without

SEED = int(os.environ.get("SENTINEL_SEED", "20251201"))
SCHEDULES = int(os.environ.get("SENTINEL_SCHEDULES", "1088"))
SCHEDULES_MIN = 1_000
DIFFERENCES_SEEN_MIN = 12
DOCUMENT = Path(__file__).parents[2] / "docs" / "sentinel-differences.md"

Played = list[tuple[Schedule, dict[str, Any]]]


@pytest.fixture(scope="module")
def played() -> Played:
    """Every schedule with the original's answers."""
    try:
        oracle.build()
        chosen = list(schedules(SEED, SCHEDULES))
        answers = oracle.play(chosen)
    except oracle.OriginalMissingError as missing:
        skip_without(str(missing))
    assert len(answers) == len(chosen)
    return list(zip(chosen, answers, strict=True))


def _say(line: str) -> None:
    """What was counted is the result; shown by ``pytest -s``."""
    sys.stdout.write(f"\n{line}")


def _comparable(answers: list[Any]) -> list[Any]:
    """Answers without what only one side says: the order after a reload."""
    return [{} if isinstance(answer, dict) else answer for answer in answers]


def _first_disagreement(schedule: Schedule, ours: list[Any], theirs: list[Any]) -> str:
    answered = [step for step in schedule.steps if step[0] in ("enter", "look", "load")]
    for step, our, their in zip(answered, ours, theirs, strict=True):
        if our != their:
            place = schedule.steps.index(step)
            return (
                f"{schedule.family}, start {schedule.start_ms}, rules {schedule.rules}\n"
                f"step {place} {step}\n  ours   {our}\n  theirs {their}\n"
                f"steps before: {schedule.steps[max(0, place - 40) : place]}"
            )
    return "the number of answers"


def _reasons(
    schedule: Schedule, order: dict[str, list[int]], theirs: list[Any]
) -> frozenset[Difference]:
    """A smallest set of differences that has to be undone for the original's answers; none if none does."""
    undone = AS_ORIGINAL
    if player.play(schedule, order, undone) != theirs:
        return frozenset()
    for difference in Difference:
        if player.play(schedule, order, undone - {difference}) == theirs:
            undone -= {difference}
    return undone


def test_the_original_answers_the_same(played: Played) -> None:
    disagreeing = []
    answers = 0
    for schedule, reply in played:
        if "load_error" in reply:
            continue
        theirs = _comparable(reply["answers"])
        ours = player.play(schedule, reply["order"], AS_ORIGINAL)
        answers += len(ours)
        if ours != theirs:
            disagreeing.append(_first_disagreement(schedule, ours, theirs))
    _say(f"seed {SEED}: {len(played)} schedules, {answers} answers, {len(disagreeing)} disagree")
    assert not disagreeing, f"{len(disagreeing)} of {len(played)}:\n" + "\n\n".join(disagreeing[:3])


def test_what_differs_is_on_the_list(played: Played) -> None:
    counted: Counter[str] = Counter()
    same = 0
    for schedule, reply in played:
        if "load_error" in reply:
            # A pace below one half: the original cannot load the rule at all.
            assert any(rule["count"] < 0.5 for rule in schedule.rules["flow"])
            player.play(schedule, {}, frozenset())
            counted[Difference.PACING_IN_NANOSECONDS] += 1
            continue
        theirs = _comparable(reply["answers"])
        if player.play(schedule, reply["order"], frozenset()) == theirs:
            same += 1
            continue
        reasons = _reasons(schedule, reply["order"], theirs)
        assert reasons, _first_disagreement(
            schedule, player.play(schedule, reply["order"], frozenset()), theirs
        )
        counted.update(reasons)
    _say(f"seed {SEED}: {same} of {len(played)} schedules alike by default; the others differ by")
    for name, number in counted.most_common():
        _say(f"  {name:30} {number}")
    assert same
    assert len(counted) >= DIFFERENCES_SEEN_MIN or len(played) < SCHEDULES_MIN


def test_the_list_is_the_documents() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [difference for difference in Difference if f"`{difference}`" not in text]
    assert not missing


def test_the_schedules_can_tell(played: Played) -> None:
    """The control: an engine with one rule read wrongly is found out."""
    found = 0
    for schedule, reply in played[:64]:
        if "load_error" in reply or "flow" not in schedule.rules:
            continue
        wrong = Schedule(
            schedule.family,
            schedule.start_ms,
            {
                **schedule.rules,
                "flow": [{**rule, "count": rule["count"] + 1} for rule in schedule.rules["flow"]],
            },
            schedule.steps,
            schedule.argument_type,
        )
        ours = player.play(wrong, reply["order"], AS_ORIGINAL)
        found += ours != _comparable(reply["answers"])
    assert found > 10
