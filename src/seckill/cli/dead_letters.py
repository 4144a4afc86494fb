"""Commands for messages that could not become orders."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from seckill.cli.shared import DataDirOption, JSONOption, print_json, with_stores
from seckill.domain.errors import InvalidValue
from seckill.domain.instants import rfc3339_ms

if TYPE_CHECKING:
    from seckill.pipeline.dead_letters import DeadLetter
    from seckill.runtime.bootstrap import Stores

__all__ = ["dead_letters_app"]

dead_letters_app = typer.Typer(
    help="Look at messages that could not become orders; replay or discard them.",
    no_args_is_help=True,
)

LetterArgument = Annotated[
    str, typer.Argument(metavar="LETTER", help="Its name, as `seckill dead-letters list` says.")
]
_RAW_SHOWN_MAX = 400


@dead_letters_app.command("list")
def letters_list(data_dir: DataDirOption = None, as_json: JSONOption = False) -> None:
    """Every dead letter that nothing was done about yet: its name, origin and reason."""
    from seckill.runtime.letters import letter_row, shelves_of  # noqa: PLC0415

    async def work(stores: "Stores") -> "list[DeadLetter]":
        return await (await shelves_of(stores)).letters()

    letters = with_stores(data_dir, work)
    if as_json:
        print_json([letter_row(letter) for letter in letters])
        return
    if not letters:
        typer.echo("there are no dead letters")
    for letter in letters:
        typer.echo(f"{letter.name:<36} {_size(letter):>12}  {letter.reason}")


@dead_letters_app.command("show")
def letters_show(
    letter: LetterArgument,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write its content byte for byte, and nothing else.")
    ] = False,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """One dead letter with its content."""
    from seckill.runtime.letters import letter_row, shelves_of  # noqa: PLC0415

    async def work(stores: "Stores") -> "DeadLetter":
        return await (await shelves_of(stores)).find(letter)

    found = with_stores(data_dir, work)
    if raw:
        typer.get_binary_stream("stdout").write(found.raw or b"")
    elif as_json:
        print_json(letter_row(found))
    else:
        typer.echo(f"letter   {found.name}")
        typer.echo(f"origin   {found.origin}")
        typer.echo(f"sent     {rfc3339_ms(found.at_ms) if found.at_ms else 'unknown'}")
        typer.echo(f"reason   {found.reason}")
        typer.echo(f"key      {_shown(found.key)}")
        typer.echo(f"content  {_size(found)}: {_shown(found.raw)}")


@dead_letters_app.command("replay")
def letters_replay(
    letter: Annotated[
        list[str] | None, typer.Argument(metavar="[LETTER]...", help="The letters.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that there are.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Send dead letters once more the way they came, after what was wrong has been put right.

    Safe to do twice: the ledger knows what it has written. What is still wrong comes back as a new
    dead letter.
    """
    _settle(letter or [], every=every, data_dir=data_dir, how="replay")


@dead_letters_app.command("discard")
def letters_discard(
    letter: Annotated[
        list[str] | None, typer.Argument(metavar="[LETTER]...", help="The letters.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that there are.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Do away with dead letters for good. A buyer in one will never have an order of it."""
    _settle(letter or [], every=every, data_dir=data_dir, how="discard")


def _settle(names: list[str], *, every: bool, data_dir: Any, how: str) -> None:
    from seckill.runtime.letters import shelves_of  # noqa: PLC0415

    if bool(names) == every:
        raise InvalidValue("LETTER", "name the letters, or give --all, and not both")

    async def work(stores: "Stores") -> int:
        shelves = await shelves_of(stores)
        wanted = [letter.name for letter in await shelves.letters()] if every else names
        for name in wanted:
            await (shelves.replay(name) if how == "replay" else shelves.discard(name))
            typer.echo(f"{how}ed {name}")
        return len(wanted)

    if with_stores(data_dir, work) == 0:
        typer.echo("there are no dead letters")


def _size(letter: "DeadLetter") -> str:
    return "nothing" if letter.raw is None else f"{len(letter.raw):,} bytes"


def _shown(content: bytes | None) -> str:
    """Bytes for a terminal: what is not printable is escaped, and a long content is cut."""
    if not content:
        return ""
    text = content[:_RAW_SHOWN_MAX].decode(errors="backslashreplace")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown + (" …" if len(content) > _RAW_SHOWN_MAX else "")
