"""The commands as the reference shows them, made of the commands themselves.

Not the text that ``-h`` prints: its looks depend on the terminal and on the library's version.
"""

from collections.abc import Iterator
from typing import Any, Final

import typer

__all__ = ["cli_markdown", "commands", "options_of"]


def commands() -> dict[str, Any]:
    """Every command that a user may type, by its whole name, in the order of ``-h``."""
    from seckill.cli import app  # noqa: PLC0415  -- it imports the rooms of the commands

    return dict(_walk("seckill", typer.main.get_command(app)))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for part, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _walk(f"{name} {part}", below)


def options_of(command: Any) -> set[str]:
    """Every option that a command takes, such as ``--json``, and the two of every command."""
    named = {opt for parameter in command.params for opt in parameter.opts if opt[:1] == "-"}
    return named | {"-h", "--help"}


def cli_markdown() -> str:
    """The reference page ``docs/reference/cli.md``, whole."""
    return _PAGE_HEAD + "\n".join(_section(name, command) for name, command in commands().items())


def _section(name: str, command: Any) -> str:
    depth = len(name.split())
    below = [part for part, of in getattr(command, "commands", {}).items() if not of.hidden]
    lines = [f"{'#' * (depth + 1)} {name}", ""]
    if depth > 1:
        lines += ["```text", " ".join([name, *_usage(command, bool(below))]), "```", ""]
    lines += [(command.help or "").strip(), ""]
    if below:
        lines += [f"Commands: {', '.join(f'`{name} {part}`' for part in below)}", ""]
    if rows := [_row(parameter) for parameter in command.params if not parameter.hidden]:
        lines += ["| option | default | meaning |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _usage(command: Any, group: bool) -> Iterator[str]:
    if group:
        yield "COMMAND"
    for parameter in command.params:
        if _is_argument(parameter):
            yield _label(parameter)
        elif parameter.required:
            yield f"{parameter.opts[0]} …"
    if any(not _is_argument(parameter) for parameter in command.params):
        yield "[OPTIONS]"


def _is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


def _label(parameter: Any) -> str:
    if not _is_argument(parameter):
        return ", ".join(parameter.opts)
    name = (parameter.metavar or parameter.name.upper()).strip("[]")
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> str:
    if parameter.required:
        default = "required"
    elif getattr(parameter, "is_flag", False) or parameter.default in {None, ""}:
        default = ""
    else:
        default = f"{parameter.default}"
    meaning = (parameter.help or "").replace("|", "\\|")
    return f"| `{_label(parameter)}` | {default} | {meaning} |"


_PAGE_HEAD: Final = """\
# Command line

Every command has `-h`. Those that work on a running service find it by its data directory: type
them in the folder in which `seckill serve` was started, or name it with `--data-dir` or
`SECKILL_DATA_DIR`. Settings that have no flag are [variables](settings.md).

This page is made from the program; a test compares the two.

"""
