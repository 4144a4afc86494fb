"""Rules on disk: kept, gone back over, and never silently lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from seckill.sentinel import Change, RuleDocumentError, Sentinel, VirtualClock
from seckill.sentinel.rules import KINDS
from seckill.sentinel.stores import (
    FileRuleStore,
    NothingToUndo,
    RuleFollower,
    RuleStoreBusy,
    RuleStoreDamaged,
    file_store,
    kind_of_file,
)

CRASHES = Path(__file__).with_name("crashing_store.py")


def flow(count: int) -> str:
    return json.dumps([{"resource": "r", "count": count}])


def counts(document: str | None) -> list[int]:
    assert document is not None
    return [rule["count"] for rule in json.loads(document)]


@pytest.fixture
def store(tmp_path: Path) -> FileRuleStore:
    times = iter(range(1_764_579_240_000, 1_764_579_340_000, 1_000))
    return FileRuleStore(tmp_path / "rules", now_ms=lambda: next(times))


def test_every_kind_is_kept_by_itself(store: FileRuleStore) -> None:
    for number, kind in enumerate(KINDS, 1):
        assert store.load(kind) is None
        store.save(kind, flow(number))
    assert [counts(store.load(kind)) for kind in KINDS] == [[1], [2], [3], [4], [5]]


def test_a_version_says_who_when_and_why(store: FileRuleStore) -> None:
    store.save("flow", flow(1), Change("ann", "the sale begins\nsoon"))
    store.save("flow", flow(2))
    first, second = store.history("flow")
    assert (first.number, first.change.who, first.change.why) == (1, "ann", "the sale begins soon")
    assert (first.at_ms, second.at_ms) == (1_764_579_240_000, 1_764_579_241_000)
    assert second.change == Change()


def test_text_of_every_language_comes_back_as_it_was(store: FileRuleStore) -> None:
    document = json.dumps([{"resource": "GET:/商品/a+b%41 c", "count": 0.5}], ensure_ascii=False)
    store.save("flow", document)
    assert json.loads(store.load("flow") or "") == json.loads(document)


def test_history_is_bounded_and_numbers_go_on(tmp_path: Path) -> None:
    store = FileRuleStore(tmp_path, history_count_max=3)
    for number in range(1, 8):
        store.save("flow", flow(number))
    assert [version.number for version in store.history("flow")] == [5, 6, 7]
    assert len(list((tmp_path / "flow").iterdir())) == 3
    with pytest.raises(ValueError, match="at least 2"):
        FileRuleStore(tmp_path, history_count_max=1)


def test_undo_goes_back_one_step_and_then_further(store: FileRuleStore) -> None:
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


def test_undo_goes_to_any_version_that_is_kept(store: FileRuleStore) -> None:
    for number in (1, 2, 3):
        store.save("flow", flow(number))
    store.undo("flow", to=1)
    store.undo("flow", to=3)
    assert counts(store.load("flow")) == [3]
    with pytest.raises(NothingToUndo, match=r"\[1, 2, 3, 4, 5\]"):
        store.undo("flow", to=77)
    with pytest.raises(NothingToUndo, match="no degrade rules"):
        store.undo("degrade")


def test_undo_does_not_invent_what_is_no_longer_kept(tmp_path: Path) -> None:
    store = FileRuleStore(tmp_path, history_count_max=2)
    for number in (1, 2, 3):
        store.save("flow", flow(number))
    store.undo("flow")
    with pytest.raises(NothingToUndo, match="before version 2"):
        store.undo("flow")
    assert counts(store.load("flow")) == [2]


def test_what_is_no_list_of_rules_is_not_kept(store: FileRuleStore) -> None:
    store.save("flow", flow(1))
    for document in ('{"resource":"r"}', "[", ""):
        with pytest.raises((ValueError, TypeError)):
            store.save("flow", document)
    assert counts(store.load("flow")) == [1]


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
def test_a_damaged_file_is_set_aside_loudly_and_the_version_before_counts(
    store: FileRuleStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: bytes
) -> None:
    store.save("flow", flow(1))
    store.save("flow", flow(2))
    path = tmp_path / "rules" / "flow" / "00000002.json"
    path.write_bytes(harm)
    assert counts(store.load("flow")) == [1]
    assert "NOT in force" in caplog.text
    assert path.with_name("00000002.json.damaged").read_bytes() == harm
    # The number of the damaged version is not given away again.
    store.save("flow", flow(3))
    assert store.head_number("flow") == 3


def test_a_number_that_flipped_on_the_disk_is_found(store: FileRuleStore, tmp_path: Path) -> None:
    store.save("flow", flow(1_000))
    path = tmp_path / "rules" / "flow" / "00000001.json"
    path.write_bytes(path.read_bytes().replace(b"1000", b"9000"))
    with pytest.raises(RuleStoreDamaged):
        store.load("flow")


def test_rules_that_are_all_damaged_are_never_no_rules(
    store: FileRuleStore, tmp_path: Path
) -> None:
    store.save("flow", flow(1))
    (tmp_path / "rules" / "flow" / "00000001.json").write_bytes(b"?")
    for _ in range(2):
        with pytest.raises(RuleStoreDamaged, match=r"00000001\.json\.damaged"):
            Sentinel(rule_store=store)
    store.save("flow", flow(5))
    assert Sentinel(rule_store=store).flow.rules[0].count == 5


def test_rule_files_of_others_count_until_something_is_saved(tmp_path: Path) -> None:
    seed = tmp_path / "flowrule.json"
    seed.write_text(
        "/*\n * rules of a Spring project\n */\n"
        '[{"resource":"r","count":7,"controlBehavior":"0","unknown":{"a":1},"limitApp":null}]'
    )
    store = FileRuleStore(tmp_path / "rules", seeds=[seed])
    assert Sentinel(rule_store=store).flow.rules[0].count == 7
    store.save("flow", flow(8))
    assert Sentinel(rule_store=store).flow.rules[0].count == 8
    seed.unlink()
    store.undo("flow")
    assert store.load("flow") == "[]"
    with pytest.raises(FileNotFoundError):
        FileRuleStore(tmp_path / "others", seeds=[seed]).load("flow")


def test_a_seed_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    seed = tmp_path / "flow-rules.json"
    seed.write_text("[{")
    with pytest.raises(RuleDocumentError):
        Sentinel(rule_store=FileRuleStore(tmp_path / "rules", seeds=[seed]))


def test_a_file_name_says_which_kind_it_has() -> None:
    names = {
        "flowrule.json": "flow",
        "FlowRule.json": "flow",
        "param-flow-rules.json": "param-flow",
        "ParamFlowRule.json": "param-flow",
        "degrade.json": "degrade",
        "SystemRules.json": "system",
        "authority_rules.json": "authority",
    }
    assert {name: kind_of_file(name) for name in names} == names
    with pytest.raises(ValueError, match="does not say"):
        kind_of_file("application.json")


def test_bad_rules_are_not_kept_and_good_ones_are(store: FileRuleStore) -> None:
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


def test_a_full_disk_is_reported_and_leaves_the_old_rules_for_the_next_start(
    store: FileRuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentinel = Sentinel(rule_store=store)
    sentinel.load_rules("flow", flow(1))

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(file_store.os, "fsync", full)
        report = sentinel.load_rules("flow", flow(2))
    assert (report.applied, report.saved) == (True, False)
    assert counts(store.load("flow")) == [1]
    assert [version.number for version in store.history("flow")] == [1]
    assert sentinel.load_rules("flow", flow(3)).saved


def test_writers_take_turns_and_no_version_is_lost(tmp_path: Path) -> None:
    stores = [FileRuleStore(tmp_path, history_count_max=100) for _ in range(4)]

    def write(store: FileRuleStore, base: int) -> None:
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


def test_a_writer_that_hangs_is_named_and_not_waited_for_without_end(
    store: FileRuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_store, "LOCK_WAIT_S", 0.05)
    with store._writing(), pytest.raises(RuleStoreBusy):
        store.save("flow", flow(1))
    assert store.load("flow") is None


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Sentinel, Sentinel, RuleFollower]:
    """Two processes' engines on one folder, and the follower of the second."""
    first, second = (FileRuleStore(tmp_path) for _ in range(2))
    follower_engine = Sentinel(rule_store=second)
    return (
        Sentinel(rule_store=first),
        follower_engine,
        RuleFollower(follower_engine, second, interval_s=0.01),
    )


def test_another_process_takes_the_rules_up(
    pair: tuple[Sentinel, Sentinel, RuleFollower],
) -> None:
    first, second, follower = pair
    assert not follower.look("flow")
    first.load_rules("flow", flow(50))
    assert follower.look("flow")
    assert second.dump_rules("flow") == first.dump_rules("flow")
    assert not follower.look("flow")


def test_a_follower_keeps_the_old_rules_when_the_store_fails(
    pair: tuple[Sentinel, Sentinel, RuleFollower], tmp_path: Path
) -> None:
    first, second, follower = pair
    first.load_rules("flow", flow(50))
    assert follower.look("flow")
    first.load_rules("flow", flow(60))
    for path in (tmp_path / "flow").iterdir():
        path.write_bytes(b"?")
    assert not follower.look("flow")
    assert second.flow.rules[0].count == 50
    assert second.alarms.internal_errors == 1
    first.load_rules("flow", flow(70))
    assert follower.look("flow")
    assert second.flow.rules[0].count == 70


@pytest.mark.parametrize("store", ["file", "naive"], indirect=False)
def test_killed_at_any_line_it_leaves_the_old_rules_or_the_new(tmp_path: Path, store: str) -> None:
    """Kills a writer at its first line, then at its second, and so on to its end.

    The naive store writes in place: the control, which shows that the kills can do harm at all.
    """
    ran = subprocess.run(
        [sys.executable, str(CRASHES), store, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    if store == "naive":
        assert found["harmed"] > 0
    else:
        assert found["harmed"] == 0
        assert found["old"] > 10
        assert found["new"] > 3
