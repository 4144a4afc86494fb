"""What every rule store promises: rules are kept, gone back over, and never silently lost."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING

import pytest

from seckill.sentinel import Change, RuleConflict, RuleDocumentError, Sentinel, VirtualClock
from seckill.sentinel.rules import KINDS
from seckill.sentinel.stores import (
    FileRuleStore,
    NothingToUndo,
    RuleFollower,
    RuleStoreDamaged,
    VersionedStore,
)
from seckill.sentinel.stores.version import write_version

if TYPE_CHECKING:
    from pathlib import Path

    from contract.sentinel.places import Place


def flow(count: int) -> str:
    return json.dumps([{"resource": "r", "count": count}])


def counts(document: str | None) -> list[int]:
    assert document is not None
    return [rule["count"] for rule in json.loads(document)]


def test_every_kind_is_kept_by_itself(store: VersionedStore) -> None:
    for number, kind in enumerate(KINDS, 1):
        assert store.load(kind) is None
        assert store.head(kind) is None
        assert store.head_number(kind) == 0
        assert store.history(kind) == ()
        store.save(kind, flow(number))
    assert [counts(store.load(kind)) for kind in KINDS] == [[1], [2], [3], [4], [5]]


def test_a_version_says_who_when_and_why(store: VersionedStore) -> None:
    store.save("flow", flow(1), Change("ann", "the sale begins\nsoon"))
    store.save("flow", flow(2))
    first, second = store.history("flow")
    assert (first.number, first.change.who, first.change.why) == (1, "ann", "the sale begins soon")
    assert first.at_ms % 1_000 == 0
    assert first.at_ms < second.at_ms
    assert second.change == Change()
    assert store.head("flow") == second


def test_what_one_process_saves_another_sees(place: Place) -> None:
    one, other = place.store(), place.store()
    one.save("flow", flow(1))
    assert counts(other.load("flow")) == [1]
    other.save("flow", flow(2))
    assert counts(one.load("flow")) == [2]
    assert [version.number for version in one.history("flow")] == [1, 2]
    assert one.head_number("flow") == other.head_number("flow") == 2


def test_text_of_every_language_comes_back_as_it_was(store: VersionedStore) -> None:
    document = json.dumps([{"resource": "GET:/商品/a+b%41 c", "count": 0.5}], ensure_ascii=False)
    store.save("flow", document)
    assert json.loads(store.load("flow") or "") == json.loads(document)


def test_history_is_bounded_and_numbers_go_on(place: Place) -> None:
    store = place.store(history_count_max=3)
    for number in range(1, 8):
        store.save("flow", flow(number))
    assert [version.number for version in store.history("flow")] == [5, 6, 7]
    for count_max in (1, 1_001):
        with pytest.raises(ValueError, match="at least 2"):
            place.store(history_count_max=count_max)


def test_undo_goes_back_one_step_and_then_further(store: VersionedStore) -> None:
    for number in (1, 2, 3):
        store.save("flow", flow(number))
    undone = store.undo("flow", Change("ann", "too many"))
    assert (undone.number, undone.restores, undone.change.who) == (4, 2, "ann")
    assert counts(store.load("flow")) == [2]
    store.undo("flow")
    assert counts(store.load("flow")) == [1]
    store.save("flow", flow(9))
    # What was in force before the 9 is what the undo left, not the 3.
    store.undo("flow")
    assert counts(store.load("flow")) == [1]
    store.undo("flow")
    assert store.load("flow") == "[]"
    with pytest.raises(NothingToUndo):
        store.undo("flow")
    assert [one.number for one in store.history("flow")] == list(range(1, 9))


def test_undo_goes_to_any_version_that_is_kept(store: VersionedStore) -> None:
    for number in (1, 2, 3):
        store.save("flow", flow(number))
    store.undo("flow", to=1)
    store.undo("flow", to=3)
    assert counts(store.load("flow")) == [3]
    with pytest.raises(NothingToUndo, match=r"\[1, 2, 3, 4, 5\]"):
        store.undo("flow", to=77)
    with pytest.raises(NothingToUndo, match="no degrade rules"):
        store.undo("degrade")


def test_undo_does_not_invent_what_is_no_longer_kept(place: Place) -> None:
    store = place.store(history_count_max=2)
    for number in (1, 2, 3):
        store.save("flow", flow(number))
    store.undo("flow")
    with pytest.raises(NothingToUndo, match="before version 2"):
        store.undo("flow")
    assert counts(store.load("flow")) == [2]


def test_what_is_no_list_of_rules_is_not_kept(store: VersionedStore) -> None:
    store.save("flow", flow(1))
    for document in ('{"resource":"r"}', "[", ""):
        with pytest.raises((ValueError, TypeError)):
            store.save("flow", document)
    assert counts(store.load("flow")) == [1]
    with pytest.raises(ValueError, match="nonsense"):
        store.save("nonsense", flow(1))


@pytest.mark.parametrize(
    "harm",
    [
        b"",
        b"\x00" * 100,
        b'{"format":1,"kind":"flow","number":2',
        b'{"format":2}',
        b"[" * 100_000,
        b"[]",
    ],
)
def test_a_damaged_version_is_named_and_the_one_before_counts(
    place: Place, caplog: pytest.LogCaptureFixture, harm: bytes
) -> None:
    store = place.store()
    store.save("flow", flow(1))
    store.save("flow", flow(2))
    place.harm("flow", 2, harm)
    assert counts(store.load("flow")) == [1]
    assert "NOT in force" in caplog.text
    assert [version.number for version in store.history("flow")] == [1]
    # The number of the damaged version is not given away again.
    store.save("flow", flow(3))
    assert store.head_number("flow") == 3
    assert counts(store.load("flow")) == [3]


def test_a_number_that_flipped_is_found(place: Place) -> None:
    store = place.store()
    store.save("flow", flow(1_000))
    found = store.head("flow")
    assert found is not None
    place.harm("flow", 1, write_version(found).replace(b"1000", b"9000"))
    with pytest.raises(RuleStoreDamaged):
        store.load("flow")


def test_rules_that_are_all_damaged_are_never_no_rules(place: Place) -> None:
    store = place.store()
    store.save("flow", flow(1))
    place.harm("flow", 1, b"?")
    for _ in range(2):
        with pytest.raises(RuleStoreDamaged):
            Sentinel(rule_store=store)
    store.save("flow", flow(5))
    assert Sentinel(rule_store=store).flow.rules[0].count == 5


def test_rule_files_of_others_count_until_something_is_saved(place: Place, tmp_path: Path) -> None:
    seed = tmp_path / "flowrule.json"
    seed.write_text(
        "/*\n * rules of a Spring project\n */\n"
        '[{"resource":"r","count":7,"controlBehavior":"0","unknown":{"a":1},"limitApp":null}]'
    )
    store = place.store(seeds=[seed])
    assert Sentinel(rule_store=store).flow.rules[0].count == 7
    store.save("flow", flow(8))
    assert Sentinel(rule_store=store).flow.rules[0].count == 8
    seed.unlink()
    store.undo("flow")
    assert store.load("flow") == "[]"


def test_a_seed_that_is_not_there_or_cannot_be_read_stops_the_start(
    place: Place, tmp_path: Path
) -> None:
    seed = tmp_path / "flow-rules.json"
    with pytest.raises(FileNotFoundError):
        Sentinel(rule_store=place.store(seeds=[seed]))
    seed.write_text("[{")
    with pytest.raises(RuleDocumentError):
        Sentinel(rule_store=place.store(seeds=[seed]))


def test_c41_bad_rules_are_named_and_not_kept_and_good_ones_are(store: VersionedStore) -> None:
    sentinel = Sentinel(rule_store=store, clock=VirtualClock())
    report = sentinel.load_rules(
        "flow",
        '[{"resource":"a","count":1},{"resource":"b","count":-1},{"resource":"c","count":3}]',
        Change("ann", "three"),
    )
    assert [(one.index, one.problems[0].field) for one in report.refused] == [(1, "count")]
    assert report.saved
    assert counts(store.load("flow")) == [1, 3]
    assert store.history("flow")[-1].change.who == "ann"
    report = sentinel.load_rules("flow", '[{"resource":""}]')
    assert not report.applied
    assert store.head_number("flow") == 1


def test_writers_take_turns_and_no_version_is_lost(place: Place) -> None:
    stores = [place.store(history_count_max=100) for _ in range(4)]

    def write(store: VersionedStore, base: int) -> None:
        for step in range(10):
            store.save("flow", flow(base + step))

    threads = [
        threading.Thread(target=write, args=(store, 100 * index))
        for index, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = stores[0].history("flow")
    assert [version.number for version in kept] == list(range(1, 41))
    assert sorted(counts(version.document)[0] for version in kept) == sorted(
        100 * index + step for index in range(4) for step in range(10)
    )


def test_two_people_who_edit_the_same_version_do_not_undo_each_other(place: Place) -> None:
    ann, bob = (Sentinel(rule_store=place.store()) for _ in range(2))
    store = place.store()
    ann.load_rules("flow", flow(1), Change("ann", made_from=0))
    bob.restore_rules("flow")
    ann.load_rules("flow", flow(2), Change("ann", made_from=1))
    with pytest.raises(RuleConflict, match="ann since version 1") as conflict:
        bob.load_rules("flow", flow(3), Change("bob", made_from=1))
    assert (conflict.value.made_from, conflict.value.head) == (1, 2)
    # What bob's process had in force it still has, and the store has ann's.
    assert bob.flow.rules[0].count == 1
    assert counts(store.load("flow")) == [2]
    with pytest.raises(RuleConflict):
        store.undo("flow", Change("bob", made_from=1))
    assert store.undo("flow", Change("bob", made_from=2)).restores == 1
    assert [version.change.made_from for version in store.history("flow")] == [None] * 3


def test_of_many_who_edit_one_version_at_once_one_is_first(place: Place) -> None:
    stores = [place.store() for _ in range(8)]
    stores[0].save("flow", flow(0))
    outcomes: list[str] = []

    def edit(index: int) -> None:
        try:
            stores[index].save("flow", flow(index), Change(made_from=1))
            outcomes.append("kept")
        except RuleConflict:
            outcomes.append("refused")

    threads = [threading.Thread(target=edit, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["kept"] + ["refused"] * 7
    assert [version.number for version in stores[0].history("flow")] == [1, 2]


def test_versions_of_another_store_keep_their_numbers(place: Place, tmp_path: Path) -> None:
    other = FileRuleStore(tmp_path / "other")
    for number in range(1, 5):
        other.save("flow", flow(number), Change("ann", str(number)))
    store = place.store()
    assert store.adopt("flow", other.history("flow")[1:]) == 3
    assert store.history("flow") == other.history("flow")[1:]
    assert store.adopt("flow", other.history("flow")) == 0
    store.save("flow", flow(9))
    assert store.head_number("flow") == 5
    assert store.undo("flow").restores == 4


def test_another_process_takes_the_rules_up(place: Place) -> None:
    first, second = (Sentinel(rule_store=place.store()) for _ in range(2))
    follower = RuleFollower(second, place.store())
    assert not follower.look("flow")
    first.load_rules("flow", flow(50))
    assert follower.look("flow")
    assert second.dump_rules("flow") == first.dump_rules("flow")
    assert not follower.look("flow")


async def test_a_follower_that_runs_needs_no_looking(place: Place) -> None:
    first, second = (Sentinel(rule_store=place.store()) for _ in range(2))
    following = asyncio.create_task(RuleFollower(second, place.store(), interval_s=0.01).run())
    try:
        first.load_rules("flow", flow(50))
        async with asyncio.timeout(60):
            while second.dump_rules("flow") != first.dump_rules("flow"):
                await asyncio.sleep(0.005)
    finally:
        following.cancel()
        await asyncio.wait([following])


def test_a_follower_keeps_the_old_rules_when_the_store_is_harmed(place: Place) -> None:
    first, second = (Sentinel(rule_store=place.store()) for _ in range(2))
    follower = RuleFollower(second, place.store())
    first.load_rules("flow", flow(50))
    assert follower.look("flow")
    first.load_rules("flow", flow(60))
    for number in (1, 2):
        place.harm("flow", number, b"?")
    assert not follower.look("flow")
    assert second.flow.rules[0].count == 50
    assert second.alarms.internal_errors == 1
    first.load_rules("flow", flow(70))
    assert follower.look("flow")
    assert second.flow.rules[0].count == 70


def test_rules_in_force_are_in_force_from_the_first_entry_of_a_new_process(place: Place) -> None:
    Sentinel(rule_store=place.store()).load_rules("flow", flow(2))
    sentinel = Sentinel(rule_store=place.store(), clock=VirtualClock())
    passed = [not isinstance(sentinel.try_entry("r"), Exception) for _ in range(5)]
    assert passed == [True, True, False, False, False]
