"""Rules on disk: what only a folder can have. What every store promises is in tests/contract."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from seckill.sentinel import Sentinel
from seckill.sentinel.stores import (
    FileRuleStore,
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


def test_the_files_of_old_versions_are_removed(tmp_path: Path) -> None:
    store = FileRuleStore(tmp_path, history_count_max=3)
    for number in range(1, 8):
        store.save("flow", flow(number))
    assert [version.number for version in store.history("flow")] == [5, 6, 7]
    assert len(list((tmp_path / "flow").iterdir())) == 3


def test_a_damaged_file_is_set_aside_loudly_and_the_version_before_counts(
    store: FileRuleStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harm = b"[" * 100_000
    store.save("flow", flow(1))
    store.save("flow", flow(2))
    path = tmp_path / "rules" / "flow" / "00000002.json"
    path.write_bytes(harm)
    assert counts(store.load("flow")) == [1]
    assert "NOT in force" in caplog.text
    assert path.with_name("00000002.json.damaged").read_bytes() == harm


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


def test_a_writer_that_hangs_is_named_and_not_waited_for_without_end(
    store: FileRuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_store, "LOCK_WAIT_S", 0.05)
    with store._writing(), pytest.raises(RuleStoreBusy):
        store.save("flow", flow(1))
    assert store.load("flow") is None


def test_a_machine_that_stood_still_makes_no_writer_hang(
    store: FileRuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps = []
    with contextlib.ExitStack() as writer:
        writer.enter_context(store._writing())

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 3:
                writer.close()

        monkeypatch.setattr("time.sleep", sleep)
        monkeypatch.setattr("time.monotonic", lambda: 60.0 * len(naps))
        store.save("flow", flow(1))
    assert len(naps) == 3
    assert counts(store.load("flow")) == [1]


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
