"""Rule files as other programs leave them: of the original, and of Spring Cloud Alibaba.

What stands in them is understood by ``rules``; here is only which kind a file is for, which both
say by the file's name alone.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from seckill.sentinel.rules import kind_named

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
