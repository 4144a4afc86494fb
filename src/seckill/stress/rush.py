"""The rush: every click leaves when it is meant to, whatever the server does.

The pacer walks the schedule and hands each due click to its buyer's connection. It never waits
for an answer. Between two slices of sending it lets the loop read, so that an answer's arrival is
noted when it arrives; how late the sending itself was is recorded click by click.
"""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Final

from seckill.domain.outcomes import Outcome
from seckill.stress.click import RETRYABLE_ENDS, Click, End
from seckill.stress.connection import Connection, ConnectionPool
from seckill.stress.plan import PlannedClick, StressPlan
from seckill.stress.target import Target

__all__ = ["Buyer", "Rush"]

_SLICE_US: Final = 3_000
"""Sending pauses after so long to let answers be read."""
_SWEEP_US: Final = 20_000
"""Timeouts are looked for so often; one may be noticed later by this."""
_LEAD_US: Final = 20_000
"""The start lies so far ahead that the pacer is ready for it."""
_RETRY_WITHOUT_ADVICE_S: Final = 0.5
"""Wait before a retry when no Retry-After was given."""
_RETRY_JITTER: Final = 0.25
"""Retries wait up to this much longer, as a part of the wait, so that they do not come at once."""


class Buyer:
    """One buyer: who they are, their connection, and what they have heard so far.

    Attributes:
        number: from 0.
        user_id: who they say they are.
        head: the unchanging part of their requests.
        connection: the one they click on.
        clicks: their planned clicks, then the retries that they made.
        open_count: requests that have not ended.
        retries_left: further requests they may make.
        decided: they were told something final.
    """

    __slots__ = (
        "clicks",
        "connection",
        "decided",
        "head",
        "number",
        "open_count",
        "retries_left",
        "user_id",
    )

    def __init__(
        self, number: int, user_id: str, head: bytes, connection: Connection, retries: int
    ) -> None:
        self.number = number
        self.user_id = user_id
        self.head = head
        self.connection = connection
        self.clicks: list[Click] = []
        self.open_count = 0
        self.retries_left = retries
        self.decided = False


class Rush:
    """Sends a schedule and records what becomes of each click.

    Attributes:
        buyers: all buyers, by number.
        clicks: the planned clicks, in the order of the schedule.
        retries: the retries that were made, in that order.
        start_us: the instant 0 of all times recorded here (monotonic µs).
        sent_count: requests handed to the kernel.
        answer_count: answers that came.
        success_count: answers "success" among them.
        refused_count: answers with another final outcome.
        failure_count: requests that ended without a proper answer.
        over: nothing is recorded any more.
    """

    def __init__(
        self,
        plan: StressPlan,
        target: Target,
        pool: ConnectionPool,
        schedule: list[PlannedClick],
        *,
        now_us: Callable[[], int],
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._clock_us = now_us
        self._timeout_us = round(plan.timeout_s * 1e6)
        # Another stream of the same seed: answers must not move what was planned.
        self._rng = random.Random(f"{plan.seed}/retries")  # noqa: S311
        self._wake = asyncio.Event()
        self._retry_order = 0
        self._retry_heap: list[tuple[int, int, Click]] = []
        self._unanswered: deque[Click] = deque()
        self._unanswered_retries: list[tuple[int, int, Click]] = []
        self._bodies = {
            quantity: _body_of(quantity) for quantity in {click.quantity for click in schedule}
        }
        self.start_us = 0
        self.sent_count = 0
        self.answer_count = 0
        self.success_count = 0
        self.refused_count = 0
        self.failure_count = 0
        self.over = False
        self.buyers = []
        for number in range(plan.buyers):
            user_id = plan.user_id(number)
            head = target.purchase_head(user_id)
            self.buyers.append(Buyer(number, user_id, head, pool.of_buyer(number), plan.retries))
        self.clicks: list[Click] = []
        self.retries: list[Click] = []
        for planned in schedule:
            buyer = self.buyers[planned.buyer]
            click = Click(
                self,
                buyer,
                number=planned.number,
                retry=0,
                quantity=planned.quantity,
                intended_us=planned.offset_us,
            )
            buyer.clicks.append(click)
            buyer.open_count += 1
            self.clicks.append(click)
        self._open_count = len(self.clicks)

    def now_us(self) -> int:
        """µs since the start of the rush."""
        return self._clock_us() - self.start_us

    @property
    def ended_count(self) -> int:
        """Requests that have ended."""
        return len(self.clicks) + self._retry_order - self._open_count

    async def run(self, tick: Callable[[], None]) -> None:
        """Send everything and wait until every request has ended, or the deadline has come.

        Args:
            tick: called a few times a second and more often.
        """
        self.start_us = self._clock_us() + _LEAD_US
        deadline_us = round(self._plan.deadline_s * 1e6)
        next_sweep_us = 0
        position = 0
        while self._open_count:
            if self._pool.bug is not None:
                raise self._pool.bug
            now_us = self.now_us()
            if now_us >= deadline_us:
                break
            position = self._send_planned(position, now_us)
            self._send_retries(now_us)
            if now_us >= next_sweep_us:
                self._time_out(now_us)
                tick()
                next_sweep_us = now_us + _SWEEP_US
            await self._rest(position, next_sweep_us)
        self._close()
        tick()

    def _send_planned(self, position: int, now_us: int) -> int:
        clicks = self.clicks
        until_us = now_us + _SLICE_US
        while position < len(clicks) and clicks[position].intended_us <= now_us:
            self._send(clicks[position])
            self._unanswered.append(clicks[position])
            position += 1
            if (position & 15) == 0 and self.now_us() >= until_us:
                break
        return position

    def _send_retries(self, now_us: int) -> None:
        heap = self._retry_heap
        while heap and heap[0][0] <= now_us:
            _, order, click = heapq.heappop(heap)
            buyer = click.buyer
            if buyer.decided:
                # A late answer settled it: nobody asks again who knows.
                buyer.open_count -= 1
                self._open_count -= 1
                continue
            buyer.clicks.append(click)
            self.retries.append(click)
            buyer.connection.leave_when_stuck()
            self._send(click)
            heapq.heappush(
                self._unanswered_retries, (click.intended_us + self._timeout_us, order, click)
            )

    def _send(self, click: Click) -> None:
        key = b""
        if self._plan.idempotent:
            # A key belongs to one user and one sale, so it need not name either.
            key = b"Idempotency-Key: click-%d\r\n" % click.number
        request = click.buyer.head + key + self._bodies[click.quantity]
        click.buyer.connection.submit(click, request)

    def _time_out(self, now_us: int) -> None:
        # All planned clicks wait equally long, so the oldest of them is the first to give up.
        while self._unanswered:
            click = self._unanswered[0]
            if click.end is End.PENDING:
                if click.intended_us + self._timeout_us > now_us:
                    break
                click.time_out()
            self._unanswered.popleft()
        while self._unanswered_retries and self._unanswered_retries[0][0] <= now_us:
            heapq.heappop(self._unanswered_retries)[2].time_out()

    async def _rest(self, position: int, next_sweep_us: int) -> None:
        """Let the loop read, until the next click, retry or sweep is due."""
        due_us = next_sweep_us
        if position < len(self.clicks):
            due_us = min(due_us, self.clicks[position].intended_us)
        if self._retry_heap:
            due_us = min(due_us, self._retry_heap[0][0])
        rest_us = due_us - self.now_us()
        if rest_us <= 0:
            await asyncio.sleep(0)
            return
        self._wake.clear()
        handle = asyncio.get_running_loop().call_later(rest_us / 1e6, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            handle.cancel()

    def settled(self, click: Click) -> None:
        """A request has ended, or an answer came late to one that had."""
        buyer = click.buyer
        if click.end is End.ANSWERED:
            self.answer_count += 1
            if click.outcome is Outcome.SUCCESS:
                self.success_count += 1
            elif not click.retryable:
                self.refused_count += 1
        elif click.end is End.MISANSWERED:
            self.answer_count += 1
            self.failure_count += 1
        else:
            self.failure_count += 1
        if not click.retryable:
            buyer.decided = True
        if click.late:
            self.failure_count -= 1
            return
        buyer.open_count -= 1
        self._open_count -= 1
        if buyer.open_count == 0 and not buyer.decided and buyer.retries_left:
            self._plan_retry(buyer)
        elif self._open_count == 0:
            self._wake.set()

    def _plan_retry(self, buyer: Buyer) -> None:
        last = max(buyer.clicks, key=lambda click: click.done_us)
        # What the buyer does not know at all is asked again before what was put off.
        source = next((click for click in buyer.clicks if click.end in RETRYABLE_ENDS), last)
        wait_s = _RETRY_WITHOUT_ADVICE_S if last.retry_after_s is None else last.retry_after_s
        wait_s = min(wait_s, self._plan.retry_after_max_s)
        wait_us = round(wait_s * (1 + self._rng.random() * _RETRY_JITTER) * 1e6)
        buyer.retries_left -= 1
        click = Click(
            self,
            buyer,
            number=source.number,
            retry=self._plan.retries - buyer.retries_left,
            quantity=source.quantity,
            intended_us=self.now_us() + wait_us,
        )
        buyer.open_count += 1
        self._open_count += 1
        self._retry_order += 1
        heapq.heappush(self._retry_heap, (click.intended_us, self._retry_order, click))
        self._wake.set()

    def _close(self) -> None:
        """Give up what is under way or was not sent; a retry that is not due is never made."""
        for buyer in self.buyers:
            buyer.retries_left = 0
        for click in [*self.clicks, *self.retries]:
            click.time_out()
        self.over = True


def _body_of(quantity: int) -> bytes:
    """The end of a request's head, and its body. One unit is what an empty body asks for."""
    if quantity == 1:
        return b"Content-Length: 0\r\n\r\n"
    body = f'{{"quantity":{quantity}}}'.encode()
    return b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
