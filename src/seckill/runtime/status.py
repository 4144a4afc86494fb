"""Which process does what: written by the supervisor, read by every other command."""

import json
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from seckill.runtime.data_dir import DataDir, write_atomically
from seckill.runtime.processes import created_at, is_same

__all__ = ["ProcessStatus", "RunStatus", "StatusBoard", "is_alive", "read_recorded", "read_status"]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process of the run.

    Attributes:
        role: ``supervisor``, ``redis``, ``kafka``, ``postgres``, ``worker``, ``relay``, ``reaper``,
            ``web`` or ``sentinel``.
        slot: number among those of its role, from 0.
        pid: None while it waits to be started again.
        healthy: it runs and has reported that it does its work.
        since: RFC 3339; when it was started, or died.
        restarts: how often it was started again in this run.
        created_s: with the pid, which process it is even when the number is used again.
    """

    role: str
    slot: int
    pid: int | None
    healthy: bool
    since: str
    restarts: int = 0
    created_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run of the service. ``started_at`` is RFC 3339; passwords in ``redis_url`` are masked."""

    version: str
    started_at: str
    bind: str
    redis_url: str
    processes: tuple[ProcessStatus, ...]

    def as_json(self) -> dict[str, Any]:
        """The shape of ``seckill status --json``."""
        return asdict(self) | {"processes": [asdict(process) for process in self.processes]}

    def of_role(self, role: str) -> tuple[ProcessStatus, ...]:
        """The processes of one role, by slot."""
        return tuple(process for process in self.processes if process.role == role)


class StatusBoard:
    """The supervisor's own view of the run; each change is written to the status file at once.

    Raises:
        OSError: from each method, when the file cannot be written; the view itself is up to date.
    """

    def __init__(self, data: DataDir, status: RunStatus) -> None:
        self._data = data
        self._status = status
        self._processes = {(p.role, p.slot): p for p in status.processes}

    @property
    def status(self) -> RunStatus:
        """The run as it is now."""
        roles = (
            "supervisor",
            "redis",
            "kafka",
            "postgres",
            "worker",
            "relay",
            "reaper",
            "web",
            "sentinel",
        )
        order = {role: place for place, role in enumerate(roles)}
        by_place = sorted(
            self._processes.values(), key=lambda p: (order.get(p.role, len(order)), p.slot)
        )
        return replace(self._status, processes=tuple(by_place))

    def note(self, role: str, slot: int, *, pid: int | None, healthy: bool) -> None:
        """A process was started (pid, not healthy yet), does its work (healthy), or died (None)."""
        before = self._processes.get((role, slot))
        same = before is not None and before.pid == pid
        restarted = before is not None and before.pid is None and pid is not None
        self._processes[role, slot] = ProcessStatus(
            role,
            slot,
            pid,
            healthy,
            since=before.since if before and same else rfc3339(time.time()),
            restarts=(before.restarts if before else 0) + restarted,
            created_s=created_at(pid) if pid else 0.0,
        )
        self.write()

    def set_redis_url(self, url: str) -> None:
        """The Redis of this run has an address now."""
        self._status = replace(self._status, redis_url=url)
        self.write()

    def write(self) -> None:
        """Write the file now."""
        write_atomically(self._data.status, json.dumps(self.status.as_json(), indent=1).encode())

    def remove(self) -> None:
        """The run has ended: no file is left to be taken for a running service."""
        self._data.status.unlink(missing_ok=True)


def read_status(data: DataDir) -> RunStatus | None:
    """The run on this data directory as it really is; None when no supervisor is alive there.

    Each process is looked for: one that died without the supervisor's knowledge is not healthy.
    """
    status = read_recorded(data)
    if status is None or not any(is_alive(p) for p in status.of_role("supervisor")):
        return None
    return replace(
        status,
        processes=tuple(
            replace(process, healthy=process.healthy and is_alive(process))
            for process in status.processes
        ),
    )


def read_recorded(data: DataDir) -> RunStatus | None:
    """What the last supervisor wrote, whether it still lives or not; None when nothing readable."""
    try:
        content = json.loads(data.status.read_bytes())
        processes = tuple(ProcessStatus(**process) for process in content.pop("processes"))
        return RunStatus(**content, processes=processes)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        # Missing, or written by another version: either way it tells nothing of a run of ours.
        return None


def is_alive(process: ProcessStatus) -> bool:
    """Whether this very process runs: a zombie does not, and another one with its number does not.

    A process that may not be looked at is not ours.
    """
    return process.pid is not None and is_same(process.pid, process.created_s)


def rfc3339(at_s: float) -> str:
    """An instant in UTC with milliseconds."""
    return (
        datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
