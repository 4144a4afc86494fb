"""The bounds of admission, each with its number."""

from dataclasses import dataclass
from typing import Final

__all__ = ["BATCH_ENTRIES_CAP", "Bounds"]

BATCH_ENTRIES_CAP: Final = 512
"""What admit.lua takes at most in one call, whatever the setting says: 512 newcomers take about
2 ms of Redis' time, and nobody else is served in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may wait, and for how long.

    Attributes:
        batch_entries_max: requests in one call; never above BATCH_ENTRIES_CAP.
        batch_bytes_max: bytes of user ids in one call.
        queue_entries_max: requests that wait for one bucket in one process.
        queue_wait_ms_max: longest wait of a request for its decision.
        sold_out_staleness_ms: how long "sold out" may be answered after the last look at Redis
            that said so.
        retry_after_ms: what a buyer is told to wait after an undecided request.
    """

    batch_entries_max: int = 512
    batch_bytes_max: int = 65_536
    queue_entries_max: int = 20_000
    queue_wait_ms_max: int = 2_000
    sold_out_staleness_ms: int = 250
    retry_after_ms: int = 1_000

    def __post_init__(self) -> None:
        assert self.queue_entries_max >= 1
        if self.batch_entries_max > BATCH_ENTRIES_CAP:
            object.__setattr__(self, "batch_entries_max", BATCH_ENTRIES_CAP)
