"""What the fence needs of the ledger and of the channel between Redis and ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from seckill.domain.ids import AttemptId, GoodsId, ReservationId, UserId
from seckill.domain.reservation import BucketId, Place
from seckill.domain.sale import Sale

if TYPE_CHECKING:
    from seckill.admission.bucket import Holding
    from seckill.admission.judging import Folder

__all__ = [
    "CurrentEpoch",
    "EpochState",
    "Fence",
    "FenceChannel",
    "FenceLedger",
    "MarkLedger",
    "Rebuild",
    "RebuildPlan",
    "Recovered",
    "Reopening",
    "ReportedMark",
]


class EpochState(StrEnum):
    """Where the newest epoch of a bucket stands."""

    OPENING = "opening"
    """The ledger has decided it; Redis may not know it yet."""

    OPEN = "open"


@dataclass(frozen=True, slots=True)
class CurrentEpoch:
    """The newest epoch of a bucket, as the ledger has it.

    Attributes:
        put_units: units put into the bucket when this epoch opened it.
        by_rebuild: it was made by a rebuild, whose staged buyers only that rebuild knows.
        begun: opening it in Redis was begun before, so a bucket that is missing may be a lost one.
    """

    bucket_id: BucketId
    epoch: int
    state: EpochState
    put_units: int
    by_rebuild: bool
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """A bucket that is not trusted, and has not gone on yet.

    Attributes:
        epoch: the epoch that ends with it.
        cause: why, in plain words.
        needs_operator: nothing about it is done without being asked for.
        noticed_at_ms: when it was first noticed, by the clock of whoever noticed it.
        claim_beats: moves on while somebody rebuilds the bucket.
    """

    bucket_id: BucketId
    epoch: int
    cause: str
    needs_operator: bool
    noticed_at_ms: int
    claimed_by: str | None = None
    claim_beats: int = 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """A reservation that Redis still holds and whose event is in no log."""

    place: Place
    user_id: UserId
    quantity: int
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """A bucket as the ledger would have it.

    Attributes:
        put_units: all units put on sale; what buyers hold is part of it.
        buyers: each user with the reservations of live orders.
        lost: places that were given out and are in no log any more, of all epochs so far.
        withheld_units: units that were taken off sale for them.
    """

    epoch: int
    put_units: int
    buyers: "Sequence[tuple[UserId, Sequence[Holding]]]"
    lost: Sequence[Place] = ()
    withheld_units: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopening:
    """How a bucket went on.

    Attributes:
        rebuilt: it was made anew; else it lost nothing and was carried on.
    """

    rebuilt: bool
    new_epoch: int
    put_units: int
    held_units: int
    buyers: int


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What a rebuild did: one statement for the operator.

    Attributes:
        lost: reservations that were acknowledged to a buyer and are in no log any more.
        recovered_orders: orders that only Redis still knew of, written meanwhile.
        withheld_units: units taken off sale for the lost ones, until somebody has decided.
        unknown: what could not be known, in sentences.
        paused_ms: from when the fence was noticed to the opening.
        rebuild_ms: how long the rebuild itself took.
    """

    goods_id: GoodsId
    bucket_id: BucketId
    epoch: int
    put_units: int
    held_units: int
    buyers: int
    lost: Sequence[ReservationId]
    recovered_orders: int
    withheld_units: int
    unknown: Sequence[str]
    paused_ms: int
    rebuild_ms: int


@dataclass(frozen=True, slots=True)
class ReportedMark:
    """What one folder of marks says of one epoch of one bucket.

    Attributes:
        answered: said after the fence of this epoch was noticed, and no reply of it is awaited.
    """

    bucket_id: BucketId
    epoch: int
    seq: int
    answered: bool


class MarkLedger(Protocol):
    """What the reporter of marks needs of the ledger. Raises LedgerUnavailable when it is away."""

    async def open_fences(self) -> Sequence[Fence]:
        """The buckets that are not trusted now."""
        ...

    async def notice(
        self, bucket_id: BucketId, epoch: int, cause: str, *, needs_operator: bool = False
    ) -> Fence | None:
        """A bucket is not to be trusted under this epoch.

        Returns:
            The fence, noticed now or before; None when the epoch is not the newest any more.
        """
        ...

    async def report_marks(
        self, folder_id: str, marks: Sequence[ReportedMark], *, leaving: bool
    ) -> None:
        """Note what a folder of marks says; what was said before is never lowered.

        Args:
            leaving: no process keeps its marks there any more.
        """
        ...


class FenceLedger(Protocol):
    """What the fence needs of the ledger. Every method raises LedgerUnavailable when it is away."""

    async def sales(self) -> Sequence[Sale]:
        """Every sale, closed ones too."""
        ...

    async def current_epochs(self) -> Sequence[CurrentEpoch]:
        """The newest epoch of each bucket."""
        ...

    async def begin_opening(self, bucket_id: BucketId, epoch: int) -> bool:
        """Redis is about to open the bucket under this epoch; False when that was begun before."""
        ...

    async def mark_open(self, bucket_id: BucketId, epoch: int) -> None:
        """Redis has opened the bucket under this epoch. Raises BucketFenced as `carry_on`."""
        ...

    async def mark_folders(self, bucket_id: BucketId, epoch: int) -> "Sequence[Folder]":
        """The folders of marks whose web processes may have acknowledged something of an epoch."""
        ...

    async def marked_epochs(self, bucket_id: BucketId) -> Mapping[int, int]:
        """The highest reported seq of each epoch of a bucket, over all folders."""
        ...

    async def known_seq(self, bucket_id: BucketId, epoch: int) -> int:
        """The highest seq of an epoch that is written, 0 for none."""
        ...

    async def confirmed_seq(self, bucket_id: BucketId, epoch: int) -> int:
        """The highest seq of an epoch that Redis has confirmed, written or not; 0 for none."""
        ...

    async def carry_on(self, bucket_id: BucketId, from_epoch: int, valid_to_seq: int) -> int:
        """Close an epoch at a seq and make its successor; its pending releases move along.

        Raises:
            BucketFenced: the ledger has gone on meanwhile, by the hand of another keeper.
        """
        ...

    async def unwritten(self, bucket_id: BucketId, epoch: int, seq_max: int) -> Sequence[int]:
        """The seqs from 1 to ``seq_max`` of an epoch that are in no book, at most 10,000."""
        ...

    async def adopt_epochs(self, bucket_id: BucketId, up_to: int) -> None:
        """Take in the epochs that Redis knows and books that are older than they were do not."""
        ...

    async def recover(self, found: Sequence[Recovered]) -> int:
        """Write reservations that only Redis knows; returns how many became orders."""
        ...

    async def plan_rebuild(
        self, bucket_id: BucketId, *, newest: int, given: Mapping[int, int], withhold: bool
    ) -> RebuildPlan:
        """Accept nothing more from earlier epochs and make a new one out of what is written.

        Args:
            newest: the epoch that is taken for the newest.
            given: of each epoch the last seq that was surely given out: what is missing up to it
                is named as lost.
            withhold: take as many units off sale as are lost.

        Raises:
            BucketFenced: the ledger has gone on meanwhile, by the hand of another keeper.
        """
        ...

    async def open_fences(self) -> Sequence[Fence]:
        """See `MarkLedger`."""
        ...

    async def notice(
        self, bucket_id: BucketId, epoch: int, cause: str, *, needs_operator: bool = False
    ) -> Fence | None:
        """See `MarkLedger`."""
        ...

    async def claim(self, fence: Fence, who: str) -> int | None:
        """Take the right to rebuild, or keep it.

        Args:
            fence: as it was seen. Whoever has the claim and has not moved ``claim_beats`` since
                loses it.

        Returns:
            The new ``claim_beats``; None when somebody else has the claim or the fence is over.
        """
        ...

    async def unclaim(self, bucket_id: BucketId, who: str) -> None:
        """Give the right back."""
        ...

    async def found_out(
        self, bucket_id: BucketId, *, recovered_orders: int, unknown: Sequence[str]
    ) -> None:
        """Note what a rebuild has found out, for the statement.

        Before the bucket is open again: from then on any keeper may write the last words.

        Args:
            recovered_orders: orders that only Redis still knew of, written now. They are added to
                those of a rebuild that died.
            unknown: what could not be known, in sentences. The latest rebuild knows best.
        """
        ...

    async def reopened(self, bucket_id: BucketId, how: Reopening) -> int | None:
        """The bucket has gone on; the fence is over, and this is its statement.

        Returns:
            When it had been noticed; None when there was no fence, or it was over before.
        """
        ...


class FenceChannel(Protocol):
    """What the fence needs of the channel that carries the outbox to the ledger.

    Every method raises StockUnavailable or ChannelUnavailable when a carrier is away.
    """

    async def carried_seq(self, bucket_id: BucketId, epoch: int) -> int:
        """The highest seq of an epoch that is under way, in the outbox or behind it; 0: none."""
        ...

    async def run_dry(self, bucket_id: BucketId) -> None:
        """Wait until nothing of a bucket is under way any more: all of it is in the ledger.

        Waits for ever where nobody writes: the caller sets the deadline.
        """
        ...
