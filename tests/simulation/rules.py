"""The rules that keep the promises, each with a way to take it out: to see what would be said then.

Nothing of this is in the service. A rule is taken out of the text of a script on its way to Redis,
or out of the function that keeps it, for as long as one simulation runs.
Source: docs/concepts.md, "When Redis forgets: the fence".
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from sqlalchemy import delete

from seckill.admission.batcher import Batcher
from seckill.admission.errors import StockUnavailable
from seckill.admission.fence import FenceKeeper
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import Status
from seckill.domain.events import Admitted, BucketEvent
from seckill.domain.ids import ReservationId
from seckill.domain.reservation import BucketId, Place
from seckill.ledger import epochs
from seckill.ledger.batch import Batch
from seckill.ledger.epochs import EpochBook
from seckill.ledger.errors import EpochMoved
from seckill.ledger.fence import LedgerFence
from seckill.ledger.tables import fences
from seckill.pipeline.outbox_log import OutboxLog

__all__ = ["SCRIPT_EDITS", "CallersIds", "Rule", "without"]


class Rule(StrEnum):
    """What can be taken out."""

    ID_IN_SCRIPT = "id-in-script"
    """Rule 1: an order is named after its deduction. Without: after the buyer's attempt."""

    SEQ_COUNTS_ALL = "seq-counts-all"
    """Rule 2: seq counts every change of a bucket. Without: a release is not counted."""

    SERVER = "server"
    """Rule 3: a script compares its server with that under which the bucket was opened."""

    SEQ = "seq"
    """Rule 3: a script compares the bucket's seq with what the caller has acknowledged."""

    MARK_SURVIVES = "mark-survives"
    """Rule 5: what a process has acknowledged survives its death."""

    REPORT = "report"
    """Rule 5: nobody judges before every host has said what it acknowledged."""

    LEDGER_SEQ = "ledger-seq"
    """Rule 6: a bucket is also judged by what the ledger has and what is on its way there."""

    NEW_EPOCH = "new-epoch"
    """Rule 7: a bucket that lost nothing goes on under a new epoch."""

    DRAIN = "drain"
    """Rule 8: what is under way runs dry before a bucket is made anew."""

    LATE = "late"
    """Rule 8: what an older epoch brings after that is compensated, never an order."""

    RELEASE_EPOCH = "release-epoch"
    """Rule 8: a release is valid in the epoch under which it was decided, and in no other."""

    RELEASE_HELD = "release-held"
    """A release gives back what the buyer holds, and nothing else. Covers for the one above."""

    NAME_LOSSES = "name-losses"
    """Rule 9: what was acknowledged and is in no log any more is named."""


SCRIPT_EDITS: dict[Rule, Sequence[tuple[str, str]]] = {
    Rule.SERVER: [("bucket.server ~= server_identity()", "false")],
    Rule.SEQ: [("bucket.seq < acked_seq", "false")],
    Rule.SEQ_COUNTS_ALL: [
        ("bucket.held - quantity, bucket.seq + 1", "bucket.held - quantity, bucket.seq"),
        (", cmsgpack.pack({ 'r', bucket.epoch, bucket.now, released }))", ")"),
        ("redis.call('XADD', KEYS[3], '*', 'e')", ""),
    ],
    Rule.NEW_EPOCH: [
        ("bucket.epoch, bucket.seq = request[3], 0", ""),
        (
            "redis.call('HSET', KEYS[1], 'epoch', bucket.epoch, 'seq', 0, 'server'",
            "redis.call('HSET', KEYS[1], 'server'",
        ),
    ],
    Rule.RELEASE_EPOCH: [
        (
            "request[1], 0)\nif status == OK and not has_fields(KEYS[4], bucket.released)",
            "0, 0)\nif status == OK and not has_fields(KEYS[4], bucket.released)",
        ),
    ],
    Rule.RELEASE_HELD: [
        (
            "local record = seq == 0 and redis.call('HGET', KEYS[2], user)",
            "local record = seq == 0 and (redis.call('HGET', KEYS[2], user) or name .. '.1.x')",
        ),
        ("bucket.buyers = bucket.buyers - 1", "bucket.buyers = redis.call('HLEN', KEYS[2])"),
    ],
}


class CallersIds(ReservationIds):
    """Ids that the caller makes: all that one attempt is ever given has the id of its first."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._first: dict[str, Place] = {}
        self._attempt: dict[Place, str] = {}

    def given(self, place: Place, attempt_id: str) -> None:
        """Take down which attempt was given a place."""
        self._attempt[place] = attempt_id
        self._first.setdefault(attempt_id, place)

    def encode_many(self, places: Sequence[Place]) -> list[ReservationId]:
        attempts = [self._attempt.get(place) for place in places]
        return super().encode_many(
            [
                place if attempt is None else self._first[attempt]
                for place, attempt in zip(places, attempts, strict=True)
            ]
        )

    def encode_in_bucket(
        self, bucket_id: BucketId, epochs_and_seqs: Sequence[tuple[int, int]]
    ) -> list[ReservationId]:
        return self.encode_many(
            [
                Place(bucket_id.sale_id, epoch, bucket_id.bucket, seq)
                for epoch, seq in epochs_and_seqs
            ]
        )


def taken_out(module: Any, name: str, instead: Any, patches: list[Callable[[], None]]) -> None:
    """Put something in the place of a function, until the patches are undone."""
    real = getattr(module, name)
    setattr(module, name, instead)
    patches.append(lambda: setattr(module, name, real))


@contextmanager
def without(rules: frozenset[Rule]) -> Iterator[None]:
    """Take rules out that live in Python, for as long as the block runs."""
    patches: list[Callable[[], None]] = []
    try:
        for rule in rules:
            if rule in _TAKE_OUT:
                _TAKE_OUT[rule](patches)
        yield
    finally:
        for undo in reversed(patches):
            undo()


async def _nothing(*_args: Any, **_options: Any) -> None:
    pass


async def _zero(*_args: Any, **_options: Any) -> int:
    return 0


def _ids_by_caller(patches: list[Callable[[], None]]) -> None:
    """Tell the ids of a schedule, which are `CallersIds` then, of every attempt and its place."""
    claim, answer = Batch._claim, Batcher._answer

    def claiming(batch: Any, events: Sequence[BucketEvent]) -> Any:
        for event in events:
            if isinstance(event, Admitted):
                batch._reservation_ids.given(event.place, event.attempt_id)
        return claim(batch, events)

    def answering(batcher: Any, asks: list[Any], reply: list[Any]) -> None:
        for at, ask in enumerate(asks):
            code, epoch, seq, _ = reply[5 + 4 * at : 9 + 4 * at]
            if code == 1:
                at_bucket = batcher._bucket_id
                place = Place(at_bucket.sale_id, epoch, at_bucket.bucket, seq)
                batcher._ids.given(place, ask.attempt_id)
        answer(batcher, asks, reply)

    taken_out(Batch, "_claim", claiming, patches)
    taken_out(Batcher, "_answer", answering, patches)


def _no_ledger_seq(patches: list[Callable[[], None]]) -> None:
    for name in ("known_seq", "confirmed_seq"):
        taken_out(LedgerFence, name, _zero, patches)
    taken_out(OutboxLog, "carried_seq", _zero, patches)
    # The ledger looks once more when it is asked to carry on.
    taken_out(epochs, "last_written", _zero, patches)
    taken_out(epochs, "_last_confirmed", _zero, patches)


def _no_new_epoch(patches: list[Callable[[], None]]) -> None:
    """Go on under the same epoch; whoever waits for a later one is content with it."""

    async def carry_on(
        book: Any, bucket_id: BucketId, from_epoch: int, valid_to_seq: int, _reason: str
    ) -> int:
        async def work(connection: Any) -> int:
            written = await epochs.last_written(connection, bucket_id, from_epoch)
            confirmed = await epochs._last_confirmed(connection, bucket_id, from_epoch)
            if max(written, confirmed) > valid_to_seq:
                raise EpochMoved(bucket_id, from_epoch, "the ledger knows more: rebuild the bucket")
            return from_epoch

        return await book._database.write("go on", work)  # type: ignore[no-any-return]

    end_fence = FenceKeeper._end_fence

    async def ending(keeper: Any, fence: Any, current: Any, view: Any) -> None:
        if fence is not None and fence.epoch == current.epoch:
            await keeper._ledger._ledger._database.write(
                "forget the fence",
                lambda connection: connection.execute(
                    delete(fences).where(fences.c.outcome.is_(None))
                ),
            )
        else:
            await end_fence(keeper, fence, current, view)

    async def await_opening(batcher: Any) -> None:
        while True:
            await asyncio.sleep(0.1)
            try:
                view = await batcher._buckets.look(batcher._bucket_id)
            except StockUnavailable:
                continue
            if view.status is Status.OK and view.epoch >= batcher._epoch:
                batcher._epoch, batcher._fenced = view.epoch, None
                return

    taken_out(EpochBook, "carry_on", carry_on, patches)
    taken_out(FenceKeeper, "_end_fence", ending, patches)
    taken_out(Batcher, "_await_opening", await_opening, patches)


def _no_names(patches: list[Callable[[], None]]) -> None:
    async def none_lost(*_args: Any, **_options: Any) -> tuple[list[Place], int]:
        return [], 0

    taken_out(EpochBook, "_name_losses", none_lost, patches)


_TAKE_OUT: dict[Rule, Callable[[list[Callable[[], None]]], None]] = {
    Rule.ID_IN_SCRIPT: _ids_by_caller,
    Rule.LEDGER_SEQ: _no_ledger_seq,
    Rule.NEW_EPOCH: _no_new_epoch,
    Rule.DRAIN: lambda patches: taken_out(OutboxLog, "run_dry", _nothing, patches),
    Rule.LATE: lambda patches: taken_out(Batch, "_accepts", lambda _batch, _place: True, patches),
    Rule.NAME_LOSSES: _no_names,
}
