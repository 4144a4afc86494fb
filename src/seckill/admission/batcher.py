"""Many buyers, one call: collects the requests of one bucket while the last call is in flight.

Each bucket has one batcher in each process, with at most one call to Redis in flight. The fuller
the house, the larger the batch and the cheaper each guest (docs/benchmarks.md).

What is safe here, and why:

* A batch may be sent twice: the script finds the attempt of each request under its user and gives
  the same answer. So a call without a reply is sent again, until its requests run out of time.
* The call runs in a task of the gate, never in a request's own: a client that leaves cuts nothing.
* Nobody is told "sold out" because Redis is away. What cannot be decided is answered as that.
* The mark of this process is raised before anybody is told yes (marks.py), and a reply of an epoch
  that this process has seen fenced is not believed any more (rule 5 of the fence).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import structlog

from seckill.admission.bounds import Bounds
from seckill.admission.bucket import Buckets
from seckill.admission.circuit import Circuit
from seckill.admission.decision import Decision
from seckill.admission.errors import StockUnavailable
from seckill.admission.keys import BucketKeys
from seckill.admission.marks import MarkWriter
from seckill.admission.observer import AdmissionObserver
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import ADMIT, Scripts, Status, pack
from seckill.domain.clock import Clock
from seckill.domain.ids import AttemptId, ReservationId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import BucketId

__all__ = ["Batcher", "Request", "Waiting"]

_log = structlog.get_logger()

_BACKOFF_MS_MIN: Final = 20
_BACKOFF_MS_MAX: Final = 200
_FENCE_LOOK_MS: Final = 100
_FAIL_FAST_AFTER_MS: Final = 500
_PAUSED_RETRY_AFTER_MS: Final = 5_000
_HEAD: Final = 5
_ANSWER: Final = 4
_NEW_SUCCESS: Final = int(Outcome.SUCCESS)
_OUTCOMES: Final = {int(outcome): outcome for outcome in Outcome}


class Waiting(Protocol):
    """A purchase request that waits for its decision, as its batcher sees it.

    Whoever asks brings the record: a call back costs a tenth of a future and its task's wake-up.

    Attributes:
        user_id_bytes: length of the user id as it is sent; set by the batcher.
        deadline_ms: monotonic; when it is answered as undecided; set by the batcher.
        traceparent: the trace that it belongs to, W3C; empty for none.
    """

    user_id: UserId
    attempt_id: AttemptId
    quantity: int
    traceparent: str
    user_id_bytes: int
    deadline_ms: float

    def decided(self, decision: Decision) -> None:
        """Here is the decision. Called once; must be quick and must not raise."""
        ...


class Request:
    """A `Waiting` for callers that await: completes a future, which they may cancel."""

    __slots__ = (
        "attempt_id",
        "deadline_ms",
        "decision",
        "quantity",
        "traceparent",
        "user_id",
        "user_id_bytes",
    )

    def __init__(self, user_id: UserId, attempt_id: AttemptId, quantity: int) -> None:
        self.user_id = user_id
        self.attempt_id = attempt_id
        self.quantity = quantity
        self.traceparent = ""
        self.user_id_bytes = 0
        self.deadline_ms = 0.0
        self.decision: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()

    def decided(self, decision: Decision) -> None:
        """See Waiting."""
        if not self.decision.done():
            self.decision.set_result(decision)


class Batcher:
    """The queue of one bucket in one process.

    Args:
        start: starts a coroutine as a task that outlives the request and has an owner.
        circuit: says whether a batch may be sent.
        changed: called with epoch, seq and stock of the bucket, as each reply shows them, before
            anybody is told what the reply says.
    """

    def __init__(
        self,
        bucket_id: BucketId,
        *,
        keys: BucketKeys,
        scripts: Scripts,
        buckets: Buckets,
        ids: ReservationIds,
        marks: MarkWriter,
        clock: Clock,
        bounds: Bounds,
        observer: AdmissionObserver,
        circuit: Circuit,
        start: Callable[[Coroutine[Any, Any, None]], object],
        changed: Callable[[int, int, int], None],
    ) -> None:
        self._bucket_id = bucket_id
        self._keys = (keys.meta, keys.buyers, keys.outbox)
        self._scripts = scripts
        self._buckets = buckets
        self._ids = ids
        self._marks = marks
        self._clock = clock
        self._bounds = bounds
        self._observer = observer
        self._circuit = circuit
        self._start = start
        self._changed = changed
        self._queue: deque[Waiting] = deque()
        self._queue_told = 0
        self._pumping = False
        self._closed = False
        self._epoch = 0  # 0: not known yet
        self._fenced: Status | None = None
        self._away_since_ms: float | None = None

    @property
    def fenced(self) -> Status | None:
        """Why the bucket is not trusted, or None."""
        return self._fenced

    @property
    def epoch(self) -> int:
        """The epoch under which this process knows the bucket; 0 when it does not yet."""
        return self._epoch

    def submit(self, request: Waiting) -> Decision | None:
        """Queue a request.

        Returns:
            None: it will be decided, within `Bounds.queue_wait_ms_max` and one call. Or the
            decision at once when it is certain that Redis cannot be asked in that time.
        """
        # Measured here and not in the pump: a text that cannot be sent is its caller's error, and
        # must not stop those who wait behind it.
        user_id = request.user_id
        request.user_id_bytes = len(user_id) if user_id.isascii() else len(user_id.encode())
        now = self._clock.monotonic_ms()
        if self._closed:
            return self._undecided("redis")
        if self._fenced is not None:
            return self._undecided("fenced")
        if len(self._queue) >= self._bounds.queue_entries_max:
            return self._undecided("queue_full")
        if self._circuit.refuses():
            return self._undecided("circuit_open")
        if self._pumping:
            if self._away_since_ms is not None and now - self._away_since_ms > _FAIL_FAST_AFTER_MS:
                return self._undecided("redis")
        else:
            self._pumping = True
            self._start(self._pump())
        request.deadline_ms = now + self._bounds.queue_wait_ms_max
        self._queue.append(request)
        return None

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, sent or watched."""
        return not self._pumping and self._fenced is None

    def close(self) -> None:
        """Answer whoever still waits, and everybody who comes later, as undecided.

        To be called when the tasks that were started have ended. One that was cancelled before
        its first step could not do this itself.
        """
        self._closed = True
        self._give_up_queue()

    def _undecided(self, cause: str) -> Decision:
        self._observer.undecided(cause)
        return Decision(Outcome.UNDECIDED, retry_after_ms=self._bounds.retry_after_ms, cause=cause)

    def _give_up(self, batch: list[Waiting], cause: str) -> None:
        for request in batch:
            request.decided(self._undecided(cause))

    def _in_time(self, batch: list[Waiting], cause: str) -> list[Waiting]:
        """Answer what is out of time, return the rest."""
        now = self._clock.monotonic_ms()
        if batch and batch[0].deadline_ms > now:
            return batch  # the first one came first, and all may wait equally long
        late = [request for request in batch if request.deadline_ms <= now]
        self._give_up(late, cause)
        return [request for request in batch if request.deadline_ms > now]

    def _take(self) -> list[Waiting]:
        batch: list[Waiting] = []
        size = 0
        while self._queue and len(batch) < self._bounds.batch_entries_max:
            size += self._queue[0].user_id_bytes
            if batch and size > self._bounds.batch_bytes_max:
                break
            batch.append(self._queue.popleft())
        self._tell_queue()
        return batch

    def _tell_queue(self) -> None:
        self._observer.queue_changed(len(self._queue) - self._queue_told)
        self._queue_told = len(self._queue)

    def _give_up_queue(self) -> None:
        """Answer whatever is queued as undecided."""
        self._give_up(list(self._queue), "redis")
        self._queue.clear()
        self._tell_queue()

    async def _pump(self) -> None:
        """Decide what is queued, batch by batch, until nothing is."""
        try:
            # One turn of the loop: what arrives together is decided together.
            await asyncio.sleep(0)
            while self._queue:
                batch = self._in_time(self._take(), "timeout")
                if batch:
                    await self._decide(batch)
        except asyncio.CancelledError:
            self._give_up_queue()
            raise
        finally:
            self._pumping = False

    async def _decide(self, batch: list[Waiting]) -> None:
        """Decide a batch as one call of the circuit."""
        try:
            call = await self._circuit.begin()
        except asyncio.CancelledError:
            self._give_up(batch, "redis")
            raise
        if call is None:
            self._give_up(batch, "circuit_open")
            return
        try:
            in_time = await self._send_until_decided(batch)
        except BaseException:
            call.abandon()
            raise
        call.end(failed=not in_time)

    async def _send_until_decided(self, batch: list[Waiting]) -> bool:
        """Send a batch until it is decided, or every request in it is out of time.

        Returns:
            Whether Redis has decided all that was in it.
        """
        backoff_ms = _BACKOFF_MS_MIN
        cause = "timeout"
        asked = len(batch)
        try:
            while batch:
                try:
                    if await self._send(batch):
                        if self._away_since_ms is not None:
                            self._away_since_ms = None
                            _log.info("Redis decides again", bucket=self._bucket_id)
                        return len(batch) == asked
                except StockUnavailable as error:
                    self._observer.redis_failed(error.kind)
                    if self._away_since_ms is None:
                        self._away_since_ms = self._clock.monotonic_ms()
                        _log.warning("Redis cannot decide", kind=error.kind, error=str(error))
                    cause = "not_durable" if error.kind == "not_durable" else "redis"
                    if error.kind == "write_refused":
                        # A full disk or a full memory does not heal within a buyer's patience.
                        self._give_up(batch, cause)
                        return False
                    batch = self._in_time(batch, cause)
                    await asyncio.sleep(backoff_ms / 1000)
                    backoff_ms = min(backoff_ms * 2, _BACKOFF_MS_MAX)
                # Who runs out of time while a failed call is made again does so by that failure.
                batch = self._in_time(batch, cause)
        except asyncio.CancelledError:
            self._give_up(batch, "redis")
            raise
        except Exception:  # noqa: BLE001  -- those behind must not be stopped by this batch
            _log.exception("a batch could not be decided", bucket=self._bucket_id)
            self._give_up(batch, "redis")
        return False

    async def _send(self, batch: list[Waiting]) -> bool:
        """Send a batch once. True when every request in it has its answer."""
        if self._epoch == 0 and not await self._learn_epoch():
            self._give_up(batch, "fenced")
            return True
        epoch = self._epoch
        request: list[Any] = [
            epoch,
            self._marks.acknowledged(self._bucket_id, epoch),
            self._scripts.touch,
        ]
        for one in batch:
            request += (one.user_id, one.attempt_id, one.quantity)
        traces = {at: one.traceparent for at, one in enumerate(batch, 1) if one.traceparent}
        more = (pack(traces),) if traces else ()
        sent_at_ms = self._clock.monotonic_ms()
        self._marks.sending(self._bucket_id, epoch)
        try:
            reply = await self._scripts.run(ADMIT, self._keys, request, *more, durable=True)
            status = Status(reply[0])
            if status is Status.OK and self._fenced is None:
                self._marks.acknowledge(self._bucket_id, epoch, reply[3])
        finally:
            self._marks.settled(self._bucket_id, epoch)
        if status is Status.EPOCH and reply[2] > epoch:
            self._epoch = reply[2]  # it was opened anew; the batch is sent again under that epoch
            return False
        if status is not Status.OK or self._fenced is not None:
            self._fence(status)
            self._give_up(batch, "fenced")
            return True
        self._observer.batch_decided(len(batch), self._clock.monotonic_ms() - sent_at_ms)
        self._changed(*reply[2:_HEAD])
        self._answer(batch, reply)
        return True

    def _answer(self, batch: list[Waiting], reply: list[Any]) -> None:
        assert len(reply) == _HEAD + _ANSWER * len(batch), "one answer for each request"
        codes, epochs, seqs, ns = (reply[_HEAD + at :: _ANSWER] for at in range(_ANSWER))
        reserved = [(epoch, seq) for epoch, seq in zip(epochs, seqs, strict=True) if epoch]
        ids = self._ids.encode_in_bucket(self._bucket_id, reserved) if reserved else []
        next_id = iter(ids).__next__
        now_ms = reply[1]
        for one, code, epoch, n in zip(batch, codes, epochs, ns, strict=True):
            if code == _NEW_SUCCESS and n == 0:
                one.decided(Decision(Outcome.SUCCESS, next_id()))
            else:
                name = next_id() if epoch else None
                one.decided(self._decision(_OUTCOMES[code], name, n, now_ms))

    def _decision(
        self, outcome: Outcome, reservation_id: ReservationId | None, n: int, now_ms: int
    ) -> Decision:
        """One answer of admit.lua; its head says what ``n`` is for each code."""
        match outcome:
            case Outcome.SUCCESS:
                return Decision(outcome, reservation_id, replayed=n == 1)
            case Outcome.NOT_ENOUGH_LEFT:
                return Decision(outcome, left_units=n)
            case Outcome.NOT_STARTED:
                return Decision(outcome, starts_at_ms=n, retry_after_ms=n - now_ms)
            case Outcome.PAUSED:
                return Decision(outcome, retry_after_ms=_PAUSED_RETRY_AFTER_MS)
            case _:
                return Decision(outcome, reservation_id)

    async def _learn_epoch(self) -> bool:
        view = await self._buckets.look(self._bucket_id)
        if view.status is not Status.OK:
            self._fence(view.status)
            return False
        self._epoch = view.epoch
        return True

    def _fence(self, status: Status) -> None:
        """Trust the bucket no more until it is opened under a later epoch; watch for that."""
        if self._fenced is None:
            self._fenced = status
            self._observer.fenced(1)
            _log.warning("bucket is fenced", bucket=self._bucket_id, reason=status.name.lower())
            self._start(self._await_opening())

    async def _await_opening(self) -> None:
        while True:
            await asyncio.sleep(_FENCE_LOOK_MS / 1000)
            try:
                view = await self._buckets.look(self._bucket_id)
            except StockUnavailable as error:
                self._observer.redis_failed(error.kind)
                continue
            if view.status is Status.OK and view.epoch > self._epoch:
                self._epoch = view.epoch
                self._fenced = None
                self._observer.fenced(-1)
                _log.info("bucket is open again", bucket=self._bucket_id, epoch=view.epoch)
                return
