"""One process of `seckill serve`; started by it, with its settings in the environment.

``python -m seckill.runtime.program ROLE SLOT [--demo]``, ROLE one of web, worker, relay, reaper,
sentinel, prepare. Not the command line: a run has half a dozen of these, and all that the commands
for people need would be loaded by each of them.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

from seckill.domain.errors import InvalidValue, SeckillError
from seckill.runtime.errors import SettingsInvalid
from seckill.runtime.gc_tuning import bound_collections
from seckill.runtime.lean_start import load_log_library

__all__ = ["exit_code", "main", "program_command"]

_SLOT_MAX: Final = 255


def program_command(role: str, slot: int) -> list[str]:
    """How a process of a run is started."""
    return [sys.executable, "-m", "seckill.runtime.program", role, str(slot)]


def exit_code(error: SeckillError) -> int:
    """2 for a wrong value or setting, which stays wrong however often one tries; else 1."""
    return 2 if isinstance(error, InvalidValue | SettingsInvalid) else 1


def main(words: Sequence[str]) -> None:
    """Run the process that the words name. An error is one sentence on standard error."""
    # What this program writes is nobody else's business.
    os.umask(0o077)
    bound_collections()
    try:
        if len(words) < 2 or not words[1].isdecimal() or int(words[1]) > _SLOT_MAX:  # noqa: PLR2004
            raise InvalidValue("words", f"must be ROLE SLOT, a slot from 0 to {_SLOT_MAX}")
        _run(words[0], int(words[1]), demo="--demo" in words[2:])
    except SeckillError as error:
        sys.stderr.write(f"seckill: {error}\n")
        sys.exit(exit_code(error))


def _run(role: str, slot: int, *, demo: bool) -> None:
    # Each role loads what it needs, and no more.
    load_log_library()
    from seckill.runtime.settings import load_settings  # noqa: PLC0415

    settings = load_settings().settings
    match role:
        case "web":
            from seckill.runtime.web_role import run_web  # noqa: PLC0415

            run_web(settings, slot)
        case "worker":
            from seckill.runtime.roles import run_worker  # noqa: PLC0415

            run_worker(settings, slot)
        case "sentinel":
            from seckill.runtime.sentinel_role import run_sentinel  # noqa: PLC0415

            run_sentinel(settings, slot)
        case "relay":
            from seckill.runtime.relay_role import run_relay  # noqa: PLC0415

            run_relay(settings, slot)
        case "reaper":
            from seckill.runtime.roles import run_reaper  # noqa: PLC0415

            run_reaper(settings, slot)
        case "prepare":
            from seckill.runtime.roles import run_prepare  # noqa: PLC0415

            run_prepare(settings, demo=demo)
        case _:
            raise InvalidValue("role", "must be prepare, web, worker, relay, reaper or sentinel")


if __name__ == "__main__":
    main(sys.argv[1:])
