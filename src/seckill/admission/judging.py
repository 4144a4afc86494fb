"""What is to be thought of a bucket: pure functions from what was seen to what is to be done.

The keeper (fence.py) gathers and acts; nothing here reads a store, waits or knows of time. Two
questions in turn: what does a look at the bucket say (`first_sight`), and, when it has to be
judged, is anything behind (`judge`).
Source: rules 3 to 8 of the fence, docs/concepts.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from seckill.admission.bucket import BucketView
from seckill.admission.fence_ports import CurrentEpoch, EpochState
from seckill.admission.scripts import Status

__all__ = [
    "Evidence",
    "Folder",
    "HostMarks",
    "Judgement",
    "Patience",
    "Ruling",
    "Sight",
    "Step",
    "first_sight",
    "host_marks",
    "judge",
    "ledger_behind",
    "unknown_hosts",
    "why_fenced",
    "why_id_is_reused",
]

_WHY_FENCED: Final = {
    Status.OK: "it was not trusted a moment ago",
    Status.EPOCH: "Redis has it under another epoch",
    Status.SERVER: "Redis was started again, or is another one",
    Status.BEHIND: "Redis has gone back in time",
}
_WHY_CLOSED: Final = {
    Status.MISSING: "it is not there, or not whole",
    Status.TORN: "a part of it was lost while others stayed",
    Status.FENCED_OFF: "it was stopped for a rebuild",
}


def why_fenced(status: Status) -> str:
    """Why a script did not trust a bucket, in plain words."""
    return _WHY_CLOSED.get(status) or _WHY_FENCED[status]


class Step(StrEnum):
    """What a look at a bucket asks for."""

    FINE = "fine"
    CONFIRM = "confirm"
    """Redis has opened what the ledger decided: the ledger has to note it."""
    OPEN_FIRST = "open_first"
    JUDGE = "judge"
    REBUILD = "rebuild"
    LEDGER_BEHIND = "ledger_behind"
    """Redis knows more than the ledger: the books are older than they were."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look says.

    Attributes:
        why: in plain words; empty when all is fine.
        to_epoch: with JUDGE, the epoch that the ledger has made already for going on.
    """

    step: Step
    why: str = ""
    to_epoch: int | None = None


def first_sight(  # noqa: PLR0911  -- one for each thing that a look can say
    view: BucketView, current: CurrentEpoch, *, suspected: bool
) -> Sight:
    """Compare a look at a bucket with the ledger's newest epoch of it.

    Args:
        suspected: a process has seen this epoch fenced and admits nobody any more until there is a
            later one, even if the bucket looks well again.
    """
    if (reused := why_id_is_reused(view, current)) is not None:
        return Sight(Step.LEDGER_BEHIND, reused)
    if view.status is not Status.MISSING and view.epoch > current.epoch:
        return Sight(
            Step.LEDGER_BEHIND,
            f"Redis has it under epoch {view.epoch}, and the ledger knows {current.epoch} only:"
            " the books are older than they were",
        )
    if current.state is EpochState.OPENING:
        return _sight_of_opening(view, current)
    if view.status in _WHY_CLOSED:
        return Sight(Step.REBUILD, _WHY_CLOSED[view.status])
    if view.epoch < current.epoch:
        return Sight(
            Step.REBUILD,
            f"Redis has it under epoch {view.epoch}, and the ledger is at {current.epoch}:"
            " Redis has gone back in time",
        )
    if view.status is Status.SERVER:
        return Sight(Step.JUDGE, why_fenced(Status.SERVER))
    if suspected:
        return Sight(Step.JUDGE, "a web process has found it not to be trusted")
    return Sight(Step.FINE)


def why_id_is_reused(view: BucketView, current: CurrentEpoch) -> str | None:
    """Why the bucket cannot be this sale's; None when it can.

    Opening a bucket in Redis is noted in the ledger before it is begun. So what is there of a sale
    that nobody has begun to open is another sale's, which the books have forgotten.
    """
    never_opened = current.epoch == 1 and current.state is EpochState.OPENING and not current.begun
    if not never_opened or view.status is Status.MISSING:
        return None
    return (
        f"Redis has a bucket of an earlier sale {current.bucket_id.sale_id}, and this one was never"
        " opened: the books were restored from before that sale, and have given its id again. End"
        " this sale and put the goods on sale anew: the next sale has another id"
    )


def _sight_of_opening(view: BucketView, current: CurrentEpoch) -> Sight:
    """The ledger has decided an epoch that Redis may not know yet: a crash came between."""
    if view.epoch == current.epoch and view.status is not Status.MISSING:
        if view.status in {Status.TORN, Status.FENCED_OFF}:
            return Sight(Step.REBUILD, _WHY_CLOSED[view.status])
        return Sight(Step.CONFIRM)
    if current.by_rebuild:
        return Sight(Step.REBUILD, "a rebuild of it was begun and did not come to its end")
    if view.epoch == current.epoch - 1 and view.status in {Status.OK, Status.SERVER}:
        # Judged again: since the ledger closed that epoch Redis may have gone back once more.
        return Sight(
            Step.JUDGE, "it was about to go on after a restart of Redis", to_epoch=current.epoch
        )
    if view.status is Status.MISSING and current.epoch == 1:
        return Sight(Step.OPEN_FIRST)
    return Sight(Step.REBUILD, _WHY_CLOSED.get(view.status, "Redis has gone back in time"))


def ledger_behind(view: BucketView, written_seq: int) -> str | None:
    """Why the ledger is older than it was; None when it is not.

    Redis remembers how far the ledger had written the epoch when it was last asked.

    Args:
        written_seq: how far the ledger has written the epoch now, read after the look.
    """
    if view.written_seq <= written_seq:
        return None
    return (
        f"the ledger had written epoch {view.epoch} up to seq {view.written_seq}, and has it up to"
        f" {written_seq} now: the books are older than they were"
    )


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of marks, as the ledger knows it.

    Attributes:
        seq: the highest seq of the epoch that was reported from there.
        answered: it was reported after the fence was noticed, so nothing can follow.
        left: its last process ended in good order, after its marks had been reported.
        silent_ms: how long ago anybody there said that it lives.
    """

    folder_id: str
    host: str
    seq: int
    answered: bool
    left: bool
    silent_ms: float


@dataclass(frozen=True, slots=True)
class HostMarks:
    """What the web processes of one folder have acknowledged of an epoch, as far as is known.

    Attributes:
        seq: the highest acknowledged seq that is known of.
        complete: nothing beyond it was acknowledged there.
        awaited: a report may still come.
        in_flight: a living process there waits for a reply of the epoch.
    """

    host: str
    seq: int
    complete: bool = True
    awaited: bool = False
    in_flight: bool = False


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the keeper waits for others, counted from when it first saw the fence.

    Attributes:
        quiet_ms: for a living process of this host that still waits for a reply. One that is
            frozen for longer loses nothing by it: what it acknowledges late is named afterwards.
        reports_ms: for the reports of other hosts.
        gone_ms: a host that said nothing for so long does not live.
    """

    quiet_ms: int = 1_500
    reports_ms: int = 3_000
    gone_ms: int = 30_000


def host_marks(folder: Folder, patience: Patience) -> HostMarks:
    """What is known of a folder that cannot be read here."""
    gone = folder.silent_ms > patience.gone_ms
    complete = folder.answered or (folder.left and gone)
    return HostMarks(folder.host, folder.seq, complete=complete, awaited=not complete and not gone)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a bucket is judged by.

    Attributes:
        seq: how far Redis has the epoch.
        hosts: of every folder of marks that may hold one of this epoch.
        written_seq: how far the ledger has it.
        carried_seq: the highest seq of it that the channel between Redis and ledger knows.
        waited_ms: since the keeper first saw the fence.
        confirmed_seq: the highest seq of it that Redis has confirmed to the ledger: when the bucket
            was judged before, or with a release.
        closed: the ledger has closed the epoch already, at ``confirmed_seq``; whoever did it died
            before Redis was told.
    """

    seq: int
    hosts: Sequence[HostMarks]
    written_seq: int
    carried_seq: int
    waited_ms: float
    confirmed_seq: int = 0
    closed: bool = False


class Ruling(StrEnum):
    """What is to become of a bucket."""

    GO_ON = "go_on"
    WAIT = "wait"
    AWAIT_REPORTS = "await_reports"
    REBUILD = "rebuild"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The ruling, and why in plain words."""

    ruling: Ruling
    why: str = ""


def unknown_hosts(hosts: Sequence[HostMarks]) -> list[str]:
    """What could not be known, one sentence for each host that did not say."""
    return [
        f"host {host.host} did not report: what it acknowledged after seq {host.seq} is not known"
        for host in hosts
        if not host.complete
    ]


def judge(evidence: Evidence, patience: Patience) -> Judgement:
    """Whether anything is behind: what buyers, the ledger or the channel know and Redis does not.

    A host of which nothing can be known counts as behind.
    """
    if any(host.awaited for host in evidence.hosts) and evidence.waited_ms < patience.reports_ms:
        return Judgement(Ruling.AWAIT_REPORTS, "another host has not reported its marks yet")
    if any(host.in_flight for host in evidence.hosts) and evidence.waited_ms < patience.quiet_ms:
        return Judgement(Ruling.WAIT, "a web process still waits for a reply")
    acknowledged = max((host.seq for host in evidence.hosts), default=0)
    for known, whose in (
        (acknowledged, "was acknowledged to a buyer"),
        (evidence.written_seq, "is in the ledger"),
        (evidence.carried_seq, "is on its way to the ledger"),
        (evidence.confirmed_seq, "was confirmed by Redis"),
    ):
        if known > evidence.seq:
            return Judgement(
                Ruling.REBUILD,
                f"Redis has it up to seq {evidence.seq}, and seq {known} {whose}:"
                " Redis has gone back in time",
            )
    if evidence.closed and evidence.seq > evidence.confirmed_seq:
        return Judgement(
            Ruling.REBUILD,
            f"Redis has it up to seq {evidence.seq}, and the ledger closed it at seq"
            f" {evidence.confirmed_seq}: what is beyond becomes no order",
        )
    unknown = unknown_hosts(evidence.hosts)
    if unknown:
        return Judgement(Ruling.REBUILD, "; ".join(unknown))
    return Judgement(Ruling.GO_ON)
