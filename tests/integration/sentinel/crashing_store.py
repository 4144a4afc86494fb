"""Kills a process at every line of a save, one after the other, and looks at what is left."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seckill.sentinel.stores import FileRuleStore

if TYPE_CHECKING:
    from types import FrameType

OLD = '[{"resource":"r","count":1}]'
NEW = '[{"resource":"r","count":2}]'
THIRD = '[{"resource":"r","count":3}]'
KILLS_MAX = 1_000


class NaiveStore:
    """One file, written in place."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "flow.json"

    def load(self, _kind: str) -> str | None:
        return self.path.read_text() if self.path.exists() else None

    def save(self, _kind: str, document: str) -> None:
        with self.path.open("w") as file:
            file.write(document[:10])
            file.flush()
            file.write(document[10:])
            file.flush()


def save_and_die(store: Any, line: int) -> None:
    """Save, and be killed at the given line of the store's own code."""
    seen = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal seen
        name = frame.f_code.co_filename
        if "stores" not in name and "crashing_store" not in name:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    store.save("flow", NEW)
    sys.settrace(None)


def main() -> None:
    make = {"file": FileRuleStore, "naive": NaiveStore}[sys.argv[1]]
    found = {"old": 0, "new": 0, "harmed": 0}
    for line in range(1, KILLS_MAX):
        folder = Path(sys.argv[2]) / str(line)
        make(folder).save("flow", OLD)
        child = os.fork()
        if not child:
            save_and_die(make(folder), line)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        left = make(folder).load("flow")
        found["old" if left == OLD else "new" if left == NEW else "harmed"] += 1
        # Whatever happened, the next writer goes on.
        make(folder).save("flow", THIRD)
        assert make(folder).load("flow") == THIRD
        if status == 0:
            break
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
