"""House rules that no linter knows."""

import re
from pathlib import Path

import pytest

from seckill.admission.scripts import Status
from seckill.domain.outcomes import Outcome

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "seckill"
LUA = SOURCE / "admission" / "lua"
SCRIPTS = sorted(p for p in LUA.glob("*.lua") if p.name != "bucket.lua")
ALL_SCRIPTS = [*SCRIPTS, *sorted((SOURCE / "sentinel" / "redis" / "lua").glob("*.lua"))]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WRITTEN_BY_HAND = sorted(
    path
    for folder in ("src", "tests", "scripts", "docs")
    for path in (ROOT / folder).rglob("*")
    if path.is_file()
    and path.suffix in {".py", ".lua", ".md", ".toml", ".sh", ".css", ".js", ".html", ".mako", ""}
    and not any(part.startswith(".") or part in {"__pycache__", "vendor"} for part in path.parts[len(ROOT.parts):])
)  # fmt: skip
DECIDED_OUTSIDE_LUA = {Outcome.NO_SUCH_GOODS, Outcome.BLOCKED, Outcome.UNDECIDED}
"""Outcomes that no script can say: it does not know goods, flow rules, or that it is away."""


def code_of(script: Path) -> str:
    """A Lua file without its comments."""
    return re.sub(r"--[^\n]*", "", script.read_text(encoding="utf-8"))


def head_of(script: Path) -> str:
    """The comment that a Lua file begins with."""
    lines = []
    for line in script.read_text(encoding="utf-8").splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    return "\n".join(lines)


def test_the_reply_codes_of_admit_are_the_outcomes_that_a_script_can_decide() -> None:
    code = code_of(LUA / "admit.lua")
    assigned = set()
    for names, values in re.findall(r"^[^\n=]*?\b((?:\w+, )*\w+) = ([^\n]*)", code, re.MULTILINE):
        if names.split(", ")[0] in {"code", "refused_by_window"}:
            first = re.split(r",", values)[0]
            assigned |= {int(n) for n in re.findall(r"\b\d+\b", re.sub(r"== \d+|> \d+", "", first))}
    assigned |= {int(n) for n in re.findall(r"(?:refused_by_window|code) = (\d+)", code)}
    assert assigned == set(Outcome) - DECIDED_OUTSIDE_LUA
    head = head_of(LUA / "admit.lua")
    explained = {int(n) for n in re.findall(r"(?:code|·|,) (\d+) [a-z]", head)}
    assert explained == assigned, "each code is explained in the head of the script"


def test_the_statuses_of_the_scripts_are_those_that_python_knows() -> None:
    code = code_of(LUA / "bucket.lua")
    names, values = re.findall(r"local (OK(?:, \w+)+) = ([\d, ]+)", code)[0]
    in_lua = dict(zip(names.split(", "), map(int, values.split(", ")), strict=True))
    assert in_lua == {status.name: int(status) for status in Status}
    for script in SCRIPTS:
        used = set(re.findall(r"\b[A-Z_]{2,}\b", code_of(script)))
        local = set(re.findall(r"local ([A-Z_, ]+) =", code_of(script)))
        known = in_lua.keys() | {"KEYS", "ARGV"} | set(", ".join(local).split(", "))
        commands = set(re.findall(r"p?call\('([A-Z]+)'", code_of(script)))
        words = {
            w for text in re.findall(r"'[^']*'", code_of(script)) for w in re.findall(r"\w+", text)
        }
        assert used <= known | commands | words | {"FENCED", "DOUBTED", "FIELDS"}, script.name
    explained = dict(re.findall(r"^(\d) (\w+)\b", head_of(LUA / "bucket.lua"), re.MULTILINE))
    assert {int(n) for n in explained} == set(in_lua.values())


@pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda p: p.stem)
def test_every_script_begins_with_its_contract(script: Path) -> None:
    head = head_of(script)
    assert re.match(r"[A-Z][^\n]+", head), "the first line says what it is for"
    for word in ("KEYS 1", "Reply", "Work"):
        assert re.search(rf"^{word}\b", head, re.MULTILINE), f"{word} is not explained"
    code = code_of(script)
    if "ARGV[" in code:
        assert re.search(r"^ARGV 1", head, re.MULTILINE)
    explained = {
        int(n) for n in re.findall(r"(?:^|^KEYS |  )(\d) \w+(?: \w+)? \(", head, re.MULTILINE)
    }
    used = {int(n) for n in re.findall(r"KEYS\[(\d)\]", code)}
    assert used == explained
    assert "Smallest Redis: 6.2" in head
    assert "hash tag" in head or explained == {1}


@pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda p: p.stem)
def test_a_script_touches_only_keys_that_it_was_given(script: Path) -> None:
    """Else it would not run on a cluster."""
    without_keys = {"INFO", "TIME"}
    for file in (script, LUA / "bucket.lua"):
        for command, key in re.findall(r"call\('(\w+)',? ?('?[\w\[\]]*)", code_of(file)):
            if command == "XGROUP" or command in without_keys:
                continue
            assert key.startswith(("KEYS[", "meta_key", "buyers_key", "outbox_key", "key")), (
                f"{file.name}: {command} {key}"
            )


def test_key_names_are_made_in_one_file_only() -> None:
    """A text that ends like a key, anywhere else, is a second source of names."""
    keys = SOURCE / "admission" / "keys.py"
    made_there = re.findall(r"base \+ \"(\w+)\"|prefix\}:(\w+)", keys.read_text(encoding="utf-8"))
    suffixes = [one or other for one, other in made_there]
    assert {"meta", "buyers", "outbox", "sales"} <= set(suffixes)
    second = re.compile(rf"[:}}](?:{'|'.join(suffixes)})[\"']")
    for path in sorted(SOURCE.rglob("*.py")):
        if path != keys:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                assert not second.search(line), f"{path.relative_to(ROOT)}:{number}: {line}"


def test_no_lua_text_stands_in_python() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        assert "redis.call(" not in path.read_text(encoding="utf-8"), path


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
    found = []
    for path in WRITTEN_BY_HAND:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}"
            for number, line in enumerate(text.splitlines(), start=1)
            if later.search(line)
        ]
    assert found == []


def headings(path: Path) -> list[tuple[int, str]]:
    text = re.sub(
        r"^(```|~~~).*?^\1", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return [(len(m[1]), m[2].strip()) for m in re.finditer(r"^(#{1,6}) (.+)$", text, re.MULTILINE)]


def anchor(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_to_a_file_of_ours_leads_somewhere(document: Path) -> None:
    text = re.sub(
        r"^(```|~~~).*?^\1",
        "",
        document.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    for target in re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, fragment = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), f"{document.name} links to {target}"
        if fragment and file.suffix == ".md":
            assert fragment in {anchor(h) for _, h in headings(file)}, f"no heading {target}"


def test_every_document_that_the_code_names_exists() -> None:
    missing = set()
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in {".py", ".lua"}:
            for name in re.findall(r"docs/[\w/.-]+\.md", path.read_text(encoding="utf-8")):
                if not (ROOT / name).exists():
                    missing.add(f"{name} (in {path.relative_to(ROOT)})")
    assert missing == set()


def test_both_readmes_have_the_same_headings() -> None:
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"
    if english.exists() and chinese.exists():
        assert [level for level, _ in headings(english)] == [
            level for level, _ in headings(chinese)
        ]
        assert len(headings(english)) > 1
        blocks = [
            re.findall(r"^```(\w*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            for path in (english, chinese)
        ]
        assert blocks[0] == blocks[1], "the same commands in both"
