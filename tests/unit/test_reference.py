"""What the documents say of the program is what the program says of itself."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from seckill.cli.reference import cli_markdown, commands, options_of

REPOSITORY = Path(__file__).parents[2]
READMES = (REPOSITORY / "README.md", REPOSITORY / "README.zh-CN.md")
DOCUMENTS = sorted(
    [*READMES, REPOSITORY / "CHANGELOG.md", *(REPOSITORY / "docs").rglob("*.md")],
)

_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TYPED = re.compile(r"(?:^|[\s`/(])seckill ((?:[^\s`|;&]+ ?)+)", re.MULTILINE)


def test_the_page_of_the_commands_is_the_one_that_the_program_makes() -> None:
    page = REPOSITORY / "docs" / "reference" / "cli.md"
    assert page.read_text(encoding="utf-8") == cli_markdown(), "write it anew: scripts/docs"


def test_each_command_and_each_option_says_what_it_is() -> None:
    for name, command in commands().items():
        assert (command.help or "").strip(), f"{name} has no help"
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"


def _named(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def _code(text: str) -> Iterator[str]:
    """What stands in fences and between backticks: the rest is prose about the project Seckill."""
    for fence in _FENCE.findall(text):
        yield from fence.splitlines()[1:-1]
    yield from re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))


def _wrong_commands(text: str) -> list[str]:
    """The commands of a document that the program does not have, or not with these options."""
    known = commands()
    wrong = []
    for line in _code(text):
        for typed in _TYPED.findall(line.split(" #")[0]):
            words = typed.split()
            name = "seckill"
            while words and f"{name} {words[0]}" in known:
                name = f"{name} {words.pop(0)}"
            plain = re.fullmatch(r"[a-z-]+", words[0]) if words else None
            unknown = plain and (name == "seckill" or getattr(known[name], "commands", None))
            options = {word.split("=")[0] for word in words if word.startswith("-")}
            options = {option for option in options if re.fullmatch(r"--?[a-z-]+", option)}
            if unknown or options - options_of(known[name]):
                wrong.append(f"seckill {typed.strip()}")
    return wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=_named)
def test_every_command_in_the_documents_exists(path: Path) -> None:
    assert not _wrong_commands(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("$ seckill sale show 1 --json", False),
        (".venv/bin/seckill stress --buyers 10 | head", False),
        ("seckill sale stock 1 --by -5", False),
        ("seckill sell 1", True),
        ("seckill sale shw 1", True),
        ("seckill rebuild --goods 1", True),
        ("SECKILL_BIND=x seckill serve --port 1", True),
    ],
)
def test_a_command_that_does_not_exist_is_seen(line: str, wrong: bool) -> None:
    assert bool(_wrong_commands(f"```console\n{line}\n```")) is wrong
    assert bool(_wrong_commands(f"Type `{line}` now.")) is wrong


def _headings(text: str) -> Iterator[tuple[int, str]]:
    for line in _FENCE.sub("", text).splitlines():
        if found := re.match(r"(#{1,6}) (.+)", line):
            yield len(found[1]), found[2]


def _anchors(text: str) -> set[str]:
    """The anchors that a forge makes of headings."""
    found = set()
    for _, heading in _headings(text):
        words = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", ""))
        found.add(words.replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=_named)
def test_every_link_between_the_documents_leads_somewhere(path: Path) -> None:
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    for target in _LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{target} is not there"
        assert there.is_relative_to(REPOSITORY), f"{target} leads out of the project"
        if anchor:
            assert anchor in _anchors(there.read_text(encoding="utf-8")), f"no heading {target}"


def test_both_readmes_have_the_same_headings() -> None:
    levels = [[level for level, _ in _headings(path.read_text("utf-8"))] for path in READMES]
    assert len(levels[0]) > 5
    assert levels[0] == levels[1]
