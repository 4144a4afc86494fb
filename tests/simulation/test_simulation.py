"""A sale in which everything breaks that can, thousands of times: no promise is broken.

And the other way round: without one of the rules that keep the promises, the simulation says so.
Each schedule is decided by its seed alone; ``scripts/simulate --seed N`` shows what happens in it.
"""

import os
from collections.abc import Iterator

import pytest

from simulation import by_hand
from simulation.campaign import Campaign, replay
from simulation.rules import Rule
from simulation.stores import Stores

SCHEDULES = int(os.environ.get("SECKILL_SIMULATION_SCHEDULES", "1000"))
CHUNKS = 10
SEARCHED_MAX = 300
"""Schedules in which a rule that is missing must have been missed."""


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    with Stores() as stores:
        yield Campaign(stores)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_breaks_a_promise(campaign: Campaign, chunk: int) -> None:
    for seed in range(chunk, SCHEDULES, CHUNKS):
        broken = campaign.run(seed)
        assert not broken, f"{broken}; replay it: {replay(seed)}"


_SEARCHED_FROM = {
    ("seq-counts-all",): 2,
    ("server",): 12,
    ("seq", "server"): 230,
    ("mark-survives",): 356,
    ("report",): 14,
    ("ledger-seq",): 247,
    ("new-epoch", "report"): 83,
    ("drain",): 896,
    ("name-losses",): 64,
}
"""Rules that are taken out together, and the first seed that may show it."""

_STORIES = {
    ("id-in-script",): by_hand.a_buyer_asks_again_when_it_has_expired,
    ("late",): by_hand.a_relay_stands_still_while_the_bucket_is_made_anew,
    ("release-epoch", "release-held"): by_hand.a_release_is_late_when_the_bucket_is_made_anew,
}
"""Rules that are taken out together, and the schedule that shows it."""


@pytest.mark.parametrize("rules", _STORIES, ids=", ".join)
def test_the_story_of_a_rule_ends_badly_without_it(
    campaign: Campaign, rules: tuple[str, ...]
) -> None:
    """And well with it; where one rule covers for another, with either of them."""
    without = frozenset(Rule(rule) for rule in rules)
    for kept in [frozenset[Rule](), *(without - {rule} for rule in without)]:
        assert campaign.run(0, without=kept, happen=_STORIES[rules]) == []
    assert campaign.run(0, without=without, happen=_STORIES[rules]) != []


def test_every_rule_is_missed_somewhere() -> None:
    assert {rule for rules in (*_SEARCHED_FROM, *_STORIES) for rule in rules} == set(Rule)


@pytest.mark.parametrize(("rules", "first_seed"), _SEARCHED_FROM.items())
def test_a_rule_that_is_missing_is_missed(
    campaign: Campaign, rules: tuple[str, ...], first_seed: int
) -> None:
    """With it, the very schedule that showed it breaks nothing.

    Where one rule covers for another, both are taken out, and with either of them alone the
    schedule breaks nothing: it is the pair that keeps the promise.
    """
    without = frozenset(Rule(rule) for rule in rules)
    enough = [without - {rule} for rule in without]
    for seed in range(first_seed, first_seed + SEARCHED_MAX):
        if campaign.run(seed, without=without) and not any(
            campaign.run(seed, without=kept) for kept in enough
        ):
            return
    pytest.fail(f"nobody misses {rules}")


def test_a_seed_decides_everything(campaign: Campaign) -> None:
    """Else a failure could not be looked at again."""

    def story(seed: int) -> list[str]:
        told: list[str] = []
        campaign.run(seed, trace=told.append)
        # What Redis answers has its own clock in it.
        return [line.split(" -> ")[0] for line in told]

    for seed in (3, 5, 8):
        first = story(seed)
        assert len(first) > 100
        assert story(seed) == first
