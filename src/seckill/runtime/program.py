"""One process of `seckill serve`; started by it, with its settings in the environment.

``python -m seckill.runtime.program ROLE SLOT [--demo]``, ROLE one of web, worker, relay, reaper,
sentinel, prepare; or ``… fork-server ROLE …``, the process that those of these roles are forked off
(fork_server.py). Not the command line: a run has half a dozen of these, and all that the commands
for people need would be loaded by each of them.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final

from seckill.domain.errors import InvalidValue, SeckillError
from seckill.runtime.errors import SettingsInvalid
from seckill.runtime.fork_server import serve_forks
from seckill.runtime.gc_tuning import bound_collections
from seckill.runtime.lean_start import load_log_library

__all__ = ["exit_code", "fork_server_command", "main", "program_command"]

_FORK_SERVER: Final = "fork-server"

_SLOT_MAX: Final = 255
_SETTINGS: Final = "seckill.runtime.settings"
_MODULES: Final = {
    "prepare": "seckill.runtime.roles",
    "worker": "seckill.runtime.roles",
    "reaper": "seckill.runtime.roles",
    "web": "seckill.runtime.web_role",
    "relay": "seckill.runtime.relay_role",
    "sentinel": "seckill.runtime.sentinel_role",
}
"""Where the function ``run_<role>`` is."""


def program_command(role: str, slot: int) -> list[str]:
    """How a process of a run is started."""
    return [sys.executable, "-m", "seckill.runtime.program", role, str(slot)]


def fork_server_command(roles: Iterable[str]) -> list[str]:
    """How the fork server of a run is started that has processes of these roles."""
    return [sys.executable, "-m", "seckill.runtime.program", _FORK_SERVER, *roles]


def exit_code(error: SeckillError) -> int:
    """2 for a wrong value or setting, which stays wrong however often one tries; else 1."""
    return 2 if isinstance(error, InvalidValue | SettingsInvalid) else 1


def main(words: Sequence[str]) -> None:
    """Run the process that the words name. An error is one sentence on standard error."""
    # What this program writes is nobody else's business.
    os.umask(0o077)
    bound_collections()
    load_log_library()
    try:
        own_words = _words_of_this_process(words)
        if own_words is None:
            return
        words = own_words
        if len(words) < 2 or not words[1].isdecimal() or int(words[1]) > _SLOT_MAX:  # noqa: PLR2004
            raise InvalidValue("words", f"must be ROLE SLOT, a slot from 0 to {_SLOT_MAX}")
        _run(words[0], int(words[1]), demo="--demo" in words[2:])
    except SeckillError as error:
        sys.stderr.write(f"seckill: {error}\n")
        sys.exit(exit_code(error))


def _words_of_this_process(words: Sequence[str]) -> Sequence[str] | None:
    """As they are, or those of a program that was forked off; None at a fork server's end."""
    if words[:1] != [_FORK_SERVER]:
        return words
    roles = words[1:]
    return serve_forks([_SETTINGS, *dict.fromkeys(_module(role) for role in roles)])


def _module(role: str) -> str:
    try:
        return _MODULES[role]
    except KeyError:
        raise InvalidValue("role", f"must be one of {', '.join(_MODULES)}") from None


def _run(role: str, slot: int, *, demo: bool) -> None:
    # Each role loads what it needs, and no more.
    module = import_module(_module(role))
    settings = import_module(_SETTINGS).load_settings().settings
    if role == "prepare":
        module.run_prepare(settings, demo=demo)
    else:
        getattr(module, f"run_{role}")(settings, slot)


if __name__ == "__main__":
    main(sys.argv[1:])
