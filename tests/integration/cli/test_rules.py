"""`seckill rules`: files as people have them, reports that name what is wrong, and the way back."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from seckill.cli import app
from seckill.domain.errors import InvalidValue
from seckill.runtime.errors import RulesUnusable

SPRING_FLOW = """\
// Flow rules of the shop, as Spring Cloud Alibaba reads them from a file.
/* resource: the name in @SentinelResource */
[
  {
    "resource": "seckill-jk",
    "limitApp": "default",
    "grade": 1,
    "count": 1000,
    "strategy": 0,
    "controlBehavior": 0,
    "clusterMode": false,
    "gmtCreate": 1700000000000
  }
]
"""
AUTHORITY = '[{"resource": "good", "limitApp": "abc", "strategy": "White"}]'
PARAM_FLOW = '[{"resource": "seckill-jk", "paramIdx": 0, "count": 5, "grade": 1}]'


class Commands:
    """The program, in a data directory of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runner = CliRunner()

    def run(self, *arguments: str, text: str | None = None) -> Result:
        return self.runner.invoke(
            app, ["rules", *arguments, "--data-dir", str(self.folder / "data")], input=text
        )

    def ok(self, *arguments: str, text: str | None = None) -> str:
        result = self.run(*arguments, text=text)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.chdir(tmp_path)
    return Commands(tmp_path)


def test_rule_files_of_java_services_are_taken_as_they_are(commands: Commands) -> None:
    files = [
        commands.write("flowrule.json", SPRING_FLOW),
        commands.write("AuthorityRule.json", AUTHORITY),
        commands.write("param-flow-rules.json", PARAM_FLOW),
    ]
    commands.ok("import", *files, "--who", "ann", "--why", "moved from Java")
    rules = commands.json("list")
    assert (rules["flow"][0]["resource"], rules["flow"][0]["count"]) == ("seckill-jk", 1000)
    assert rules["authority"][0]["strategy"] == 0
    assert rules["param-flow"][0]["paramIdx"] == 0
    assert rules["degrade"][0]["resource"] == "seckill-redis", "the default ones stay"
    (version,) = commands.json("history", "authority")
    assert (version["who"], version["why"]) == ("ann", "moved from Java")


def test_the_list_says_in_plain_words_what_holds_per_process(commands: Commands) -> None:
    commands.ok("set", "flow", "-", text=SPRING_FLOW)
    commands.ok("set", "param-flow", "-", text=PARAM_FLOW)
    commands.ok("set", "system", "-", text='[{"qps": 500, "highestCpuUsage": 0.9}]')
    told = commands.ok("list")
    assert "at most 1,000 a second (all web processes together)" in told
    assert "at most 5 a second for each goods (per process: each web process)" in told
    assert "CPU at most 0.9 (per process: each web process)" in told
    assert "requests a second at most 500 (per process: each web process)" in told
    other = '[{"resource": "else", "count": 7}, {"resource": "seckill-jk", "grade": 0, "count": 9}]'
    commands.ok("set", "flow", "-", text=other)
    told = commands.ok("list", "flow")
    assert "at most 7 a second (per process: each web process)" in told
    assert "at most 9 at a time (per process: each web process)" in told


def test_bad_rules_are_named_and_good_ones_kept(commands: Commands) -> None:
    document = json.dumps(
        [
            {"resource": "seckill-jk", "count": 10},
            {"resource": "", "count": 10},
            {"resource": "seckill-jk", "count": -1},
        ]
    )
    result = commands.run("set", "flow", "-", "--json", text=document)
    assert result.exit_code == 1
    (report,) = json.loads(result.stdout)
    assert (report["applied"], report["given"], report["in_force"]) == (True, 3, 1)
    assert [bad["index"] for bad in report["refused"]] == [1, 2]
    assert "resource: must not be blank" in report["refused"][0]["reasons"]
    assert "count" in report["refused"][1]["reasons"][0]
    assert "rule 1" in result.stderr
    assert [rule["count"] for rule in commands.json("list", "flow")["flow"]] == [10]


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ('"text"', "neither a list"),
        ("[1]", "rule 0"),
        ('[{"resource": "", "count": 1}]', "rule 0"),
        ("[" * 40 + "]" * 40, "nested deeper"),
        ('[{"resource": "x", "resource": "y"}]', "stands twice"),
        ('[{"resource": "x", "count": NaN}]', "not a number"),
        (" " * (4 * 1024 * 1024 + 1) + "[]", "are more than"),
    ],
    ids=lambda text: text.strip()[:20],
)
def test_what_holds_no_rule_changes_nothing(commands: Commands, document: str, told: str) -> None:
    commands.ok("set", "flow", "-", text=SPRING_FLOW)
    result = commands.run("set", "flow", "-", text=document)
    assert result.exit_code == 1
    assert told in result.stderr
    assert [rule["count"] for rule in commands.json("list", "flow")["flow"]] == [1000]
    assert len(commands.json("history", "flow")) == 1


def test_undo_goes_back_step_by_step_and_to_any_version(commands: Commands) -> None:
    for count in (1, 2, 3):
        commands.ok("set", "flow", "-", text=f'[{{"resource": "x", "count": {count}}}]')

    def counts() -> list[int]:
        return [rule["count"] for rule in commands.json("list", "flow")["flow"]]

    assert commands.json("undo", "flow", "--why", "too many")["restores"] == 2
    assert counts() == [2]
    commands.ok("undo", "flow")
    assert counts() == [1]
    commands.ok("undo", "flow", "--to", "3")
    assert counts() == [3]
    assert [v["restores"] for v in commands.json("history", "flow")] == [None] * 3 + [2, 1, 3]
    result = commands.run("undo", "flow", "--to", "99")
    assert isinstance(result.exception, RulesUnusable)
    assert isinstance(commands.run("undo", "system").exception, RulesUnusable)


def test_what_is_exported_can_be_imported(commands: Commands, tmp_path: Path) -> None:
    commands.ok("set", "flow", "-", text=SPRING_FLOW)
    commands.ok("export", "--to", str(tmp_path / "out"))
    before = commands.json("list")
    assert json.loads(commands.ok("export", "flow")) == before["flow"]
    other = Commands(tmp_path)
    other.folder = tmp_path / "elsewhere"
    other.ok("import", *map(str, sorted((tmp_path / "out").iterdir())))
    assert other.json("list") == before


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("set", "flows-of-water", "-"), "kind"),
        (("list", "nothing"), "kind"),
        (("set", "flow", "no-such-file.json"), "FILE"),
        (("import", "rules-of-something.json"), "FILE"),
        (("import", "flow.json", "flowrules.json"), "FILE"),
        (("export",), "KIND"),
    ],
)
def test_wrong_use_names_what_is_wrong(
    commands: Commands, arguments: tuple[str, ...], field: str
) -> None:
    error = commands.run(*arguments, text="[]").exception
    assert isinstance(error, InvalidValue)
    assert error.field == field


def test_one_file_that_cannot_be_read_keeps_the_others_out(commands: Commands) -> None:
    good = commands.write("flowrule.json", SPRING_FLOW)
    assert commands.run("import", good, "degraderule.json").exception
    assert commands.json("list", "flow") == {"flow": []}


def test_c46_a_warm_up_rule_in_front_of_a_sale_is_warned_of(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    warming = '[{"resource": "seckill-jk", "count": 900, "controlBehavior": 1}]'
    result = commands.run("set", "flow", "-", "--json", text=warming)
    assert result.exit_code == 0
    (report,) = json.loads(result.stdout)
    assert "about 300 of 900" in report["cold_gates"][0]
    assert "Set pre_warm to on" in result.stderr
    monkeypatch.setenv("SECKILL_PRE_WARM", "on")
    assert "pre_warm" not in commands.run("set", "flow", "-", text=warming).stderr
    monkeypatch.delenv("SECKILL_PRE_WARM")
    for harmless in ('[{"resource": "else", "count": 9, "controlBehavior": 1}]', SPRING_FLOW):
        assert "pre_warm" not in commands.run("set", "flow", "-", text=harmless).stderr
