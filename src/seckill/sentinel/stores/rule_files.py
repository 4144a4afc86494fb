"""Rule files as other programs leave them: of the original, and of Spring Cloud Alibaba.

What stands in them is understood by ``rules``; here is only which kind a file is for, which both
say by the file's name alone.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from seckill.sentinel.rules import DOCUMENT_BYTES_MAX, kind_named

if TYPE_CHECKING:
    from collections.abc import Iterable

_ENDINGS: Final = ("rules", "rule")


def kind_of_file(path: PurePath | str) -> str:
    """The kind of rules that a file's name speaks of: ``flowrule.json``, ``ParamFlowRule.json``.

    Raises:
        ValueError: the name speaks of none.
    """
    stem = PurePath(path).stem
    plain = "".join(character for character in stem.lower() if character.isalnum())
    for ending in _ENDINGS:
        if plain.endswith(ending):
            plain = plain.removesuffix(ending)
            break
    try:
        return kind_named(plain)
    except ValueError as error:
        raise ValueError(
            f"the name of {path} does not say which kind of rules it has: {error}"
        ) from error


class Seeds:
    """Rule files that count for their kinds for as long as a store has nothing of its own.

    Args:
        paths: the files; their names say which kind they have.

    Raises:
        ValueError: a name speaks of no kind.
    """

    def __init__(self, paths: Iterable[Path | str]) -> None:
        self._paths = {kind_of_file(path): Path(path) for path in paths}

    def load(self, kind: str) -> str | None:
        """The text of a kind's file; None if there is none for it.

        Raises:
            OSError: the file is not there, or cannot be read.
            ValueError: it is not UTF-8.
        """
        path = self._paths.get(kind)
        if path is None:
            return None
        # One byte more than may be, so that what is too large is refused by whoever reads rules.
        with path.open("rb") as file:
            return file.read(DOCUMENT_BYTES_MAX + 1).decode()
