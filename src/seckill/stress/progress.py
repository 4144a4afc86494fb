"""What can be seen while a run is under way."""

from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["ProgressListener", "RichProgress", "Snapshot", "Stage"]


class Stage(StrEnum):
    """The parts of a run, in order."""

    CONNECTING = "connecting"
    RUSH = "rush"
    ORDERS = "orders"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How far a run is.

    Attributes:
        stage: which part is under way.
        done: connections tried, requests ended or reservations settled, by stage.
        total: what ``done`` will be at the end of the stage; retries raise it.
        sent: requests sent so far.
        answers: answers so far.
        won: answers "success" so far.
        refused: answers with a final no so far.
        failures: requests that ended without a proper answer so far.
    """

    stage: Stage
    done: int
    total: int
    sent: int = 0
    answers: int = 0
    won: int = 0
    refused: int = 0
    failures: int = 0


class ProgressListener(Protocol):
    """Is told a few times a second how far the run is. Runs inside the generator: be quick."""

    def report(self, snapshot: Snapshot) -> None:
        """Take note of ``snapshot``."""
        ...


class RichProgress:
    """A bar per stage on a terminal; a context manager.

    It is drawn only when the generator says something new, never from a thread of its own, so
    that drawing takes its time at known moments.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[counts]}"),
            console=console if console is not None else Console(stderr=True),
            auto_refresh=False,
        )
        self._bars = {
            stage: self._progress.add_task(stage.value, start=False, visible=False, counts="")
            for stage in Stage
        }

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def report(self, snapshot: Snapshot) -> None:
        """Draw ``snapshot``."""
        counts = ""
        if snapshot.stage is Stage.RUSH:
            counts = (
                f"sent {snapshot.sent:,}  won {snapshot.won:,}  refused {snapshot.refused:,}"
                f"  failed {snapshot.failures:,}"
            )
        bar = self._bars[snapshot.stage]
        self._progress.start_task(bar)
        self._progress.update(
            bar,
            completed=snapshot.done,
            total=snapshot.total,
            visible=True,
            counts=counts,
            refresh=True,
        )
